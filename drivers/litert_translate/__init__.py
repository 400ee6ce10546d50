"""Translates models to .tflite files: the half of the LiteRT adapter that runs beside the suite.

`translate` goes through a model's operations in order; `TRANSLATORS` has the functions that write one operation each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.litert_translate import elementwise, layout, matrices, windows
from drivers.litert_translate.flatbuffer import FlatModel
from drivers.litert_translate.node import Node, Tensors, UntranslatableError
from nnhal.model import Model, Operation, Translation

Translator = Callable[[Node], None]

TRANSLATORS: Mapping[int, Translator] = {
    **elementwise.TRANSLATORS,
    **windows.TRANSLATORS,
    **matrices.TRANSLATORS,
    **layout.TRANSLATORS,
}


def translate(model: Model) -> Translation:
    """The .tflite file of a valid model, or for each operation why it has none."""
    tensors = Tensors(model, FlatModel())
    inputs, problem = _inputs(tensors)
    reasons = [problem or _write(tensors, operation) for operation in model.main.operations]
    if any(reasons):
        return Translation(None, tuple(reasons))
    outputs = [tensors.index(i) for i in model.main.output_indexes]
    return Translation(tensors.flat.finish(inputs, outputs), tuple(reasons))


def _inputs(tensors: Tensors) -> tuple[list[int], str | None]:
    """The tensors of the model's inputs, added first so that their order is the model's."""
    try:
        return [tensors.index(i) for i in tensors.model.main.input_indexes], None
    except UntranslatableError as error:
        return [], str(error)


def _write(tensors: Tensors, operation: Operation) -> str | None:
    """Writes one operation; the reason where it cannot."""
    translator = TRANSLATORS.get(operation.type)
    if translator is None:
        return "the adapter has no translation of this operation"
    try:
        translator(Node(tensors, operation))
    except UntranslatableError as error:
        return str(error)
    return None
