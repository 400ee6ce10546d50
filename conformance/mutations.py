"""Changes that make a valid model invalid, whatever its operations: a driver must answer each with INVALID_ARGUMENT.

Data for the negative cases. A change that leaves the model valid (another signature fits) is never offered:
`nnhal.validate.violations` decides. What breaks a rule of one operation comes from `opset.validation.broken`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nnhal.device import CompilationConfig
from nnhal.model import (
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
    count_consumers,
    operand_size,
)
from nnhal.types import (
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    LARGEST_OPERAND_TYPE,
    LARGEST_OPERATION,
    OPERAND_TYPES,
    ExecutionPreference,
    FeatureLevel,
    OperandLifeTime,
    OperandType,
    OperationType,
    Priority,
)
from nnhal.validate import violations

LARGEST_MODEL = 32 * 1024  # bytes of copied constants that a mutation may lead to

Change = tuple[str, Callable[[], Model]]  # what is changed, and what makes the changed model
Changes = Callable[[Model, FeatureLevel], Iterator[Change]]

_LIFE = OperandLifeTime
_CONSTANTS = (_LIFE.CONSTANT_COPY, _LIFE.CONSTANT_REFERENCE)
_COMPUTED = (_LIFE.TEMPORARY_VARIABLE, _LIFE.SUBGRAPH_OUTPUT)


@dataclass(frozen=True)
class Mutant:
    """An invalid model made from a valid one.

    Attributes:
        mutation: name of the mutation.
        change: what was changed, as a phrase.
        label: of the first rule that is broken.
    """

    mutation: str
    change: str
    label: str
    model: Model


@dataclass(frozen=True)
class Mutation:
    """A kind of change.

    Attributes:
        name: for case ids; unique.
        sentence: what is done to the model.
        changes: every place and value, without making the models yet.
    """

    name: str
    sentence: str
    changes: Changes

    def apply(self, model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None) -> list[Mutant]:
        """The mutants of a model that is valid at a level, each invalid there.

        Args:
            model: has at least one operation.
            level: of the device that is asked.
            rng: picks among the places.
            most: the largest number of mutants; all of them when None.
        """
        changes = list(self.changes(model, level))
        if most is not None:
            rng.shuffle(changes)
        found: list[Mutant] = []
        for change, make in changes:
            if most is not None and len(found) >= most:
                break
            mutated = make()
            wrong = violations(mutated, level)
            if wrong:
                found.append(Mutant(self.name, change, wrong[0].label, mutated))
        return found


def mutants(
    model: Model, level: FeatureLevel, rng: random.Random, most: int | None = None
) -> Iterator[Mutant]:
    """Mutants of every kind, at most so many of each."""
    for mutation in MUTATIONS:
        yield from mutation.apply(model, level, rng, most)


# --- how models are changed -------------------------------------------------------------------------------------------


def _main(model: Model, main: Subgraph) -> Model:
    """The model with another main graph, consumers counted anew."""
    return replace(model, main=count_consumers(main))


def _with_operand(model: Model, index: int, operand: Operand) -> Model:
    """Another operand in place of one; nothing else changes."""
    operands = model.main.operands
    return replace(model, main=replace(model.main, operands=(*operands[:index], operand, *operands[index + 1 :])))


def _with_operation(model: Model, number: int, operation: Operation) -> Model:
    """Another operation in place of one, consumers counted anew."""
    operations = model.main.operations
    changed = (*operations[:number], operation, *operations[number + 1 :])
    return _main(model, replace(model.main, operations=changed))


def _without(indexes: Sequence[int], place: int) -> tuple[int, ...]:
    return (*indexes[:place], *indexes[place + 1 :])


def _placed(indexes: Sequence[int], place: int, index: int) -> tuple[int, ...]:
    return (*indexes[:place], index, *indexes[place + 1 :])


def _with_constant(model: Model, index: int, operand: Operand) -> Model:
    """The operand becomes a copied constant of zeros, with a legal location."""
    size = operand_size(operand)
    values = model.operand_values + bytes(-len(model.operand_values) % 4)
    place = DataLocation(0, len(values), size)
    changed = replace(operand, lifetime=_LIFE.CONSTANT_COPY, location=place)
    return replace(_with_operand(model, index, changed), operand_values=values + bytes(size))


def _can_be_constant(model: Model, operand: Operand) -> bool:
    size = operand_size(operand)
    return 0 < size and size + len(model.operand_values) <= LARGEST_MODEL


def _describe(index: int, operand: Operand) -> str:
    name = operand.type.name if isinstance(operand.type, OperandType) else str(operand.type)
    return f"operand {index} ({name})"


def _is_scalar(operand: Operand) -> bool:
    return operand.type in OPERAND_TYPES and not OPERAND_TYPES[OperandType(operand.type)].tensor


def _changed(model: Model, index: int, **fields: object) -> Callable[[], Model]:
    return lambda: _with_operand(model, index, replace(model.main.operands[index], **fields))  # type: ignore[arg-type]


# --- operands ---------------------------------------------------------------------------------------------------------


def bad_operand_types(level: FeatureLevel) -> tuple[int, ...]:
    """Codes of operand types that a level does not know."""
    above = LARGEST_OPERAND_TYPE[level] + 1
    if level >= FL5:
        return (-1, above)
    return (-1 if level < FL3 else 0xFFFFFFFF, above, 9999, 10002)


def _operand_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        for code in bad_operand_types(level):
            yield f"type of {_describe(index, operand)} is {code}", _changed(model, index, type=code)


def _operand_rank(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        if operand.type == OperandType.SUBGRAPH:
            continue
        if _is_scalar(operand):
            for shape in ((0,), (1,)):
                yield f"{_describe(index, operand)} has dimensions {shape}", _changed(model, index, dimensions=shape)
        elif level < FL3 or operand.lifetime in _CONSTANTS:
            yield f"{_describe(index, operand)} has no dimensions", _changed(model, index, dimensions=())
        if operand.lifetime in _CONSTANTS and operand.dimensions:
            shape = (*operand.dimensions[:-1], 0)
            yield f"constant {_describe(index, operand)} has dimensions {shape}", _changed(
                model, index, dimensions=shape
            )


def _operand_scale(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        if operand.type not in OPERAND_TYPES:
            continue
        bad = [1.0]
        if operand.type == OperandType.TENSOR_INT32:
            bad = [-1.0]
        elif OPERAND_TYPES[OperandType(operand.type)].scaled:
            bad = [0.0, -0.5, math.nan]
        for scale in bad:
            yield f"scale of {_describe(index, operand)} is {scale}", _changed(model, index, scale=scale)


def _operand_zero_point(model: Model, level: FeatureLevel) -> Iterator[Change]:
    ends = {
        OperandType.TENSOR_QUANT8_ASYMM: (-1, 256),
        OperandType.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
        OperandType.TENSOR_QUANT16_ASYMM: (-1, 65536),
        OperandType.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    }
    for index, operand in enumerate(model.main.operands):
        if operand.type in OPERAND_TYPES:
            for zero in ends.get(OperandType(operand.type), (1,)):
                yield f"zero point of {_describe(index, operand)} is {zero}", _changed(model, index, zero_point=zero)


def _extra_parameters(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        name, channel = _describe(index, operand), operand.extra_params
        if not isinstance(channel, ChannelQuant):
            if operand.type != OperandType.SUBGRAPH:
                extra = ChannelQuant(0, (1.0,) * (operand.dimensions[0] if operand.dimensions else 1))
                yield f"{name} has per-channel parameters", _changed(model, index, extra_params=extra)
            continue
        scales, dim = channel.scales, channel.channel_dim
        for words, extra in (
            ("no parameters", None),
            ("a channel dimension that is its rank", ChannelQuant(len(operand.dimensions), scales)),
            ("one scale too few", ChannelQuant(dim, scales[:-1])),
            ("a scale of 0", ChannelQuant(dim, (*scales[:-1], 0.0))),
        ):
            yield f"{name} has {words}", _changed(model, index, extra_params=extra)
        shape = _placed(operand.dimensions, dim, 0)
        yield f"{name} has an unknown channel dimension", _changed(model, index, dimensions=shape)


def _operand_lifetime(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Another lifetime, with the lists of inputs and outputs adjusted and the location legal."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime in _COMPUTED:
            targets = [_LIFE.SUBGRAPH_INPUT]
            if _can_be_constant(model, operand):
                targets.append(_LIFE.CONSTANT_COPY)
        elif operand.lifetime in (*_CONSTANTS, _LIFE.SUBGRAPH_INPUT):
            targets = list(_COMPUTED)
        else:
            continue
        for lifetime in targets:
            change = f"{_describe(index, operand)} becomes {lifetime.name}"
            yield change, lambda index=index, lifetime=lifetime: _relisted(model, index, lifetime)  # type: ignore[misc]


def _relisted(model: Model, index: int, lifetime: OperandLifeTime) -> Model:
    main = model.main
    inputs = tuple(i for i in main.input_indexes if i != index)
    outputs = tuple(i for i in main.output_indexes if i != index)
    if lifetime == _LIFE.SUBGRAPH_INPUT:
        inputs += (index,)
    elif lifetime == _LIFE.SUBGRAPH_OUTPUT:
        outputs += (index,)
    relisted = replace(model, main=replace(main, input_indexes=inputs, output_indexes=outputs))
    return _with_lifetime(relisted, index, lifetime)


def _with_lifetime(model: Model, index: int, lifetime: OperandLifeTime) -> Model:
    """Another lifetime and a legal location; the lists of inputs and outputs stay."""
    operand = model.main.operands[index]
    if lifetime == _LIFE.CONSTANT_COPY:
        return _with_constant(model, index, operand)
    return _with_operand(model, index, replace(operand, lifetime=lifetime, location=DataLocation()))


def _unlisted_lifetime(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Another lifetime, the lists of inputs and outputs as they were."""
    other = {
        _LIFE.CONSTANT_COPY: _LIFE.SUBGRAPH_INPUT,
        _LIFE.CONSTANT_REFERENCE: _LIFE.SUBGRAPH_INPUT,
        _LIFE.SUBGRAPH_INPUT: _LIFE.CONSTANT_COPY,
        _LIFE.SUBGRAPH_OUTPUT: _LIFE.TEMPORARY_VARIABLE,
        _LIFE.TEMPORARY_VARIABLE: _LIFE.SUBGRAPH_OUTPUT,
    }
    for index, operand in enumerate(model.main.operands):
        lifetime = other.get(operand.lifetime)
        if lifetime is None or (lifetime == _LIFE.CONSTANT_COPY and not _can_be_constant(model, operand)):
            continue
        change = f"{_describe(index, operand)} becomes {lifetime.name}, the lists stay"
        yield change, lambda index=index, lifetime=lifetime: _with_lifetime(model, index, lifetime)  # type: ignore[misc]


