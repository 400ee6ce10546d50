"""Models as .tflite files, and such files run by LiteRT in this process: for making models and for the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from drivers.litert import LiteRT
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array, OperandLifeTime

INSTALL = 'pip install -e ".[mlts]"'


class Interpreter:
    """A .tflite file in LiteRT's own interpreter, with plain kernels: no delegate, so that results repeat.

    Args:
        file: its bytes.
        threads: number of threads.

    Raises:
        UsageError: LiteRT is missing, or refuses the file.
    """

    def __init__(self, file: bytes, threads: int = 1) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter as Runtime
            from ai_edge_litert.interpreter import OpResolverType
        except ModuleNotFoundError as error:
            raise UsageError(f"module {error.name!r} is missing; run {INSTALL}") from None
        try:
            self._runtime: Any = Runtime(
                model_content=file,
                num_threads=threads,
                experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            self._runtime.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"LiteRT refuses the file: {' '.join(str(error).split())}") from None
        self._inputs = self._runtime.get_input_details()
        self._outputs = self._runtime.get_output_details()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for stored values, both in the file's order.

        Raises:
            UsageError: number, type or shape of the inputs is another.
        """
        if len(inputs) != len(self._inputs):
            raise UsageError(f"the model takes {len(self._inputs)} inputs, {len(inputs)} are given")
        for details, value in zip(self._inputs, inputs, strict=True):
            if value.dtype != details["dtype"] or value.shape != tuple(details["shape"]):
                due = f"{details['dtype'].__name__}{list(details['shape'])}"
                raise UsageError(f"the model takes {due}, {value.dtype.name}{list(value.shape)} is given")
            self._runtime.set_tensor(details["index"], value)
        self._runtime.invoke()
        return [self._runtime.get_tensor(details["index"]) for details in self._outputs]


def tflite_of(model: Model) -> bytes:
    """A model as a .tflite file.

    Raises:
        UsageError: some operation has no equivalent in LiteRT; the text names the first with its reason.
    """
    made = LiteRT.translate(model, {})
    if made.artifact is None:
        number, reason = next((n, why) for n, why in enumerate(made.unsupported) if why is not None)
        raise UsageError(f"operation {number} of the model cannot be written to a .tflite file: {reason}")
    return made.artifact


def revealed(model: Model) -> tuple[Model, tuple[int, ...]]:
    """A model whose every temporary operand is an output, and the indexes of all outputs in their order."""
    graph = model.main
    written = tuple(index for operation in graph.operations for index in operation.outputs)
    operands = list(graph.operands)
    for index in written:
        operands[index] = replace(operands[index], lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
    return replace(model, main=replace(graph, operands=tuple(operands), output_indexes=written)), written
