"""Builds, reads and converts the performance figures that a driver states."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nnhal.device import UNLISTED, Capabilities, OperandPerformance, PerformanceInfo
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    LARGEST_OPERAND_TYPE,
    FeatureLevel,
    OperandType,
)
from nnhal.versions import LossyConversionWarning

_OEM = (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)
_FLOAT32 = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_QUANTIZED8 = (
    OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32, OperandType.TENSOR_QUANT8_ASYMM, *_OEM,
)  # fmt: skip


def listed_types(level: FeatureLevel = FL8) -> tuple[OperandType, ...]:
    """The operand types that a driver of a level may list: all that the level knows, without SUBGRAPH."""
    known = [t for t in OperandType if t <= LARGEST_OPERAND_TYPE[level] and t != OperandType.SUBGRAPH]
    return (*known, *(_OEM if level < FL5 else ()))


def operand_performance(
    default: PerformanceInfo | None = None,
    special: Mapping[OperandType, PerformanceInfo] | None = None,
    level: FeatureLevel = FL8,
) -> tuple[OperandPerformance, ...]:
    """The list of performances, sorted and without repeats.

    Args:
        default: for every type that the level knows; None lists only the special ones.
        special: for single types.
        level: of the driver.
    """
    figures = {} if default is None else dict.fromkeys(listed_types(level), default)
    figures.update(special or {})
    return tuple(OperandPerformance(kind, figures[kind]) for kind in sorted(figures))


def uniform(performance: PerformanceInfo, level: FeatureLevel = FL8) -> Capabilities:
    """The capabilities of a driver that is as fast with every type."""
    flow = performance if level >= FL4 else UNLISTED
    return Capabilities(operand_performance(performance, level=level), performance, performance, flow, flow)


def performance_of(capabilities: Capabilities, operand_type: int) -> PerformanceInfo:
    """What is stated for a type; FLT_MAX where it is not listed."""
    for entry in capabilities.operand_performance:
        if entry.type == operand_type:
            return entry.info
    return UNLISTED


def capability_problems(capabilities: Capabilities) -> list[str]:
    """What is wrong with what a driver states: figures that are not above 0, an order that is not, repeats."""
    found = []
    for name, info in _figures(capabilities):
        for words, value in (("execution time", info.exec_time), ("power use", info.power_usage)):
            if not value > 0:
                found.append(f"the {words} of {name} is {value}, not above 0")
    kinds = [int(entry.type) for entry in capabilities.operand_performance]
    if kinds != sorted(kinds):
        found.append("the operand types are not sorted")
    if len(set(kinds)) != len(kinds):
        found.append("an operand type is listed twice")
    if OperandType.SUBGRAPH in kinds:
        found.append("SUBGRAPH is listed; IF and WHILE have figures of their own")
    return found


def _figures(capabilities: Capabilities) -> Iterable[tuple[str, PerformanceInfo]]:
    for entry in capabilities.operand_performance:
        yield f"operand type {getattr(entry.type, 'name', entry.type)}", entry.info
    yield "relaxed float32 scalars", capabilities.relaxed_float32_to_float16_performance_scalar
    yield "relaxed float32 tensors", capabilities.relaxed_float32_to_float16_performance_tensor
    yield "IF", capabilities.if_performance
    yield "WHILE", capabilities.while_performance


@dataclass(frozen=True)
class EarlyCapabilities:
    """What a driver of level 1 or 2 states. `relaxed` comes with level 2."""

    float32: PerformanceInfo
    quantized8: PerformanceInfo
    relaxed: PerformanceInfo | None = None


def from_early(early: EarlyCapabilities) -> Capabilities:
    """The figures of level 1 or 2 in the present form. Without `relaxed`, relaxed float32 counts as float32."""
    figures = {**dict.fromkeys(_FLOAT32, early.float32), **dict.fromkeys(_QUANTIZED8, early.quantized8)}
    relaxed = early.float32 if early.relaxed is None else early.relaxed
    return Capabilities(operand_performance(None, figures), relaxed, relaxed)


def to_early(capabilities: Capabilities, level: FeatureLevel = FL2) -> EarlyCapabilities:
    """The figures as level 1 or 2 states them; warns when what is put together does not agree.

    Each takes the figure of its tensor type.
    """
    float32 = performance_of(capabilities, OperandType.TENSOR_FLOAT32)
    quantized8 = performance_of(capabilities, OperandType.TENSOR_QUANT8_ASYMM)
    relaxed = capabilities.relaxed_float32_to_float16_performance_tensor
    early = EarlyCapabilities(float32, quantized8, None if level <= FL1 else relaxed)
    if from_early(early) != capabilities:
        text = f"capabilities for level {level.version} lose figures that differ by operand type, IF and WHILE"
        warnings.warn(text, LossyConversionWarning, stacklevel=2)
    return early


def capabilities_at(capabilities: Capabilities, level: FeatureLevel) -> Capabilities:
    """The figures as level 3 or above states them; warns when types or IF and WHILE are left out.

    Raises:
        ValueError: levels 1 and 2 have another form, see `to_early`.
    """
    if level < FL3:
        raise ValueError(f"level {level.version} states capabilities in another form")
    known = set(listed_types(level))
    kept = tuple(entry for entry in capabilities.operand_performance if entry.type in known)
    converted = replace(capabilities, operand_performance=kept)
    if level < FL4:
        converted = replace(converted, if_performance=UNLISTED, while_performance=UNLISTED)
    if converted != capabilities:
        text = f"capabilities for level {level.version} lose what it does not know"
        warnings.warn(text, LossyConversionWarning, stacklevel=2)
    return converted