def _consumers(model: Model, level: FeatureLevel) -> Iterator[Change]:
    if level > FL4:
        return
    for index, operand in enumerate(model.main.operands):
        count = operand.number_of_consumers
        for wrong in (count + 1, count - 1) if count > 0 else (count + 1,):
            change = f"{_describe(index, operand)} has {wrong} consumers, {count} are right"
            yield change, _changed(model, index, number_of_consumers=wrong)


def _constant_location(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime not in _CONSTANTS:
            continue
        place, name = operand.location, _describe(index, operand)
        copied = operand.lifetime == _LIFE.CONSTANT_COPY
        size = len(model.operand_values) if copied else model.pools[place.pool_index].size
        pool = 1 if copied else len(model.pools)
        for words, wrong in (
            ("ends one byte past the data", replace(place, offset=size - place.length + 1)),
            ("is one byte short", replace(place, length=place.length - 1)),
            ("is one byte long", replace(place, length=place.length + 1)),
            ("lies where a 32-bit sum wraps", replace(place, offset=2**32 - place.length)),
            (f"lies in pool {pool}", replace(place, pool_index=pool)),
        ):
            yield f"constant {name} {words}", _changed(model, index, location=wrong)


def _other_location(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for index, operand in enumerate(model.main.operands):
        name, place = _describe(index, operand), operand.location
        if operand.lifetime not in (*_CONSTANTS, _LIFE.SUBGRAPH):
            for field in ("pool_index", "offset", "length"):
                wrong = replace(place, **{field: 1})
                yield f"{name} is no constant and has {field} 1", _changed(model, index, location=wrong)
        if level >= FL5:
            yield f"{name} has padding 1", _changed(model, index, location=replace(place, padding=1))


# --- operations and the graph -----------------------------------------------------------------------------------------


def _execution_order(model: Model, level: FeatureLevel) -> Iterator[Change]:
    main = model.main
    for number, operation in enumerate(main.operations):
        rest = (*main.operations[:number], *main.operations[number + 1 :])
        front, back = (operation, *rest), (*rest, operation)
        if any(main.operands[i].lifetime in _COMPUTED for i in operation.inputs):
            yield f"operation {number} comes first", lambda o=front: _main(model, replace(main, operations=o))  # type: ignore[misc]
        if any(i in other.inputs for other in rest for i in operation.outputs):
            yield f"operation {number} comes last", lambda o=back: _main(model, replace(main, operations=o))  # type: ignore[misc]


def _second_writer(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for number, operation in enumerate(model.main.operations):
        for place, index in enumerate(operation.outputs):
            yield (
                f"a copy of operation {number} writes operand {index} again",
                lambda operation=operation, place=place: _written_again(model, operation, place),  # type: ignore[misc]
            )


def _written_again(model: Model, operation: Operation, kept: int) -> Model:
    operands = list(model.main.operands)
    outputs = []
    for place, index in enumerate(operation.outputs):
        if place != kept:
            operands.append(replace(operands[index], lifetime=_LIFE.TEMPORARY_VARIABLE))
            index = len(operands) - 1
        outputs.append(index)
    operations = (*model.main.operations, replace(operation, outputs=tuple(outputs)))
    return _main(model, replace(model.main, operands=tuple(operands), operations=operations))


def _operation_operand_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    largest = LARGEST_OPERAND_TYPE[level]
    used = sorted({i for o in model.main.operations for i in (*o.inputs, *o.outputs)})
    for index in used:
        operand = model.main.operands[index]
        if operand.lifetime == _LIFE.SUBGRAPH:
            continue
        for kind in OperandType:
            if kind <= largest and kind != operand.type:
                change = f"{_describe(index, operand)} becomes {kind.name}"
                yield change, lambda index=index, kind=kind: _retyped(model, index, kind)  # type: ignore[misc]


def _retyped(model: Model, index: int, kind: OperandType) -> Model:
    """An operand of another type, legal in itself, so that only the operation's signature is broken."""
    operand, known = model.main.operands[index], OPERAND_TYPES[kind]
    shape = (operand.dimensions or (1,)) if known.tensor else ()
    extra = None
    if kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        shape = (max(shape[0], 1), *shape[1:])
        extra = ChannelQuant(0, (1.0,) * shape[0])
    scale = (operand.scale or 1.0) if known.scaled else 0.0
    if kind == OperandType.TENSOR_INT32:
        scale = operand.scale
    low, high = known.zero_points or (0, 0)
    zero = min(max(operand.zero_point, low), high)
    retyped = replace(operand, type=kind, dimensions=shape, scale=scale, zero_point=zero, extra_params=extra)
    if operand.lifetime in _CONSTANTS and known.size:
        return _with_constant(model, index, retyped)
    return _with_operand(model, index, retyped)


def bad_operation_codes(level: FeatureLevel) -> tuple[int, ...]:
    """Codes of operations that a level does not know; on levels 3 and 4 -1 is an extension's and may be valid."""
    above = LARGEST_OPERATION[level] + 1
    if level >= FL5:
        return (-1, above)
    return (above, 9999, 10001) if level >= FL3 else (-1, above, 9999, 10001)


def _operation_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    for number, operation in enumerate(model.main.operations):
        for code in bad_operation_codes(level):
            change = f"code of operation {number} is {code}"
            yield change, lambda n=number, o=operation, code=code: _with_operation(model, n, replace(o, type=code))  # type: ignore[misc]


Rewrite = Callable[[Operation], Iterator[tuple[str, Operation]]]


def _rewritten(rewrite: Callable[[Model, Operation], Iterator[tuple[str, Operation]]]) -> Changes:
    """Changes of the index lists of single operations."""

    def changes(model: Model, level: FeatureLevel) -> Iterator[Change]:
        for number, operation in enumerate(model.main.operations):
            for words, changed in rewrite(model, operation):
                yield f"operation {number} {words}", lambda n=number, o=changed: _with_operation(model, n, o)  # type: ignore[misc]

    return changes


def _input_index(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    count = len(model.main.operands)
    for place in range(len(operation.inputs)):
        yield f"has {count} as input {place}", replace(operation, inputs=_placed(operation.inputs, place, count))


def _output_index(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    count = len(model.main.operands)
    for place in range(len(operation.outputs)):
        yield f"has {count} as output {place}", replace(operation, outputs=_placed(operation.outputs, place, count))


def _fewer_inputs(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    for place in range(len(operation.inputs)):
        yield f"lacks input {place}", replace(operation, inputs=_without(operation.inputs, place))


def _fewer_outputs(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    for place in range(len(operation.outputs)):
        yield f"lacks output {place}", replace(operation, outputs=_without(operation.outputs, place))


def _fixed_output(model: Model, operation: Operation) -> Iterator[tuple[str, Operation]]:
    for place in range(len(operation.outputs)):
        for lifetime in (_LIFE.CONSTANT_COPY, _LIFE.CONSTANT_REFERENCE, _LIFE.SUBGRAPH_INPUT, _LIFE.NO_VALUE):
            for index, operand in enumerate(model.main.operands):
                if operand.lifetime == lifetime:
                    outputs = _placed(operation.outputs, place, index)
                    yield f"writes operand {index} ({lifetime.name})", replace(operation, outputs=outputs)
                    break
