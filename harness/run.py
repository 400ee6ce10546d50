"""Runs a case on a device: the only module that calls a driver. What happens becomes an Outcome, whatever it is."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field, replace

import numpy as np

from harness.case import Action, MayReject, Returns, Step, TestCase
from harness.guards import Arena, Guarded, guard
from harness.remote import RemotePreparedModel
from nnhal.device import Device, ExecutionCallback, ExecutionConfig, ExecutionResult, PreparedModel, Timing
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError
from nnhal.model import Model, operand_size
from nnhal.types import Array, ErrorStatus, ExecutionMode, info

CALLBACK_SECONDS = 10.0
MEASURED = ExecutionConfig(measure_timing=True)


@dataclass(frozen=True)
class StepOutcome:
    """What came of one step.

    Attributes:
        step: index in the case.
        status: NONE when the driver answered well; None when it did not answer with a status.
        message: the driver's words.
        unclean: type and message of an exception that is not a DriverError.
        trace: the driver's traceback of that exception.
        supported: the answer to a query.
        reasons: why operations are not supported.
        outputs: what an execution left, None where its place was too small for the shape it reported.
        shapes: the shapes it reported, or those declared where it reported none.
        malformed: a sentence on an answer that does not fit the question.
        findings: guards that were broken.
        skipped: an execution of a model that could not be prepared.
    """

    step: int
    status: ErrorStatus | None
    message: str = ""
    unclean: str = ""
    trace: str = ""
    supported: tuple[bool, ...] = ()
    reasons: tuple[str | None, ...] = ()
    outputs: tuple[Array | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    malformed: str = ""
    timing: Timing | None = None
    findings: tuple[tuple[str, str], ...] = ()
    skipped: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of a case: its steps as far as they went, and how the driver ended if it did.

    Attributes:
        died: how the driver's process ended.
        silent: seconds waited for an answer that did not come.
        log: the end of the driver's log, after a death or silence.
    """

    steps: tuple[StepOutcome, ...] = ()
    died: str | None = None
    silent: float | None = None
    at: int = 0
    log: str = ""


@dataclass
class _Session:
    """What exists on the driver's side while a case runs."""

    case: TestCase
    device: Device
    arena: Arena
    in_process: bool
    prepared: dict[int, PreparedModel] = field(default_factory=dict)


def run(case: TestCase, device: Device, arena: Arena | None = None, *, in_process: bool = False) -> Outcome:
    """Takes a case's steps in order, until one ends the case.

    The questions to a valid model are fixed: is it supported, prepare, execute. "Not supported" ends the case; a model
    that must be refused is asked on, since validity comes before support.

    Args:
        case: what to do.
        device: an isolated driver's proxy, or a driver itself.
        arena: memory to use again from case to case.
        in_process: the device is the driver itself, so that any exception is the driver's.
    """
    own = Arena() if arena is None else arena
    session = _Session(case, device, own, in_process)
    done: list[StepOutcome] = []
    number = 0
    try:
        for number, step in enumerate(case.steps):
            started = time.perf_counter()
            outcome = _take(session, number, step)
            done.append(replace(outcome, seconds=time.perf_counter() - started))
            if _ends(case, step, done[-1]):
                break
        done += _release(session, number)
    except DriverDied as death:
        return Outcome(tuple(done), died=death.reason, at=number, log=death.log)
    except DriverTimedOut as silence:
        return Outcome(tuple(done), silent=silence.seconds, at=number, log=silence.log)
    finally:
        if arena is None:
            own.close()
    return Outcome(tuple(done), at=number)


def _ends(case: TestCase, step: Step, outcome: StepOutcome) -> bool:
    """Whether nothing more is to be asked."""
    if outcome.status is None:
        return not outcome.skipped
    if isinstance(step.expect, Returns):
        if outcome.status != ErrorStatus.NONE:
            return not case.negative
        return not all(outcome.supported) and not case.negative
    return isinstance(step.expect, MayReject) and outcome.status != ErrorStatus.NONE


