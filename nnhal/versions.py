"""Between versions of the interface: which one a part needs, and what a model, a status or a time is in another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from nnhal.device import CompilationConfig, ExecutionConfig
from nnhal.memory import BytesMemory
from nnhal.model import Model, Request, Subgraph, count_consumers
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    ErrorStatus,
    ExecutionMode,
    ExecutionPreference,
    FeatureLevel,
    OperandLifeTime,
    Priority,
)
from nnhal.validate import request_violations, violations
from nnhal.validation_graph import LIMITS, pool_problem

MICROSECONDS_UNKNOWN = 2**64 - 1
NANOSECONDS_UNKNOWN = -1


class LossyConversionWarning(UserWarning):
    """A conversion to an older level left something out; the message says what."""


# --- models -----------------------------------------------------------------------------------------------------------


def needed_level(model: Model) -> FeatureLevel:
    """The lowest level at which a model is valid. Numbers of consumers are not looked at.

    Raises:
        ValueError: it is valid at none.
    """
    for level in FeatureLevel:
        if not violations(model, level, consumers=False):
            return level
    raise ValueError(f"the model is valid at no level: {violations(model, FL8, consumers=False)[0]}")


@dataclass(frozen=True)
class Obstacle:
    """Why a model cannot be handed to a level.

    Attributes:
        operation: index in the main graph; None where it is the model as a whole.
        reason: a sentence without a stop.
    """

    operation: int | None
    reason: str


def compliant_with(model: Model, level: FeatureLevel) -> list[Obstacle]:
    """What keeps a valid model from an interface of a level; empty when nothing does.

    An operation is named once, with its first reason, so that a partly compliant model can be cut into pieces.
    What a conversion leaves out (see `convert_to`) is no obstacle.
    """
    operands, operations, graphs, found = _sorted_violations(model, level)
    operands.update(_in_newer_pools(model, level))
    operands.update(_on_newer_graphs(model, graphs))
    used: set[int] = set()
    for number, operation in enumerate(model.main.operations):
        touched = (*operation.inputs, *operation.outputs)
        used.update(touched)
        reasons = [operands[i] for i in touched if i in operands]
        if number in operations:
            reasons.append(operations[number])
        if reasons:
            found.append(Obstacle(number, reasons[0]))
    ends = (*model.main.input_indexes, *model.main.output_indexes)
    found += [Obstacle(None, operands[i]) for i in ends if i in operands and i not in used]
    return found


def _sorted_violations(
    model: Model, level: FeatureLevel
) -> tuple[dict[int, str], dict[int, str], dict[int, str], list[Obstacle]]:
    """First violation of each operand and operation of the main graph, of each referenced graph, and of the whole."""
    operands: dict[int, str] = {}
    operations: dict[int, str] = {}
    graphs: dict[int, str] = {}
    whole: list[Obstacle] = []
    for violation in violations(model, level, consumers=False):
        if violation.label in ("G21", "G23") or (violation.label == "G22" and level < FL3):
            continue  # pools count where a constant is in them; graphs and table are left out
        if violation.graph is not None:
            graphs.setdefault(violation.graph, violation.text)
        elif violation.operation is not None:
            operations.setdefault(violation.operation, violation.text)
        elif violation.operand is not None:
            operands.setdefault(violation.operand, violation.text)
        else:
            whole.append(Obstacle(None, violation.text))
    return operands, operations, graphs, whole


def _in_newer_pools(model: Model, level: FeatureLevel) -> dict[int, str]:
    problems = {number: pool_problem(pool, LIMITS[level]) for number, pool in enumerate(model.pools)}
    return {
        index: f"operand {index} is a constant in pool {operand.location.pool_index}, which {problem}"
        for index, operand in enumerate(model.main.operands)
        if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE
        and (problem := problems.get(operand.location.pool_index))
    }


def _on_newer_graphs(model: Model, graphs: dict[int, str]) -> dict[int, str]:
    """Subgraph operands of the main graph that lead to a graph with a violation, directly or through others."""
    if not graphs:
        return {}
    reasons = dict(graphs)
    for _ in model.referenced:  # as often as a chain of references can be long
        for number, graph in enumerate(model.referenced):
            for operand in graph.operands:
                reason = reasons.get(operand.location.offset)
                if operand.lifetime == OperandLifeTime.SUBGRAPH and reason:
                    reasons.setdefault(number, reason)
    return {
        index: reasons[operand.location.offset]
        for index, operand in enumerate(model.main.operands)
        if operand.lifetime == OperandLifeTime.SUBGRAPH and operand.location.offset in reasons
    }


def convert_to(model: Model, level: FeatureLevel) -> Model:
    """A valid model as an interface of a level would carry it.

    Warns of what is lost: the relaxed flag (level 1), the extension table (below 3), referenced graphs and operands of
    newer types that no operation uses. Numbers of consumers are filled in up to level 4 and 0 from level 5 on.

    Raises:
        ValueError: the level cannot carry it; the message has the obstacles.
    """
    obstacles = compliant_with(model, level)
    if obstacles:
        reasons = "; ".join(obstacle.reason for obstacle in obstacles[:3])
        raise ValueError(f"the model cannot be handed to level {level.version}: {reasons}")
    lost: list[str] = []
    if model.relax_computation_float32_to_float16 and level < FL2:
        lost.append("the permission to compute with float16 precision")
        model = replace(model, relax_computation_float32_to_float16=False)
    if model.extension_name_to_prefix and level < FL3:
        lost.append("the extension table")
        model = replace(model, extension_name_to_prefix=())
    if model.referenced and level < FL4:
        lost.append(f"{len(model.referenced)} referenced graphs that nothing uses")
        model = replace(model, referenced=())
    model = _without_unused(model, level, lost)
    pools = tuple(BytesMemory(1) if pool_problem(p, LIMITS[level]) else p for p in model.pools)
    count = count_consumers if level <= FL4 else _forget_consumers
    if lost:
        text = f"handing a model to level {level.version} loses {', '.join(lost)}"
        warnings.warn(text, LossyConversionWarning, stacklevel=2)
    return replace(model, main=count(model.main), referenced=tuple(map(count, model.referenced)), pools=pools)


def _without_unused(model: Model, level: FeatureLevel, lost: list[str]) -> Model:
    """The model without the operands that the level does not know and that nothing uses."""
    bad, _, _, _ = _sorted_violations(model, level)
    bad.update(_in_newer_pools(model, level))
    if not bad:
        return model
    lost.append(f"{len(bad)} operands that no operation uses")
    main = model.main
    kept = [index for index in range(len(main.operands)) if index not in bad]
    place = {old: new for new, old in enumerate(kept)}

    def moved(indexes: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[index] for index in indexes)

    operations = tuple(replace(o, inputs=moved(o.inputs), outputs=moved(o.outputs)) for o in main.operations)
    operands = tuple(main.operands[index] for index in kept)
    return replace(model, main=Subgraph(operands, operations, moved(main.input_indexes), moved(main.output_indexes)))


def _forget_consumers(graph: Subgraph) -> Subgraph:
    if not any(operand.number_of_consumers for operand in graph.operands):
        return graph
    return replace(graph, operands=tuple(replace(o, number_of_consumers=0) for o in graph.operands))


# --- requests and settings --------------------------------------------------------------------------------------------


def request_level(request: Request, model: Model) -> FeatureLevel:
    """The lowest level at which a request for a model is valid.

    Raises:
        ValueError: it is valid at none.
    """
    for level in FeatureLevel:
        if not request_violations(request, model, level):
            return level
    raise ValueError(f"the request is valid at no level: {request_violations(request, model, FL8)[0]}")


def compilation_level(config: CompilationConfig) -> FeatureLevel:
    """The lowest level at which preparation can be told all this."""
    if config.compilation_hints or config.extension_name_to_prefix:
        return FL8
    if config.priority != Priority.MEDIUM or config.deadline is not None:
        return FL4
    if config.model_cache or config.data_cache or any(config.cache_token):
        return FL3
    return FL1 if config.preference == ExecutionPreference.FAST_SINGLE_ANSWER else FL2


def execution_level(config: ExecutionConfig, deadline: int | None = None, duration: int | None = None) -> FeatureLevel:
    """The lowest level at which an execution can be told all this."""
    if config.execution_hints or config.extension_name_to_prefix:
        return FL8
    if deadline is not None or duration is not None or config.loop_timeout_duration is not None:
        return FL4
    return FL3 if config.measure_timing else FL1


def execution_modes(level: FeatureLevel) -> frozenset[ExecutionMode]:
    """The ways of running a prepared model that an interface of a level has."""
    since = {
        ExecutionMode.ASYNCHRONOUS: FL1, ExecutionMode.SYNCHRONOUS: FL3, ExecutionMode.BURST: FL3,
        ExecutionMode.FENCED: FL4, ExecutionMode.REUSABLE: FL8,
    }  # fmt: skip
    known = {mode for mode, first in since.items() if first <= level}
    return frozenset(known - {ExecutionMode.ASYNCHRONOUS} if level >= FL5 else known)


# --- statuses and result codes ----------------------------------------------------------------------------------------


class ResultCode(IntEnum):
    """What a function of the C interface answers."""

    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    INCOMPLETE = 2
    UNEXPECTED_NULL = 3
    BAD_DATA = 4
    OP_FAILED = 5
    BAD_STATE = 6
    UNMAPPABLE = 7
    OUTPUT_INSUFFICIENT_SIZE = 8
    UNAVAILABLE_DEVICE = 9
    MISSED_DEADLINE_TRANSIENT = 10
    MISSED_DEADLINE_PERSISTENT = 11
    RESOURCE_EXHAUSTED_TRANSIENT = 12
    RESOURCE_EXHAUSTED_PERSISTENT = 13
    DEAD_OBJECT = 14


_RESULT_OF_STATUS = {
    ErrorStatus.NONE: ResultCode.NO_ERROR,
    ErrorStatus.DEVICE_UNAVAILABLE: ResultCode.UNAVAILABLE_DEVICE,
    ErrorStatus.GENERAL_FAILURE: ResultCode.OP_FAILED,
    ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: ResultCode.OUTPUT_INSUFFICIENT_SIZE,
    ErrorStatus.INVALID_ARGUMENT: ResultCode.BAD_DATA,
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: ResultCode.MISSED_DEADLINE_TRANSIENT,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: ResultCode.MISSED_DEADLINE_PERSISTENT,
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResultCode.RESOURCE_EXHAUSTED_TRANSIENT,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResultCode.RESOURCE_EXHAUSTED_PERSISTENT,
}
_STATUS_OF_RESULT: dict[int, ErrorStatus] = {int(code): status for status, code in _RESULT_OF_STATUS.items()}
_STATUS_OF_RESULT[ResultCode.UNEXPECTED_NULL] = ErrorStatus.INVALID_ARGUMENT


def status_at(status: ErrorStatus, level: FeatureLevel) -> ErrorStatus:
    """A status as an interface of a level can say it: 5 to 8 are GENERAL_FAILURE below level 4."""
    newer = status > ErrorStatus.INVALID_ARGUMENT and level < FL4
    return ErrorStatus.GENERAL_FAILURE if newer else status


def to_result_code(status: ErrorStatus) -> ResultCode:
    """What the C interface answers for a status."""
    return _RESULT_OF_STATUS[status]


def from_result_code(code: int) -> ErrorStatus:
    """The status behind an answer of the C interface; what has no namesake is GENERAL_FAILURE."""
    return _STATUS_OF_RESULT.get(code, ErrorStatus.GENERAL_FAILURE)


# --- times ------------------------------------------------------------------------------------------------------------


def to_microseconds(nanoseconds: int | None) -> int:
    """A duration as HIDL says it: whole microseconds, 2^64 - 1 for unknown."""
    return MICROSECONDS_UNKNOWN if nanoseconds is None else min(nanoseconds // 1000, MICROSECONDS_UNKNOWN - 1)


def from_microseconds(microseconds: int) -> int | None:
    """Nanoseconds of what HIDL says; None for 2^64 - 1."""
    return None if microseconds == MICROSECONDS_UNKNOWN else microseconds * 1000


def to_nanoseconds(nanoseconds: int | None) -> int:
    """A duration as AIDL says it: -1 for unknown."""
    return NANOSECONDS_UNKNOWN if nanoseconds is None else min(nanoseconds, 2**63 - 1)


def from_nanoseconds(nanoseconds: int) -> int | None:
    """What AIDL says; None for -1."""
    return None if nanoseconds == NANOSECONDS_UNKNOWN else nanoseconds
