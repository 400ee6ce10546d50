"""Requests that must be refused, on valid models of every operation and in every way to execute.

Each refusal is INVALID_ARGUMENT, without shapes and timing, and the same prepared model still gives right results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from conformance.cases import constants, drawn, origin
from conformance.execution import ASYNC, BURST, FENCED, REUSABLE, SINCE, SYNC, UNTIL, WORDS
from conformance.mutation_edits import with_operand
from conformance.profiles import PROFILES, Profile
from harness.batch import Batch, NotApplicableError
from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Rejects, Returns
from harness.make import INVALID, describe, expected_outputs, row_groups
from harness.requests import WORD
from harness.steps import SECOND, Action, Edit, Layout, Releasing, Running, Thing
from nnhal.model import ChannelQuant, Model, is_tensor
from nnhal.operations import Signature
from nnhal.types import FL1, FL4, FL5, Array, ExecutionMode, FeatureLevel, OperationType
from nnhal.validate import violations
from opset import OPSET
from opset.call import Call
from opset.definition import OperationDef
from opset.graph import model_of
from opset.validation import needed_level

ALL, SIGNED, SINGLE = (SYNC, ASYNC, BURST, FENCED, REUSABLE), (SYNC, BURST, FENCED, REUSABLE), (SYNC, BURST, REUSABLE)
MODEL, OPEN_INPUT, OPEN_OUTPUT = "model", "open input", "open output"
# One operation in so many, and one signature in so many of each (0: the first alone), by profile.
EVERY = {"ci": (4, 0), "quick": (1, 0), "full": (1, 4), "nightly": (1, 1)}
ASYNC_EVERY = 3  # in the shorter profiles one mutation in so many is tried with a callback as well
LAUNCH_SLOT, KEPT_SLOT, BURST_SLOT = 5, 6, 7
UNKNOWN_TOKEN = 1_234_567
TOO_LONG = 15 * SECOND + 1


@dataclass(frozen=True)
class Ground:
    """A valid model, its inputs and what is due; a bad request starts from the good one for it."""

    call: Call
    model: Model
    values: tuple[Array, ...]
    returns: Returns
    level: FeatureLevel

    @property
    def known_outputs(self) -> bool:
        """Whether the model says the sizes of all outputs, which fenced execution needs."""
        main = self.model.main
        operands = [main.operands[i] for i in main.output_indexes]
        return all(not is_tensor(o.type) or (o.dimensions and 0 not in o.dimensions) for o in operands)

    def dimensions(self, place: int, *, output: bool) -> tuple[int, ...]:
        """What the model says of an input's or output's dimensions."""
        main = self.model.main
        return main.operands[(main.output_indexes if output else main.input_indexes)[place]].dimensions


def ground_of(definition: OperationDef, signature: Signature, words: str) -> Ground:
    """The model of a seed, with at least one input."""
    call = drawn(definition, signature, words)
    model, values = model_of(call, constants(call, 0))
    if not values:
        model, values = model_of(call)
    returns = Returns(expected_outputs(call), row_groups(call))
    return Ground(call, model, tuple(values), returns, needed_level(call))


def _opened(ground: Ground, place: int) -> Ground | None:
    """The same with the sizes of an input left to the request, save that of channels; None for no valid model."""
    index = ground.model.main.input_indexes[place]
    operand = ground.model.main.operands[index]
    channel = operand.extra_params.channel_dim if isinstance(operand.extra_params, ChannelQuant) else None
    shape = tuple(size if axis == channel else 0 for axis, size in enumerate(operand.dimensions))
    model = with_operand(ground.model, index, replace(operand, dimensions=shape))
    fits = not any(violations(model, level) for level in (ground.level, max(FeatureLevel)))
    return replace(ground, model=model) if fits else None


def _open_outputs(ground: Ground) -> Ground | None:
    """The same with the sizes of all outputs unknown; None where that is no valid model."""
    model = ground.model
    for index in model.main.output_indexes:
        operand = model.main.operands[index]
        model = with_operand(model, index, replace(operand, dimensions=(0,) * len(operand.dimensions)))
    fits = model != ground.model and not any(violations(model, n) for n in (ground.level, max(FeatureLevel)))
    return replace(ground, model=model) if fits else None


# --- changes ----------------------------------------------------------------------------------------------------------

Change = Callable[[Ground, random.Random, bool], Running]  # the last says that an output is meant


@dataclass(frozen=True)
class RequestMutation:
    """A kind of bad request.

    Attributes:
        name: for labels; unique.
        rule: label of the rule that is broken.
        text: what is wrong, as a phrase.
        change: what goes with the bad execution.
        since: the first level that has such numbers.
        modes: of execution.
        ends: an input is changed (False), an output (True), or either in turn.
        start: which form of the model it needs.
    """

    name: str
    rule: str
    text: str
    change: Change
    since: FeatureLevel = FL1
    modes: tuple[ExecutionMode, ...] = ALL
    ends: tuple[bool, ...] = (False, True)
    start: str = MODEL


def _place(ground: Ground, rng: random.Random, output: bool) -> int:
    main = ground.model.main
    return rng.randrange(len(main.output_indexes if output else main.input_indexes))


def _edit(change: str, *value: int) -> Change:
    def make(ground: Ground, rng: random.Random, output: bool) -> Running:
        return Running(edits=(Edit(change, _place(ground, rng, output), value, output),))

    return make


def _dimensions(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    """Other dimensions than the model's, or the input's where the model leaves them open."""

    def make(ground: Ground, rng: random.Random, output: bool) -> Running:
        place = _place(ground, rng, output)
        shape = ground.returns.outputs[place].shape if output else tuple(ground.values[place].shape)
        return Running(edits=(Edit("dimensions", place, change(shape), output),))

    return make


def _of_model(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    """Dimensions that contradict the model's, of an operand of which the model says something."""

    def make(ground: Ground, rng: random.Random, output: bool) -> Running:
        main = ground.model.main
        places = range(len(main.output_indexes if output else main.input_indexes))
        known = [p for p in places if any(ground.dimensions(p, output=output))]
        if not known:
            output, known = False, [0]
        place = rng.choice(known)
        shape = ground.dimensions(place, output=output)
        return Running(edits=(Edit("dimensions", place, change(shape), output),))

    return make


