"""Translates models to .tflite files: the half of the LiteRT adapter that runs beside the suite.

`translate` goes through a model's operations in order; `TRANSLATORS` has the functions that write one operation each,
and `UNKNOWN` the operations that LiteRT does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from drivers.litert_translate import (
    control,
    elementwise,
    images,
    layout,
    lookup,
    matrices,
    padding,
    recurrent,
    reduction,
    windows,
)
from drivers.litert_translate.flatbuffer import FlatModel
from drivers.litert_translate.node import Node, Tensors, UntranslatableError
from nnhal.model import Model, Operation, Subgraph, Translation, operand_size
from nnhal.types import OperationType

Translator = Callable[[Node], None]

TRANSLATORS: Mapping[int, Translator] = {
    **elementwise.TRANSLATORS,
    **windows.TRANSLATORS,
    **matrices.TRANSLATORS,
    **layout.TRANSLATORS,
    **padding.TRANSLATORS,
    **reduction.TRANSLATORS,
    **lookup.TRANSLATORS,
    **images.TRANSLATORS,
    **recurrent.TRANSLATORS,
    **control.TRANSLATORS,
}

# A valid model may hold numbers that no execution takes: a stride of 0, a scalar of four elements.
SENSELESS = (ArithmeticError, LookupError, TypeError, ValueError)
MOST_BYTES = 1 << 30  # of all operands
NO_SENSE = "the translation makes no sense of its numbers"

UNKNOWN = frozenset(
    {
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        OperationType.BOX_WITH_NMS_LIMIT,
        OperationType.CHANNEL_SHUFFLE,
        OperationType.DETECTION_POSTPROCESSING,
        OperationType.GENERATE_PROPOSALS,
        OperationType.HEATMAP_MAX_KEYPOINT,
        OperationType.INSTANCE_NORMALIZATION,
        OperationType.ROI_ALIGN,
        OperationType.ROI_POOLING,
    }
)


def translate(model: Model) -> Translation:
    """The .tflite file of a valid model, or for each operation why it has none."""
    if sum(operand_size(o) for graph in (model.main, *model.referenced) for o in graph.operands) > MOST_BYTES:
        reason = f"its operands take more than {MOST_BYTES >> 20} MiB, and the adapter tries out what it says it does"
        return Translation(None, (reason,) * len(model.main.operations))
    file = FlatModel()
    _, reasons = _write_graph(file, model, model.main)
    if any(reasons):
        return Translation(None, reasons)
    try:
        return Translation(file.finish(), reasons)
    except SENSELESS as error:
        reason = f"the file format of LiteRT does not hold its numbers: {error}"
        return Translation(None, (reason,) * len(reasons))


def _write_graph(file: FlatModel, model: Model, graph: Subgraph) -> tuple[int, tuple[str | None, ...]]:
    """Writes a graph; its number in the file, and for each operation why it cannot be written, or None."""
    tensors = Tensors(model, graph, file.graph(), partial(_write_branch, file, model))
    problem = _write_inputs(tensors)
    reasons = tuple(problem or _write(tensors, operation) for operation in graph.operations)
    if not problem and not any(reasons):
        tensors.flat.outputs = tuple(tensors.index(i) for i in graph.output_indexes)
    return tensors.flat.number, reasons


def _write_branch(file: FlatModel, model: Model, graph: Subgraph) -> int:
    """Writes a graph that an operation runs."""
    number, reasons = _write_graph(file, model, graph)
    for reason in reasons:
        if reason is not None:
            raise UntranslatableError(f"in a graph that it runs: {reason}")
    return number


def _write_inputs(tensors: Tensors) -> str | None:
    """The tensors of the graph's inputs, added first so that their order is the graph's; the reason if it cannot."""
    try:
        tensors.flat.inputs = tuple(tensors.index(i) for i in tensors.graph.input_indexes)
    except UntranslatableError as error:
        return str(error)
    except SENSELESS as error:
        return f"{NO_SENSE}: {type(error).__name__}: {error}"
    return None


def _write(tensors: Tensors, operation: Operation) -> str | None:
    """Writes one operation; the reason where it cannot."""
    if operation.type in UNKNOWN:
        return f"LiteRT has no builtin operator for {OperationType(operation.type).name}"
    translator = TRANSLATORS.get(operation.type)
    if translator is None:
        return "the adapter has no translation of this operation"
    try:
        translator(Node(tensors, operation))
    except UntranslatableError as error:
        return str(error)
    except SENSELESS as error:
        return f"{NO_SENSE}: {type(error).__name__}: {error}"
    return None
