"""Scenarios of executions: modes, several at once, many prepared models, timing, repetition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from conformance.behaviour import GF, Scenario, Vehicle, case, execute, prepared, refuses, with_outputs
from conformance.cases import constants, drawn, origin
from harness.batch import Batch, NotApplicableError
from harness.case import Step, TestCase
from harness.case_file import seal
from harness.expectations import Expectation, Rejects, Returns
from harness.make import describe
from harness.steps import Action, Edit, Layout, Releasing, Running, Signalling, Thing
from nnhal.model import is_known, is_tensor
from nnhal.operations import Signature
from nnhal.types import FL1, FL3, FL4, FL8, ExecutionMode, FeatureLevel
from opset import OPSET
from opset.definition import OperationDef

SYNC, ASYNC, BURST, FENCED, REUSABLE = (
    ExecutionMode.SYNCHRONOUS,
    ExecutionMode.ASYNCHRONOUS,
    ExecutionMode.BURST,
    ExecutionMode.FENCED,
    ExecutionMode.REUSABLE,
)
SINCE: dict[ExecutionMode, FeatureLevel] = {SYNC: FL1, ASYNC: FL1, BURST: FL3, FENCED: FL4, REUSABLE: FL8}
UNTIL: dict[ExecutionMode, FeatureLevel | None] = {ASYNC: FL4}
WORDS = {SYNC: "sync", ASYNC: "async", BURST: "burst", FENCED: "fenced", REUSABLE: "reusable"}
UNMEASURED = Running(measure=False)
TOPIC = "EXECUTION"


def _in_mode(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = [*prepared(), execute(v, mode=mode), execute(v, mode=mode, how=UNMEASURED)]
        return case(steps, v, level=SINCE[mode], highest=UNTIL.get(mode))

    text = "right results, with timing measured and without"
    return Scenario(TOPIC, f"mode.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _modes_agree(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = [*prepared(), *(execute(v, mode=m) for m in (SYNC, mode, SYNC, mode))]
        return case(steps, v, level=SINCE[mode], highest=UNTIL.get(mode), observe=("bits",))

    text = "the same prepared model gives the same results in both modes, by turns"
    return Scenario(TOPIC, f"beside.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _at_once(mode: ExecutionMode, threads: int = 4) -> Scenario:
    """Every thread its own inputs, so that results that are mixed up are seen."""

    def make(v: Vehicle) -> TestCase:
        steps = [*prepared()]
        for _ in range(2):
            steps += [execute(v.rolled(t), mode=mode, thread=t + 1) for t in range(threads)]
            steps.append(execute(v, mode=mode))
        return case(steps, v, level=SINCE[mode], highest=UNTIL.get(mode))

    text = f"{threads} executions at once on one prepared model each give right results"
    return Scenario(TOPIC, f"at.once.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _launched(mode: ExecutionMode, count: int = 4) -> Scenario:
    """All under way before the first is waited for, and waited for in another order."""

    def make(v: Vehicle) -> TestCase:
        runs = [v.rolled(n) for n in range(count)]
        launch = Action.LAUNCH
        steps = [*prepared()]
        steps += [execute(r, mode=mode, slot=n, action=launch, expect=Returns()) for n, r in enumerate(runs)]
        steps += [Step(Action.WAIT, 0, runs[n].returns, mode, slot=n) for n in reversed(range(count))]
        return case(steps, v, level=SINCE[mode], highest=UNTIL.get(mode))

    text = f"{count} executions under way at once, waited for in the opposite order, give right results"
    return Scenario(TOPIC, f"launched.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _many_models(v: Vehicle) -> TestCase:
    """Prepared models alive together, used by turns and let go in another order."""
    all_ = [v, v.other(1), v.other(2), v.other(3)]
    steps = [Step(Action.QUERY, n) for n in range(4)]
    steps += [Step(Action.PREPARE, n) for n in range(4)]
    order = (0, 2, 1, 3, 3, 0, 1, 2)
    steps += [execute(all_[n], n) for n in order]
    for gone in (2, 0, 3):
        steps.append(Step(Action.RELEASE, gone, how=Releasing(Thing.PREPARED)))
        steps += [execute(all_[n], n) for n in range(4) if n == 1 or (n == 3 and gone == 2)]
    return case(steps, *all_)


def _prepared_at_once(v: Vehicle) -> TestCase:
    """Preparations and executions of other models side by side."""
    all_ = [v, v.other(1), v.other(2), v.other(3)]
    steps = [Step(Action.QUERY, n) for n in range(4)]
    steps += [Step(Action.PREPARE, n, thread=n + 1) for n in range(4)]
    steps += [execute(all_[n], n, thread=n + 1) for n in range(4)]
    return case(steps, *all_)


def _same_twice(v: Vehicle) -> TestCase:
    """One model prepared twice: the second lives on without the first."""
    steps = [*prepared(), Step(Action.PREPARE, 0, slot=1), execute(v), execute(v, slot=1)]
    steps += [Step(Action.RELEASE, 0, how=Releasing(Thing.PREPARED)), execute(v, slot=1)]
    return case(steps, v)


def _first_run(v: Vehicle) -> TestCase:
    """What the first execution costs against later ones: reported."""
    return case([*prepared(), *(execute(v) for _ in range(8))], v, observe=("first_run", "bits"))


def _other_inputs(v: Vehicle) -> TestCase:
    """Nothing of one execution's inputs is left in the next one's results."""
    runs = [v, v.rolled(1), v, v.rolled(3), v]
    return case([*prepared(), *(execute(r) for r in runs)], v, observe=("bits",))


def _after_error(mode: ExecutionMode) -> Scenario:
    """A refused request leaves the prepared model usable, and no timing or shapes come with the refusal."""

    def make(v: Vehicle) -> TestCase:
        bad = Running(edits=(Edit("foreign_pool"),))
        expect = refuses("R3", "the first input is in a pool that is not there")
        steps = [*prepared(), execute(v, mode=mode), execute(v, mode=mode, how=bad, expect=expect)]
        return case([*steps, execute(v, mode=mode)], v, level=SINCE[mode], highest=UNTIL.get(mode))

    text = "after a refused request the prepared model goes on giving right results"
    return Scenario(TOPIC, f"after.error.{WORDS[mode]}", make, text, "R3", mode=WORDS[mode])


def _burst_reused(v: Vehicle) -> TestCase:
    """One burst for many executions, with memory that is kept, let go, and not kept.

    A token stands for one memory until it is released: then, and only then, it may be given to another one.
    """
    steps = [*prepared(), Step(Action.OPEN_BURST, slot=0), Step(Action.OPEN_BURST, slot=1)]
    pools = 2 if v.inputs else 1
    for n, tokens in enumerate((range(7, 7 + pools), None, range(7, 7 + pools), None, range(20, 20 + pools))):
        kept = None if tokens is None else tuple(tokens)
        how = Running(uses=0, tokens=kept, layout=Layout())
        steps += [execute(v.rolled(n), mode=BURST, how=how), execute(v.rolled(1), mode=BURST, how=Running(uses=1))]
        for token in kept or ():
            steps.append(Step(Action.FORGET, slot=0, how=Releasing(Thing.BURST, token)))
    forgets = [Step(Action.FORGET, slot=0, how=Releasing(Thing.BURST, token)) for token in (7, 7, 12345, 0)]
    steps += [*forgets, execute(v, mode=BURST, how=Running(uses=0))]
    steps += [Step(Action.RELEASE, slot=0, how=Releasing(Thing.BURST)), execute(v), execute(v, mode=BURST)]
    return case(steps, v, level=FL3)


def _reusable_again(v: Vehicle) -> TestCase:
    """One reusable execution, run many times with other contents of its memory, fenced in between."""
    use = Running(uses=0)
    steps = [*prepared(), Step(Action.CREATE, 0, v.returns, inputs=v.inputs, slot=0)]
    for n in range(4):
        steps.append(execute(v.rolled(n), mode=REUSABLE, how=use))
        steps.append(execute(v.rolled(n + 1), mode=FENCED, how=use))
    steps.append(Step(Action.RELEASE, slot=0, how=Releasing(Thing.EXECUTION)))
    return case([*steps, execute(v)], v, level=FL8)


def _fence_first(v: Vehicle) -> TestCase:
    """A fenced execution waits for its fence, does not claim to be done, and runs when the fence is signalled."""
    steps = [*prepared(), Step(Action.FENCE, slot=9)]
    waiting = Running(waits=(9,))
    steps.append(execute(v, mode=FENCED, how=waiting, slot=0, action=Action.LAUNCH, expect=Returns()))
    early = refuses("H8", "the report is asked for before the execution could begin", GF)
    steps += [Step(Action.ASK, 0, early, FENCED, slot=0), Step(Action.SIGNAL, slot=9, how=Signalling())]
    return case([*steps, Step(Action.WAIT, 0, v.returns, FENCED, slot=0), execute(v)], v, level=FL4)


def _fence_both(v: Vehicle) -> TestCase:
    """A fenced execution waits for all of its fences, whichever of them is signalled first.

    Others, launched later, which wait for the one that is signalled, give a driver that does not wait the time to be
    done too early.
    """
    steps = [*prepared()]
    early = refuses("H8", "the report is asked for while one of two fences is not signalled", GF)
    launch = Action.LAUNCH
    for n, (first, second) in enumerate(((8, 9), (9, 8))):
        steps += [Step(Action.FENCE, slot=8), Step(Action.FENCE, slot=9)]
        steps.append(Step(Action.SIGNAL, slot=first, how=Signalling()))
        for slot, waits in ((n, (8, 9)), (5, (first,)), (6, (first, 5))):
            how = Running(waits=waits)
            steps.append(execute(v.rolled(n), mode=FENCED, how=how, slot=slot, action=launch, expect=Returns()))
        steps += [Step(Action.WAIT, 0, v.rolled(n).returns, FENCED, slot=slot) for slot in (5, 6)]
        steps += [execute(v), Step(Action.ASK, 0, early, FENCED, slot=n)]
        steps.append(Step(Action.SIGNAL, slot=second, how=Signalling()))
        steps.append(Step(Action.WAIT, 0, v.rolled(n).returns, FENCED, slot=n))
    return case(steps, v, level=FL4)


def _fence_chain(v: Vehicle) -> TestCase:
    """Executions that wait for one another's fences."""
    steps = [*prepared(), Step(Action.FENCE, slot=9)]
    for n, waits in enumerate(((9,), (0,), (0, 1), (2, 9))):
        how = Running(waits=waits)
        run = v.rolled(n)
        steps.append(execute(run, mode=FENCED, how=how, slot=n, action=Action.LAUNCH, expect=Returns()))
    steps.append(Step(Action.SIGNAL, slot=9, how=Signalling()))
    steps += [Step(Action.WAIT, 0, v.rolled(n).returns, FENCED, slot=n) for n in range(4)]
    return case(steps, v, level=FL4)


