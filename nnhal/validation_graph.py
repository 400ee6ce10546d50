"""The rules on models: operands, graphs, pools and the extension table. Single operations: `validation_operation`.

Written for speed: it runs for every case, so numbers are compared with plain integers and words are made on a breach.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nnhal.memory import HardwareBuffer, Memory
from nnhal.model import ChannelQuant, DataLocation, Model, Operand, Operation, Subgraph
from nnhal.types import (
    BASE_CODE_MAX,
    FL3,
    FL4,
    FL5,
    LARGEST_OPERAND_TYPE,
    LARGEST_OPERATION,
    OPERAND_TYPES,
    FeatureLevel,
    OperandLifeTime,
    OperandType,
    OperationType,
)
from nnhal.validation_operation import control_flow_violations, operation_violations, type_name
from nnhal.validation_rules import (
    LARGEST_SIGNED,
    LARGEST_UNSIGNED,
    Violation,
    bounded_product,
    number_of_bytes,
)

_TEMPORARY, _INPUT, _OUTPUT, _COPY, _REFERENCE, _NO_VALUE, _SUBGRAPH = map(int, OperandLifeTime)
_WRITTEN_BEFORE = frozenset({_INPUT, _COPY, _REFERENCE, _NO_VALUE, _SUBGRAPH})
_CONSTANTS = frozenset({_COPY, _REFERENCE})
_LOCATED = frozenset({_COPY, _REFERENCE, _SUBGRAPH})
_NOWHERE = Operand.location  # the default: most operands share it, and need no closer look
_SMALLEST_SCALE = 2.0**-150  # what is not above it becomes 0 as float32
_PER_CHANNEL = int(OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL)
_SUBGRAPH_TYPE = int(OperandType.SUBGRAPH)
_OEM = int(OperandType.OEM)
_OEM_OPERATION = int(OperationType.OEM_OPERATION)
_OPERATION_NAMES = {int(code): code.name for code in OperationType}
_SHOWN = 8  # graphs that a sentence names
_ZERO, _NOT_NEGATIVE, _POSITIVE, _ANY = range(4)  # what a scale must be
EXTENSION_NAME = re.compile(r"(?=[^.]*\.)[a-z0-9._]+")  # linear in the length, whatever the name


class _Kind(NamedTuple):
    """What validation needs to know of an operand type at a level."""

    tensor: bool
    size: int
    scale: int
    low: int
    high: int
    unchecked: bool


def _kind(code: OperandType) -> _Kind:
    known = OPERAND_TYPES[code]
    oem = code in (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)
    scale = _POSITIVE if known.scaled else _ZERO
    if code == OperandType.TENSOR_INT32:
        scale = _NOT_NEGATIVE  # above 0 for the biases of quantised operations
    low, high = known.zero_points or (0, 0)
    return _Kind(known.tensor, known.size, _ANY if oem else scale, low, high, oem)


def _kinds(level: FeatureLevel) -> dict[int, _Kind]:
    known = [t for t in OperandType if t <= LARGEST_OPERAND_TYPE[level] or (t >= _OEM and level < FL5)]
    return {int(t): _kind(t) for t in known}


class LevelLimits(NamedTuple):
    """The numbers that differ from level to level."""

    level: FeatureLevel
    kinds: dict[int, _Kind]
    operations: int
    number: int
    prefix: int
    counts_consumers: bool


LIMITS: dict[int, LevelLimits] = {
    int(level): LevelLimits(
        level,
        _kinds(level),
        LARGEST_OPERATION[level],
        LARGEST_SIGNED if level >= FL5 else LARGEST_UNSIGNED,
        0x7FFF if level >= FL5 else 0xFFFF,
        level <= FL4,
    )
    for level in FeatureLevel
}


def is_extension_code(code: int, limits: LevelLimits) -> bool:
    """Whether a type or operation code is an extension's at a level. Up to level 4 the prefix has the sign bit too."""
    if limits.level < FL3:
        return False
    return BASE_CODE_MAX < code <= limits.number or (limits.level < FL5 and -(2**31) <= code < 0)


