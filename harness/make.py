"""Makes cases out of calls: evaluates, resolves the allowed error once, and puts the steps together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.distribution import may_repeat
from harness.expectations import Expected, MayReject, Rejects, Returns, Unspecified
from harness.steps import Action
from nnhal import versions
from nnhal.model import Model, is_known, is_tensor
from nnhal.types import Array, ErrorStatus, ExecutionMode, FeatureLevel, OperandLifeTime, OperandType, OperationType
from opset import OPSET
from opset.call import Argument, Call
from opset.definition import Sampling
from opset.evaluate import allowance, run_call
from opset.graph import call_of, model_of
from opset.propagation import foretell
from opset.quantization import FLOATS, QUANTIZED
from opset.validation import needed_level
from opset.values import Values


def expected_outputs(call: Call, relaxed: bool = False) -> tuple[Expected, ...]:
    """What a call's results should be, with the error allowed in each element."""
    results = run_call(call)
    if call.definition.judging.sampling is not None:
        return _expected_samples(call, call.definition.judging.sampling)
    allowed = allowance(call, results, relaxed)
    return tuple(
        Expected(
            name,
            argument.type,
            results[name].stored.shape,
            results[name].exact,
            allowed[name].required,
            allowed[name].unit,
            allowed[name].terms,
            exact=allowed[name].terms == 0 and argument.type in (QUANTIZED if relaxed else QUANTIZED | FLOATS),
            sums=not relaxed,
        )
        for name, argument in call.results.items()
    )


def row_groups(call: Call) -> tuple[int, ...]:
    """The group of each row of the results, where the rows of a group may come in any order."""
    name = call.definition.judging.grouped_by
    return tuple(int(x) for x in run_call(call)[name].stored) if name else ()


def _expected_samples(call: Call, sampling: Sampling) -> tuple[Expected, ...]:
    probabilities = sampling.probabilities(Values(call))
    shapes = call.definition.infer(call)
    nothing = {name: np.zeros(shapes[name]) for name in call.results}
    return tuple(
        Expected(name, a.type, tuple(shapes[name]), nothing[name], nothing[name], distribution=probabilities[name])
        for name, a in call.results.items()
    )


def _again(call: Call, constants: Collection[str], relaxed: bool, mode: ExecutionMode) -> tuple[Step, ...]:
    """One more execution with other seeds, whose samples must not be the same; none where they may be by chance."""
    sampling = call.definition.judging.sampling
    if sampling is None:
        return ()
    model, _ = model_of(call, constants, relaxed)
    other, values = model_of(sampling.reseeded(call), constants, relaxed)
    outputs = expected_outputs(call, relaxed)
    if other != model or any(d.distribution is None or may_repeat(d.shape, d.distribution) for d in outputs):
        return ()
    returns = Returns(tuple(replace(due, differs_from=1) for due in outputs))
    return (Step(Action.EXECUTE, 0, returns, mode, tuple(values)),)


def describe(call: Call) -> str:
    """A call in words: each operand with type, shape, quantisation, and value where it is a parameter."""
    words = []
    for name, argument in {**call.inputs, **call.results}.items():
        words.append(f"{name}: {describe_argument(argument, name in call.inputs and _is_parameter(call, name))}")
    return "; ".join(words)


def _is_parameter(call: Call, name: str) -> bool:
    return call.signature.form.operand(name).parameter


def describe_argument(argument: Argument, with_value: bool = False) -> str:
    """An operand in words."""
    if argument.omitted:
        return "omitted"
    text = argument.type.name
    if argument.shape or not with_value:
        text += str(list(argument.shape)).replace(" ", "")
    if argument.scale:
        text += f" scale {argument.scale:.9g} zero point {argument.zero_point}"
    if argument.channel is not None:
        text += f" {len(argument.channel.scales)} scales along {argument.channel.channel_dim}"
    if with_value and argument.value is not None:
        text += f" = {argument.value.tolist()}"
    return text


def positive_case(
    call: Call,
    origin: Origin,
    constants: Collection[str] = (),
    *,
    relaxed: bool = False,
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS,
) -> TestCase:
    """A valid call: it is asked for, prepared and executed, and must return what the specification says."""
    model, values = model_of(call, constants, relaxed)
    steps = (
        Step(Action.QUERY),
        Step(Action.PREPARE),
        Step(Action.EXECUTE, 0, Returns(expected_outputs(call, relaxed), row_groups(call)), mode, tuple(values)),
        *_again(call, constants, relaxed, mode),
    )
    return seal(TestCase(replace(origin, detail=describe(call)), (model,), steps, needed_level(call)))


