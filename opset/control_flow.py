"""Operations that run graphs: IF WHILE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from nnhal.model import Operand, is_known
from nnhal.operations import Form, OperandDef, RuleKind, TypeRow, ValidationRule
from nnhal.types import FL4, Array, OperandType, OperationType
from opset.branch import Branch, turns
from opset.branch_examples import BELOW_FOUR, DOUBLE_AND_COUNT, PRODUCT, SUM, pair
from opset.call import Argument, Call, int32_tensor
from opset.control_flow_draws import draw_if, draw_while
from opset.definition import (
    B8,
    Example,
    ExecutionRule,
    GraphRunner,
    Judging,
    OperationDef,
    Quantization,
    Shapes,
    no_error,
    tensor,
)
from opset.evaluate import Result
from opset.tracking import Tracked, UndecidedError, certain, tolerated, track_graph
from opset.values import BASELINE, Arithmetic, Values

T = TypeVar("T")


class Runner(Protocol[T]):
    """What a rule of control needs: to decide on a value, and to run a graph on values."""

    def holds(self, value: T) -> bool:
        """Whether a condition is true."""

    def graph(self, branch: Branch, values: Sequence[T | None]) -> list[T]:
        """The outputs of a graph."""


class Plain:
    """Runs graphs as the specification says."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic

    def holds(self, value: Result) -> bool:
        return bool(value.stored.reshape(-1)[0] != 0)

    def graph(self, branch: Branch, values: Sequence[Result | None]) -> list[Result]:
        return branch([None if value is None else value.stored for value in values], self._arithmetic)


class Tracking:
    """Runs graphs and keeps account of how far their values may be off."""

    def __init__(self, relaxed: bool) -> None:
        self._relaxed = relaxed

    def holds(self, value: Tracked) -> bool:
        if value.error.any():
            raise UndecidedError
        return bool(value.result.stored.reshape(-1)[0] != 0)

    def graph(self, branch: Branch, values: Sequence[Tracked | None]) -> list[Tracked]:
        return track_graph(branch, values, self._relaxed)


def _branch(call: Call, name: str) -> Branch:
    found = call[name].branch
    if found is None:
        raise ValueError(f"{name} refers to no graph")
    return found


def _handed(call: Call, name: str) -> list[str]:
    """Names of the operands that a variadic input stands for."""
    return [n for n in call.inputs if n.startswith(name) and n[len(name) :].isdigit()]


def _if(call: Call, values: Mapping[str, T], runner: Runner[T]) -> list[T]:
    chosen = "then_graph" if runner.holds(values["condition"]) else "else_graph"
    return runner.graph(_branch(call, chosen), [values.get(name) for name in _handed(call, "inputs")])


def _while(call: Call, values: Mapping[str, T], runner: Runner[T]) -> list[T]:
    condition, body = _branch(call, "cond_graph"), _branch(call, "body_graph")
    state = [values.get(name) for name in _handed(call, "initial")]
    for _ in turns(body):
        if not runner.holds(runner.graph(condition, state)[0]):
            break
        given = runner.graph(body, state)
        state[: len(given)] = given
    return [value for value in state[: _result_count(call)] if value is not None]


Control = Callable[[Call, Mapping[str, T], Runner[T]], list[T]]


def _named(call: Call, values: Iterable[T]) -> dict[str, T]:
    return {f"outputs{number}": value for number, value in enumerate(values)}


def _known(call: Call) -> dict[str, Argument]:
    return {name: a for name, a in call.inputs.items() if a.value is not None}


def _runs(control: Control[Result]) -> Callable[[Call, Arithmetic], Mapping[str, Result]]:
    def run(call: Call, arithmetic: Arithmetic) -> Mapping[str, Result]:
        values = {name: certain(argument).result for name, argument in _known(call).items()}
        return _named(call, control(call, values, Plain(arithmetic)))

    return run


def _tracks(
    control: Control[Tracked], run: Callable[[Call, Arithmetic], Mapping[str, Result]]
) -> Callable[[Call, Mapping[str, Tracked], bool], Mapping[str, Tracked]]:
    def track(call: Call, inputs: Mapping[str, Tracked], relaxed: bool) -> Mapping[str, Tracked]:
        values = {name: inputs.get(name) or certain(argument) for name, argument in _known(call).items()}
        try:
            results = _named(call, control(call, values, Tracking(relaxed)))
            return {name: tolerated(value, call.results[name].type, relaxed) for name, value in results.items()}
        except UndecidedError:
            truth = run(call, BASELINE)
            return {n: Tracked(r, np.full(r.exact.shape, np.inf), False) for n, r in truth.items()}

    return track


def _kernel(run: Callable[[Call, Arithmetic], Mapping[str, Result]]) -> Callable[[Values], Mapping[str, Array]]:
    return lambda v: {name: result.stored for name, result in run(v.call, v.arithmetic).items()}


# Kernel and bound are those of the operations run.
JUDGING = Judging(
    no_error,
    "that of the operations run, each on inputs as far off as those before may leave them; open behind an operation "
    "that mixes elements which may be off, and where that leaves a condition in doubt",
)

# --- what graphs say of the results -----------------------------------------------------------------------------------


def _result_count(call: Call) -> int:
    given = _branch(call, "body_graph").gives if "body_graph" in call.inputs else _branch(call, "then_graph").gives
    return len(call.results) or len(given)


def _results(call: Call) -> dict[str, Operand]:
    graph = _branch(call, "body_graph" if "body_graph" in call.inputs else "then_graph")
    return _named(call, graph.gives[: _result_count(call)])


def _infer(call: Call) -> Shapes:
    """The dimensions that the graph declares, or the results where they say more; 0 is a size left to the values."""
    shapes = {}
    for name, operand in _results(call).items():
        declared = call.results[name].shape if name in call.results else ()
        shapes[name] = declared if is_known(declared) else operand.dimensions
    return shapes


