"""Scenarios of control flow: graphs made by hand with IF and WHILE in one another; what is due is counted here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.behaviour import Scenario, Vehicle, case
from conformance.execution import SINCE, UNTIL, WORDS
from harness.case import Step, TestCase
from harness.expectations import Expected, Returns
from harness.steps import Action, Running
from nnhal.model import Model, Operation
from nnhal.types import FL4, Array, ExecutionMode, FeatureLevel, OperandLifeTime, OperandType, OperationType
from opset.branch import Branch
from opset.branch_examples import COUNT, FLAG, NO_ACTIVATION, graph_of
from opset.building import GraphBuilder
from opset.call import Argument, int32_tensor
from opset.definition import B8, F32, I32

TOPIC = "CONTROL_FLOW"
LIFE = OperandLifeTime
PAIR = Argument(F32, (2,))
T = OperationType


@dataclass(frozen=True)
class Program:
    """A model, inputs, and what must come out."""

    model: Model
    inputs: tuple[Array, ...]
    outputs: tuple[Expected, ...] = ()


def _graph(argument: Branch) -> Argument:
    return Argument(OperandType.SUBGRAPH, (), branch=argument)


def _running(code: OperationType, graphs: Sequence[Branch], takes: Sequence[Argument], gives: Sequence[Argument],
             first: Argument | None = None) -> Branch:  # fmt: skip
    """A graph of one IF (`first` is its condition) or WHILE: inputs in, outputs out."""
    builder = GraphBuilder()
    inputs = [] if first is None else [builder.operand(first, LIFE.SUBGRAPH_INPUT)]
    inputs += [builder.operand(_graph(graph), LIFE.SUBGRAPH) for graph in graphs]
    inputs += [builder.operand(argument, LIFE.SUBGRAPH_INPUT) for argument in takes]
    outputs = [builder.operand(argument, LIFE.SUBGRAPH_OUTPUT) for argument in gives]
    builder.operations.append(Operation(int(code), tuple(inputs), tuple(outputs)))
    return Branch(builder.model())


def _due(name: str, kind: OperandType, values: object) -> Expected:
    value = np.asarray(values, np.float64)
    rtol = 5 * np.finfo(np.float32).eps if kind == F32 else 0.0
    required = np.full(value.shape, 1e-5 if kind == F32 else 0.0) + rtol * np.abs(value)
    return Expected(name, kind, value.shape, value, required)


def _float(*values: float) -> Array:
    return np.array(values, np.float32)


def _int(*values: int) -> Array:
    return np.array(values, np.int32)


def endless() -> Program:
    """A loop whose condition holds for ever."""
    always = graph_of(
        [PAIR], [(T.EQUAL, (0, 0), Argument(B8, (2,)), False), (T.REDUCE_ALL, (1, _AXIS, _FALSE), FLAG, True)]
    )
    body = graph_of([PAIR], [(T.ADD, (0, 0, NO_ACTIVATION), PAIR, True)])
    return Program(_running(T.WHILE, (always, body), [PAIR], [PAIR]).model, (_float(0.0, 0.0),))


_AXIS = int32_tensor([0])
_FALSE = Argument(OperandType.BOOL, (), value=np.array(0, np.uint8))
ONE, TWO = int32_tensor([1]), int32_tensor([2])


def _below(limit: int) -> Branch:
    """Condition: the counter, which is the first input, is below a limit."""
    return graph_of([COUNT, PAIR], [(T.LESS, (0, int32_tensor([limit])), FLAG, True)])


_SUM = graph_of(
    [COUNT, PAIR],
    [(T.ADD, (0, ONE, NO_ACTIVATION), COUNT, True), (T.ADD, (1, 1, NO_ACTIVATION), PAIR, True)],
)
_DOUBLE = graph_of([PAIR], [(T.ADD, (0, 0, NO_ACTIVATION), PAIR, True)])
_NEGATE = graph_of([PAIR], [(T.NEG, (0,), PAIR, True)])


def counted(turns: int) -> Program:
    """Doubles a pair so many times."""
    model = _running(T.WHILE, (_below(turns), _SUM), [COUNT, PAIR], [COUNT, PAIR]).model
    factor = 2.0 ** max(turns, 0)
    due = (_due("count", I32, [max(turns, 0)]), _due("pair", F32, [0.5 * factor, -1.25 * factor]))
    return Program(model, (_int(0), _float(0.5, -1.25)), due)


def chosen(flag: bool) -> Program:
    """Doubles a pair or negates it, by a condition that is an input."""
    model = _running(T.IF, (_DOUBLE, _NEGATE), [PAIR], [PAIR], FLAG).model
    due = _due("pair", F32, [3.0, -4.5] if flag else [-1.5, 2.25])
    return Program(model, (np.array([flag], np.uint8), _float(1.5, -2.25)), (due,))


def nested_choice(outer: bool, inner: bool) -> Program:
    """An IF whose first branch is an IF: conditions in two inputs."""
    inside = _running(T.IF, (_DOUBLE, _NEGATE), [PAIR], [PAIR], FLAG)
    other = graph_of([FLAG, PAIR], [(T.MUL, (1, 1, NO_ACTIVATION), PAIR, True)])
    model = _running(T.IF, (inside, other), [FLAG, PAIR], [PAIR], FLAG).model
    due = [4.0, -6.0] if outer and inner else [-2.0, 3.0] if outer else [4.0, 9.0]
    flags = np.array([outer], np.uint8), np.array([inner], np.uint8)
    return Program(model, (*flags, _float(2.0, -3.0)), (_due("pair", F32, due),))


def loop_in_loop(outer: int, inner: int) -> Program:
    """A loop whose body runs a loop of its own, from the start each time: doubles outer x inner times."""
    start = int32_tensor([0])
    builder = GraphBuilder()
    count, pair = (builder.operand(argument, LIFE.SUBGRAPH_INPUT) for argument in (COUNT, PAIR))
    graphs = [builder.operand(_graph(graph), LIFE.SUBGRAPH) for graph in (_below(inner), _SUM)]
    zero, one = (builder.operand(argument, LIFE.CONSTANT_COPY) for argument in (start, ONE))
    none = builder.operand(NO_ACTIVATION, LIFE.CONSTANT_COPY)
    more = builder.operand(COUNT, LIFE.SUBGRAPH_OUTPUT)
    turned = builder.operand(COUNT, LIFE.TEMPORARY_VARIABLE)
    doubled = builder.operand(PAIR, LIFE.SUBGRAPH_OUTPUT)
    builder.operations.append(Operation(int(T.WHILE), (*graphs, zero, pair), (turned, doubled)))
    builder.operations.append(Operation(int(T.ADD), (count, one, none), (more,)))
    body = Branch(builder.model())
    model = _running(T.WHILE, (_below(outer), body), [COUNT, PAIR], [COUNT, PAIR]).model
    factor = 2.0 ** (outer * inner)
    due = (_due("count", I32, [outer]), _due("pair", F32, [factor * 0.25, factor * 3.0]))
    return Program(model, (_int(0), _float(0.25, 3.0)), due)


def _run(program: Program, model: int = 0, mode: ExecutionMode = ExecutionMode.SYNCHRONOUS, thread: int = 0) -> Step:
    how = Running() if thread == 0 else None
    return Step(Action.EXECUTE, model, Returns(program.outputs), mode, program.inputs, thread=thread, how=how)


def _programs(make: Callable[[], Sequence[Program]]) -> Callable[[Vehicle], TestCase]:
    """Programs that share the first one's model are executions of it; others are models of their own."""

    def made(v: Vehicle) -> TestCase:
        programs = make()
        models: list[Model] = []
        steps: list[Step] = []
        for program in programs:
            if program.model not in models:
                models.append(program.model)
                steps += [Step(Action.QUERY, len(models) - 1), Step(Action.PREPARE, len(models) - 1)]
            steps.append(_run(program, models.index(program.model)))
        return case(steps, models=models, detail="graphs made by hand", level=FL4)

    return made


