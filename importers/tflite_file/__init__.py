"""Reads .tflite files: the first graph of a file as a model of the contract.

`contents.read` checks what the file says, `TRANSLATORS` has the functions that add the operations of one operator
each, `folding` takes those on constants alone away. The other way round is `drivers.litert_translate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from importers.imported import Imported, Inexpressible, Port, UnreadableFile
from importers.tflite_file import control, elementwise, images, layout, lookup, recurrent, windows
from importers.tflite_file.contents import CUSTOM, Graph, Tensor, read
from importers.tflite_file.folding import fold
from importers.tflite_file.graph import NO_OPERATOR, Allowance, Building
from importers.tflite_file.kinds import InexpressibleError, dtype_name
from importers.tflite_file.node import Node
from nnhal.model import Model
from nnhal.validate import violations
from nnhal.versions import needed_level

Translator = Callable[[Node], None]

TRANSLATORS: Mapping[str, Translator] = {
    **elementwise.TRANSLATORS,
    **windows.TRANSLATORS,
    **layout.TRANSLATORS,
    **images.TRANSLATORS,
    **lookup.TRANSLATORS,
    **recurrent.TRANSLATORS,
    **control.TRANSLATORS,
}
RESOURCES = frozenset({"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"})
# What arithmetic on the shapes of a file that no writer ever wrote may come to; no check of ours is meant to leave it.
STUMBLES: tuple[type[Exception], ...] = (ArithmeticError, LookupError, TypeError, ValueError)
LARGEST_DEPTH = 16  # of graphs that run graphs


def import_tflite(data: bytes, name: str) -> Imported:
    """The first graph of a .tflite file as a model.

    Args:
        data: the file.
        name: of the file, for messages.

    Raises:
        UnreadableFile: the file is damaged.
    """
    return _File(name, read(data, name), Allowance.of(data, name)).imported()


@dataclass
class _File:
    """A file whose graphs are being imported."""

    name: str
    graphs: Sequence[Graph]
    allowance: Allowance
    _under_way: list[int] = field(default_factory=list)
    _branches: dict[int, Model | str] = field(default_factory=dict)  # what `_read_branch` gave

    def imported(self) -> Imported:
        """What the file's first graph becomes."""
        graph = self.graphs[0]
        build, missing = self._translate(graph)
        model, missing = (None, missing) if missing else self._finished(build)
        places = build.operands if model is not None else {}
        tensors = graph.tensors
        states = [tensors[number] for number in build.states]
        inputs = [*(tensors[n] for n in graph.inputs), *states]
        outputs = [*(tensors[n] for n in graph.outputs), *states]
        taken = model.main.input_indexes if model is not None else [-1] * len(inputs)
        given = model.main.output_indexes if model is not None else [-1] * len(outputs)
        return Imported(
            self.name,
            model,
            tuple(_port(tensor, operand) for tensor, operand in zip(inputs, taken, strict=True)),
            tuple(_port(tensor, operand) for tensor, operand in zip(outputs, given, strict=True)),
            tuple(operator.name for operator in graph.operators),
            tuple(missing),
            {str(number): operand for number, operand in sorted(places.items())},
            tuple(build.assembly.origins) if model is not None else (),
            int(needed_level(model)) if model is not None else 1,
            len(states),
        )

    def _translate(self, graph: Graph) -> tuple[Building, list[Inexpressible]]:
        """The operations of all operators that have any, and the operators that have none."""
        build = Building(graph, self.allowance, self._branch)
        missing = []
        try:
            build.begin()
        except InexpressibleError as error:
            missing.append(Inexpressible(NO_OPERATOR, "input", str(error)))
        for operator in graph.operators:
            build.assembly.origin = operator.number
            try:
                with np.errstate(all="ignore"):  # what a file's numbers come to is no fault of ours
                    _write(Node(build, operator))
            except InexpressibleError as error:
                missing.append(Inexpressible(operator.number, operator.name, str(error)))
            except STUMBLES as error:
                words = f"its shapes, types and parameters do not go together ({error})"
                missing.append(Inexpressible(operator.number, operator.name, words))
        return build, missing

    def _finished(self, build: Building) -> tuple[Model | None, list[Inexpressible]]:
        """The model of a graph all of whose operators are expressed; what is wrong with it otherwise."""
        try:
            model = build.assembly.finish(build.outputs())
        except InexpressibleError as error:
            return None, [Inexpressible(NO_OPERATOR, "output", str(error))]
        found = violations(model)
        return (None, [Inexpressible(NO_OPERATOR, "graph", str(found[0]))]) if found else (model, [])

    def _branch(self, number: int) -> Model:
        """The model of another graph, which an operator runs."""
        if not 0 < number < len(self.graphs) or number in self._under_way:
            raise UnreadableFile(f"{self.name} is damaged: an operator runs graph {number}; take an intact file")
        if len(self._under_way) == LARGEST_DEPTH:
            raise InexpressibleError("graphs that run graphs are nested too deeply")
        if number not in self._branches:
            self._under_way.append(number)
            self._branches[number] = self._read_branch(number)
            self._under_way.pop()
        found = self._branches[number]
        if isinstance(found, str):
            raise InexpressibleError(f"in graph {number}, which it runs, {found}")
        return found

    def _read_branch(self, number: int) -> Model | str:
        """The model of a graph, or what it lacks."""
        build, missing = self._translate(self.graphs[number])
        if build.states:
            return "a state is kept"
        model, missing = (None, missing) if missing else self._finished(build)
        words = (f"operator {one.number} {one.operator}: {one.reason}" for one in missing)
        return "; ".join(words) if model is None else model


def _write(node: Node) -> None:
    """Adds the operations of one operator."""
    name = node.operator.name
    if fold(node):
        return
    translator = TRANSLATORS.get(name)
    if translator is not None:
        translator(node)
    elif name.startswith(CUSTOM):
        raise InexpressibleError("it is a custom operator")
    elif name in RESOURCES:
        raise InexpressibleError("it keeps a state that no tensor holds")
    else:
        raise InexpressibleError("no operation or short chain of operations does the same")


def _port(tensor: Tensor, operand: int) -> Port:
    return Port(
        tensor.name,
        dtype_name(tensor),
        tuple(max(size, 0) for size in tensor.shape),
        float(tensor.scales[0]) if tensor.scales.size else 0.0,
        int(tensor.zero_points[0]) if tensor.zero_points.size else 0,
        operand,
    )
