"""Faults of results: output shapes, timing, outputs that are too small, values in some modes and at some times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from drivers._faults import ASYNC, BURST, EVERY_MODE, FENCED, REUSABLE, SYNC, Fault, Faults, Run
from drivers._faults_memory import input_bytes, output_dimensions, poke
from nnhal.device import ExecutionCallback, ExecutionResult, OutputShape, Timing
from nnhal.errors import DriverError
from nnhal.types import ErrorStatus, ExecutionMode

SHAPES, EXECUTION, GENERATED, DYNAMIC = (
    "Output shapes and timing",
    "Execution",
    "Driver tests: generated",
    "Driver tests: dynamic output shape",
)
SHORT = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
MARKED = "isSufficient is false for the short outputs and only them"
EACH = "OUTPUT_INSUFFICIENT_SIZE comes with a shape for each output"
NOT_FENCED = EVERY_MODE - {FENCED}
WITH_SHAPES = frozenset({SYNC, ASYNC, BURST, REUSABLE})
Go = Callable[[], ExecutionResult]
Change = Callable[[Run, ExecutionResult], ExecutionResult]


def _after(change: Change) -> Callable[[Run, Go], ExecutionResult]:
    """Changes the result of an execution that succeeded."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        result = go()
        return change(run, result) if result.output_sufficient_size else result

    return hook


def _when_short(change: Change) -> Callable[[Run, Go], ExecutionResult]:
    """Changes the answer where an output was too small."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        try:
            result = go()
        except DriverError as error:
            if error.status != SHORT:
                raise
            result = ExecutionResult(error.output_shapes, output_sufficient_size=False)
        return result if result.output_sufficient_size else change(run, result)

    return hook


def _wrong(run: Run, result: ExecutionResult) -> ExecutionResult:
    run.outputs.damage()
    return result


def _shapes(change: Callable[[OutputShape], OutputShape]) -> Change:
    return lambda run, result: replace(result, output_shapes=tuple(map(change, result.output_shapes)))


def _no_shapes(run: Run, result: ExecutionResult) -> ExecutionResult:
    return replace(result, output_shapes=())


def _fewer(run: Run, result: ExecutionResult) -> ExecutionResult:
    return replace(result, output_shapes=(*result.output_shapes, *result.output_shapes[-1:]))


def _unknown(run: Run, result: ExecutionResult) -> ExecutionResult:
    """Says the model's dimensions, unknown ones and all."""
    if run.model is None:
        return result
    said = [run.model.main.operands[i].dimensions for i in run.model.main.output_indexes]
    return replace(result, output_shapes=tuple(OutputShape(dimensions) for dimensions in said))


def _marked(run: Run, result: ExecutionResult) -> ExecutionResult:
    first = result.output_shapes[0]
    return replace(result, output_shapes=(replace(first, is_sufficient=False), *result.output_shapes[1:]))


def _others_marked(run: Run, result: ExecutionResult) -> ExecutionResult:
    shapes = tuple(replace(shape, is_sufficient=not shape.is_sufficient) for shape in result.output_shapes)
    return replace(result, output_shapes=shapes)


def _less(run: Run, result: ExecutionResult) -> ExecutionResult:
    """Says of a short output less than model and request say."""
    shapes = tuple(OutputShape((0,) * len(s.dimensions), s.is_sufficient) for s in result.output_shapes)
    return replace(result, output_shapes=shapes)


def _as_much_as_fits(run: Run, result: ExecutionResult) -> ExecutionResult:
    """Takes the short place for the whole output."""
    shapes = tuple(replace(s, is_sufficient=True) for s in result.output_shapes)
    return ExecutionResult(shapes)


def _larger(shape: OutputShape) -> OutputShape:
    size = shape.dimensions[-1] + 1 if shape.dimensions else 1
    return OutputShape((*shape.dimensions[:-1], size), shape.is_sufficient)


def _fails(status: ErrorStatus) -> Change:
    def change(run: Run, result: ExecutionResult) -> ExecutionResult:
        raise DriverError(status, "an output is too small")

    return change


