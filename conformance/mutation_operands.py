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
    is_scalar,
    placed,
    with_constant,
    with_operand,
)
from nnhal.model import ChannelQuant, DataLocation, Model
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
        bad = [1.0]
        if operand.type == OperandType.TENSOR_INT32:
            bad = [-1.0]
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
            for zero in ends.get(OperandType(operand.type), (1,)):
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
            ("one scale too few", ChannelQuant(dim, scales[:-1])),
            ("a scale of 0", ChannelQuant(dim, (*scales[:-1], 0.0))),
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
        place, name = operand.location, describe(index, operand)
        copied = operand.lifetime == LIFE.CONSTANT_COPY
        size = len(model.operand_values) if copied else model.pools[place.pool_index].size
        pool = 1 if copied else len(model.pools)
        for words, wrong in (
            ("ends one byte past the data", replace(place, offset=size - place.length + 1)),
            ("is one byte short", replace(place, length=place.length - 1)),
            ("is one byte long", replace(place, length=place.length + 1)),
            ("lies where a 32-bit sum wraps", replace(place, offset=2**32 - place.length)),
            (f"lies in pool {pool}", replace(place, pool_index=pool)),
        ):
            yield f"constant {name} {words}", changed(model, index, location=wrong)


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