def expected_of_graph(model: Model, inputs: Sequence[Array | None], relaxed: bool = False) -> tuple[Expected, ...]:
    """What the outputs of a graph should be, with the error allowed in each element.

    Raises:
        UnforeseeableError: that is not determined; a ValueError.
    """
    operands = model.main.operands
    givers = {i: OperationType(o.type).name for o in model.main.operations for i in o.outputs}
    dues = foretell(model, inputs, relaxed)
    expected = []
    for number, (index, due) in enumerate(zip(model.main.output_indexes, dues, strict=True)):
        kind = OperandType(operands[index].type)
        scored = due.moved and kind in (QUANTIZED if relaxed else QUANTIZED | FLOATS)
        name, shape = f"output{number} ({givers[index]})", due.result.stored.shape
        real = due.result.exact
        if due.distribution is not None:
            real = np.zeros(shape)
        expected.append(
            Expected(
                name,
                kind,
                shape,
                real,
                due.required,
                terms=0.0 if due.moved else 1.0,
                exact=scored,
                quality=False,
                distribution=due.distribution,
            )
        )
    return tuple(expected)


def _graph_groups(model: Model, inputs: Sequence[Array | None]) -> tuple[int, ...]:
    """The group of each row of the outputs: in a model of one operation, whose results have one order."""
    if len(model.main.operations) != 1 or not OPSET[model.main.operations[0].type].judging.grouped_by:
        return ()
    known = {i: v for i, v in zip(model.main.input_indexes, inputs, strict=True) if v is not None}
    return row_groups(call_of(model, model.main, model.main.operations[0], known))


def _summary(model: Model) -> str:
    """A graph in words: its operations, each with its number where it is there more than once."""
    counts = Counter(OperationType(o.type).name for graph in (model.main, *model.referenced) for o in graph.operations)
    words = ", ".join(name if number == 1 else f"{name} x{number}" for name, number in counts.items())
    return f"{len(model.main.operations)} operations: {words}"


def graph_question(model: Model, origin: Origin, *, level: FeatureLevel | None = None) -> TestCase:
    """Asks for the support of a valid model: `graph_case` up to where it must be known what is due. It has no digest.

    Args:
        model: as for `graph_case`, and so are the others.
        origin: its detail is filled in where it is empty.
        level: that a driver needs.
    """
    present = [o for o in model.main.operands if o.lifetime != OperandLifeTime.NO_VALUE]
    open_sizes = any(is_tensor(o.type) and not is_known(o.dimensions) for o in present)
    due = level if level is not None else versions.needed_level(model)
    detailed = replace(origin, detail=origin.detail or _summary(model))
    needs = ("dynamic_shapes",) if open_sizes else ()
    return TestCase(detailed, (model,), (Step(Action.QUERY),), due, needs=needs)


def graph_case(
    model: Model,
    inputs: Sequence[Array | None],
    origin: Origin,
    *,
    mode: ExecutionMode = ExecutionMode.SYNCHRONOUS,
    level: FeatureLevel | None = None,
) -> TestCase:
    """A valid model of any number of operations: asked for, prepared and executed, and held to what is foretold.

    Args:
        model: one operation or hundreds; IF and WHILE included.
        inputs: stored values in the order of the model's input list; None for an omitted one.
        origin: what the id is made of; its detail is filled in where it is empty.
        mode: of the execution.
        level: the level that a driver needs; that of the operations and what they use when None.

    Raises:
        ValueError: what the model gives is not determined, or it is not valid.
    """
    relaxed = model.relax_computation_float32_to_float16
    returns = Returns(expected_of_graph(model, inputs, relaxed), _graph_groups(model, inputs))
    question = graph_question(model, origin, level=level)
    rest = Step(Action.PREPARE), Step(Action.EXECUTE, 0, returns, mode, tuple(inputs))
    return seal(replace(question, steps=(*question.steps, *rest)))


INVALID = (ErrorStatus.INVALID_ARGUMENT,)


def invalid_model_case(
    bad: Model, twin: Model, origin: Origin, text: str, level: FeatureLevel, until: FeatureLevel | None = None
) -> TestCase:
    """A model that breaks a rule of stage VALIDATION, behind its unbroken twin."""
    refuse = Rejects(INVALID, origin.rule, text)
    steps = (
        Step(Action.QUERY, 1),
        Step(Action.PREPARE, 1),
        Step(Action.QUERY, 0, refuse),
        Step(Action.PREPARE, 0, refuse),
    )
    return seal(TestCase(origin, (bad, twin), steps, level, until))


def unexecutable_case(bad: Call, twin: Call, origin: Origin, text: str, constants: Collection[str] = ()) -> TestCase:
    """A call that breaks a rule of stage EXECUTION: any status but NONE is due at prepare or execute."""
    bad_model, bad_values = model_of(bad, constants)
    twin_model, _ = model_of(twin, constants)
    steps = (
        Step(Action.QUERY, 1),
        Step(Action.PREPARE, 1),
        Step(Action.QUERY, 0, Unspecified()),
        Step(Action.PREPARE, 0, MayReject(origin.rule, text)),
        Step(Action.EXECUTE, 0, Rejects((), origin.rule, text), inputs=tuple(bad_values)),
    )
    detail = replace(origin, detail=describe(bad))
    return seal(TestCase(detail, (bad_model, twin_model), steps, needed_level(twin)))
