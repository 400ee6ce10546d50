"""Mutations of single operands: type, dimensions, quantisation, lifetime, consumers, location."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from conformance.mutation_edits import (
    COMPUTED,
    CONSTANTS,
    LIFE,
    Change,
    can_be_constant,
    changed,
    describe,
    in_pool,
    is_scalar,
    placed,
    with_constant,
    with_operand,
)
from nnhal.memory import BytesMemory
from nnhal.model import ChannelQuant, DataLocation, Model, Operand
from nnhal.types import (
    FL3,
    FL4,
    FL5,
    LARGEST_OPERAND_TYPE,
    OPERAND_TYPES,
    FeatureLevel,
    OperandLifeTime,
    OperandType,
)


def bad_operand_types(level: FeatureLevel) -> tuple[int, ...]:
    """Codes of operand types that a level does not know."""
    above = LARGEST_OPERAND_TYPE[level] + 1
    if level >= FL5:
        return (-1, above)
    return (-1 if level < FL3 else 0xFFFFFFFF, above, 9999, 10002)


def operand_type(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Codes that the level does not know."""
    for index, operand in enumerate(model.main.operands):
        for code in bad_operand_types(level):
            yield f"type of {describe(index, operand)} is {code}", changed(model, index, type=code)


def operand_rank(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Dimensions on scalars; none, or unknown ones, where they are due."""
    for index, operand in enumerate(model.main.operands):
        if operand.type == OperandType.SUBGRAPH:
            continue
        if is_scalar(operand):
            for shape in ((0,), (1,)):
                yield f"{describe(index, operand)} has dimensions {shape}", changed(model, index, dimensions=shape)
        elif level < FL3 or operand.lifetime in CONSTANTS:
            yield f"{describe(index, operand)} has no dimensions", changed(model, index, dimensions=())
        if operand.lifetime in CONSTANTS and operand.dimensions:
            unknown = placed(operand.dimensions, len(operand.dimensions) - 1, 0)
            change = f"constant {describe(index, operand)} has dimensions {unknown}"
            yield change, changed(model, index, dimensions=unknown)


def operand_scale(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A scale that the type does not allow."""
    for index, operand in enumerate(model.main.operands):
        if operand.type not in OPERAND_TYPES:
            continue
        bad = [1.0, -1.0, math.nan]
        if operand.type == OperandType.TENSOR_INT32:
            bad = [-1.0, math.nan]
        elif OPERAND_TYPES[OperandType(operand.type)].scaled:
            bad = [0.0, -0.5, math.nan]
        for scale in bad:
            yield f"scale of {describe(index, operand)} is {scale}", changed(model, index, scale=scale)


def operand_zero_point(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A zero point outside the range of the type."""
    ends = {
        OperandType.TENSOR_QUANT8_ASYMM: (-1, 256),
        OperandType.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
        OperandType.TENSOR_QUANT16_ASYMM: (-1, 65536),
        OperandType.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    }
    for index, operand in enumerate(model.main.operands):
        if operand.type in OPERAND_TYPES:
            for zero in (*ends.get(OperandType(operand.type), (1,)), 2**31 - 1, -(2**31)):
                yield f"zero point of {describe(index, operand)} is {zero}", changed(model, index, zero_point=zero)


def extra_parameters(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Per-channel parameters that are missing, do not fit, or are on another type."""
    for index, operand in enumerate(model.main.operands):
        name, channel = describe(index, operand), operand.extra_params
        if not isinstance(channel, ChannelQuant):
            if operand.type != OperandType.SUBGRAPH:
                ones = ChannelQuant(0, (1.0,) * (operand.dimensions[0] if operand.dimensions else 1))
                yield f"{name} has per-channel parameters", changed(model, index, extra_params=ones)
            continue
        scales, dim = channel.scales, channel.channel_dim
        for words, extra in (
            ("no parameters", None),
            ("a channel dimension that is its rank", ChannelQuant(len(operand.dimensions), scales)),
            ("the largest channel dimension", ChannelQuant(2**31 - 1, scales)),
            ("one scale too few", ChannelQuant(dim, scales[:-1])),
            ("one scale too many", ChannelQuant(dim, (*scales, scales[0]))),
            ("a scale of 0", ChannelQuant(dim, (*scales[:-1], 0.0))),
            ("a scale below 0", ChannelQuant(dim, (-scales[0], *scales[1:]))),
            ("a scale that is no number", ChannelQuant(dim, (*scales[:-1], math.nan))),
        ):
            yield f"{name} has {words}", changed(model, index, extra_params=extra)
        shape = placed(operand.dimensions, dim, 0)
        yield f"{name} has an unknown channel dimension", changed(model, index, dimensions=shape)


def operand_lifetime(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Another lifetime, with the lists of inputs and outputs adjusted and the location legal."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime in COMPUTED:
            targets = [LIFE.SUBGRAPH_INPUT]
            if can_be_constant(model, operand):
                targets.append(LIFE.CONSTANT_COPY)
        elif operand.lifetime in (*CONSTANTS, LIFE.SUBGRAPH_INPUT):
            targets = list(COMPUTED)
        else:
            continue
        for lifetime in targets:
            change = f"{describe(index, operand)} becomes {lifetime.name}"
            yield change, partial(_relisted, model, index, lifetime)


def _relisted(model: Model, index: int, lifetime: OperandLifeTime) -> Model:
    main = model.main
    inputs = tuple(i for i in main.input_indexes if i != index)
    outputs = tuple(i for i in main.output_indexes if i != index)
    if lifetime == LIFE.SUBGRAPH_INPUT:
        inputs += (index,)
    elif lifetime == LIFE.SUBGRAPH_OUTPUT:
        outputs += (index,)
    relisted = replace(model, main=replace(main, input_indexes=inputs, output_indexes=outputs))
    return _with_lifetime(relisted, index, lifetime)


def _with_lifetime(model: Model, index: int, lifetime: OperandLifeTime) -> Model:
    """Another lifetime and a legal location; the lists of inputs and outputs stay."""
    operand = model.main.operands[index]
    if lifetime == LIFE.CONSTANT_COPY:
        return with_constant(model, index, operand)
    return with_operand(model, index, replace(operand, lifetime=lifetime, location=DataLocation()))


def unlisted_lifetime(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Another lifetime, the lists of inputs and outputs as they were."""
    other = {
        LIFE.CONSTANT_COPY: LIFE.SUBGRAPH_INPUT,
        LIFE.CONSTANT_REFERENCE: LIFE.SUBGRAPH_INPUT,
        LIFE.SUBGRAPH_INPUT: LIFE.CONSTANT_COPY,
        LIFE.SUBGRAPH_OUTPUT: LIFE.TEMPORARY_VARIABLE,
        LIFE.TEMPORARY_VARIABLE: LIFE.SUBGRAPH_OUTPUT,
    }
    for index, operand in enumerate(model.main.operands):
        lifetime = other.get(operand.lifetime)
        if lifetime is None or (lifetime == LIFE.CONSTANT_COPY and not can_be_constant(model, operand)):
            continue
        change = f"{describe(index, operand)} becomes {lifetime.name}, the lists stay"
        yield change, partial(_with_lifetime, model, index, lifetime)


def consumers(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """One consumer more or fewer than there are; levels 1 to 4."""
    if level > FL4:
        return
    for index, operand in enumerate(model.main.operands):
        count = operand.number_of_consumers
        for wrong in (count + 1, count - 1) if count > 0 else (count + 1,):
            change = f"{describe(index, operand)} has {wrong} consumers, {count} are right"
            yield change, changed(model, index, number_of_consumers=wrong)


def constant_location(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Constants outside their data, or of a wrong length."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime not in CONSTANTS:
            continue
        for words, wrong in _wrong_places(model, operand):
            yield f"constant {describe(index, operand)} {words}", changed(model, index, location=wrong)


def _wrong_places(model: Model, operand: Operand) -> Iterator[tuple[str, DataLocation]]:
    place = operand.location
    copied = operand.lifetime == LIFE.CONSTANT_COPY
    size = len(model.operand_values) if copied else model.pools[place.pool_index].size
    pool = 1 if copied else len(model.pools)
    yield "ends one byte past the data", replace(place, offset=size - place.length + 1)
    yield "begins where the data end", replace(place, offset=size)
    yield "is one byte short", replace(place, length=place.length - 1)
    yield "is one byte long", replace(place, length=place.length + 1)
    yield "has no bytes", replace(place, length=0)
    yield "lies where a 32-bit sum wraps", replace(place, offset=2**32 - place.length)
    yield "lies where a signed 32-bit sum wraps", replace(place, offset=2**31 - place.length)
    yield f"lies in pool {pool}", replace(place, pool_index=pool)
    yield f"lies in pool {2**31 - 1}", replace(place, pool_index=2**31 - 1)
    for edge in (2**31, 2**32 - 1):
        yield f"has offset {edge}", replace(place, offset=edge)
        yield f"has length {edge}", replace(place, length=edge)


def pool_constant(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """A constant that lies in a pool, outside it or of a wrong length; and a pool without bytes."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime != LIFE.CONSTANT_COPY or not operand.location.length:
            continue
        moved = in_pool(model, index)
        name, there = describe(index, operand), moved.main.operands[index]
        for words, wrong in _wrong_places(moved, there):
            yield f"{name} in a pool {words}", changed(moved, index, location=wrong)
        short = replace(moved, pools=(BytesMemory(bytes(there.location.length - 1)), *moved.pools[1:]))
        yield f"{name} lies in a pool that is one byte too short", partial(replace, short)


def constant_dimensions(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Dimensions that do not give a constant's length: one more, a vast product, one that is right in 32 bits."""
    for index, operand in enumerate(model.main.operands):
        if operand.lifetime not in CONSTANTS or not operand.dimensions:
            continue
        name, shape = describe(index, operand), operand.dimensions
        for dimensions in (
            placed(shape, 0, shape[0] + 1),
            placed(shape, 0, 2**31 - 1),
            (2**16,) * max(len(shape), 4),
            _wrapping(math.prod(shape), len(shape)),
        ):
            if dimensions:
                yield f"constant {name} has dimensions {dimensions}", changed(model, index, dimensions=dimensions)


def _wrapping(count: int, rank: int) -> tuple[int, ...]:
    """Dimensions, at least two, whose product is 2^32 more than a count, or a multiple; none where none are found."""
    for turns in range(1, 64):
        product = count + turns * 2**32
        for small in range(turns + 2, 1000):
            if product % small == 0 and product // small < 2**31:
                return (small, product // small, *(1,) * (rank - 2))
    return ()


def signed_numbers(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Numbers below 0, and sums that wrap in 64 bits, where levels 5 and on have signed numbers."""
    for index, operand in enumerate(model.main.operands):
        name, place = describe(index, operand), operand.location
        for dim in range(len(operand.dimensions)):
            for size in (-1, -(2**31), 2**31):
                shape = placed(operand.dimensions, dim, size)
                yield f"{name} has dimensions {shape}", changed(model, index, dimensions=shape)
        if isinstance(operand.extra_params, ChannelQuant):
            channel = ChannelQuant(-1, operand.extra_params.scales)
            yield f"{name} has channel dimension -1", changed(model, index, extra_params=channel)
        if operand.lifetime in (*CONSTANTS, LIFE.SUBGRAPH):
            wrong = [("offset", -1), ("offset", -(2**63)), ("offset", 2**63 - place.length - 1), ("pool_index", -1)]
            wrong += [("offset", 2**63 - 1), ("length", -1), ("length", -(2**63)), ("pool_index", -(2**31))]
            for field, value in wrong:
                location = replace(place, **{field: value})
                yield f"{name} has {field} {value}", changed(model, index, location=location)


def other_location(model: Model, level: FeatureLevel) -> Iterator[Change]:
    """Locations on operands that have none, and padding."""
    for index, operand in enumerate(model.main.operands):
        name, place = describe(index, operand), operand.location
        if operand.lifetime not in (*CONSTANTS, LIFE.SUBGRAPH):
            for field in ("pool_index", "offset", "length"):
                wrong = replace(place, **{field: 1})
                yield f"{name} is no constant and has {field} 1", changed(model, index, location=wrong)
        if level >= FL5:
            yield f"{name} has padding 1", changed(model, index, location=replace(place, padding=1))