@dataclass
class GraphCheck:
    """Checks one graph of a model and gathers what it finds.

    Attributes:
        number: of the referenced graph; None for the main one.
        consumers: whether the numbers of consumers are compared, where the level has them.
    """

    model: Model
    graph: Subgraph
    number: int | None
    limits: LevelLimits
    found: list[Violation]
    consumers: bool = True

    def add(self, label: str, text: str, *, operand: int | None = None, operation: int | None = None) -> None:
        """Notes a breach."""
        where = "" if self.number is None else f"graph {self.number}, "
        if operation is not None:
            code = self.graph.operations[operation].type
            name = _OPERATION_NAMES.get(code)
            where += f"operation {operation}" + (f" ({name})" if name else f" (code {code})")
        elif operand is not None:
            shown = self.graph.operands[operand]
            where += f"operand {operand} ({type_name(shown.type)})"
        else:
            where += "the list" if label in ("G13", "G14") else "the graph"
        self.found.append(Violation(label, f"{where} {text}", self.number, operand, operation))

    def run(self) -> None:
        """Checks everything of this graph."""
        graph = self.graph
        if not graph.operands or not graph.operations:
            self.add("G1", "has no operands" if not graph.operands else "has no operations")
        kinds = self.limits.kinds
        for index, operand in enumerate(graph.operands):
            self._operand(index, operand, kinds.get(operand.type))
        self._list(graph.input_indexes, _INPUT, "inputs")
        self._list(graph.output_indexes, _OUTPUT, "outputs")
        self._operations()

    # --- operands ---

    def _operand(self, index: int, operand: Operand, kind: _Kind | None) -> None:
        lifetime = operand.lifetime
        if kind is None:
            self._extension_operand(index, operand)
        else:
            dimensions = operand.dimensions
            if kind.tensor:
                if dimensions:
                    if min(dimensions) < 0 or max(dimensions) > self.limits.number:
                        self.add("G3", f"has dimensions {dimensions}, out of range", operand=index)
                elif self.limits.level < FL3:
                    self.add("G3", "has no dimensions, which needs level 1.2", operand=index)
                if lifetime in _CONSTANTS and (not dimensions or min(dimensions) <= 0):
                    self.add("G4", f"is a constant with dimensions {dimensions}", operand=index)
            elif dimensions:
                self.add("G3", f"is a scalar with dimensions {dimensions}", operand=index)
            if not kind.unchecked:
                self._quantization(index, operand, kind)
        if (operand.type == _SUBGRAPH_TYPE) != (lifetime == _SUBGRAPH):
            self.add("G8", f"has lifetime {_lifetime(lifetime)}", operand=index)
        elif not 0 <= lifetime <= (_SUBGRAPH if self.limits.level >= FL4 else _NO_VALUE):
            self.add("G8", f"has the lifetime {lifetime}, which is none", operand=index)
        place = operand.location
        if place is not _NOWHERE or lifetime in _LOCATED:
            self._location(index, operand, kind, place)

    def _extension_operand(self, index: int, operand: Operand) -> None:
        if not is_extension_code(operand.type, self.limits):
            self.add("G2", f"has a type that level {self.limits.level.version} does not know", operand=index)
            return
        if operand.dimensions and (min(operand.dimensions) < 0 or max(operand.dimensions) > self.limits.number):
            self.add("G3", f"has dimensions {operand.dimensions}, out of range", operand=index)
        if operand.scale != 0:
            self.add("G5", f"is an extension's with scale {operand.scale}", operand=index)
        if operand.zero_point != 0:
            self.add("G6", f"is an extension's with zero point {operand.zero_point}", operand=index)
        if operand.extra_params is not None and not isinstance(operand.extra_params, (bytes, bytearray)):
            self.add("G7", "is an extension's with per-channel parameters", operand=index)

    def _quantization(self, index: int, operand: Operand, kind: _Kind) -> None:
        scale, demand = operand.scale, kind.scale
        if demand == _ZERO:
            if scale != 0:
                self.add("G5", f"has scale {scale}, not 0", operand=index)
        elif demand == _POSITIVE:
            if not scale > _SMALLEST_SCALE:
                self.add("G5", f"has scale {scale}, not above 0", operand=index)
        elif not scale >= 0:
            self.add("G5", f"has scale {scale}, below 0", operand=index)
        if not kind.low <= operand.zero_point <= kind.high:
            text = f"has zero point {operand.zero_point}, not in {kind.low} to {kind.high}"
            self.add("G6", text, operand=index)
        if operand.type == _PER_CHANNEL:
            problem = self._channels(operand)
            if problem:
                self.add("G7", problem, operand=index)
        elif operand.extra_params is not None:
            self.add("G7", "has extra parameters, which its type has not", operand=index)

    def _channels(self, operand: Operand) -> str:
        channel = operand.extra_params
        if not isinstance(channel, ChannelQuant):
            return "has no per-channel parameters"
        if not 0 <= channel.channel_dim < len(operand.dimensions):
            return f"has channel dimension {channel.channel_dim} of {len(operand.dimensions)} dimensions"
        size = operand.dimensions[channel.channel_dim]
        if size == 0:
            return "has an unknown size along its channel dimension"
        if len(channel.scales) != size:
            return f"has {len(channel.scales)} scales for {size} channels"
        if not all(scale > _SMALLEST_SCALE for scale in channel.scales):
            return "has a scale that is not above 0"
        return ""

    def _location(self, index: int, operand: Operand, kind: _Kind | None, place: DataLocation) -> None:
        lifetime = operand.lifetime
        if place.padding != 0:
            self.add("G11", f"has padding {place.padding}", operand=index)
        if lifetime == _SUBGRAPH:
            if place.pool_index != 0 or place.length != 0 or not 0 <= place.offset < len(self.model.referenced):
                self.add("G10", f"refers to graph {place.offset} of {len(self.model.referenced)}", operand=index)
        elif lifetime in _CONSTANTS:
            problem = self._constant(operand, kind, place)
            if problem:
                self.add("G9", problem, operand=index)
        elif place.pool_index != 0 or place.offset != 0 or place.length != 0:
            self.add("G10", "is no constant but has a location", operand=index)

    def _constant(self, operand: Operand, kind: _Kind | None, place: DataLocation) -> str:
        if operand.lifetime == _COPY:
            if place.pool_index != 0:
                return f"is a copied constant in pool {place.pool_index}"
            size = len(self.model.operand_values)
        else:
            if not 0 <= place.pool_index < len(self.model.pools):
                return f"is a constant in pool {place.pool_index} of {len(self.model.pools)}"
            pool = self.model.pools[place.pool_index]
            size = pool.size if isinstance(pool, Memory) else 0
        offset, length = place.offset, place.length
        if offset < 0 or length < 0 or offset + length > size:
            return f"is a constant at {offset}+{length} of {size} bytes"
        if kind is not None and kind.size and (operand.dimensions or not kind.tensor):
            due = kind.size * bounded_product(operand.dimensions) if kind.tensor else kind.size
            if length != due:
                return f"is a constant of {length} bytes where {number_of_bytes(due)} are due"
        return ""

    # --- the graph ---

    def _list(self, indexes: Sequence[int], lifetime: int, words: str) -> None:
        operands = self.graph.operands
        count = len(operands)
        for index in indexes:
            if not 0 <= index < count:
                self.add("G13", f"of {words} has operand {index} of {count}")
            elif operands[index].lifetime != lifetime:
                text = f"of {words} has operand {index} with lifetime {_lifetime(operands[index].lifetime)}"
                self.add("G13", text)
        listed = set(indexes)
        if len(listed) != len(indexes):
            self.add("G13", f"of {words} has an operand twice")
        for index, operand in enumerate(operands):
            if operand.lifetime == lifetime and index not in listed:
                self.add("G14", f"of {words} lacks operand {index} with lifetime {_lifetime(lifetime)}")

    def _operations(self) -> None:
        operands = self.graph.operands
        count = len(operands)
        reads = [0] * count
        written = [operand.lifetime in _WRITTEN_BEFORE for operand in operands]
        for number, operation in enumerate(self.graph.operations):
            good = True
            for index in operation.inputs:
                if not 0 <= index < count:
                    good = False
                    self.add("G16", f"reads operand {index} of {count}", operation=number)
                    continue
                reads[index] += 1
                if not written[index]:
                    self.add("G18", f"reads operand {index} before it is written", operation=number)
            for index in operation.outputs:
                if not 0 <= index < count:
                    good = False
                    self.add("G16", f"writes operand {index} of {count}", operation=number)
                    continue
                lifetime = operands[index].lifetime
                if lifetime != _TEMPORARY and lifetime != _OUTPUT:
                    text = f"writes operand {index} with lifetime {_lifetime(lifetime)}"
                    self.add("G17", text, operation=number)
                elif written[index]:
                    self.add("G19", f"writes operand {index} again", operation=number)
                written[index] = True
            self._operation(number, operation, good)
        if not all(written):
            for index, done in enumerate(written):
                if not done and 0 <= operands[index].lifetime <= _SUBGRAPH:
                    words = "a temporary" if operands[index].lifetime == _TEMPORARY else "an output"
                    self.add("G20", f"is {words} that is never written", operand=index)
        if self.consumers and self.limits.counts_consumers:
            for index, operand in enumerate(operands):
                if operand.number_of_consumers != reads[index]:
                    text = f"has {operand.number_of_consumers} consumers where {reads[index]} reads are"
                    self.add("G12", text, operand=index)

    def _operation(self, number: int, operation: Operation, good: bool) -> None:
        code, limits = operation.type, self.limits
        if not 0 <= code <= limits.operations:
            oem = code == _OEM_OPERATION and limits.level < FL5
            if not oem and not is_extension_code(code, limits):
                text = f"has a code that level {limits.level.version} does not know"
                self.add("G15", text, operation=number)
            return  # what extension operations take is their driver's matter
        if not good:
            return
        operands = self.graph.operands
        inputs = [operands[i] for i in operation.inputs]
        outputs = [operands[i] for i in operation.outputs]
        if code == OperationType.IF or code == OperationType.WHILE:
            problems = control_flow_violations(code, inputs, outputs, self.model)
        else:
            problems = operation_violations(code, inputs, outputs, limits.level)
        for label, text in problems:
            self.add(label, text, operation=number)


