"""The rules on requests and on what goes with them: durations, deadlines, memory tokens of bursts."""

from __future__ import annotations

from collections.abc import Sequence

from nnhal.device import ExecutionConfig
from nnhal.memory import HardwareBuffer, Memory
from nnhal.model import BufferToken, DataLocation, Model, Operand, Request, RequestArgument
from nnhal.types import FL3, FL4, FL5, LOOP_TIMEOUT_MAX_NS, OPERAND_TYPES, FeatureLevel, OperandTypeInfo
from nnhal.validation_graph import LIMITS, LevelLimits, pool_problem
from nnhal.validation_rules import LARGEST_UNSIGNED, Violation, bounded_product, number_of_bytes

_NOWHERE = DataLocation()
_TYPES: dict[int, OperandTypeInfo] = {int(code): known for code, known in OPERAND_TYPES.items()}


class RequestCheck:
    """Checks a request against a valid model and gathers what it finds."""

    def __init__(self, request: Request, model: Model, level: FeatureLevel, *, fenced: bool) -> None:
        self.request = request
        self.model = model
        self.limits: LevelLimits = LIMITS[level]
        self.fenced = fenced
        self.found: list[Violation] = []

    def add(self, label: str, text: str) -> None:
        """Notes a breach."""
        self.found.append(Violation(label, text))

    def run(self) -> list[Violation]:
        """Checks everything."""
        request, main = self.request, self.model.main
        for number, pool in enumerate(request.pools):
            self._pool(number, pool)
        for words, arguments, indexes in (
            ("input", request.inputs, main.input_indexes),
            ("output", request.outputs, main.output_indexes),
        ):
            if len(arguments) != len(indexes):
                self.add("R1", f"the request has {len(arguments)} {words}s where the model has {len(indexes)}")
                continue
            for number, (argument, index) in enumerate(zip(arguments, indexes, strict=True)):
                self._argument(f"{words} {number}", argument, main.operands[index], output=words == "output")
        self._shared_buffers()
        return self.found

    def _pool(self, number: int, pool: object) -> None:
        if isinstance(pool, BufferToken):
            if self.limits.level < FL4:
                self.add("R9", f"pool {number} is a driver-managed buffer, which needs level 1.3")
            elif pool.token <= 0:
                self.add("R9", f"pool {number} has the token {pool.token}, which no buffer has")
            return
        problem = pool_problem(pool, self.limits)
        if problem:
            self.add("R9", f"pool {number} {problem}")

    def _argument(self, name: str, argument: RequestArgument, operand: Operand, *, output: bool) -> None:
        if argument.has_no_value:
            if argument.dimensions or argument.location != _NOWHERE:
                self.add("R2", f"{name} has no value but a location or dimensions")
            return
        plain = self._location(name, argument.location)
        known = _TYPES.get(operand.type)
        if known is None or known.size == 0:
            return  # only the driver knows what an extension's operand needs
        shape = self._shape(name, argument, operand, known, output=output)
        if shape is not None and plain:
            due = known.size * bounded_product(shape)
            if argument.location.length != due:
                text = f"{name} has {argument.location.length} bytes where {number_of_bytes(due)} are due"
                self.add("R8", text)

    def _location(self, name: str, place: DataLocation) -> bool:
        """Whether the argument lies in plain memory, where its length counts."""
        pools = self.request.pools
        if not 0 <= place.pool_index < len(pools):
            self.add("R3", f"{name} is in pool {place.pool_index} of {len(pools)}")
            return False
        pool = pools[place.pool_index]
        if not isinstance(pool, Memory) or (isinstance(pool, HardwareBuffer) and not pool.blob):
            if place.offset != 0 or place.length != 0 or place.padding != 0:
                self.add("R4", f"{name} takes a part of a buffer that is used whole")
            return False
        padding = place.padding if self.limits.level >= FL5 else 0
        in_range = 0 <= place.offset <= LARGEST_UNSIGNED and padding >= 0
        if place.length <= 0 or not in_range or place.offset + place.length + padding > pool.size:
            text = f"{name} is at {place.offset}+{place.length}+{padding} of {pool.size} bytes"
            self.add("R3", text)
            return False
        return True

    def _shape(
        self, name: str, argument: RequestArgument, operand: Operand, known: OperandTypeInfo, *, output: bool
    ) -> tuple[int, ...] | None:
        """Dimensions that are fully known from model and request; None where they are not, or wrong."""
        given, modelled = argument.dimensions, operand.dimensions
        if not known.tensor:
            if given:
                self.add("R5", f"{name} is a scalar with dimensions {given}")
                return None
            return ()
        if given:
            if min(given) < 0 or max(given) > self.limits.number:
                self.add("R5", f"{name} has dimensions {given}, out of range")
                return None
            if modelled and len(given) != len(modelled):
                self.add("R5", f"{name} has dimensions {given} where the model says {modelled}")
                return None
            if any(a != b and b != 0 and not (output and a == 0) for a, b in zip(given, modelled, strict=False)):
                self.add("R5", f"{name} has dimensions {given} where the model says {modelled}")
                return None
            shape = tuple(a or b for a, b in zip(given, modelled or given, strict=True)) if output else given
        else:
            shape = modelled
        if shape and min(shape) > 0:
            return shape
        if not output:
            self.add("R6", f"{name} has dimensions {shape}, which are not fully known")
        elif self.limits.level < FL3 or self.fenced:
            self.add("R7", f"{name} has dimensions {shape}, which are not fully known")
        return None

    def _shared_buffers(self) -> None:
        """One driver-managed buffer serves several inputs, or one output alone."""
        if not any(isinstance(pool, BufferToken) for pool in self.request.pools):
            return
        read = self._tokens(self.request.inputs)
        written = self._tokens(self.request.outputs)
        if len(set(written)) != len(written) or set(written) & set(read):
            self.add("R10", "a driver-managed buffer is an output and something else as well")

    def _tokens(self, arguments: Sequence[RequestArgument]) -> list[int]:
        pools, tokens = self.request.pools, []
        for argument in arguments:
            index = argument.location.pool_index
            if not argument.has_no_value and 0 <= index < len(pools):
                pool = pools[index]
                if isinstance(pool, BufferToken):
                    tokens.append(pool.token)
        return tokens


def execution_violations(config: ExecutionConfig, deadline: int | None, duration: int | None) -> list[Violation]:
    """What is wrong with the durations that go with an execution."""
    found = []
    loop = config.loop_timeout_duration
    for name, value in (("deadline", deadline), ("duration", duration), ("loop timeout", loop)):
        if value is not None and value < 0:
            found.append(Violation("R11", f"the {name} of {value} ns is negative"))
    if loop is not None and loop > LOOP_TIMEOUT_MAX_NS:
        found.append(Violation("R11", f"the loop timeout of {loop} ns is above {LOOP_TIMEOUT_MAX_NS} ns"))
    return found


def token_violations(request: Request, memory_tokens: Sequence[int]) -> list[Violation]:
    """What is wrong with the memory tokens of a burst."""
    found = []
    if len(memory_tokens) != len(request.pools):
        found.append(Violation("R12", f"{len(memory_tokens)} tokens for {len(request.pools)} pools"))
    found += [Violation("R12", f"the token {token} is below -1") for token in memory_tokens if token < -1]
    return found
