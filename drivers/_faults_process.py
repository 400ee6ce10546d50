"""Faults that concern the process and everything at once: death, silence, memory, values, accepting or refusing all."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import random
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from drivers._faults import Fault, Faults, Preparing, Query, Run
from drivers._faults_memory import BYTES_OUTSIDE, input_views, output_dimensions, poke
from drivers._faults_wrapping import Nothing
from nnhal.device import ExecutionResult, OutputShape, PreparedModel, Timing
from nnhal.errors import DriverError, UsageError, invalid
from nnhal.types import ErrorStatus

LEAK = 1 << 20
FLAKY = 30  # executions for each that `flaky` gets wrong

Go = Callable[[], ExecutionResult]


def _abort() -> None:
    os.abort()


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(0)


def _hang() -> None:
    while True:
        time.sleep(3600)


_JUMP_TO_ITSELF = {"x86_64": b"\xeb\xfe", "aarch64": b"\x00\x00\x00\x14"}


def _spin() -> None:
    code = _JUMP_TO_ITSELF.get(platform.machine())
    if code is None:
        raise UsageError(f"faulty: fault=spin is not made for {platform.machine()}")
    area = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.PYFUNCTYPE(None)(address)()  # keeps the GIL: no other thread of the process runs either


def _value_error() -> None:
    raise ValueError("an exception that no driver may raise")


def _daemon() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)  # the grandchild exists from here on
        return
    try:
        os.setsid()
        if not os.fork():
            signal.pause()
    finally:
        os._exit(0)


def _garbage() -> None:
    data = random.Random(0).randbytes(4096)
    for name in Path("/proc/self/fd").iterdir():
        descriptor = int(name.name)
        try:
            if descriptor > 2 and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, data)
        except OSError:
            continue  # a socket that listens


_leaked: list[tuple[bytearray, int]] = []


def _leak() -> None:
    _leaked.append((bytearray(LEAK), os.dup(2)))


def _before(act: Callable[[], None]) -> Callable[[Run, Go], ExecutionResult]:
    def run(occasion: Run, go: Go) -> ExecutionResult:
        act()
        return go()

    return run


def _slow(run: Run, go: Go) -> ExecutionResult:
    time.sleep(run.state.seconds)
    return go()


def _no_output(run: Run, go: Go) -> ExecutionResult:
    outputs = run.outputs
    before = outputs.copy()
    result = go()
    outputs.write(before)
    return result


def _wrong_value(run: Run, go: Go) -> ExecutionResult:
    result = go()
    run.outputs.damage()
    return result


def _flaky(run: Run, go: Go) -> ExecutionResult:
    result = go()
    if os.urandom(1)[0] < 256 / FLAKY:  # by chance, so that another process or order does not repeat it
        run.outputs.damage()
    return result


def _nan(run: Run, go: Go) -> ExecutionResult:
    result = go()
    run.outputs.put_nan()
    return result


def _wrong_shape(run: Run, go: Go) -> ExecutionResult:
    result = go()
    if run.model is None:
        return result
    shapes = result.output_shapes or tuple(OutputShape(d) for d in output_dimensions(run.model, run.request))
    first = shapes[0].dimensions
    wrong = OutputShape((*first[:-1], first[-1] + 1) if first else (1,))
    return replace(result, output_shapes=(wrong, *shapes[1:]))


def _lie_timing(run: Run, go: Go) -> ExecutionResult:
    return replace(go(), timing=Timing(2_000_000, 1_000_000))


def _write_outside(run: Run, go: Go) -> ExecutionResult:
    result = go()
    view = run.outputs.views[-1]
    poke(view, len(view))
    return result


def _write_before(run: Run, go: Go) -> ExecutionResult:
    result = go()
    poke(run.outputs.views[-1], -BYTES_OUTSIDE)
    return result


def _write_input(run: Run, go: Go) -> ExecutionResult:
    result = go()
    for view in input_views(run.request)[:1]:
        view[0] ^= 0xFF
    return result


def _stale(run: Run, go: Go) -> ExecutionResult:
    result = go()
    outputs = run.outputs
    mine = outputs.copy()
    if run.due():
        outputs.write(run.state.kept.get("last outputs", []))
    run.state.kept["last outputs"] = mine
    return result


def _refuse_query(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    raise invalid("everything is refused")


def _refuse_model(preparing: Preparing, go: Callable[[], PreparedModel]) -> PreparedModel:
    raise invalid("everything is refused")


def _claim_all(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    go()
    return [True] * len(query.model.main.operations)


def _prepare_nothing(preparing: Preparing, go: Callable[[], PreparedModel]) -> PreparedModel:
    raise DriverError(ErrorStatus.GENERAL_FAILURE, "nothing is prepared")


def accept_query(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    """Takes an invalid model."""
    try:
        return go()
    except DriverError:
        if not query.state.trigger.concerns(query.model):
            raise
        return [True] * len(query.model.main.operations)


def accept_model(preparing: Preparing, go: Callable[[], PreparedModel]) -> PreparedModel:
    """Takes an invalid model."""
    try:
        return go()
    except DriverError:
        if not preparing.state.trigger.concerns(preparing.model):
            raise
        return Nothing()


def _accept_request(run: Run, go: Go) -> ExecutionResult:
    try:
        return go()
    except DriverError:
        return ExecutionResult()


def _one_too_many(query: Query, go: Callable[[], list[bool]]) -> list[bool]:
    return [*go(), True]


SUPPORT = "Driver: support query"
EXECUTE = "Execution"
MODE = "EXECUTION-mode.*"
SURVIVES = "a driver answers every call and its process lives on"
MEMORY = "a driver writes nothing but the outputs of a request"
RIGHT = "an execution gives the results of the model on the inputs of its request"

FAULTS: Faults = {
    "abort": Fault(
        "calls abort() during an execution", "CRASH", "DIED", EXECUTE, SURVIVES, MODE,
        isolated=True, run=_before(_abort),
    ),
    "segfault": Fault(
        "reads address 0 during an execution", "CRASH", "DIED", EXECUTE, SURVIVES, MODE,
        isolated=True, run=_before(_segfault),
    ),
    "exit": Fault(
        "ends its process with status 0 during an execution", "CRASH", "DIED", EXECUTE, SURVIVES, MODE,
        isolated=True, run=_before(_exit),
    ),
    "hang": Fault(
        "sleeps for ever during an execution", "HANG", "SILENT", EXECUTE, SURVIVES, "EXECUTION-mode.sync-*",
        isolated=True, run=_before(_hang),
    ),
    "spin": Fault(
        "loops in native code for ever, holding the GIL", "HANG", "SILENT", EXECUTE, SURVIVES,
        "EXECUTION-mode.sync-*", isolated=True, run=_before(_spin),
    ),
    "slow": Fault("takes `seconds` (1) longer for an execution", "PASS", "", EXECUTE, run=_slow),
    "write_outside": Fault(
        "writes behind the end of an output", "FAIL", "OVERRUN", EXECUTE, MEMORY, MODE, run=_write_outside
    ),
    "write_before": Fault(
        "writes in front of an output", "FAIL", "OVERRUN", EXECUTE, MEMORY, MODE, run=_write_before
    ),
    "write_input": Fault(
        "changes an input", "FAIL", "INPUT_WRITTEN", EXECUTE, "inputs are never changed by the driver", MODE,
        run=_write_input,
    ),
    "wrong_shape": Fault(
        "reports an output shape that is wrong", "FAIL", "SHAPE", "Output shapes and timing",
        "the shapes that are reported are those of the results", "EXECUTION-mode.*sync-*", run=_wrong_shape,
    ),
    "wrong_value": Fault(
        "gets one element of an output wrong", "FAIL", "VALUE", EXECUTE, RIGHT, MODE, run=_wrong_value
    ),
    "nan": Fault(
        "writes NaN into one element of a float output", "FAIL", "VALUE", EXECUTE, RIGHT,
        "ADD-float32-sync-drawn-*", run=_nan,
    ),
    "no_output": Fault(
        "reports success and leaves the outputs untouched", "FAIL", "VALUE", EXECUTE, RIGHT, MODE, run=_no_output
    ),
    "stale": Fault(
        "gives the outputs of the execution before", "FAIL", "VALUE", EXECUTE, RIGHT,
        "EXECUTION-other.inputs-*", always=True, run=_stale,
    ),
    "flaky": Fault("gets one execution in thirty wrong, by chance", "FLAKY", "VALUE", EXECUTE, RIGHT, run=_flaky),
    "lie_timing": Fault(
        "claims less time in the driver than on the device", "FAIL", "TIMING", "Output shapes and timing",
        "the time on the device is at most that in the driver when both are given", MODE, run=_lie_timing,
    ),
    "leak": Fault(
        "keeps 1 MiB and a descriptor of every execution: seen in the samples of the records", "PASS", "", EXECUTE,
        run=_before(_leak),
    ),
    "daemon": Fault("leaves a daemonised process behind", "PASS", "", EXECUTE, run=_before(_daemon)),
    "garbage": Fault(
        "writes random bytes to the sockets of its process", "CRASH", "DIED", EXECUTE, SURVIVES,
        "EXECUTION-mode.sync-*", isolated=True, run=_before(_garbage),
    ),
    "value_error": Fault(
        "raises ValueError during an execution", "FAIL", "UNCLEAN_ERROR", EXECUTE,
        "a driver answers with a result or an error status", MODE, run=_before(_value_error),
    ),
    "refuse_all": Fault(
        "answers INVALID_ARGUMENT to every model", "FAIL", "STATUS", SUPPORT,
        "a valid model has an answer for each of its operations", MODE, query=_refuse_query, prepare=_refuse_model,
    ),
    "refuse_prepare": Fault(
        "claims support, then fails to prepare", "FAIL", "STATUS", "Preparation",
        "what the support query promised can be prepared", MODE, query=_claim_all, prepare=_prepare_nothing,
    ),
    "accept_all": Fault(
        "accepts invalid models and requests", "FAIL", "ACCEPTED", "Preparation", "an invalid model is refused",
        "ADD-float32-sync-broken-*", always=True, query=accept_query, prepare=accept_model, run=_accept_request,
    ),
    "wrong_count": Fault(
        "answers a query with one boolean too many", "FAIL", "MALFORMED", SUPPORT,
        "the support query gives one boolean for each operation of the main graph", MODE, query=_one_too_many,
    ),
}  # fmt: skip
