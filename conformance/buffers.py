"""Scenarios of driver-managed buffers in use: right uses, copies, and uses for which they were not made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from conformance.behaviour import GF, Scenario, Vehicle, refuses
from conformance.buffer_steps import (
    NEEDS,
    OUT,
    A,
    B,
    addition,
    allocate,
    binary,
    buffered,
    copy_in,
    copy_out,
    held,
    loose,
    open_addition,
    product,
    ready,
    unary,
    using,
    value_of,
)
from conformance.execution import ASYNC, BURST, FENCED, REUSABLE, SINCE, SYNC, UNTIL, WORDS
from conformance.sketch import Sketch, Sketched, quarters, tensor
from harness.case import Step, TestCase
from harness.expectations import Rejects, Returns, Unspecified
from harness.steps import KINDS, Action, Edit, Layout, Releasing, Role, Running, Thing
from nnhal.types import FL4, ErrorStatus, ExecutionMode, FeatureLevel, OperationType

TOPIC = "MEMORY"
PLAIN = tuple(kind for kind in KINDS if kind != "opaque")
ROLE_RULE = "B2"


def _as_input(v: Vehicle) -> TestCase:
    """A buffer as one input, as the other, and as both: several inputs may share one."""
    made = addition()
    twice = binary(OperationType.ADD, quarters((2, 3)), quarters((2, 3)))
    steps = [*ready(made), allocate(0, A), allocate(1, B), allocate(2, A, B)]
    steps += [copy_in(0, value_of(made)), made.execute(how=using((False, 0, 0)), without=(0,))]
    steps += [copy_in(1, value_of(made, 1)), made.execute(how=using((False, 1, 1)), without=(1,))]
    steps += [made.execute(how=using((False, 0, 0), (False, 1, 1)), without=(0, 1))]
    both = using((False, 0, 2), (False, 1, 2))
    steps += [copy_in(2, value_of(made)), twice.execute(how=both, without=(0, 1))]
    steps += [made.execute(), made.execute(how=using((False, 0, 0)), without=(0,)), copy_out(0, held(made))]
    return buffered(steps, made)


def _as_output(v: Vehicle) -> TestCase:
    """Results that stay in a buffer, one after the other, and go nowhere else."""
    made, more = addition(), addition(9)
    steps = [*ready(made), allocate(0, OUT), allocate(1, OUT)]
    for run, slot in ((made, 0), (more, 1), (more, 0), (made, 1)):
        steps += [run.execute(how=using((True, 0, slot))), copy_out(slot, run.returns)]
    steps += [copy_out(0, more.returns), copy_out(1, made.returns), copy_out(0, more.returns, kind="mmap_fd")]
    return buffered([*steps, made.execute()], made)


def _chained(mode: ExecutionMode) -> Scenario:
    """The result of one execution is an input of the next one, of the same model and of another, without copies."""

    def make(v: Vehicle) -> TestCase:
        first, other = addition(), product()
        total = first.outputs[0].value.astype(np.float32)
        second = binary(OperationType.ADD, tensor(total), quarters((2, 3), 5))
        third = binary(OperationType.MUL, quarters((2, 3)), tensor(total))
        roles = (OUT, A, Role(1, 1))
        steps = [*ready(first, other), allocate(0, *roles, prepared=(0, 1)), allocate(1, OUT)]
        steps.append(first.execute(mode=mode, how=using((True, 0, 0))))
        after, last = loose(second), loose(third)
        steps.append(second.execute(mode=mode, how=using((False, 0, 0)), without=(0,), expect=after))
        steps.append(third.execute(1, mode=mode, how=using((False, 1, 0)), without=(1,), expect=last))
        steps.append(second.execute(mode=mode, how=using((False, 0, 0), (True, 0, 1)), without=(0,), expect=after))
        steps += [copy_out(1, after), copy_out(0, first.returns), first.execute(mode=mode)]
        level, highest = FeatureLevel(max(FL4, SINCE[mode])), UNTIL.get(mode)
        return buffered(steps, first, other, level=level, highest=highest)

    text = "a buffer is the output of one execution and the input of others, of two models"
    return Scenario(TOPIC, f"buffer.chained.{WORDS[mode]}", make, text, mode=WORDS[mode], once=True)


def _copies(v: Vehicle) -> TestCase:
    """What is copied in comes out again, for memory of every kind; and what is copied over it afterwards."""
    made, more = addition(), addition(9)
    steps = [*ready(made), allocate(0, A, OUT)]
    for kind in PLAIN:
        steps += [
            copy_in(0, value_of(made), kind=kind),
            copy_out(0, held(made), kind=kind),
            copy_out(0, held(made), kind=kind),
        ]
        steps += [copy_in(0, value_of(more), kind=kind, dimensions=(2, 3)), copy_out(0, held(more))]
        steps += [more.execute(how=using((False, 0, 0)), without=(0,))]
    return buffered(steps, made)


def _quantized(v: Vehicle) -> TestCase:
    """Buffers of one byte an element, also between two models."""
    a, b = tensor([[3, 200, 128], [0, 255, 90]], 0.5, 128), tensor([[7, 1, 130], [128, 128, 200]], 0.5, 128)
    made = binary(OperationType.ADD, a, b)
    second = unary(OperationType.RELU, tensor(np.round(made.outputs[0].value), 0.5, 128))
    steps = [*ready(made, second), allocate(0, OUT, Role(1, 0), prepared=(0, 1)), allocate(1, A)]
    steps += [copy_in(1, value_of(made)), made.execute(how=using((False, 0, 1), (True, 0, 0)), without=(0,))]
    steps += [
        copy_out(0, made.returns),
        second.execute(1, how=using((False, 0, 0)), without=(0,), expect=loose(second)),
    ]
    return buffered(steps, made, second)


def _open_dimensions(v: Vehicle) -> TestCase:
    """A buffer whose first dimension the roles leave open: the allocation says it, or the copy."""
    made, small = open_addition(), open_addition((1, 3))
    steps = [*ready(made), allocate(0, A, OUT, dimensions=(2, 3)), allocate(1, A, OUT, dimensions=(0, 3))]
    given = {"input_shapes": ((2, 3), (2, 3))}
    steps += [copy_in(0, value_of(made)), made.execute(how=using((False, 0, 0), **given), without=(0,))]
    for run, shape in ((small, (1, 3)), (made, (2, 3))):
        how = using((False, 0, 1), input_shapes=(shape, shape))
        steps += [
            copy_in(1, value_of(run), dimensions=shape),
            run.execute(how=how, without=(0,)),
            copy_out(1, held(run)),
        ]
        steps += [run.execute(how=using((True, 0, 1), input_shapes=(shape, shape))), copy_out(1, run.returns)]
    return buffered(steps, made, needs=(*NEEDS, "dynamic_shapes"))


# --- wrong uses -------------------------------------------------------------------------------------------------------


def _wrong(text: str, *statuses: ErrorStatus) -> Rejects:
    return refuses(ROLE_RULE, text, *statuses)


def _wrong_role(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        made, other = addition(), product()
        steps = [*ready(made, other), allocate(0, A), allocate(1, OUT), allocate(2, A, OUT)]
        bad = (
            (made, 0, (False, 1, 0), "the buffer was made for input 0 and is used as input 1"),
            (made, 0, (True, 0, 0), "the buffer was made for an input and is used as an output"),
            (made, 0, (False, 0, 1), "the buffer was made for an output and is used as an input"),
            (other, 1, (False, 0, 0), "the buffer was made for another prepared model's input"),
            (other, 1, (True, 0, 1), "the buffer was made for another prepared model's output"),
        )
        for run, model, use, text in bad:
            without = () if use[0] else (use[1],)
            steps.append(copy_in(use[2], value_of(made)))
            steps.append(run.execute(model, mode=mode, how=using(use), without=without, expect=_wrong(text)))
        steps.append(copy_in(2, value_of(made)))
        twice = _wrong("one buffer is an input and an output of one execution")
        how = using((False, 0, 2), (True, 0, 2))
        steps.append(made.execute(mode=mode, how=how, without=(0,), expect=twice))
        steps += [copy_in(0, value_of(made)), made.execute(mode=mode, how=using((False, 0, 0)), without=(0,))]
        level, highest = FeatureLevel(max(FL4, SINCE[mode])), UNTIL.get(mode)
        return buffered(steps, made, other, level=level, highest=highest)

    text = "a buffer is refused for what it was not made for"
    return Scenario(TOPIC, f"buffer.wrong.role.{WORDS[mode]}", make, text, ROLE_RULE, mode=WORDS[mode], once=True)


def _same_model_prepared_again(v: Vehicle) -> TestCase:
    """A role is that of one prepared model: another one of the same model is another."""
    made = addition()
    steps = [*ready(made), Step(Action.PREPARE, 0, slot=1), allocate(0, A), copy_in(0, value_of(made))]
    wrong = _wrong("the buffer was made for another prepared model, though of the same model")
    how = using((False, 0, 0))
    steps += [made.execute(how=how, without=(0,), slot=1, expect=wrong), made.execute(how=how, without=(0,))]
    return buffered(steps, made)


def _two_outputs() -> Sketched:
    sketch = Sketch()
    at = sketch.input(quarters((2, 3)))
    sketch.apply(OperationType.RELU, at, out=True)
    sketch.apply(OperationType.LOGISTIC, at, out=True)
    return sketch.finish()


def _output_twice(v: Vehicle) -> TestCase:
    """One buffer for both outputs of an execution."""
    made = _two_outputs()
    steps = [*ready(made), allocate(0, OUT, Role(0, 1, output=True)), made.execute(how=using((True, 1, 0)))]
    first, second = made.outputs
    steps.append(copy_out(0, Returns((second,))))
    both = _wrong("one buffer is two outputs of one execution")
    steps.append(made.execute(how=using((True, 0, 0), (True, 1, 0)), expect=both))
    return buffered([*steps, made.execute(how=using((True, 0, 0))), copy_out(0, Returns((first,)))], made)


def _token_unknown(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        made = addition()
        steps = [*ready(made), allocate(0, A, OUT), copy_in(0, value_of(made))]
        for token, words in ((0, "the token is 0"), (0x7FFFFFF0, "no buffer has the token")):
            for output in (False, True):
                how = Running(layout=Layout(), edits=(Edit("token", 0, (token,), output),))
                steps.append(made.execute(mode=mode, how=how, expect=_wrong(words)))
        steps += [made.execute(mode=mode, how=using((False, 0, 0)), without=(0,)), made.execute(mode=mode)]
        level, highest = FeatureLevel(max(FL4, SINCE[mode])), UNTIL.get(mode)
        return buffered(steps, made, level=level, highest=highest)

    text = "an unknown token is refused"
    return Scenario(TOPIC, f"buffer.unknown.token.{WORDS[mode]}", make, text, "R9", mode=WORDS[mode], once=True)


def _in_parts(v: Vehicle) -> TestCase:
    """A buffer is used whole: no offset, no length."""
    made = addition()
    steps = [*ready(made), allocate(0, A), allocate(1, OUT), copy_in(0, value_of(made))]
    for change in ("offset", "length"):
        for use, without in (((False, 0, 0), (0,)), ((True, 0, 1), ())):
            edit = Edit(change, value=(4,), output=use[0])
            text = f"{change} 4 in a driver-managed buffer, which is used whole"
            how = replace(using(use), edits=(edit,))
            steps.append(made.execute(how=how, without=without, expect=refuses("R4", text)))
    return buffered([*steps, made.execute(how=using((False, 0, 0)), without=(0,))], made)


def _released(v: Vehicle) -> TestCase:
    """A token of a buffer that is gone names nothing, not even after another one has been allocated."""
    made = addition()
    use = made.execute(how=using((False, 0, 0)), without=(0,))
    gone = Step(Action.RELEASE, slot=0, how=Releasing(Thing.BUFFER))
    wrong = _wrong("the buffer has been released")
    after = replace(use, expect=wrong)
    steps = [*ready(made), allocate(0, A, OUT), copy_in(0, value_of(made)), use, gone, after, allocate(1, OUT), after]
    as_output = made.execute(how=using((True, 0, 0)), expect=wrong)
    return buffered([*steps, as_output, made.execute(how=using((True, 0, 1))), copy_out(1, made.returns)], made)


def _released_in_use(mode: ExecutionMode) -> Scenario:
    """Buffers and models that are let go while an execution with them is under way: any answer, but one."""

    def make(v: Vehicle) -> TestCase:
        made, any_ = addition(), Unspecified()
        steps = [*ready(made), *(allocate(s, A, OUT) for s in (0, 1)), copy_in(0, value_of(made))]
        how = using((False, 0, 0), (True, 0, 1))
        steps.append(made.execute(mode=mode, how=how, without=(0,), slot=5, action=Action.LAUNCH, expect=any_))
        steps += [Step(Action.RELEASE, slot=s, how=Releasing(Thing.BUFFER)) for s in (0, 1)]
        steps += [Step(Action.WAIT, 0, any_, mode, slot=5), made.execute(mode=mode)]
        return buffered(steps, made, level=FeatureLevel(max(FL4, SINCE[mode])), highest=UNTIL.get(mode))

    text = "a buffer is released while an execution with it is under way; the driver must neither die nor hang"
    return Scenario(TOPIC, f"buffer.released.in.use.{WORDS[mode]}", make, text, mode=WORDS[mode], once=True)


def _model_released(v: Vehicle) -> TestCase:
    """A buffer outlives the prepared models that it was made for."""
    made, other = addition(), product()
    steps = [*ready(made, other), allocate(0, OUT, Role(1, 0), prepared=(0, 1))]
    steps += [made.execute(how=using((True, 0, 0))), Step(Action.RELEASE, 0, how=Releasing(Thing.PREPARED))]
    third = binary(OperationType.MUL, tensor(made.outputs[0].value), quarters((2, 3), 3))
    after = third.execute(1, how=using((False, 0, 0)), without=(0,), expect=loose(third))
    steps += [copy_out(0, made.returns), after]
    steps += [Step(Action.RELEASE, 1, how=Releasing(Thing.PREPARED)), copy_out(0, made.returns)]
    return buffered(steps, made, other)


def _uninitialised(mode: ExecutionMode) -> Scenario:
    """Nothing can be had out of a buffer into which nothing was put."""

    def make(v: Vehicle) -> TestCase:
        made, empty = addition(), refuses("B3", "nothing was ever put into the buffer", GF)
        use = made.execute(mode=mode, how=using((False, 0, 0)), without=(0,))
        steps = [*ready(made), allocate(0, A, OUT), copy_out(0, empty), replace(use, expect=empty)]
        steps += [copy_in(0, value_of(made)), use, copy_out(0, held(made))]
        level, highest = FeatureLevel(max(FL4, SINCE[mode])), UNTIL.get(mode)
        return buffered(steps, made, level=level, highest=highest)

    text = "a buffer without content is refused as an input"
    return Scenario(TOPIC, f"buffer.uninitialised.{WORDS[mode]}", make, text, "B3", mode=WORDS[mode], once=True)


def _failed_copy(v: Vehicle) -> TestCase:
    """A copy of a wrong size or shape is refused, and the buffer is empty afterwards, whether it was before or not."""
    made, empty = addition(), refuses("B3", "the copy before failed, so that the buffer is uninitialised", GF)
    use = made.execute(how=using((False, 0, 0)), without=(0,))
    steps = [*ready(made), allocate(0, A, OUT)]
    faults: tuple[tuple[tuple[int, ...], int | None, str], ...] = (
        ((), 23, "one byte short"),
        ((), 25, "one byte long"),
        ((3, 2), None, "of other dimensions"),
        ((6,), None, "of another rank"),
        ((2, 4), 32, "of a larger shape, with as many bytes"),
    )
    for dimensions, size, words in faults:
        copy = copy_in(0, value_of(made), refuses("B4", f"what is copied in is {words}"), dimensions, size)
        steps += [
            copy,
            copy_out(0, empty),
            replace(use, expect=empty),
            copy_in(0, value_of(made)),
            use,
            copy,
            copy_out(0, empty),
        ]
    return buffered([*steps, copy_in(0, value_of(made)), use], made)


def _failed_copy_out(v: Vehicle) -> TestCase:
    """A copy into memory of another size is refused, and the buffer keeps what it has."""
    made = addition()
    steps = [*ready(made), allocate(0, A), copy_in(0, value_of(made))]
    for size in (1, 23, 25, 4096):
        steps += [
            copy_out(0, refuses("B4", f"24 bytes are copied into a memory of {size}"), size),
            copy_out(0, held(made)),
        ]
    return buffered(steps, made)


def _failed_output(v: Vehicle) -> TestCase:
    """A result that does not fit is GENERAL_FAILURE, and the buffer is empty afterwards, whether before or not."""
    made, large = open_addition(), open_addition((4, 3))
    failed = refuses("B5", "the result of [4, 3] does not fit a buffer of [2, 3]", GF)
    empty = refuses("B3", "the output before failed, so that the buffer is uninitialised", GF)
    given = {"input_shapes": ((4, 3), (4, 3))}
    bad = large.execute(how=using((True, 0, 0), **given), expect=failed)
    use = made.execute(how=using((False, 0, 0), input_shapes=((2, 3), (2, 3))), without=(0,))
    good = made.execute(how=using((True, 0, 0), input_shapes=((2, 3), (2, 3))))
    steps = [*ready(made), allocate(0, A, OUT, dimensions=(2, 3)), bad, copy_out(0, empty), replace(use, expect=empty)]
    steps += [
        copy_in(0, value_of(made)),
        use,
        bad,
        copy_out(0, empty),
        good,
        copy_out(0, made.returns),
        bad,
        copy_out(0, empty),
    ]
    return buffered([*steps, good, copy_out(0, made.returns)], made, needs=(*NEEDS, "dynamic_shapes"))


def _wrong_dimensions(v: Vehicle) -> TestCase:
    """What a request says of dimensions goes against those of the buffer."""
    made = open_addition()
    steps = [*ready(made), allocate(0, A, OUT, dimensions=(2, 3)), copy_in(0, value_of(made))]
    for output in (False, True):
        for shape in ((4, 3), (1, 3)):
            text = f"the request says {list(shape)} of a buffer of [2, 3]"
            if output:
                how = using((True, 0, 0), output_dimensions=(shape,), input_shapes=((2, 3), (2, 3)))
            else:
                how = using((False, 0, 0), input_shapes=(shape, (2, 3)))
            steps.append(made.execute(how=how, without=() if output else (0,), expect=_wrong(text)))
    how = using((False, 0, 0), input_shapes=((2, 3), (2, 3)))
    steps += [copy_in(0, value_of(made)), made.execute(how=how, without=(0,))]
    return buffered(steps, made, needs=(*NEEDS, "dynamic_shapes"))


def _many(v: Vehicle) -> TestCase:
    """Many buffers alive together each keep what they hold."""
    made = addition()
    runs = [addition(n) for n in range(16)]
    steps = [*ready(made), *(allocate(n, A, OUT) for n in range(16))]
    steps += [copy_in(n, value_of(run)) for n, run in enumerate(runs)]
    steps += [Step(Action.RELEASE, slot=n, how=Releasing(Thing.BUFFER)) for n in range(0, 16, 3)]
    steps += [allocate(n, A, OUT) for n in range(0, 16, 3)]
    for n, run in enumerate(runs):
        if n % 3:
            steps += [copy_out(n, held(run)), run.execute(how=using((False, 0, n)), without=(0,))]
    return buffered(steps, made)


def _at_once(v: Vehicle) -> TestCase:
    """Executions side by side read one buffer and write each its own."""
    made = addition()
    threads = range(1, 5)
    steps = [*ready(made), allocate(0, A), copy_in(0, value_of(made)), *(allocate(t, OUT) for t in threads)]
    for _ in range(2):
        steps += [made.execute(how=using((False, 0, 0), (True, 0, t)), without=(0,), thread=t) for t in threads]
        steps += [copy_out(t, made.returns) for t in threads]
    return buffered(steps, made)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(TOPIC, "buffer.as.input", _as_input, "buffers are inputs", once=True)
    yield Scenario(TOPIC, "buffer.as.output", _as_output, "buffers are outputs", once=True)
    modes = (SYNC, ASYNC, BURST, FENCED, REUSABLE)
    for made in (_chained, _wrong_role, _token_unknown, _uninitialised):
        yield from (made(mode) for mode in modes)
    yield from (_released_in_use(mode) for mode in (ASYNC, FENCED))
    for name, make, text, rule in (
        ("copies", _copies, "what is copied in comes out", ""),
        ("quantized", _quantized, "buffers of quantised values", ""),
        ("open.dimensions", _open_dimensions, "a buffer whose shape the roles leave open", ""),
        ("prepared.again", _same_model_prepared_again, "a role is one prepared model's", ROLE_RULE),
        ("output.twice", _output_twice, "a buffer is one output at most", "R10"),
        ("in.parts", _in_parts, "a buffer is used whole", "R4"),
        ("released", _released, "a buffer that was released is refused", ROLE_RULE),
        ("model.released", _model_released, "a buffer outlives its models", ""),
        ("failed.copy", _failed_copy, "a copy that does not fit leaves the buffer empty", "B4"),
        ("failed.copy.out", _failed_copy_out, "a copy into a wrong size is refused", "B4"),
        ("failed.output", _failed_output, "a result that does not fit leaves the buffer empty", "B5"),
        ("wrong.dimensions", _wrong_dimensions, "dimensions of request and buffer contradict", ROLE_RULE),
        ("many", _many, "many buffers do not get mixed up", ""),
        ("at.once", _at_once, "executions side by side share a buffer", ""),
    ):
        yield Scenario(TOPIC, f"buffer.{name}", make, text, rule, once=True)


SCENARIOS = tuple(_scenarios())