def _in_mode(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        programs = (chosen(True), counted(3))
        steps = [Step(a, n) for n in range(2) for a in (Action.QUERY, Action.PREPARE)]
        steps += [_run(program, n, mode) for n, program in enumerate(programs)]
        models = tuple(program.model for program in programs)
        return case(
            steps,
            models=models,
            detail="graphs made by hand",
            level=FeatureLevel(max(FL4, SINCE[mode])),
            highest=UNTIL.get(mode),
        )

    text = "IF and WHILE give right results"
    return Scenario(TOPIC, f"mode.{WORDS[mode]}", make, text, once=True, mode=WORDS[mode])


def _at_once(v: Vehicle) -> TestCase:
    """Both branches, and loops of other lengths, side by side on one prepared model."""
    programs = (chosen(True), chosen(False))
    steps = [Step(Action.QUERY), Step(Action.PREPARE)]
    steps += [_run(programs[n % 2], thread=n + 1) for n in range(4)]
    return case(steps, models=(programs[0].model,), detail="graphs made by hand", level=FL4)


def _loop_lengths() -> list[Program]:
    return [counted(turns) for turns in (0, 1, 2, 7, 30)]


def _starts() -> list[Program]:
    """One model, the counter starting elsewhere: other numbers of turns, none at all included."""
    base = counted(5)
    found = []
    for start in (0, 4, 5, 9, -2):
        turns = max(5 - start, 0)
        due = (_due("count", I32, [start + turns]), _due("pair", F32, [0.5 * 2.0**turns, -1.25 * 2.0**turns]))
        found.append(replace(base, inputs=(_int(start), base.inputs[1]), outputs=due))
    return found


BOTH = ((True, True), (True, False), (False, True), (False, False))
SCENARIOS = (
    Scenario(TOPIC, "either.branch", _programs(lambda: [chosen(f) for f in (True, False, True)]),
             "the branch is chosen anew at each execution", once=True),
    Scenario(TOPIC, "nested.choice", _programs(lambda: [nested_choice(*f) for f in BOTH]),
             "a branch with a choice of its own", once=True),
    Scenario(TOPIC, "loop.lengths", _programs(_loop_lengths), "loops of 0, 1, 2, 7 and 30 turns", once=True),
    Scenario(TOPIC, "loop.starts", _programs(_starts), "the number of turns depends on the input", once=True),
    Scenario(TOPIC, "loop.in.loop", _programs(lambda: [loop_in_loop(*n) for n in ((1, 1), (2, 3), (3, 0))]),
             "a loop in a loop's body starts anew each time", once=True),
    Scenario(TOPIC, "at.once", _at_once, "executions side by side choose their own branches", once=True),
    *(_in_mode(mode) for mode in WORDS),
)  # fmt: skip