def _timed(run: Run, result: ExecutionResult) -> ExecutionResult:
    return replace(result, timing=Timing(1, 2))


def _unusable(run: Run, go: Go) -> ExecutionResult:
    """Once an output was too small, the prepared model is spent."""
    if ("spent", id(run.prepared)) in run.state.kept:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "this prepared model has failed before")
    result = go()
    if not result.output_sufficient_size:
        run.state.kept["spent", id(run.prepared)] = run.prepared
    return result


def _spoiled(run: Run, go: Go) -> ExecutionResult:
    """After any error a prepared model computes wrongly."""
    key = "spoiled", id(run.prepared)
    try:
        result = go()
    except DriverError:
        run.state.kept[key] = run.prepared
        raise
    if key in run.state.kept:
        run.outputs.damage()
    return result


def _shapes_on_error(run: Run, go: Go) -> ExecutionResult:
    """Errors come with the shapes that the outputs would have."""
    try:
        return go()
    except DriverError as error:
        dimensions = [(1,)] if run.model is None else _known(run)
        shapes = [OutputShape(d) for d in dimensions]
        raise DriverError(error.status, error.message, shapes) from None


def _writes_on_error(run: Run, go: Go) -> ExecutionResult:
    """Writes behind an output before it looks at the request."""
    try:
        return go()
    except DriverError:
        for view in run.outputs.views[-1:]:
            poke(view, len(view))
        raise


def _known(run: Run) -> list[tuple[int, ...]]:
    assert run.model is not None
    try:
        return output_dimensions(run.model, run.request)
    except ValueError:  # as many outputs as there should not be
        return [(1,)]


def _unasked(run: Run, result: ExecutionResult) -> ExecutionResult:
    if run.config.measure_timing:
        return result
    run.fenced = Timing(1_000, 2_000) if run.mode == FENCED else run.fenced
    return replace(result, timing=Timing(1_000, 2_000))


def _timing(device: int, driver: int) -> Change:
    return lambda run, result: replace(result, timing=Timing(device, driver)) if run.config.measure_timing else result


def _fenced_lie(run: Run, result: ExecutionResult) -> ExecutionResult:
    if run.config.measure_timing:
        run.fenced = Timing(2_000_000, 1_000_000)
    return result


def _longer_fenced(run: Run, result: ExecutionResult) -> ExecutionResult:
    """The time from the fences on exceeds that from the call on."""
    if run.config.measure_timing:
        run.fenced = Timing(1_000, 3_000)
        return replace(result, timing=Timing(1_000, 2_000))
    return result


def _measured_wrong(run: Run, result: ExecutionResult) -> ExecutionResult:
    return _wrong(run, result) if run.config.measure_timing else result


def _unmeasured_wrong(run: Run, result: ExecutionResult) -> ExecutionResult:
    return result if run.config.measure_timing else _wrong(run, result)


def _mixed_up(run: Run, go: Go) -> ExecutionResult:
    """Has one place for the results of all executions, as long as several are under way."""
    key = "at once", id(run.prepared)
    with run.state.lock:
        run.state.kept[key] = run.state.kept.get(key, 0) + 1
    time.sleep(0.02)  # so that all are there
    with run.state.lock:
        crowded = run.state.kept[key] > 1
    try:
        result = go()
        if crowded:
            outputs = run.outputs
            mine = outputs.copy()
            outputs.write(run.state.kept.get("place", mine))
            run.state.kept["place"] = mine
        return result
    finally:
        with run.state.lock:
            run.state.kept[key] -= 1


def _busy(run: Run, go: Go) -> ExecutionResult:
    """Runs one execution of a prepared model at a time and refuses others."""
    key = "busy", id(run.prepared)
    with run.state.lock:
        if run.state.kept.get(key):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "the prepared model is busy")
        run.state.kept[key] = True
    try:
        time.sleep(0.02)
        return go()
    finally:
        run.state.kept[key] = False