def _one_changed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The last size that is known is one more."""
    at = max(i for i, size in enumerate(shape) if size)
    return (*shape[:at], shape[at] + 1, *shape[at + 1 :])


def _longer(ground: Ground, rng: random.Random, output: bool) -> Running:
    """A byte more or fewer than dimensions say that are fully known."""
    output = output and ground.known_outputs
    place = _place(ground, rng, output)
    return Running(edits=(Edit("longer", place, (rng.choice((-1, 1)),), output),))


def _absolute(**fields: int) -> Change:
    return lambda ground, rng, output: Running(absolute=True, **fields)  # type: ignore[arg-type]


def _tokens(*tokens: int) -> Change:
    """Tokens for the two pools of the plain layout."""
    return lambda ground, rng, output: Running(layout=Layout(), tokens=tokens)


def _as_it_is(ground: Ground, rng: random.Random, output: bool) -> Running:
    return Running()


M = RequestMutation
IN, OUT = (False,), (True,)
REQUEST_MUTATIONS: tuple[RequestMutation, ...] = (
    M("removed-input", "R1", "the request lacks an input", _edit("remove"), ends=IN),
    M("removed-output", "R1", "the request lacks an output", _edit("remove"), ends=OUT),
    M("added-input", "R1", "the request has one input more", _edit("add"), ends=IN),
    M("added-output", "R1", "the request has one output more", _edit("add"), ends=OUT),
    M("no-pools", "R3", "the request has no pools", _edit("no_pools")),
    M("pool-index", "R3", "the pool index is the number of pools", _edit("foreign_pool")),
    M("pool-index-far", "R3", "the pool index is 2^31 - 1", _edit("pool_index", 2**31 - 1)),
    M("past-pool", "R3", "the value ends one byte past the pool", _edit("past_pool")),
    M("wrap", "R3", "offset and length are small as a 32-bit sum", _edit("wrap")),
    M("wrap-signed", "R3", "the offset is 2^31 - 1", _edit("offset", 2**31 - 1)),
    M("offset-largest", "R3", "the offset is 2^32 - 1", _edit("offset", WORD - 1)),
    M("length-zero", "R3", "the length is 0", _edit("length", 0)),
    M("length-largest", "R3", "the length is 2^32 - 1", _edit("length", WORD - 1)),
    M("length-off", "R8", "the length is one off", _longer, FL5, SIGNED),
    M("rank-higher", "R5", "there is one dimension more", _dimensions(lambda shape: (*shape, 1))),
    M("rank-lower", "R5", "there is one dimension fewer", _dimensions(lambda s: s[:-1] if len(s) > 1 else (*s, 1, 1))),
    M("dimension-changed", "R5", "a dimension is one more than in the model", _of_model(_one_changed)),
    M("dimension-zero", "R6", "a dimension of an input is 0", _dimensions(lambda s: (*s[:-1], 0)), ends=IN),
    M("no-value-located", "R2", "there is no value, but a location", _edit("without_value", 0)),
    M("no-value-shaped", "R2", "there is no value, but dimensions", _edit("without_value", 1)),
    M("token-unknown", "R9", "the token is no buffer's", _edit("token", UNKNOWN_TOKEN), FL4),
    M("token-zero", "R9", "the token is 0", _edit("token", 0), FL4),
    M("token-negative", "R9", "the token is -1", _edit("token", -1), FL5, SIGNED),
    M("offset-negative", "R3", "the offset is -1", _edit("offset", -1), FL5, SIGNED),
    M("offset-64", "R3", "offset and length exceed 63 bits", _edit("offset", 2**63 - 1), FL5, SIGNED),
    M("length-negative", "R3", "the length is -1", _edit("length", -1), FL5, SIGNED),
    M("pool-negative", "R3", "the pool index is -1", _edit("pool_index", -1), FL5, SIGNED),
    M("padding-past-pool", "R3", "the padding ends past the pool", _edit("padding", 2**31), FL5, SIGNED),
    M("padding-negative", "R3", "the padding is -1", _edit("padding", -1), FL5, SIGNED),
    M("dimension-negative", "R5", "a dimension is -1", _dimensions(lambda s: (*s[:-1], -1)), FL5, SIGNED),
    M("deadline", "R11", "the deadline is -2 ns", _absolute(deadline=-2), FL5, SIGNED),
    M("duration", "R11", "the duration is -2 ns", _absolute(duration=-2), FL5, (FENCED,)),
    M("loop-timeout", "R11", "the loop timeout is -2 ns", _absolute(loop_timeout=-2), FL5, SIGNED),
    M("loop-timeout-long", "R11", "a loop may take over 15 s", _absolute(loop_timeout=TOO_LONG), FL5, SIGNED),
    M("tokens-negative", "R12", "a memory token is -2", _tokens(-1, -2), FL5, (BURST,)),
    M("tokens-fewer", "R12", "there is one memory token fewer than pools", _tokens(-1), FL5, (BURST,)),
    M("tokens-more", "R12", "there is one memory token more than pools", _tokens(1, 2, 3), FL5, (BURST,)),
    M("open-input", "R6", "neither model nor request says the dimensions of an input",
      lambda ground, rng, output: Running(), start=OPEN_INPUT, ends=IN),
    M("open-output", "R7", "nothing says the dimensions of an output", _as_it_is, FL4, (FENCED,), OUT, OPEN_OUTPUT),
    M("forgotten", "R12", "the token to forget is -2", _as_it_is, FL5, (BURST,)),
)  # fmt: skip
BY_NAME = {mutation.name: number for number, mutation in enumerate(REQUEST_MUTATIONS)}


# --- cases ------------------------------------------------------------------------------------------------------------


def request_batches(profile: str, seed: int) -> Iterator[Batch]:
    """Bad requests for models of every operation, one batch for each way to execute them."""
    operations, signatures = EVERY[profile]
    for number, definition in enumerate(OPSET.values()):
        if number % operations:
            continue
        for place, signature in enumerate(definition.signatures):
            if place and (not signatures or place % signatures):
                continue
            yield from _batches(definition, signature, number, PROFILES[profile], seed)


def _batches(
    definition: OperationDef, signature: Signature, place: int, profile: Profile, seed: int
) -> Iterator[Batch]:
    base = origin(definition, signature, "request")
    ground = cache(lambda: ground_of(definition, signature, f"{seed}/{base.batch}"))
    for mode in ALL:
        named = replace(base, mode=WORDS[mode])
        numbers = tuple(
            number
            for number, mutation in enumerate(REQUEST_MUTATIONS)
            if _chosen(mutation, number + place, mode, profile) and _possible(mutation, definition)
        )
        if numbers:
            yield Batch(named, numbers, _maker(named, mode, ground, seed))


def _chosen(mutation: RequestMutation, turn: int, mode: ExecutionMode, profile: Profile) -> bool:
    """Whether a mutation is tried in a mode: in all of them, or in one in turn and with a callback now and then."""
    if mode not in mutation.modes:
        return False
    if profile.all_settings:
        return True
    if mode == ASYNC:
        return turn % ASYNC_EVERY == 0
    rest = [m for m in mutation.modes if m != ASYNC]
    return mode == rest[turn % len(rest)]


def _possible(mutation: RequestMutation, definition: OperationDef) -> bool:
    """A loop's sizes are all known, so is that of a branch's condition, and RANK's result has no dimensions."""
    if mutation.start == MODEL:
        return True
    other = OperationType.RANK if mutation.start == OPEN_OUTPUT else OperationType.IF
    return definition.code not in (OperationType.WHILE, other)


