"""From the nodes of a graph to operations: one after the other, graphs in graphs included.

Every node is looked at, so that all that cannot be expressed are named at once. What a refused node would have written
is taken from what the file declares; nodes that read what stays unknown are passed over in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from importers.assembling import Assembly, Kind, Shape
from importers.imported import Inexpressible
from importers.onnx_file.emitting import held
from importers.onnx_file.folding import fold
from importers.onnx_file.graph import Declared, Graph, Node, Refusal, Untold
from importers.onnx_file.moving import concatenated
from importers.onnx_file.operators import SHAPE_KEEPING, TRANSLATORS, reason_for
from importers.onnx_file.quantized import QLINEAR, by_real_numbers, plain_of, rewired, scan
from importers.onnx_file.work import KNOWN_RANK, Lost, Tensor, Work
from nnhal.model import Model
from nnhal.types import OperandLifeTime, OperationType
from opset.definition import B8

MOST_TURNS = 64  # of a loop that is written out
MOST_WRITTEN = 20_000  # nodes of all loops that are


@dataclass
class Translation:
    """The nodes of a file under way.

    Attributes:
        missing: what cannot be expressed.
        written: nodes of loops that have been written out.
    """

    missing: list[Inexpressible] = field(default_factory=list)
    written: int = 0

    def run(self, work: Work, graph: Graph, shapes: Mapping[str, Shape]) -> None:
        """Translates a graph whose inputs are known by now, and what its integers stand for (`scan`).

        Args:
            work: takes the tensors.
            graph: its constants and nodes.
            shapes: of declared tensors, as far as they are known.
        """
        for name, value in graph.constants.items():
            if isinstance(value, Untold):
                work.untold[name] = value.reason
            else:
                work.tensors[name] = Tensor(name, value.dtype, value.shape, value)
        readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in {*node.inputs, *free_names(node)}:
                readers.setdefault(name, []).append(node)
        kept = frozenset(output.name for output in graph.outputs)
        absorbed: set[str] = set()
        for node in graph.nodes:
            if node.outputs and all(name in absorbed for name in node.outputs):
                continue
            work.assembly.origin = node.number
            try:
                absorbed.update(self._node(work, node, readers, kept))
            except Lost:
                self._lose(work, node, graph, shapes)
            except Refusal as refusal:
                self.missing.append(Inexpressible(node.number, node.operator, str(refusal)))
                self._lose(work, node, graph, shapes)

    def _node(
        self, work: Work, node: Node, readers: Mapping[str, Sequence[Node]], kept: frozenset[str]
    ) -> Sequence[str]:
        """Translates a node; gives the tensors that are neither written nor needed any more, or written already."""
        if not any(node.outputs):
            return ()
        if node.operator == "If" and not node.domain:
            self._branch(work, node)
            return ()
        if node.operator == "Loop" and not node.domain:
            self._loop(work, node)
            return ()
        if fold(work, node):
            return ()
        if (node.domain, node.operator) in QLINEAR:
            self._qlinear(work, node)
            return ()
        if (node.domain, node.operator) not in TRANSLATORS:
            raise Refusal(reason_for(node))
        found = rewired(work, node, readers, kept)
        if found is not None:
            changed, gone = found
            mark = work.mark()
            try:
                TRANSLATORS[node.domain, node.operator](work, changed)
            except Lost:
                raise
            except Refusal:
                work.rewind(mark)
                for name in changed.outputs:
                    work.tensors.pop(name, None)
            else:
                return [*gone, *changed.outputs]
        TRANSLATORS[node.domain, node.operator](work, node)
        return ()

    def _qlinear(self, work: Work, node: Node) -> None:
        plain = plain_of(work, node)
        translate = TRANSLATORS["", plain.operator]
        mark = work.mark()
        try:
            translate(work, plain)
        except Lost:
            raise
        except Refusal:
            work.rewind(mark)
            work.tensors.pop(node.outputs[0], None)
            by_real_numbers(work, plain, translate)

    def _lose(self, work: Work, node: Node, graph: Graph, shapes: Mapping[str, Shape]) -> None:
        """Puts in place of a refused node's results what is known of them, so that others can be looked at."""
        for name in node.outputs:
            if not name or work.tensors.get(name) is not None:
                continue
            work.tensors[name] = None
            declared = graph.declared.get(name)
            first = work.tensors.get(node.inputs[0]) if node.inputs else None
            if declared is not None and name in shapes:
                self._stand_in(work, name, declared.dtype, shapes[name])
            elif first is not None and node.operator in SHAPE_KEEPING:
                self._stand_in(work, name, first.dtype.name, first.shape)

    def _stand_in(self, work: Work, name: str, dtype: str, shape: Shape) -> None:
        try:
            tensor = Tensor(name, np.dtype(dtype), shape)
            kind = work.kind(tensor)
        except (TypeError, Refusal):  # NumPy or the contract has no such type
            return
        tensor.operand = work.assembly.temporary(kind, held(shape))
        work.write(name, tensor)

    # --- graphs in graphs ---------------------------------------------------------------------------------------------

    def _inline(self, work: Work, graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Writes a graph out where its node stands, and gives its results."""
        if len(inputs) != len(graph.inputs):
            raise Refusal(f"{len(inputs)} tensors for {len(graph.inputs)} inputs of a graph")
        for declared, tensor in zip(graph.inputs, inputs, strict=True):
            work.tensors[declared.name] = replace(tensor, name=declared.name)
        work.quantization.update(scan(graph))
        self.run(work, graph, {})
        return [work.tensor(output.name) for output in graph.outputs]

    def _branch(self, work: Work, node: Node) -> None:
        """If: one branch where the condition is known, IF otherwise."""
        condition = work.input(node, 0)
        branches = [node.graph(name) for name in ("then_branch", "else_branch")]
        if math.prod(condition.shape) != 1 or condition.dtype != np.bool_:
            raise Refusal("the condition is no single truth")
        if condition.value is not None:
            chosen = branches[0 if condition.value.reshape(()) else 1]
            results = self._inline(work, chosen, ())
            self._results(work, node, results)
            return
        names = sorted(free_names(node))
        passed = [name for name in names if work.tensor(name).value is None]
        made = [self._graph(work, branch, names, passed) for branch in branches]
        work.assembly.origin = node.number
        (then, first), (other, second) = made
        if [(t.dtype, t.shape) for t in first] != [(t.dtype, t.shape) for t in second]:
            raise Refusal("its branches give results of different types or shapes")
        inputs = [work.operand(condition, (1,)), work.assembly.graph(then), work.assembly.graph(other),
                  *(work.operand_as_is(work.tensor(name)) for name in passed)]  # fmt: skip
        kinds = [work.kind(tensor) for tensor in first]
        outputs = [work.assembly.temporary(kind, held(tensor.shape)) for kind, tensor in zip(kinds, first, strict=True)]
        work.assembly.add(OperationType.IF, inputs, outputs)
        for place, (operand, tensor) in enumerate(zip(outputs, first, strict=True)):
            work.give(node, operand, tensor.shape, tensor.dtype, place)

    def _graph(self, work: Work, graph: Graph, names: Sequence[str], passed: Sequence[str]) -> tuple[
        Model, list[Tensor]
    ]:  # fmt: skip
        """A branch as a model of its own, whose inputs are tensors of the graph around it."""
        inner = Work(Assembly(origin=work.assembly.origin), budget=work.budget)
        inner.quantization.update({name: work.quantization[name] for name in names if name in work.quantization})
        for name in names:
            outer = work.tensor(name)
            operand = None
            if name in passed:
                place = work.operand_as_is(outer)
                operand = inner.assembly.input(work.kind_of(place), work.dimensions(place))
            inner.tensors[name] = Tensor(name, outer.dtype, outer.shape, outer.value, operand)
        inner.quantization.update(scan(graph))
        before = len(self.missing)
        self.run(inner, graph, {})
        if len(self.missing) > before:
            raise Lost("a node of a branch is refused")
        tensors = [inner.tensor(output.name) for output in graph.outputs]
        return inner.assembly.finish(written(inner, tensors)), tensors

    def _loop(self, work: Work, node: Node) -> None:
        """Loop: written out where the number of turns is known."""
        body = node.graph("body")
        turns = int(work.known(node, 0, "the number of turns").reshape(-1)[0]) if node.has_input(0) else MOST_TURNS + 1
        states = [work.tensor(name) for name in node.inputs[2:]]
        going = bool(work.known(node, 1, "the condition").all()) if node.has_input(1) else True
        turns = turns if going else 0
        self.written += max(turns, 0) * (nodes_in(body) + 1)
        if turns > MOST_TURNS or self.written > MOST_WRITTEN or len(body.outputs) <= len(states):
            raise Refusal(f"a loop of {turns} turns; up to {MOST_TURNS} are written out")
        rows: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
        truth = Tensor("going on", np.dtype(np.bool_), (), np.array(True))
        for turn in range(turns):
            number = Tensor("turn", np.dtype(np.int64), (), np.array(turn, np.int64))
            results = self._inline(work, body, (number, truth, *states))
            if results[0].value is None:
                raise Refusal("whether it goes on is known only when the model runs")
            states = results[1 : 1 + len(states)]
            for row, tensor in zip(rows, results[1 + len(states) :], strict=True):
                row.append(tensor)
            if not results[0].value.all():
                break
        work.assembly.origin = node.number
        self._results(work, node, [*states, *(self._stacked(work, row) for row in rows)])

    def _stacked(self, work: Work, row: Sequence[Tensor]) -> Tensor:
        if not row or any(tensor.shape != row[0].shape for tensor in row):
            raise Refusal("a loop gives rows of different shapes, or none")
        shape = (len(row), *row[0].shape)
        size = math.prod(row[0].shape)
        parts = [work.movable(tensor, (1, size)) for tensor in row]
        operand = concatenated(work, parts, 0)
        holder = Node(work.assembly.origin, "Loop", "", (), ("rows of a loop",))
        work.give(holder, operand, shape, row[0].dtype)
        return work.tensor("rows of a loop")

    def _results(self, work: Work, node: Node, results: Sequence[Tensor]) -> None:
        if len(results) < len(node.outputs):
            raise Refusal("its graph has too few results")
        for place, tensor in enumerate(results[: len(node.outputs)]):
            work.same(node, tensor, place)


def nodes_in(graph: Graph) -> int:
    """Number of nodes of a graph and of those in it."""
    return len(graph.nodes) + sum(nodes_in(inner) for node in graph.nodes for inner in node.graphs.values())


def elements_in(graph: Graph) -> int:
    """Number of elements of the values that a graph and those in it hold."""
    own = sum(value.size for value in graph.constants.values() if isinstance(value, np.ndarray))
    return own + sum(elements_in(inner) for node in graph.nodes for inner in node.graphs.values())


def free_names(node: Node) -> set[str]:
    """Tensors of the graph around that the graphs of a node read."""
    found: set[str] = set()
    for graph in node.graphs.values():
        own = {"", *graph.constants, *(one.name for one in graph.inputs)}
        for inner in graph.nodes:
            found.update(name for name in (*inner.inputs, *free_names(inner)) if name not in own)
            own.update(inner.outputs)
        found |= {one.name for one in graph.outputs} - own
    return found


def written(work: Work, tensors: Sequence[Tensor]) -> list[int]:
    """Operands for the results of a graph, each written by an operation and a result once.

    What is an input, a constant, another result too, or not in its own dimensions, is copied.
    """
    results: list[int] = []
    for tensor in tensors:
        operand = work.operand_as_is(tensor)
        if len(tensor.shape) > KNOWN_RANK and work.dimensions(operand) != tensor.shape:
            operand = work.reshape(operand, tensor.shape)
        if work.assembly.what(operand).lifetime != OperandLifeTime.TEMPORARY_VARIABLE or operand in results:
            operand = _copy(work, operand)
        if tensor.value is None:
            tensor.operand = operand
        results.append(operand)
    return results


def _copy(work: Work, operand: int) -> int:
    """The same values in another operand."""
    shape = work.dimensions(operand)
    if work.kind_of(operand).type == B8:
        return work.emit(OperationType.LOGICAL_OR, (operand, operand), Kind(B8))
    if len(shape) <= KNOWN_RANK:
        return work.emit(OperationType.RESHAPE, (operand, work.whole_tensor(shape)))
    return work.emit(OperationType.TILE, (operand, work.whole_tensor([1] * len(shape))))


def shape_of(declared: Declared, sizes: Mapping[str, int]) -> Shape | None:
    """The dimensions that a file declares, with sizes for their names; None where one stays unknown."""
    if declared.dimensions is None:
        return None
    found = [sizes.get(size, 0) if isinstance(size, str) else size or 0 for size in declared.dimensions]
    return None if 0 in found else tuple(found)
