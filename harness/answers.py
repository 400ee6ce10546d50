"""From a driver's answer to an execution to the outcome of a step: shapes, values, guards, and what does not fit."""

from __future__ import annotations

import math

import numpy as np

from harness.case import Step
from harness.expectations import Agrees, Expectation, Returns, Short
from harness.guards import Guarded
from harness.outcome import StepOutcome
from nnhal.device import ExecutionCallback, ExecutionResult
from nnhal.errors import DriverError
from nnhal.model import Model, operand_size
from nnhal.types import Array, ErrorStatus, info, is_extension

NOTIFY_SECONDS = 2.0  # for the notification that goes with a refused launch


class MalformedAnswer(Exception):
    """An answer that does not fit the question, with the status that came.

    Args:
        status: as it came.
        text: a sentence on what does not fit.
    """

    def __init__(self, status: ErrorStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def output_lengths(model: Model, step: Step) -> list[int]:
    """Bytes of each output: as the model declares them, or as they are expected where it does not say."""
    shapes: tuple[tuple[int, ...], ...] = ()
    if isinstance(step.expect, Returns):
        shapes = tuple(output.shape for output in step.expect.outputs)
    elif isinstance(step.expect, Short):
        shapes = step.expect.shapes
    elif isinstance(step.expect, Agrees):
        shapes = tuple(output.allowed.shape for output in step.expect.outputs)
    lengths = []
    for position, index in enumerate(model.main.output_indexes):
        operand = model.main.operands[index]
        length = operand_size(operand)
        if not length and position < len(shapes):
            length = operand_size(operand, shapes[position])
            if is_extension(operand.type):
                length = math.prod(shapes[position]) * _dtype(operand.type, step.expect, position).itemsize
        lengths.append(length)
    return lengths


def refused(number: int, error: DriverError, guarded: Guarded) -> StepOutcome:
    """The outcome of an execution that was answered with an error."""
    findings, malformed = tuple(guarded.findings()), ""
    short = error.status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    if error.output_shapes and not short:
        malformed = f"{error.status.name} came with {len(error.output_shapes)} output shapes, none are due"
    shapes = error.output_shapes if short else ()
    return StepOutcome(number, error.status, error.message, findings=findings, malformed=malformed, reported=shapes)


def _dtype(kind: int, expect: Expectation, position: int) -> np.dtype[np.generic]:
    """How the elements of an output are stored; of an extension's types only the case knows."""
    if isinstance(expect, Returns) and position < len(expect.outputs) and expect.outputs[position].stored:
        return np.dtype(expect.outputs[position].stored)
    return np.dtype(np.uint8) if is_extension(kind) else np.dtype(info(kind).dtype)


def collect(number: int, model: Model, guarded: Guarded, result: ExecutionResult, step: Step) -> StepOutcome:
    """The outcome of an execution that was answered with a result."""
    findings = tuple(guarded.findings())
    count, reported = len(model.main.output_indexes), tuple(result.output_shapes)
    status = result.status
    if reported and len(reported) != count:
        text = f"{len(reported)} output shapes for {count} outputs"
        return StepOutcome(number, status, malformed=text, findings=findings)
    if status != ErrorStatus.NONE:
        return StepOutcome(number, status, findings=findings, timing=result.timing, reported=reported)
    if not all(shape.is_sufficient for shape in reported):
        text = "an output is marked as insufficient, and yet the execution succeeded"
        return StepOutcome(number, status, malformed=text, findings=findings)
    shapes = []
    outputs: list[Array | None] = []
    for position, index in enumerate(model.main.output_indexes):
        operand = model.main.operands[index]
        shape = tuple(reported[position].dimensions) if reported else operand.dimensions
        shapes.append(shape)
        outputs.append(guarded.output(position, _dtype(operand.type, step.expect, position), shape))
    return StepOutcome(
        number,
        status,
        outputs=tuple(outputs),
        shapes=tuple(shapes),
        reported=reported,
        timing=result.timing,
        findings=findings,
    )


def check_launch(callback: ExecutionCallback, error: DriverError) -> None:
    """A refused launch notifies its callback once, with the same status and nothing else.

    Raises:
        MalformedAnswer: it does not.
    """
    notified = callback.wait(NOTIFY_SECONDS)
    if notified is None:
        raise MalformedAnswer(error.status, f"the launch was refused ({error}), and the callback not notified")
    status, result = notified
    if status != error.status:
        raise MalformedAnswer(error.status, f"the launch was refused ({error}), and the callback got {status.name}")
    check_error(status, result)


def check_error(status: ErrorStatus, result: ExecutionResult) -> None:
    """An error comes without shapes and timing.

    Raises:
        MalformedAnswer: it does not.
    """
    if result.output_shapes or result.timing.time_on_device is not None or result.timing.time_in_driver is not None:
        raise MalformedAnswer(status, f"{status.name} came with output shapes or timing, none are due")