def _maker(named: Origin, mode: ExecutionMode, ground: Callable[[], Ground], seed: int) -> Callable[[int], TestCase]:
    def make(number: int) -> TestCase:
        mutation = REQUEST_MUTATIONS[number]
        words = f"{seed}/{named.batch}/{number}"
        rng = random.Random(words)
        start = ground()
        output = mutation.ends[rng.randrange(len(mutation.ends))]
        rule = f"{mutation.name}:{mutation.rule}"
        origin_ = replace(named, number=number, rule=rule, seed=words, detail=describe(start.call))
        return _case(mutation, start, mode, output, rng, origin_)

    return make


def _case(
    mutation: RequestMutation, ground: Ground, mode: ExecutionMode, output: bool, rng: random.Random, named: Origin
) -> TestCase:
    needs: tuple[str, ...] = ()
    running: Running
    if mutation.start == OPEN_INPUT:
        found = [(place, g) for place in range(len(ground.values)) if (g := _opened(ground, place)) is not None]
        if not found:
            raise NotApplicableError("the model says the dimensions of every input")
        place, ground = rng.choice(found)
        running, needs = Running(edits=(Edit("dimensions", place, ()),)), ("dynamic_shapes",)
    else:
        if mutation.start == OPEN_OUTPUT:
            opened = _open_outputs(ground)
            if opened is None:
                raise NotApplicableError("the model says the dimensions of every output")
            ground, needs = opened, ("dynamic_shapes",)
        running = mutation.change(ground, rng, output)
    running = replace(running, measure=bool(rng.getrandbits(1)))
    refuse = Rejects(INVALID, named.rule, mutation.text + _where(running))
    good = SYNC if mode == FENCED and not ground.known_outputs else mode
    bad = mode if mutation.modes == (FENCED,) else good  # refused for its outputs too, where their sizes are unknown
    if mutation.name == "forgotten":
        steps = _forgets(ground, refuse)
    else:
        steps = [*_bad(ground, bad, running, refuse), _run(ground, good)]
    steps = [Step(Action.QUERY), Step(Action.PREPARE), *steps]
    level = FeatureLevel(max(ground.level, mutation.since, SINCE[bad], SINCE[good]))
    return seal(TestCase(named, (ground.model,), tuple(steps), level, highest=UNTIL.get(mode), needs=needs))


