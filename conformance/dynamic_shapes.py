"""Scenarios of shapes that are not told before an execution: of inputs, outputs and what lies between operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from conformance.behaviour import GF, Scenario, Vehicle, case, execute, prepared, refuses
from conformance.execution import ASYNC, BURST, FENCED, REUSABLE, SINCE, SYNC, UNTIL
from conformance.execution import WORDS as MODES
from conformance.sketch import INPUT, OUTPUT, TEMPORARY, lowest_level, words_of
from conformance.unknown_shapes import TOLD, WORDS, behind, in_front, rows, sized, two_results, untold
from conformance.zero_sized import ACCEPTING, SOURCES, zero_sized_cases
from harness.batch import Batch
from harness.case import Origin, Step, TestCase
from harness.expectations import Returns, Short, Unspecified
from harness.steps import Action, Layout, Running
from nnhal.model import Model, is_known, is_tensor, operand_size
from nnhal.types import FL1, FL3, ExecutionMode, FeatureLevel
from opset import OPSET
from opset.definition import I32

TOPIC = "DYNAMIC_SHAPES"
NEEDS = ("dynamic_shapes",)
ZERO_SIZED = {"ci": 1, "quick": 1, "full": 4, "nightly": 20}  # chains of each signature
ZERO_SIZED_EVERY = {"ci": 4}  # signatures of which one is taken


def _case(
    steps: Sequence[Step],
    *models: Model,
    level: FeatureLevel = FL1,
    highest: FeatureLevel | None = None,
    needs: tuple[str, ...] = NEEDS,
) -> TestCase:
    lowest = max(lowest_level(model, level) for model in models)
    asked = _may_decline(steps, models)
    return case(asked, models=models, level=lowest, highest=highest, needs=needs, detail=words_of(*models))


def _may_decline(steps: Sequence[Step], models: Sequence[Model]) -> list[Step]:
    """The steps; where outputs have unknown sizes, GENERAL_FAILURE says that a driver does not do that.

    With enough room only at first: a driver that did it once can do it again.
    """
    open_ = {number for number, model in enumerate(models) if not _outputs_known(model)}
    done: set[int] = set()
    asked = []
    for step in steps:
        runs = step.action in (Action.EXECUTE, Action.WAIT) and step.model in open_
        declines = replace(step.expect, declines=(GF,)) if isinstance(step.expect, (Returns, Short)) else None
        if runs and declines is not None and (isinstance(step.expect, Short) or step.model not in done):
            asked.append(replace(step, expect=declines))
        else:
            asked.append(step)
        if runs:
            done.add(step.model)
    return asked


def _outputs_known(model: Model) -> bool:
    outputs = [model.main.operands[index] for index in model.main.output_indexes]
    return all(is_known(operand.dimensions) for operand in outputs if is_tensor(operand.type))


def _shapes(returns: Returns) -> tuple[tuple[int, ...], ...]:
    return tuple(due.shape for due in returns.outputs)


# --- inputs, outputs, internals ---------------------------------------------------------------------------------------


def _inputs(told: str) -> Scenario:
    """Only the request says the shape of the input."""

    def make(v: Vehicle) -> TestCase:
        model = untold(v.model, told, INPUT)
        steps = [*prepared(), execute(v), execute(v.rolled(1)), execute(v, how=Running(layout=Layout(separate=True)))]
        return _case(steps, model, level=v.level, needs=())

    return Scenario(TOPIC, f"input.{told}", make, f"the model leaves open {WORDS[told]} of the input")


def _input_not_told(told: str) -> Scenario:
    """The request has to say what the model does not."""

    def make(v: Vehicle) -> TestCase:
        model = untold(v.model, told, INPUT)
        shape = tuple(v.inputs[0].shape)
        bad: list[tuple[tuple[int, ...], str, str]] = [((), "R6", "says nothing of the input's dimensions")]
        bad.append(((0, *shape[1:]), "R6", "says 0 of the input's first dimension"))
        bad.append((tuple(-1 for _ in shape), "R5", "says -1 of the input's dimensions"))
        if told != "rank":
            bad.append(((*shape, 1), "R5", "says one dimension more than the model"))
        if told == "first" and len(shape) > 1:
            bad.append(((*shape[:-1], shape[-1] + 1), "R5", "says another last dimension than the model"))
        steps = [*prepared(), execute(v)]
        for dimensions, rule, words in bad:
            how = Running(layout=Layout(input_shapes=(dimensions,)))
            steps.append(execute(v, how=how, expect=refuses(rule, f"the request {words}, which has to be told")))
        return _case([*steps, execute(v)], model, level=v.level, needs=())

    return Scenario(TOPIC, f"input.{told}.not.told", make, "a request that leaves input dimensions open", "R6")


def _outputs(told: str) -> Scenario:
    """Nobody says the shape of the output: it comes with the answer."""

    def make(v: Vehicle) -> TestCase:
        model = untold(v.model, told, OUTPUT)
        room = tuple(operand_size(o) + 9 for o in v.outputs())
        steps = [*prepared(), execute(v), execute(v.rolled(1))]
        steps += [execute(v, how=Running(layout=Layout(output_bytes=room))), execute(v)]
        return _case(steps, model, level=FeatureLevel(max(FL3, v.level)))

    return Scenario(TOPIC, f"output.{told}", make, f"model and request leave open {WORDS[told]} of the output")


def _outputs_told(told: str) -> Scenario:
    """The model leaves it open, and the request says it."""

    def make(v: Vehicle) -> TestCase:
        model = untold(v.model, told, OUTPUT)
        whole = Running(layout=Layout(output_dimensions=_shapes(v.returns)))
        return _case([*prepared(), execute(v, how=whole), execute(v.rolled(1), how=whole)], model, level=v.level)

    return Scenario(TOPIC, f"output.{told}.told", make, f"the request alone says {WORDS[told]} of the output")


def _outputs_half_told(v: Vehicle) -> TestCase:
    """Model and request each say a part, and together not always all."""
    models = [untold(v.model, told, OUTPUT) for told in ("first", "all", "rank")]
    steps = [step for number in range(3) for step in prepared(number)]
    for number in range(3):
        for told in ("first", "last", "all"):
            shapes = tuple(TOLD[told](shape) for shape in _shapes(v.returns))
            steps.append(execute(v, number, how=Running(layout=Layout(output_dimensions=shapes))))
    return _case(steps, *models, level=FeatureLevel(max(FL3, v.level)))


def _outputs_told_wrong(v: Vehicle) -> TestCase:
    """The request says a shape of the output that is not what comes: any answer, but nothing outside its memory."""
    model = untold(v.model, "all", OUTPUT)
    (shape,) = _shapes(v.returns)
    size = operand_size(v.outputs()[0])
    steps = [*prepared(), execute(v)]
    for wrong in ((shape[0] + 1, *shape[1:]), (*shape[:-1], shape[-1] + 3), shape[::-1], (1,) * len(shape)):
        due = operand_size(v.outputs()[0], wrong)
        layout = Layout(output_dimensions=(wrong,), output_bytes=(due or size,))
        steps.append(execute(v, how=Running(layout=layout), expect=Returns() if wrong == shape else Unspecified()))
    return _case([*steps, execute(v)], model, level=v.level if v.level > FL3 else FL3)


def _internals(told: str, made: str) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        graph = (behind if made == "behind" else in_front)(v)
        model = untold(graph.model, told, TEMPORARY)
        return _case([*prepared(), graph.execute(), graph.execute()], model, level=v.level)

    where = "its result goes on to RELU" if made == "behind" else "its input comes from RELU"
    text = f"{where}, and the model leaves open {WORDS[told]} in between"
    return Scenario(TOPIC, f"internal.{made.replace('_', '.')}.{told}", make, text)


def _everything(told: str, mode: ExecutionMode) -> Scenario:
    """Inputs, outputs and what lies between are open; fenced executions need the outputs alone."""

    def make(v: Vehicle) -> TestCase:
        graphs = (behind(v), in_front(v))
        open_ = (INPUT, TEMPORARY) if mode == FENCED else (INPUT, TEMPORARY, OUTPUT)
        models = [untold(graph.model, told, *open_) for graph in graphs]
        steps = [step for number in range(2) for step in prepared(number)]
        steps += [graph.execute(number, mode=mode) for _ in range(2) for number, graph in enumerate(graphs)]
        level = FeatureLevel(max(FL3, v.level, SINCE[mode]))
        return _case(steps, *models, level=level, highest=UNTIL.get(mode))

    text = f"the model leaves open {WORDS[told]} of all that has one"
    return Scenario(TOPIC, f"everything.{told}.{MODES[mode]}", make, text, mode=MODES[mode])


def _sizes_by_turns(mode: ExecutionMode) -> Scenario:
    """One prepared model, inputs of other sizes each time."""

    def make(v: Vehicle) -> TestCase:
        counts = (2, 1, 7, 2, 300, 1, 7)
        steps = [*prepared(), *(rows(count).execute(mode=mode) for count in counts)]
        return _case(steps, rows(2).model, level=FeatureLevel(max(FL3, SINCE[mode])), highest=UNTIL.get(mode))

    text = "one prepared model takes inputs of many sizes"
    return Scenario(TOPIC, f"sizes.by.turns.{MODES[mode]}", make, text, mode=MODES[mode], once=True)


def _ranks_by_turns(v: Vehicle) -> TestCase:
    shapes = ((2, 3), (6,), (1, 2, 3), (1, 2, 1, 3), (6,), (2, 3))
    return _case([*prepared(), *(sized(shape).execute() for shape in shapes)], sized((2, 3)).model, level=FL3)


def _sizes_at_once(v: Vehicle) -> TestCase:
    counts = (1, 5, 64, 2)
    steps = [*prepared()]
    for turn in range(3):
        order = counts[turn:] + counts[:turn]
        steps += [rows(count).execute(thread=t + 1) for t, count in enumerate(order)]
        steps.append(rows(3).execute())
    return _case(steps, rows(2).model, level=FL3)


# --- outputs without room ---------------------------------------------------------------------------------------------


def _roomy(v: Vehicle) -> Vehicle:
    """The vehicle, or another draw whose output has more than one byte: a request must offer one at least."""
    draws = (v, *(v.other(number) for number in range(1, 20)))
    return next(draw for draw in draws if all(operand_size(o) > 1 for o in draw.outputs()))


def _short(told: str, mode: ExecutionMode) -> Scenario:
    """One byte too few, then one byte in all, then enough: the prepared model stays usable."""

    def make(given: Vehicle) -> TestCase:
        v = _roomy(given)
        model = untold(v.model, told, OUTPUT)
        known = tuple(model.main.operands[i].dimensions for i in model.main.output_indexes)
        expect = Short((0,), _shapes(v.returns), known)
        (size,) = (operand_size(o) for o in v.outputs())
        steps = [*prepared(), execute(v, mode=mode)]
        for room in dict.fromkeys((size - 1, 1, max(size // 2, 1))):
            how = Running(layout=Layout(output_bytes=(room,)))
            steps += [execute(v, mode=mode, how=how, expect=expect), execute(v, mode=mode)]
        exact = Running(layout=Layout(output_bytes=(size,)))
        level = FeatureLevel(max(FL3, v.level, SINCE[mode]))
        steps.append(execute(v, mode=mode, how=exact))
        return _case(steps, model, level=level, highest=UNTIL.get(mode))

    text = f"the model leaves open {WORDS[told]} of the output, for which there is no room"
    return Scenario(TOPIC, f"short.{told}.{MODES[mode]}", make, text, mode=MODES[mode])


def _short_of_two(mode: ExecutionMode) -> Scenario:
    """Two outputs, of which the first, the second or both have too little room: these and no others are marked."""

    def make(v: Vehicle) -> TestCase:
        made = two_results()
        sizes = [operand_size(made.model.main.operands[0], shape) for shape in _shapes(made.returns)]
        known = ((0, 0), (0, 0, 0))
        steps = [*prepared(), made.execute(mode=mode)]
        for few in ((0,), (1,), (0, 1)):
            room = tuple(size - 1 if n in few else size for n, size in enumerate(sizes))
            how = Running(layout=Layout(output_bytes=room))
            steps.append(made.execute(mode=mode, how=how, expect=Short(few, _shapes(made.returns), known)))
            steps.append(made.execute(mode=mode))
        return _case(steps, made.model, level=FeatureLevel(max(FL3, SINCE[mode])), highest=UNTIL.get(mode))

    text = "one of two outputs has no room"
    return Scenario(TOPIC, f"short.of.two.{MODES[mode]}", make, text, mode=MODES[mode], once=True)


def _short_by_request(given: Vehicle) -> TestCase:
    """The request says a part of the shape, which is not to be lost in what is reported."""
    v = _roomy(given)
    model = untold(v.model, "all", OUTPUT)
    (shape,), (size,) = _shapes(v.returns), (operand_size(o) for o in v.outputs())
    steps = [*prepared(), execute(v)]
    for told in ("first", "last"):
        known = TOLD[told](shape)
        how = Running(layout=Layout(output_bytes=(size - 1,), output_dimensions=(known,)))
        steps += [execute(v, how=how, expect=Short((0,), (shape,), (known,))), execute(v)]
    return _case(steps, model, level=FeatureLevel(max(FL3, v.level)))


def _short_by_size(v: Vehicle) -> TestCase:
    """Room that is enough for one execution and not for the next, which has more rows."""
    steps = [*prepared()]
    for count in (2, 5, 1, 9, 2):
        made, room = rows(count), Running(layout=Layout(output_bytes=(2 * 3 * 4,)))
        known = ((0, 3),)
        expect = Short((0,), _shapes(made.returns), known) if count > 2 else None
        steps += [made.execute(how=room, expect=expect), made.execute()]
    return _case(steps, rows(2).model, level=FL3)


def _short_beside(v: Vehicle) -> TestCase:
    """Side by side with executions that have room."""
    made, wide = rows(4), rows(6)
    few = Running(layout=Layout(output_bytes=(4 * 3 * 4 - 1,)))
    steps = [*prepared()]
    for _ in range(2):
        for thread, run in enumerate((made, wide, made, wide), 1):
            if thread % 2:
                steps.append(run.execute(thread=thread))
            else:
                expect = Short((0,), _shapes(run.returns), ((0, 3),))
                steps.append(run.execute(thread=thread, how=few, expect=expect))
        steps.append(made.execute())
    return _case(steps, rows(2).model, level=FL3)


def _scenarios() -> Iterator[Scenario]:
    for told in TOLD:
        yield _inputs(told)
        yield _input_not_told(told)
        yield _outputs(told)
        yield _outputs_told(told)
        yield _internals(told, "behind")
        yield _internals(told, "in_front")
        yield _short(told, SYNC)
    yield Scenario(TOPIC, "output.half.told", _outputs_half_told, "model and request each say a part of the output")
    text = "the request says a shape of the output that does not come; the driver must neither die nor hang"
    yield Scenario(TOPIC, "output.told.wrong", _outputs_told_wrong, text)
    modes = (SYNC, ASYNC, BURST, FENCED, REUSABLE)
    for mode in modes:
        yield from (_everything(told, mode) for told in ("all", "rank"))
        if mode != FENCED:
            yield _sizes_by_turns(mode)
            yield _short_of_two(mode)
    text = "one prepared model takes inputs of any rank"
    yield Scenario(TOPIC, "ranks.by.turns", _ranks_by_turns, text, once=True)
    for mode in (ASYNC, BURST, REUSABLE):
        yield _short("all", mode)
    text = "the shape that is reported says no less than the request"
    yield Scenario(TOPIC, "short.by.request", _short_by_request, text)
    yield Scenario(TOPIC, "short.by.size", _short_by_size, "the same room is enough by turns", once=True)
    yield Scenario(TOPIC, "short.beside", _short_beside, "a lack of room disturbs no other execution", once=True)
    yield Scenario(TOPIC, "sizes.at.once", _sizes_at_once, "inputs of many sizes side by side", once=True)


SCENARIOS = tuple(_scenarios())


# --- tensors without elements -----------------------------------------------------------------------------------------


class _Made:
    """Cases in the order in which they are made, each made when it is first asked for.

    Args:
        again: begins anew; a second driver asks for the same cases.
    """

    def __init__(self, again: Callable[[], Iterator[TestCase]]) -> None:
        self._again = again
        self._cases = again()
        self._kept: dict[tuple[str, int], TestCase] = {}
        self._gone: set[tuple[str, int]] = set()

    def find(self, batch: str, number: int) -> TestCase:
        """The case of a batch and a number. It is forgotten then."""
        key = batch, number
        if key in self._gone:
            self._cases, self._kept, self._gone = self._again(), {}, set()
        while key not in self._kept:
            made = next(self._cases, None)
            if made is None:
                raise ValueError(f"{batch}-{number} is not among the chains")
            self._kept[made.origin.batch, made.origin.number] = made
        self._gone.add(key)
        return self._kept.pop(key)


def zero_sized_batches(profile: str, seed: int) -> Iterator[Batch]:
    """Tensors without elements behind an operation that gives none: a batch for each operation and signature."""
    count = ZERO_SIZED[profile]
    made = _Made(lambda: zero_sized_cases(count, seed))
    signatures = [(d, s) for d in OPSET.values() if d.code in ACCEPTING for s in d.signatures]
    for definition, signature in signatures[:: ZERO_SIZED_EVERY.get(profile, 1)]:
        kind = definition.info.type_of(signature, signature.form.operands[0])
        if kind not in SOURCES and kind != I32:
            continue  # no operation gives one of that type
        origin = Origin(definition.name, signature.id.replace("/", "."), "zero_sized", 0)

        def make(number: int, batch: str = origin.batch) -> TestCase:
            return made.find(batch, number)

        yield Batch(origin, tuple(range(count)), make)