def _fence_in_error(v: Vehicle) -> TestCase:
    """A fence that ends in error ends the execution in error, that of the next one, and nothing else."""
    steps = [*prepared(), Step(Action.FENCE, slot=9)]
    for n, waits in enumerate(((9,), (0,))):
        how = Running(waits=waits)
        steps.append(execute(v, mode=FENCED, how=how, slot=n, action=Action.LAUNCH, expect=Returns()))
    steps.append(Step(Action.SIGNAL, slot=9, how=Signalling(GF)))
    due = Rejects((), "H8", "the execution waited for a fence that ended in error")
    steps += [Step(Action.WAIT, 0, due, FENCED, slot=n) for n in range(2)]
    return case([*steps, execute(v, mode=FENCED)], v, level=FL4)


def _fenced_unknown_output(v: Vehicle) -> TestCase:
    """Fenced executions need outputs whose size is known."""
    how = Running(layout=Layout(output_dimensions=tuple((0,) * len(o.dimensions) for o in v.outputs())))
    open_ = tuple(replace(o, dimensions=(0,) * len(o.dimensions)) for o in v.outputs())
    if not all(o.dimensions for o in open_):
        raise NotApplicableError("an output without dimensions is known")
    model = with_outputs(v.model, open_)
    bad = refuses("R7", "the output's dimensions are not known")
    steps = [Step(Action.QUERY, 0), Step(Action.PREPARE, 0)]
    steps.append(execute(v, mode=FENCED, how=how, expect=bad))
    return case(steps, models=(model,), level=FeatureLevel(max(v.level, FL4)), needs=("dynamic_shapes",))