def _where(running: Running) -> str:
    """Which input or output is changed, in words."""
    for edit in running.edits:
        value = f" {edit.value}" if edit.change == "dimensions" else ""
        return f": {'output' if edit.output else 'input'} {edit.place}{value}"
    return ""


def _run(ground: Ground, mode: ExecutionMode, how: Running | None = None) -> Step:
    return Step(Action.EXECUTE, 0, ground.returns, mode, ground.values, how=how)


def _bad(ground: Ground, mode: ExecutionMode, how: Running, refuse: Rejects) -> list[Step]:
    """The bad execution; with a callback or fence it is the launch that must be refused."""
    values = ground.values
    if mode in (ASYNC, FENCED):
        return [Step(Action.LAUNCH, 0, refuse, mode, values, slot=LAUNCH_SLOT, how=how)]
    if mode != REUSABLE:
        return [Step(Action.EXECUTE, 0, refuse, mode, values, how=how)]
    # A reusable execution may be refused when it is made, or each time it is to run.
    steps = [Step(Action.CREATE, 0, Returns(unless=INVALID), mode, values, slot=KEPT_SLOT, how=how)]
    use = replace(how, uses=KEPT_SLOT, layout=None, edits=())
    steps.append(Step(Action.EXECUTE, 0, refuse, REUSABLE, values, how=use))
    if ground.known_outputs:
        steps.append(Step(Action.LAUNCH, 0, refuse, FENCED, values, slot=LAUNCH_SLOT, how=use))
    return steps


def _forgets(ground: Ground, refuse: Rejects) -> list[Step]:
    use = Running(uses=BURST_SLOT)
    forget = Step(Action.FORGET, 0, refuse, BURST, slot=BURST_SLOT, how=Releasing(Thing.BURST, -2))
    return [Step(Action.OPEN_BURST, slot=BURST_SLOT), forget, _run(ground, BURST, use)]