def _lifetime(code: int) -> str:
    try:
        return OperandLifeTime(code).name
    except ValueError:
        return str(code)


def pool_problem(pool: object, limits: LevelLimits) -> str:
    """What is wrong with a pool at a level; empty when nothing is."""
    if not isinstance(pool, Memory):
        return f"is {type(pool).__name__}, not memory"
    if isinstance(pool, HardwareBuffer) and limits.level < FL3:
        return "is a hardware buffer, which needs level 1.2"
    if getattr(pool, "descriptor", 0) < 0:
        return "is closed"
    if pool.size <= 0:
        return "has no bytes"
    return ""


def check_whole_model(model: Model, limits: LevelLimits, found: list[Violation]) -> None:
    """The rules on what belongs to no single graph."""
    for number, pool in enumerate(model.pools):
        problem = pool_problem(pool, limits)
        if problem:
            found.append(Violation("G21", f"pool {number} {problem}"))
    if model.extension_name_to_prefix:
        _check_extensions(model, limits, found)
    if model.referenced:
        if limits.level < FL4:
            text = f"the model has referenced graphs, which level {limits.level.version} has not"
            found.append(Violation("G23", text))
        _check_cycles(model, found)


def _check_extensions(model: Model, limits: LevelLimits, found: list[Violation]) -> None:
    table = model.extension_name_to_prefix
    if limits.level < FL3:
        text = f"the model has an extension table, which level {limits.level.version} has not"
        found.append(Violation("G22", text))
    for row in table:
        if not EXTENSION_NAME.fullmatch(row.name):
            found.append(Violation("G22", f"the extension name {row.name!r} is not well formed"))
        if not 0 <= row.prefix <= limits.prefix:
            found.append(Violation("G22", f"the prefix {row.prefix} is not in 0 to {limits.prefix}"))
    if len({row.name for row in table}) != len(table):
        found.append(Violation("G22", "the extension table has a name twice"))
    if len({row.prefix for row in table}) != len(table):
        found.append(Violation("G22", "the extension table has a prefix twice"))


def _check_cycles(model: Model, found: list[Violation]) -> None:
    """Takes away graphs that refer to none of those left, until there are none; what cannot go is in a circle."""
    count = len(model.referenced)
    users: list[list[int]] = [[] for _ in range(count)]
    left = [0] * count  # how many graphs each still refers to
    for number, graph in enumerate(model.referenced):
        used = {o.location.offset for o in graph.operands if o.lifetime == _SUBGRAPH}
        for other in used:
            if 0 <= other < count:
                users[other].append(number)
                left[number] += 1
    free = [number for number in range(count) if not left[number]]
    gone = 0
    while free:
        gone += 1
        for user in users[free.pop()]:
            left[user] -= 1
            if not left[user]:
                free.append(user)
    if gone < count:
        stuck = [number for number in range(count) if left[number]]
        shown = ", ".join(map(str, stuck[:_SHOWN])) + (", ..." if len(stuck) > _SHOWN else "")
        found.append(Violation("G24", f"referenced graphs refer to one another in a circle, among {shown}"))
