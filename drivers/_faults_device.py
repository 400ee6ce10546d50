"""Faults in what a device says of itself and in its support query."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from drivers._faults import Fault, Faults, Query, Run, State
from nnhal.device import (
    CacheFilesNeeded,
    Capabilities,
    ExecutionResult,
    Extension,
    OperandPerformance,
    OperandTypeInformation,
    PerformanceInfo,
)
from nnhal.errors import DriverError, invalid
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus, OperandType

CAPABILITIES, BASIC, CACHE, EXTENSIONS = "Capabilities", "Driver tests: basic", "Compilation cache", "Extensions"
SUPPORT = "Driver: support query"
SANE, CONSTANT, RESTARTED = "DEVICE-sane-*", "DEVICE-constant-*", "DEVICE-restarted-*"
POSITIVE = "all performance numbers are above 0"
SORTED = "the operand types of the capabilities are sorted, without repeats"
THE_SAME = "what a device says of itself is constant between calls and restarts"
NAMES = "a name of an extension is of lower case letters, digits, '_' and '.', and has a '.'"
QUICK = PerformanceInfo(0.5, 0.5)


def _rows(change: Callable[[list[OperandPerformance]], object]) -> Callable[[State, Capabilities], Capabilities]:
    """Capabilities whose list of operand types is changed in place."""

    def hook(state: State, answer: Capabilities) -> Capabilities:
        rows = list(answer.operand_performance)
        for kind in (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32):
            if all(row.type != kind for row in rows):
                rows.append(OperandPerformance(kind, QUICK))
        rows.sort(key=lambda row: row.type)
        change(rows)
        return replace(answer, operand_performance=tuple(rows))

    return hook


def _first(**numbers: float) -> Callable[[State, Capabilities], Capabilities]:
    """Capabilities whose first row has other numbers."""

    def change(rows: list[OperandPerformance]) -> None:
        rows[0] = OperandPerformance(rows[0].type, replace(rows[0].info, **numbers))

    return _rows(change)


def _number(name: str, numbers: PerformanceInfo) -> Callable[[State, Capabilities], Capabilities]:
    return lambda state, answer: replace(answer, **{name: numbers})  # type: ignore[arg-type]


def _wearing(state: State, answer: Capabilities) -> Capabilities:
    """Becomes slower with every question."""
    return replace(answer, if_performance=PerformanceInfo(1.0 + state.count("capabilities"), 1.0))


def _random(state: State, answer: Capabilities) -> Capabilities:
    return replace(answer, while_performance=PerformanceInfo(1.0 + state.chance, 1.0))


def _more(*extensions: Extension) -> Callable[[State, tuple[Extension, ...]], tuple[Extension, ...]]:
    return lambda state, answer: (*answer, *extensions)


def _type(number: int, size: int) -> OperandTypeInformation:
    return OperandTypeInformation(number, True, size)


def _once_more(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    """Other booleans when the same model comes again."""
    answer = go()
    return answer if query.state.count(("query", query.model)) == 1 else [not value for value in answer]


def _forgets(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    query.state.kept["asked"] = True
    return go()


def _forgotten(run: Run, go: Callable[[], ExecutionResult]) -> ExecutionResult:
    """Prepared models end with the next query."""
    if run.state.kept.get(("ran", id(run.prepared))) and run.state.kept.get("asked"):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "there is no such prepared model any more")
    run.state.kept["asked"] = False
    run.state.kept["ran", id(run.prepared)] = run.prepared
    return go()


def _mixes(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    query.state.kept["asked"] = query.model
    return go()


def _mixed(run: Run, go: Callable[[], ExecutionResult]) -> ExecutionResult:
    """Results change once another model was asked for."""
    result = go()
    asked = run.state.kept.get("asked")
    if asked is not None and asked is not run.model:
        run.outputs.damage()
    return result


def _none_of_it(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    return []


def _refuses_second(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    if query.state.count(("query", query.model)) > 1:
        raise invalid("this model was asked for before")
    return go()


FAULTS: Faults = {
    "status.busy": Fault(
        "says that it is busy", "FAIL", "MALFORMED", BASIC, "the status of a device under test is AVAILABLE", SANE,
        level=4, status=lambda state, answer: DeviceStatus.BUSY,
    ),
    "type.zero": Fault(
        "is of the type 0", "FAIL", "MALFORMED", BASIC, "a device has one of the types 1 to 4", SANE,
        kind=lambda state, answer: cast(DeviceType, 0),
    ),
    "type.changing": Fault(
        "is of another type each time", "FAIL", "INCONSISTENT", BASIC, THE_SAME, SANE,
        kind=lambda state, answer: DeviceType(1 + state.count("type") % 4),
    ),
    "version.empty": Fault(
        "has an empty version string", "FAIL", "MALFORMED", BASIC, "the version string is not empty", SANE,
        version=lambda state, answer: "",
    ),
    "version.clock": Fault(
        "has a version string that counts the questions", "FAIL", "INCONSISTENT", BASIC, THE_SAME, SANE,
        version=lambda state, answer: f"{answer}.{state.count('version')}",
    ),
    "version.restart": Fault(
        "has another version string in each process", "FAIL", "INCONSISTENT", BASIC, THE_SAME, RESTARTED,
        version=lambda state, answer: f"{answer}.{state.chance}",
    ),
    "capabilities.zero": Fault(
        "says that an operand type takes no time", "FAIL", "MALFORMED", CAPABILITIES, POSITIVE, SANE,
        capabilities=_first(exec_time=0.0),
    ),
    "capabilities.negative": Fault(
        "says that an operand type gives power back", "FAIL", "MALFORMED", CAPABILITIES, POSITIVE, SANE,
        capabilities=_first(power_usage=-1.0),
    ),
    "capabilities.nan": Fault(
        "says NaN for a performance", "FAIL", "MALFORMED", CAPABILITIES, POSITIVE, SANE,
        capabilities=_first(exec_time=math.nan),
    ),
    "capabilities.relaxed": Fault(
        "says 0 for relaxed float32 tensors", "FAIL", "MALFORMED", CAPABILITIES,
        "there are numbers above 0 for relaxed float32, scalars and tensors", SANE,
        capabilities=_number("relaxed_float32_to_float16_performance_tensor", PerformanceInfo(0.0, 1.0)),
    ),
    "capabilities.scalar": Fault(
        "says 0 for relaxed float32 scalars", "FAIL", "MALFORMED", CAPABILITIES,
        "there are numbers above 0 for relaxed float32, scalars and tensors", SANE,
        capabilities=_number("relaxed_float32_to_float16_performance_scalar", PerformanceInfo(1.0, 0.0)),
    ),
    "capabilities.if": Fault(
        "says 0 for IF", "FAIL", "MALFORMED", CAPABILITIES, "IF and WHILE have numbers above 0 of their own", SANE,
        capabilities=_number("if_performance", PerformanceInfo(0.0, 0.0)),
    ),
    "capabilities.while": Fault(
        "says 0 for WHILE", "FAIL", "MALFORMED", CAPABILITIES, "IF and WHILE have numbers above 0 of their own", SANE,
        capabilities=_number("while_performance", PerformanceInfo(0.0, 0.0)),
    ),
    "capabilities.unsorted": Fault(
        "lists its operand types backwards", "FAIL", "MALFORMED", CAPABILITIES, SORTED, SANE,
        capabilities=_rows(lambda rows: rows.reverse()),
    ),
    "capabilities.repeated": Fault(
        "lists an operand type twice", "FAIL", "MALFORMED", CAPABILITIES, SORTED, SANE,
        capabilities=_rows(lambda rows: rows.insert(1, rows[0])),
    ),
    "capabilities.subgraph": Fault(
        "lists the operand type SUBGRAPH", "FAIL", "MALFORMED", CAPABILITIES, "SUBGRAPH is not listed", SANE,
        capabilities=_rows(lambda rows: rows.append(OperandPerformance(OperandType.SUBGRAPH, QUICK))),
    ),
    "capabilities.unknown": Fault(
        "lists an operand type that there is none of", "FAIL", "MALFORMED", CAPABILITIES,
        "operand types of the capabilities are known to the device's version", SANE,
        capabilities=_rows(lambda rows: rows.append(OperandPerformance(cast(OperandType, 77), QUICK))),
    ),
    "capabilities.wearing": Fault(
        "becomes slower with every question", "FAIL", "INCONSISTENT", CAPABILITIES, THE_SAME, SANE,
        capabilities=_wearing,
    ),
    "capabilities.restart": Fault(
        "has other capabilities in each process", "FAIL", "INCONSISTENT", CAPABILITIES, THE_SAME, RESTARTED,
        capabilities=_random,
    ),
    "extensions.name": Fault(
        "has an extension whose name has no dot", "FAIL", "MALFORMED", EXTENSIONS, NAMES, SANE,
        extensions=_more(Extension("vendor")),
    ),
    "extensions.capital": Fault(
        "has an extension whose name has a capital letter", "FAIL", "MALFORMED", EXTENSIONS, NAMES, SANE,
        extensions=_more(Extension("com.Vendor")),
    ),
    "extensions.twice": Fault(
        "has an extension twice", "FAIL", "MALFORMED", EXTENSIONS, "names of extensions are unique", SANE,
        extensions=_more(Extension("com.vendor.x"), Extension("com.vendor.x")),
    ),
    "extensions.type.twice": Fault(
        "has an extension with two types of one number", "FAIL", "MALFORMED", EXTENSIONS,
        "the type numbers of an extension are unique", SANE,
        extensions=_more(Extension("com.vendor.x", (_type(1, 4), _type(1, 2)))),
    ),
    "extensions.type.size": Fault(
        "has an extension with elements of no bytes", "FAIL", "MALFORMED", EXTENSIONS,
        "the bytes of an element are above 0", SANE, extensions=_more(Extension("com.vendor.x", (_type(1, 0),))),
    ),
    "extensions.changing": Fault(
        "has an extension more with every question", "FAIL", "INCONSISTENT", EXTENSIONS, THE_SAME, SANE,
        extensions=lambda state, answer: (*answer, Extension(f"com.vendor.x{state.count('extensions')}")),
    ),
    "cache.files.many": Fault(
        "needs 33 model cache files", "FAIL", "MALFORMED", CACHE, "0 to 32 files of each kind are needed", SANE,
        cache_files=lambda state, answer: CacheFilesNeeded(33, 0),
    ),
    "cache.files.negative": Fault(
        "needs -1 data cache files", "FAIL", "MALFORMED", CACHE, "0 to 32 files of each kind are needed", SANE,
        cache_files=lambda state, answer: CacheFilesNeeded(1, -1),
    ),
    "cache.files.changing": Fault(
        "needs another number of cache files each time", "FAIL", "INCONSISTENT", CACHE, THE_SAME, SANE,
        cache_files=lambda state, answer: CacheFilesNeeded(1 + state.count("files") % 5, 1),
    ),
    "query.changing": Fault(
        "answers other booleans when a model comes again", "FAIL", "INCONSISTENT", SUPPORT,
        "a support query has the same answer twice", "DEVICE-query.twice-*", query=_once_more,
    ),
    "query.refuses": Fault(
        "refuses a model that comes again", "FAIL", "INCONSISTENT", SUPPORT,
        "a support query has the same answer twice", "DEVICE-query.twice-*", query=_refuses_second,
    ),
    "query.empty": Fault(
        "answers a query with an empty list", "FAIL", "MALFORMED", SUPPORT,
        "the support query gives one boolean for each operation of the main graph", "DEVICE-query.*",
        query=_none_of_it,
    ),
    "query.releases": Fault(
        "lets its prepared models go when it is asked for another model", "FAIL", "STATUS", SUPPORT,
        "a support query has no side effects", "DEVICE-query.alone-*", query=_forgets, run=_forgotten,
    ),
    "query.mixes": Fault(
        "computes with parts of the model that it was last asked for", "FAIL", "VALUE", SUPPORT,
        "a support query has no side effects", "DEVICE-query.alone-*", query=_mixes, run=_mixed,
    ),
}  # fmt: skip