def _take(session: _Session, number: int, step: Step) -> StepOutcome:
    try:
        if step.action == Action.QUERY:
            return _query(session, number, step)
        if step.action == Action.PREPARE:
            return _prepare(session, number, step)
        return _execute(session, number, step)
    except DriverError as error:
        return StepOutcome(number, error.status, error.message)
    except UncleanError as error:
        return StepOutcome(number, None, unclean=str(error), trace=error.trace)
    except (DriverDied, DriverTimedOut):
        raise
    except Exception as error:
        if not session.in_process:
            raise SuiteError(f"{type(error).__name__} in the suite while a step ran: {error}") from error
        return StepOutcome(number, None, unclean=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _query(session: _Session, number: int, step: Step) -> StepOutcome:
    model = session.case.models[step.model]
    answer = session.device.get_supported_operations(model)
    supported = tuple(bool(value) for value in answer) if isinstance(answer, (list, tuple)) else ()
    if len(supported) != len(model.main.operations):
        text = f"the support query gave {len(supported)} booleans for {len(model.main.operations)} operations"
        return StepOutcome(number, ErrorStatus.NONE, supported=(), malformed=text)
    reasons: tuple[str | None, ...] = ()
    if not all(supported):
        reasons = tuple(session.device.explain_unsupported(model))
    return StepOutcome(number, ErrorStatus.NONE, supported=supported, reasons=reasons)


def _prepare(session: _Session, number: int, step: Step) -> StepOutcome:
    prepared = session.device.prepare_model(session.case.models[step.model])
    if not isinstance(prepared, PreparedModel):
        text = f"TypeError: prepare_model answered {type(prepared).__name__}, PreparedModel is due"
        return StepOutcome(number, None, unclean=text)
    session.prepared[step.model] = prepared
    return StepOutcome(number, ErrorStatus.NONE)


def _execute(session: _Session, number: int, step: Step) -> StepOutcome:
    model = session.case.models[step.model]
    prepared = session.prepared.get(step.model)
    if prepared is None:
        return StepOutcome(number, None, skipped=True)
    guarded = guard(session.arena, model, step.inputs, output_lengths(model, step))
    try:
        result = execute(prepared, guarded, step.mode)
    except DriverError as error:
        findings = tuple(guarded.findings())
        return StepOutcome(number, error.status, error.message, findings=findings)
    except UncleanError as error:
        findings = tuple(guarded.findings())
        return StepOutcome(number, None, unclean=str(error), trace=error.trace, findings=findings)
    return _collect(number, model, step, guarded, result)


def output_lengths(model: Model, step: Step) -> list[int]:
    """Bytes of each output: as the model declares them, or as they are expected where it does not say."""
    lengths = []
    for position, index in enumerate(model.main.output_indexes):
        operand = model.main.operands[index]
        length = operand_size(operand)
        if not length and isinstance(step.expect, Returns) and position < len(step.expect.outputs):
            length = operand_size(operand, step.expect.outputs[position].shape)
        lengths.append(length)
    return lengths


def execute(prepared: PreparedModel, guarded: Guarded, mode: ExecutionMode) -> ExecutionResult:
    """One execution in a mode.

    Raises:
        DriverError: the driver's answer was not NONE.
    """
    request = guarded.request
    if mode == ExecutionMode.ASYNCHRONOUS:
        callback = ExecutionCallback()
        prepared.execute(request, callback, MEASURED)
        notified = _wait_for(prepared, callback)
        if notified[0] not in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
            raise DriverError(notified[0])
        return notified[1]
    if mode == ExecutionMode.BURST:
        burst = prepared.configure_execution_burst()
        try:
            return burst.execute_synchronously(request, [-1] * len(request.pools), MEASURED)
        finally:
            burst.close()
    if mode == ExecutionMode.FENCED:
        fence, report = prepared.execute_fenced(request, [], MEASURED)
        if fence is not None:
            fence.wait(int(CALLBACK_SECONDS * 1e9))
        fenced = report()
        if fenced.status != ErrorStatus.NONE:
            raise DriverError(fenced.status)
        return ExecutionResult((), fenced.timing_launched)
    if mode == ExecutionMode.REUSABLE:
        return prepared.create_reusable_execution(request, MEASURED).execute_synchronously()
    return prepared.execute_synchronously(request, MEASURED)


def _wait_for(prepared: PreparedModel, callback: ExecutionCallback) -> tuple[ErrorStatus, ExecutionResult]:
    """What a callback was notified with; a driver elsewhere may die or fall silent meanwhile."""
    if isinstance(prepared, RemotePreparedModel):
        return prepared.connection.wait_for_callback(callback)
    notified = callback.wait(CALLBACK_SECONDS)
    if notified is None:
        raise DriverTimedOut(CALLBACK_SECONDS, "the callback of an asynchronous execution was never notified")
    return notified


def _collect(number: int, model: Model, step: Step, guarded: Guarded, result: ExecutionResult) -> StepOutcome:
    findings = tuple(guarded.findings())
    if not result.output_sufficient_size:
        return StepOutcome(number, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, findings=findings, timing=result.timing)
    count = len(model.main.output_indexes)
    if result.output_shapes and len(result.output_shapes) != count:
        text = f"{len(result.output_shapes)} output shapes for {count} outputs"
        return StepOutcome(number, ErrorStatus.NONE, malformed=text, findings=findings)
    shapes = []
    outputs: list[Array | None] = []
    for position, index in enumerate(model.main.output_indexes):
        operand = model.main.operands[index]
        shape = operand.dimensions
        if result.output_shapes:
            shape = tuple(result.output_shapes[position].dimensions)
        shapes.append(shape)
        outputs.append(guarded.output(position, np.dtype(info(operand.type).dtype), shape))
    return StepOutcome(
        number,
        ErrorStatus.NONE,
        outputs=tuple(outputs),
        shapes=tuple(shapes),
        timing=result.timing,
        findings=findings,
    )


def _release(session: _Session, number: int) -> list[StepOutcome]:
    """Lets prepared models go; an exception of a driver in this process counts to the last step."""
    if not session.in_process:
        for prepared in session.prepared.values():
            prepared.close()
        return []
    return [trouble for prepared in session.prepared.values() if (trouble := _close(number, prepared))]


def _close(number: int, prepared: PreparedModel) -> StepOutcome | None:
    try:
        prepared.close()
    except Exception as error:
        words = f"{type(error).__name__}: {error} (in close)"
        return StepOutcome(number, None, unclean=words, trace=traceback.format_exc())
    return None