def _quantization(call: Call) -> Quantization:
    return {name: (o.scale, o.zero_point) for name, o in _results(call).items() if o.scale > 0}


# --- rules ------------------------------------------------------------------------------------------------------------


def _without_condition(call: Call) -> Call:
    return call.with_input("condition", replace(call["condition"], value=None, omitted=True))


def any_operands(name: str, doc: str, fewest: int) -> OperandDef:
    """Operands of any types, as many as a graph takes."""
    return OperandDef(name, doc, variadic=True, any_type=True, fewest=fewest)


def graph(name: str, doc: str) -> OperandDef:
    """A reference to a graph of the model."""
    return OperandDef(name, doc, OperandType.SUBGRAPH, parameter=True)


RESULTS = (any_operands("outputs", "As the graph's outputs.", 1),)
ROWS = (TypeRow("any", FL4, {}),)
OPINION = "the drawn graphs as a program of NumPy on floats and a loop over integers, written from the operations alone"

SUM_OR_PRODUCT = {
    "then_graph": SUM,
    "else_graph": PRODUCT,
    "inputs0": pair(3, -1.5),
    "inputs1": pair(0.5, 0.5),
}

_IF_RUN = _runs(_if)
IF = OperationDef(
    code=OperationType.IF,
    doc="Runs one of two graphs on the same operands and returns what it returns. The graphs may leave operands "
    "unused. The documents want every operand fully specified, public code does not check it, so nothing else is "
    "drawn. The error allowed is that of the operations run, each on inputs as far off as those before may leave them.",
    forms=(
        Form(
            "default",
            (
                replace(tensor("condition", "The choice: one element.", 1, 1), type=B8),
                graph("then_graph", "Run when the condition is true."),
                graph("else_graph", "Run when it is false."),
                any_operands("inputs", "Handed to the chosen graph, in the order of its inputs.", 0),
            ),
        ),
    ),
    results=RESULTS,
    rows=ROWS,
    rules=(
        ValidationRule("CONDITION", "condition is a TENSOR_BOOL8 of shape [1]", RuleKind.CONDITION, ("condition",)),
        ValidationRule(
            "BRANCH",
            "each graph takes what is handed to it and gives the results: number, types, dimensions where known, "
            "quantisation",
            RuleKind.GRAPH,
            ("else_graph", "then_graph"),
        ),
        ExecutionRule(
            "CONDITION_VALUE",
            "the condition has a value",
            lambda call: not call["condition"].omitted,
            _without_condition,
        ),
    ),
    infer=_infer,
    kernel=_kernel(_IF_RUN),
    judging=JUDGING,
    draw=draw_if,
    quantization=_quantization,
    examples=(
        Example(
            "any",
            {"condition": [1], **SUM_OR_PRODUCT},
            {"outputs0": pair(3.5, -1)},
        ),
        Example(
            "any",
            {"condition": [0], **SUM_OR_PRODUCT},
            {"outputs0": pair(1.5, -0.75)},
        ),
    ),
    second_opinion=OPINION,
    graphs=GraphRunner(_IF_RUN, _tracks(_if, _IF_RUN)),
)  # fmt: skip

_WHILE_RUN = _runs(_while)
WHILE = OperationDef(
    code=OperationType.WHILE,
    doc="Runs a body while a condition is true. Both graphs take all the operands. The body gives new values of the "
    "first ones, the rest keep theirs; the first of them all are the results: with m results, m + k outputs of the "
    "body and m + k + n operands there are k values that only live in the loop and n that never change. With a "
    "condition that is false at once the results are the initial values. A loop that runs for longer than the loop "
    "timeout (2 s unless the execution says otherwise, 15 s at most) ends the execution with MISSED_DEADLINE_TRANSIENT "
    "or MISSED_DEADLINE_PERSISTENT. The error allowed is that of the operations run, each on inputs as far off as "
    "those before may leave them, turn by turn; where that leaves a condition in doubt, the results are open.",
    forms=(
        Form(
            "default",
            (
                graph("cond_graph", "The condition; gives one TENSOR_BOOL8 of shape [1]."),
                graph("body_graph", "The body."),
                any_operands("initial", "The values before the first turn.", 1),
            ),
        ),
    ),
    results=RESULTS,
    rows=ROWS,
    rules=(
        ValidationRule(
            "CONDITION",
            "the condition's graph takes all the operands and gives one TENSOR_BOOL8 of shape [1]",
            RuleKind.GRAPH,
            ("cond_graph",),
        ),
        ValidationRule(
            "BODY",
            "the body takes all the operands and gives new values of the first ones, the results among them: number, "
            "types, dimensions where known, quantisation",
            RuleKind.GRAPH,
            ("body_graph",),
        ),
        ValidationRule(
            "SIZES",
            "no operand of the operation, and none that goes into or out of its graphs, has an unknown size",
            RuleKind.GRAPH_SIZES,
            ("body_graph",),
        ),
    ),
    infer=_infer,
    kernel=_kernel(_WHILE_RUN),
    judging=JUDGING,
    draw=draw_while,
    quantization=_quantization,
    examples=(
        Example(
            "any",
            {
                "cond_graph": BELOW_FOUR,
                "body_graph": DOUBLE_AND_COUNT,
                "initial0": int32_tensor([3]),
                "initial1": int32_tensor([1]),
            },
            {"outputs0": int32_tensor([24])},  # 3 doubled while the second counts 1, 2, 3
        ),
    ),
    second_opinion=OPINION,
    graphs=GraphRunner(_WHILE_RUN, _tracks(_while, _WHILE_RUN)),
)  # fmt: skip