SCENARIOS = (
    *(_in_mode(mode) for mode in WORDS),
    *(_modes_agree(mode) for mode in WORDS if mode != SYNC),
    *(_at_once(mode) for mode in WORDS),
    *(_launched(mode) for mode in (ASYNC, FENCED)),
    *(_after_error(mode) for mode in WORDS),
    Scenario(TOPIC, "many.models", _many_models, "several prepared models, used by turns and released in any order"),
    Scenario(TOPIC, "prepared.at.once", _prepared_at_once, "models are prepared and run side by side"),
    Scenario(TOPIC, "prepared.twice", _same_twice, "a model prepared twice gives two prepared models"),
    Scenario(TOPIC, "first.run", _first_run, "the first execution costs about as much as later ones"),
    Scenario(TOPIC, "other.inputs", _other_inputs, "an execution leaves nothing for the next one"),
    Scenario(TOPIC, "burst.reused", _burst_reused, "a burst runs many requests and forgets memory", mode="burst"),
    Scenario(TOPIC, "reusable.again", _reusable_again, "a reusable execution runs many times", mode="reusable"),
    Scenario(TOPIC, "fence.first", _fence_first, "a fenced execution waits for its fence", mode="fenced"),
    Scenario(TOPIC, "fence.both", _fence_both, "a fenced execution waits for all of its fences", "H8", mode="fenced"),
    Scenario(TOPIC, "fence.chain", _fence_chain, "fenced executions wait for one another", mode="fenced"),
    Scenario(TOPIC, "fence.error", _fence_in_error, "a fence in error is passed on", "H8", mode="fenced"),
    Scenario(TOPIC, "fenced.unknown.output", _fenced_unknown_output, "refused", "R7", mode="fenced"),
)


EACH = (ASYNC, BURST, FENCED, REUSABLE)


def every_operation(seed: int) -> Iterator[Batch]:
    """Every signature once in each mode beside the synchronous one: results are those that are due in both."""
    for definition in OPSET.values():
        for signature in definition.signatures:
            yield _each_mode(definition, signature, seed)


def _each_mode(definition: OperationDef, signature: Signature, seed: int) -> Batch:
    batch = replace(origin(definition, signature, "modes"), mode="each")

    def make(number: int) -> TestCase:
        mode, words = EACH[number], f"{seed}/{batch.batch}/{number}"
        call = drawn(definition, signature, words)
        v = Vehicle(call, words, constants(call, number))
        due: Expectation = v.returns
        if mode == FENCED and not all(is_known(o.dimensions) or not is_tensor(o.type) for o in v.outputs()):
            due = refuses("R7", "fenced executions need outputs whose size is known")
        steps = [*prepared(), execute(v), execute(v, mode=mode, expect=due)]
        made = case(steps, v, level=SINCE[mode], highest=UNTIL.get(mode), observe=("bits",))
        return seal(replace(made, origin=replace(batch, number=number, seed=words, detail=describe(call))))

    return Batch(batch, tuple(range(len(EACH))), make)