def _remembers(run: Run, go: Go) -> ExecutionResult:
    """Keeps the results of the first inputs that it sees."""
    result = go()
    outputs = run.outputs
    key = "first", id(run.prepared)
    run.state.kept.setdefault(key, (outputs.copy(), run.prepared))
    outputs.write(run.state.kept[key][0])
    return result


def _pools_kept(run: Run, go: Go) -> ExecutionResult:
    """Accumulates: every execution after the first of the same inputs is off."""
    result = go()
    if run.state.count(("runs", id(run.prepared), input_bytes(run.request))) > 1:
        run.outputs.damage()
    return result


def _twice(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    callback.notify(status, result)
    callback.notify(status, result)


def _never(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    """Forgets to tell."""


def _other_status(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    other = ErrorStatus.GENERAL_FAILURE if status == ErrorStatus.INVALID_ARGUMENT else status
    callback.notify(other, result)


def _error_shapes(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    wrong = ExecutionResult((OutputShape((1,)),), result.timing)
    callback.notify(status, wrong if status not in (ErrorStatus.NONE, SHORT) else result)


def _error_timing(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    callback.notify(status, result if status == ErrorStatus.NONE else replace(result, timing=Timing(1, 2)))


def _silent_refusal(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    """Tells nothing of requests that it has refused at once."""
    if status in (ErrorStatus.NONE, SHORT):
        callback.notify(status, result)


def _too_early(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    """Tells before the results are there."""
    outputs = run.outputs
    right = outputs.copy()
    outputs.write([bytes(len(data)) for data in right])
    callback.notify(status, result)
    time.sleep(0.05)
    outputs.write(right)


def _error_in_callback(run: Run, callback: ExecutionCallback, status: ErrorStatus, result: ExecutionResult) -> None:
    callback.notify(ErrorStatus.GENERAL_FAILURE, ExecutionResult())


def _wrong_in(mode: ExecutionMode, short: str) -> Fault:
    return Fault(
        f"computes wrongly in {mode.name.lower()} execution", "FAIL", "VALUE", GENERATED,
        "every way to execute gives the same results", f"EXECUTION-beside.{short}-*", modes=frozenset({mode}),
        run=_after(_wrong),
    )  # fmt: skip


FAULTS: Faults = {
    "wrong.async": _wrong_in(ASYNC, "async"),
    "wrong.burst": _wrong_in(BURST, "burst"),
    "wrong.fenced": _wrong_in(FENCED, "fenced"),
    "wrong.reusable": _wrong_in(REUSABLE, "reusable"),
    "wrong.measured": Fault(
        "computes wrongly while it measures", "FAIL", "VALUE", GENERATED,
        "results are the same with timing and without", "EXECUTION-mode.*", run=_after(_measured_wrong),
    ),
    "wrong.unmeasured": Fault(
        "computes wrongly unless it measures", "FAIL", "VALUE", GENERATED,
        "results are the same with timing and without", "EXECUTION-mode.*", run=_after(_unmeasured_wrong),
    ),
    "at_once.mixed": Fault(
        "mixes up the results of executions at once", "FAIL", "VALUE", EXECUTION,
        "any number of executions may go on at once on one prepared model", "EXECUTION-at.once.*", run=_mixed_up,
    ),
    "at_once.busy": Fault(
        "refuses an execution while another one goes on", "FAIL", "STATUS", EXECUTION,
        "any number of executions may go on at once on one prepared model", "EXECUTION-at.once.*", run=_busy,
    ),
    "first_inputs": Fault(
        "gives the results of the first inputs for ever", "FAIL", "VALUE", EXECUTION,
        "an execution gives the results of the model on the inputs of its request", "EXECUTION-other.inputs-*",
        run=_remembers,
    ),
    "accumulates": Fault(
        "does not clear its memory between executions", "FAIL", "VALUE", EXECUTION,
        "an execution leaves nothing behind for the next one", "EXECUTION-other.inputs-*", run=_pools_kept,
    ),
    "error.spoils": Fault(
        "computes wrongly once a request was refused", "FAIL", "VALUE", SHAPES,
        "after an error the prepared model stays usable", "EXECUTION-after.error.*", run=_spoiled,
    ),
    "error.writes": Fault(
        "writes outside of outputs when a request is refused", "FAIL", "OVERRUN", EXECUTION,
        "a driver writes nothing but the outputs of a request", "EXECUTION-after.error.*", run=_writes_on_error,
    ),
    "error.shapes": Fault(
        "gives output shapes with an error", "FAIL", "MALFORMED", SHAPES,
        "errors other than OUTPUT_INSUFFICIENT_SIZE come without shapes", "EXECUTION-after.error.sync-*",
        modes=frozenset({SYNC}), run=_shapes_on_error,
    ),
    "error.shapes.async": Fault(
        "gives its callback output shapes with an error", "FAIL", "MALFORMED", SHAPES,
        "errors other than OUTPUT_INSUFFICIENT_SIZE come without shapes", "EXECUTION-after.error.async-*",
        notify=_error_shapes,
    ),
    "error.timing.async": Fault(
        "gives its callback timing with an error", "FAIL", "MALFORMED", SHAPES, "errors come without timing",
        "EXECUTION-after.error.async-*", notify=_error_timing,
    ),
    "callback.never": Fault(
        "never notifies its callback", "HANG", "SILENT", EXECUTION, "callbacks come exactly once",
        "EXECUTION-mode.async-*-0", notify=_never,
    ),
    "callback.twice": Fault(
        "notifies its callback twice", "FAIL", "MALFORMED", EXECUTION, "callbacks come exactly once",
        "EXECUTION-mode.async-*", notify=_twice,
    ),
    "callback.status": Fault(
        "gives its callback another status than the launch", "FAIL", "MALFORMED", EXECUTION,
        "a refused launch and its callback have the same status", "EXECUTION-after.error.async-*",
        notify=_other_status,
    ),
    "callback.refusal": Fault(
        "does not notify its callback of a refused launch", "FAIL", "MALFORMED", EXECUTION,
        "a refused launch notifies its callback, too", "EXECUTION-after.error.async-*-0", notify=_silent_refusal,
    ),
    "callback.early": Fault(
        "notifies its callback before the outputs are there", "FAIL", "VALUE", EXECUTION,
        "outputs are there when the callback is notified", "EXECUTION-mode.async-*", notify=_too_early,
    ),
    "callback.failure": Fault(
        "tells its callback of failures where there are none", "FAIL", "STATUS", EXECUTION,
        "the status of the callback is that of the execution", "EXECUTION-mode.async-*", notify=_error_in_callback,
    ),
    "shapes.unknown": Fault(
        "reports unknown sizes after success", "FAIL", "SHAPE", SHAPES,
        "with NONE all shapes are fully specified", "DYNAMIC_SHAPES-output.*", modes=NOT_FENCED, run=_after(_unknown),
    ),
    "shapes.missing": Fault(
        "reports no shapes for outputs of unknown sizes", "FAIL", "SHAPE", SHAPES,
        "shapes are left out only when every output is fully specified", "DYNAMIC_SHAPES-output.*", modes=NOT_FENCED,
        run=_after(_no_shapes),
    ),
    "shapes.count": Fault(
        "reports a shape too many", "FAIL", "MALFORMED", SHAPES, "there is one shape for each output",
        "EXECUTION-mode.*sync-*", modes=WITH_SHAPES, run=_after(_fewer),
    ),
    "shapes.marked": Fault(
        "marks an output as insufficient and succeeds", "FAIL", "MALFORMED", SHAPES,
        "with NONE all outputs are sufficient", "EXECUTION-mode.*sync-*", modes=WITH_SHAPES, run=_after(_marked),
    ),
    "short.accepted": Fault(
        "writes as much as fits and succeeds", "FAIL", "STATUS", DYNAMIC,
        "an output that is one byte short is answered with OUTPUT_INSUFFICIENT_SIZE", "DYNAMIC_SHAPES-short.*",
        run=_when_short(_as_much_as_fits),
    ),
    "short.invalid": Fault(
        "answers INVALID_ARGUMENT to an output that is too small", "FAIL", "STATUS", DYNAMIC,
        "an output that is one byte short is answered with OUTPUT_INSUFFICIENT_SIZE", "DYNAMIC_SHAPES-short.*",
        run=_when_short(_fails(ErrorStatus.INVALID_ARGUMENT)),
    ),
    "short.resources": Fault(
        "answers RESOURCE_EXHAUSTED to an output that is too small", "FAIL", "STATUS", DYNAMIC,
        "an output that is one byte short is answered with OUTPUT_INSUFFICIENT_SIZE", "DYNAMIC_SHAPES-short.*",
        run=_when_short(_fails(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)),
    ),
    "short.shapes": Fault(
        "says that an output is too small, and no shapes", "FAIL", "SHAPE", SHAPES, EACH, "DYNAMIC_SHAPES-short.*",
        run=_when_short(_no_shapes),
    ),
    "short.all": Fault(
        "marks all outputs when one is too small", "FAIL", "SHAPE", SHAPES, MARKED, "DYNAMIC_SHAPES-short.of.two.*",
        run=_when_short(_shapes(lambda shape: replace(shape, is_sufficient=False))),
    ),
    "short.none": Fault(
        "marks no output when one is too small", "FAIL", "SHAPE", SHAPES, MARKED, "DYNAMIC_SHAPES-short.*",
        run=_when_short(_shapes(lambda shape: replace(shape, is_sufficient=True))),
    ),
    "short.others": Fault(
        "marks the outputs that are large enough", "FAIL", "SHAPE", SHAPES, MARKED, "DYNAMIC_SHAPES-short.*",
        run=_when_short(_others_marked),
    ),
    "short.larger": Fault(
        "reports a larger shape than due for a short output", "FAIL", "SHAPE", SHAPES, EACH, "DYNAMIC_SHAPES-short.*",
        run=_when_short(_shapes(_larger)),
    ),
    "short.less": Fault(
        "reports less of a short output than model and request say", "FAIL", "SHAPE", SHAPES,
        "shapes are at least as specified as known before", "DYNAMIC_SHAPES-short.first.sync-*-[01]",
        run=_when_short(_less),
    ),
    "short.timing": Fault(
        "gives timing with OUTPUT_INSUFFICIENT_SIZE", "FAIL", "TIMING", SHAPES,
        "timing comes with NONE alone", "DYNAMIC_SHAPES-short.*", run=_when_short(_timed),
    ),
    "short.spent": Fault(
        "does not run a prepared model again after a short output", "FAIL", "STATUS", SHAPES,
        "after OUTPUT_INSUFFICIENT_SIZE the prepared model stays usable", "DYNAMIC_SHAPES-short.*", run=_unusable,
    ),
    "timing.unasked": Fault(
        "gives timing that nobody has asked for", "FAIL", "TIMING", SHAPES,
        "unless measurement was asked for, there is no timing", "EXECUTION-mode.*", run=_after(_unasked),
    ),
    "timing.negative": Fault(
        "measures a negative time", "FAIL", "TIMING", SHAPES, "timing is measured or not there",
        "EXECUTION-mode.*", run=_after(_timing(-5, 10)),
    ),
    "timing.units": Fault(
        "gives picoseconds for nanoseconds", "FAIL", "TIMING", SHAPES,
        "timing is in nanoseconds", "EXECUTION-mode.*sync-*", run=_after(_timing(10**12, 2 * 10**12)),
    ),
    "timing.fenced": Fault(
        "claims less time in the driver than on the device, counted from the fences", "FAIL", "TIMING",
        "Fenced execution", "the time on the device is at most that in the driver when both are given",
        "EXECUTION-mode.fenced-*", modes=frozenset({FENCED}), run=_after(_fenced_lie),
    ),
    "timing.fenced.longer": Fault(
        "counts more time from the fences on than from the call on", "FAIL", "TIMING", "Fenced execution",
        "timingLaunched counts from the call, timingFenced from when all waits are signalled",
        "EXECUTION-mode.fenced-*", modes=frozenset({FENCED}), run=_after(_longer_fenced),
    ),
}  # fmt: skip
