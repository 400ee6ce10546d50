"""Scenarios of compilation caching: saving, loading, and cache files that are damaged, swapped, foreign or contended.

Where a cache is loaded its results are compared. A driver must see what is wrong with a model cache; a data cache may
do no harm but wrong numbers, so that behind one the driver must neither die nor hang, and nothing else is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from conformance.behaviour import GF, IA, MISSED, Scenario, Vehicle, case, execute, refuses
from conformance.execution import ASYNC, BURST, FENCED, REUSABLE, SINCE, UNTIL, WORDS
from conformance.sketch import FLOAT, Sketch, Sketched, quarters, with_constants_in_pools, words_of
from harness.case import Step, TestCase
from harness.expectations import Expectation, Returns, Unspecified
from harness.steps import SECOND, Action, Preparation, Releasing, Tampering, Thing
from nnhal.types import FL3, FL4, ErrorStatus, ExecutionMode, FeatureLevel, OperandType, OperationType
from opset.call import Argument, scalar

TOPIC = "CACHING"
NEEDS = ("caching",)
TOKEN, OTHER_TOKEN = (sha256(words).digest() for words in (b"a model", b"another model"))
PLACES = (0.0, 0.01, 0.1, 0.33, 0.5, 0.66, 0.9, 1.0)  # of a file, at which it is damaged
FILES = (0, 1)  # of a kind that are damaged; a driver may have fewer
LOADED = 1  # slot of what was loaded
COUNTS = tuple(f"{kind}_{fault}" for kind in ("model", "data") for fault in ("one_fewer", "one_more", "none"))
ACCESSES = ("read_only", "write_only")
IN_PIECES = "the driver must see that the model cache is not as it was saved"


def _save(
    model: int = 0,
    cache: int = 0,
    *,
    slot: int | None = None,
    token: bytes = TOKEN,
    handles: str = "",
    thread: int = 0,
    expect: Expectation | None = None,
) -> Step:
    """A preparation that saves; it succeeds, whatever becomes of the saving."""
    how = Preparation(cache=cache, token=token, handles=handles)
    return Step(Action.PREPARE, model, expect or Returns(), slot=slot, how=how, thread=thread)


def _load(
    cache: int | None = 0,
    *,
    slot: int = LOADED,
    token: bytes = TOKEN,
    handles: str = "",
    thread: int = 0,
    deadline: int | None = None,
    expect: Expectation | None = None,
) -> Step:
    how = Preparation(cache=cache, token=token, handles=handles, deadline=deadline)
    return Step(Action.LOAD, 0, expect or Returns(), slot=slot, how=how, thread=thread)


def _refused(text: str, *statuses: ErrorStatus) -> Expectation:
    return refuses("C1", text, *(statuses or (GF,)))


def _tamper(
    change: str,
    cache: int = 0,
    *,
    data: bool = False,
    file: int = 0,
    place: float = 0.5,
    other: int = 0,
    bit: int = 4,
    thread: int = 0,
) -> Step:
    how = Tampering(cache, change, data, file, place, other, bit)
    return Step(Action.TAMPER, how=how, thread=thread)


def _query(model: int = 0) -> Step:
    return Step(Action.QUERY, model)


def _saved() -> list[Step]:
    """A model that is saved, and its cache remembered."""
    return [_query(), _save(), _tamper("remember")]


def _whole(v: Vehicle) -> list[Step]:
    """The cache as it was saved still loads, and gives right results."""
    return [_tamper("restore"), _load(), execute(v, slot=LOADED)]


def _case(
    steps: Sequence[Step],
    *vehicles: Vehicle,
    level: FeatureLevel = FL3,
    highest: FeatureLevel | None = None,
) -> TestCase:
    return case(steps, *vehicles, level=level, highest=highest, needs=NEEDS)


# --- good caches ------------------------------------------------------------------------------------------------------


def _save_and_load(v: Vehicle) -> TestCase:
    steps = [_query(), _save(), execute(v), _load(), execute(v, slot=LOADED)]
    steps += [Step(Action.RELEASE, 0, how=Releasing(Thing.PREPARED)), execute(v.rolled(1), slot=LOADED)]
    steps += [_load(slot=2), execute(v, slot=2), execute(v, slot=LOADED)]
    return _case(steps, v)


def _loaded_in_mode(mode: ExecutionMode) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = [_query(), _save(), _load(), *(execute(r, mode=mode, slot=LOADED) for r in (v, v.rolled(1)))]
        return _case(steps, v, level=FeatureLevel(max(FL3, SINCE[mode])), highest=UNTIL.get(mode))

    text = "what was loaded runs in every mode"
    return Scenario(TOPIC, f"loaded.{WORDS[mode]}", make, text, mode=WORDS[mode])


def _position_moved(v: Vehicle) -> TestCase:
    """Where the descriptors' positions are makes no difference, for saving and for loading."""
    steps = [_query(), _save(handles="moved"), _load(), execute(v, slot=LOADED)]
    steps += [_save(handles="moved"), _load(handles="moved"), execute(v, slot=LOADED)]
    return _case(steps, v)


def _overwritten(v: Vehicle) -> TestCase:
    """The files hold something longer before: garbage, and another model's cache."""
    large, other = _chain(30), v.other(1)
    steps = [Step(Action.QUERY, n) for n in range(3)]
    steps += [_save(2, token=OTHER_TOKEN), *(_tamper("garbage", data=data) for data in (False, True))]
    steps += [_save(), _load(), execute(v, slot=LOADED)]
    steps += [_save(1, token=OTHER_TOKEN), _load(token=OTHER_TOKEN), execute(other, 1, slot=LOADED)]
    steps += [_load(expect=_refused("another token's model was saved over this one", GF))]
    models = (v.model, other.model, large.model)
    return case(steps, v, other, models=models, level=FeatureLevel(max(FL3, large.level)), needs=NEEDS)


def _zero_token(v: Vehicle) -> TestCase:
    zeros = bytes(32)
    steps = [_query(), _save(token=zeros), _load(token=zeros), execute(v, slot=LOADED)]
    return _case([*steps, _load(slot=2, expect=_refused("the token is not the one of saving"))], v)


def _several(v: Vehicle) -> TestCase:
    """Three models in three caches, loaded in another order and used by turns."""
    all_ = [v, v.other(1), v.other(2)]
    steps = [Step(Action.QUERY, n) for n in range(3)]
    steps += [_save(n, n, token=sha256(bytes([n])).digest()) for n in range(3)]
    steps += [_load(n, slot=10 + n, token=sha256(bytes([n])).digest()) for n in (2, 0, 1)]
    steps += [execute(all_[n], n, slot=10 + n) for n in (1, 2, 0)]
    for gone in (1, 0):
        steps.append(Step(Action.RELEASE, slot=10 + gone, how=Releasing(Thing.PREPARED)))
        steps.append(execute(all_[2], 2, slot=12))
    return _case(steps, *all_)


def _restarted(v: Vehicle) -> TestCase:
    """The cache outlives the process that saved it."""
    steps = [_query(), _save(), execute(v), Step(Action.RESTART), _load(), execute(v, slot=LOADED)]
    steps.append(_load(slot=2, token=OTHER_TOKEN, expect=_refused("the token is not the one of saving")))
    return _case(steps, v)


def _deadlines(v: Vehicle) -> TestCase:
    late = Returns(unless=MISSED)
    steps = [_query(), _save(), _load(deadline=60 * SECOND), execute(v, slot=LOADED)]
    for slot, deadline in ((2, -SECOND), (3, 0), (4, 5_000_000)):
        steps += [_load(slot=slot, deadline=deadline, expect=late), execute(v, slot=slot)]
    return _case([*steps, _load(), execute(v, slot=LOADED)], v, level=FL4)


def _chain(length: int) -> Sketched:
    """A model of so many operations."""
    sketch, none = Sketch(), scalar(OperandType.INT32, 0)
    at = sketch.input(quarters((2, 3)))
    for number in range(length):
        code = OperationType.ADD if number % 4 else OperationType.RELU
        rest = (quarters((2, 3), number), none) if number % 4 else ()
        at = sketch.apply(code, at, *rest, out=number == length - 1)
    return sketch.finish()


def _weights(size: int) -> Sketched:
    """A model with so many weights squared."""
    sketch, none = Sketch(), scalar(OperandType.INT32, 0)
    at = sketch.input(quarters((1, size)))
    wide = (np.arange(size * size).reshape(size, size) * 31 % 257 - 128) / 512
    weights = Argument(FLOAT, (size, size), value=wide.astype(np.float32))
    sketch.apply(OperationType.FULLY_CONNECTED, at, weights, quarters((size,)), none, out=True)
    return sketch.finish()


def _of_size(name: str, make: Callable[[], Sketched]) -> Scenario:
    def cached(v: Vehicle) -> TestCase:
        made = make()
        steps = [*_saved(), _load(), made.execute(slot=LOADED)]
        for place in (0.2, 0.8, 1.0):
            for change in ("flip", "truncate"):
                steps += [_tamper(change, place=place), _load(slot=2, expect=_refused(IN_PIECES)), _tamper("restore")]
        steps += [_load(), made.execute(slot=LOADED), Step(Action.RESTART), _load(), made.execute(slot=LOADED)]
        level, words = FeatureLevel(max(FL3, made.level)), words_of(made.model)
        return case(steps, models=(made.model,), level=level, needs=NEEDS, detail=words)

    return Scenario(TOPIC, f"size.{name}", cached, "caches of small and large models", "C1", once=True)


def _pool_constants(v: Vehicle) -> TestCase:
    """A model whose constants lie in pools: the cache holds them, also when the pools are gone."""
    model, how = with_constants_in_pools(v.model, 2), Preparation(pools="ashmem")
    saves = Preparation(cache=0, token=TOKEN, pools="ashmem")
    steps = [Step(Action.QUERY, how=how), Step(Action.PREPARE, how=saves), execute(v), Step(Action.RESTART), _load()]
    steps.append(execute(v, slot=LOADED))
    return case(steps, v, models=(model,), level=FL3, needs=NEEDS)


# --- caches that are not as they were saved ---------------------------------------------------------------------------


def _wrong_token(v: Vehicle) -> TestCase:
    steps = _saved()
    for place in (0, 15, 31):
        wrong = TOKEN[:place] + bytes([TOKEN[place] ^ 1]) + TOKEN[place + 1 :]
        steps.append(_load(token=wrong, expect=_refused(f"the token differs from that of saving in byte {place}")))
    steps.append(_load(token=bytes(32), expect=_refused("the token is all zeros, and was not when it was saved")))
    return _case([*steps, *_whole(v)], v)


def _odd_token(v: Vehicle) -> TestCase:
    """Tokens that no interface can send: nothing is due but survival."""
    steps = _saved()
    for length in (0, 31, 33, 4096):
        steps.append(_load(token=bytes(length), expect=Unspecified()))
        steps.append(_save(cache=1, token=bytes(length), slot=3, expect=Unspecified()))
    return _case([*steps, *_whole(v)], v)


def _damaged(change: str, words: str, places: Sequence[float] = (0.5,), bits: Sequence[int] = (4,)) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = _saved()
        for file in FILES:
            for number, place in enumerate(places):
                steps.append(_tamper(change, file=file, place=place, bit=bits[number % len(bits)]))
                text = f"{words}, at {place:.0%} of model file {file}; {IN_PIECES}"
                steps += [_load(expect=_refused(text)), _tamper("restore")]
        return _case([*steps, *_whole(v)], v)

    return Scenario(TOPIC, f"model.{change}", make, f"model cache: {words}", "C1")


def _data_damaged(change: str, words: str, places: Sequence[float] = (0.5,)) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = _saved()
        if change == "replace":
            steps[1:1] = [_query(1)]
            steps += [_save(1, 1)]
        for place in places:
            steps += [_tamper(change, data=True, place=place, other=1), _load(expect=Unspecified())]
            steps += [execute(v, slot=LOADED, expect=Unspecified()), _tamper("restore")]
        return _case([*steps, *_whole(v)], v, v.other(1))

    return Scenario(TOPIC, f"data.{change}", make, f"data cache: {words}; any answer, but neither death nor silence")


def _swapped(v: Vehicle) -> TestCase:
    """What was saved as model stands in the data file, and the other way round."""
    refused = _refused(f"model file and data file are swapped; {IN_PIECES}")
    return _case([*_saved(), _tamper("swap"), _load(expect=refused), *_whole(v)], v)


def _never_saved(v: Vehicle) -> TestCase:
    """Files into which nothing was ever saved."""
    refused = _refused("nothing was ever saved into the files")
    return _case([*_saved(), _load(1, expect=refused), *_whole(v)], v)


def _foreign(v: Vehicle) -> TestCase:
    """All files are those of another model, saved under another token."""
    steps = [_query(1), *_saved(), _save(1, 1, token=OTHER_TOKEN)]
    refused = _refused("the files are another token's")
    for both in (False, True):
        steps += [_tamper("replace", other=1), *([_tamper("replace", data=True, other=1)] if both else [])]
        steps += [_load(expect=refused), _tamper("restore")]
    return _case([*steps, *_whole(v)], v, v.other(1))


def _replaced(v: Vehicle) -> TestCase:
    """The security check: the model cache is another model's, saved under the same token."""
    steps = [_query(1), *_saved(), _save(1, 1), _tamper("replace", other=1)]
    refused = _refused("the model cache is another model's under the same token, the data cache is not")
    return _case([*steps, _load(expect=refused), *_whole(v)], v, v.other(1))


def _replaced_whole(v: Vehicle) -> TestCase:
    """All files are another model's under the same token: that is the other model's cache, or seen to be foreign."""
    other = v.other(1)
    steps = [_query(1), *_saved(), _save(1, 1)]
    steps += [_tamper("replace", other=1), _tamper("replace", data=True, other=1)]
    steps += [_load(expect=Returns(unless=(GF,)), slot=2), execute(other, 1, slot=2)]
    return _case([*steps, *_whole(v)], v, other)


# --- descriptors ------------------------------------------------------------------------------------------------------


def _wrong_at_save(fault: str) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        steps = [*_saved(), _save(cache=1, handles=fault, slot=2), execute(v, slot=2)]
        text = f"the cache was saved with descriptors that are wrong ({fault.replace('_', ' ')})"
        steps.append(_load(1, slot=3, expect=_refused(text, IA, GF)))
        return _case([*steps, *_whole(v)], v)

    text = "wrong descriptors do not keep a model from being prepared, only from being saved"
    return Scenario(TOPIC, f"save.{fault.replace('_', '.')}", make, text, "C1")


def _wrong_at_load(fault: str) -> Scenario:
    def make(v: Vehicle) -> TestCase:
        text = f"the descriptors are wrong ({fault.replace('_', ' ')})"
        statuses = (GF,) if fault in ACCESSES else (IA, GF)
        return _case([*_saved(), _load(handles=fault, expect=_refused(text, *statuses)), *_whole(v)], v)

    return Scenario(TOPIC, f"load.{fault.replace('_', '.')}", make, "wrong descriptors are refused at loading", "C1")


def _no_lists(v: Vehicle) -> TestCase:
    """Without any files the token says nothing: nothing is saved, and nothing can be loaded."""
    nothing = refuses("C1", "no files are given to load from", IA, GF)
    steps = [_query(), _save(), *(_prepare_without(token) for token in (TOKEN, OTHER_TOKEN)), execute(v, slot=2)]
    steps += [_load(None, slot=3, expect=nothing), _load(), execute(v, slot=LOADED)]
    return _case(steps, v)


def _prepare_without(token: bytes) -> Step:
    return Step(Action.PREPARE, 0, slot=2, how=Preparation(token=token))


def _not_supported(v: Vehicle) -> TestCase:
    """A driver that asks for no files saves nothing and loads nothing; of another one only the last step is asked."""
    refused = _refused("the driver asks for no cache files, so that it has no caching")
    steps = [_query(), _save(handles="unsupported"), execute(v), _load(handles="unsupported", expect=refused)]
    steps.append(_load(None, slot=2, expect=refuses("C1", "no files are given to load from", IA, GF)))
    return case([*steps, execute(v)], v, level=FL3)


def _invalid_model(v: Vehicle) -> TestCase:
    """A model that is refused is not saved either."""
    bad = replace(v.model, main=replace(v.model.main, output_indexes=()))
    steps = [_query(), Step(Action.PREPARE), _save(1, slot=2, expect=refuses("G1", "the model names no output"))]
    steps += [_load(slot=3, expect=_refused("the model was refused, so that nothing was saved", IA, GF)), execute(v)]
    return case(steps, v, models=(v.model, bad), level=FL3, needs=NEEDS)


# --- at the same time -------------------------------------------------------------------------------------------------


def _loads_at_once(v: Vehicle) -> TestCase:
    threads = range(1, 5)
    steps = [_query(), _save(), *(_load(slot=10 + t, thread=t) for t in threads)]
    steps += [execute(v.rolled(t), slot=10 + t, thread=t) for t in threads]
    return _case([*steps, execute(v)], v)


def _load_beside_save(v: Vehicle) -> TestCase:
    """What is loaded while it is saved is whole, or seen not to be; afterwards it is whole."""
    maybe = Returns(unless=(GF,))
    steps = [_query(), _save(), *(_save(slot=5 + n, thread=1) for n in range(3))]
    slots = range(10, 16)
    steps += [_load(slot=s, thread=2 + s % 2, expect=maybe) for s in slots]
    steps += [execute(v, slot=s) for s in (5, 7, *slots)]
    return _case([*steps, _load(), execute(v, slot=LOADED)], v)


def _saves_at_once(v: Vehicle) -> TestCase:
    """Two savings into the same files may spoil them, which the driver must see; the models work all the same."""
    steps = [_query(), *(_save(slot=4 + t, thread=t) for t in (1, 2, 3)), *(execute(v, slot=4 + t) for t in (1, 2, 3))]
    steps += [_load(expect=Returns(unless=(GF,))), execute(v, slot=LOADED)]
    return _case([*steps, _save(), _load(), execute(v, slot=LOADED)], v)


def _changed_while_loading(change: str) -> Scenario:
    """Between check and use: right results, or GENERAL_FAILURE."""

    def make(v: Vehicle) -> TestCase:
        slots, maybe = range(10, 18), Returns(unless=(GF,))
        steps = [_query(1), *_saved(), _save(1, 1)]
        steps += [_load(slot=s, thread=1, expect=maybe) for s in slots]
        steps += [s for _ in slots for s in (_tamper(change, other=1, thread=2), _tamper("restore", thread=2))]
        return _case([*steps, *(execute(v, slot=s) for s in slots), *_whole(v)], v, v.other(1))

    text = "a model cache that changes while it is loaded gives right results or is refused"
    return Scenario(TOPIC, f"changed.while.loading.{change}", make, text)


def _changed_after_loading(change: str) -> Scenario:
    """What was loaded was checked: what becomes of the files afterwards is none of its business."""

    def make(v: Vehicle) -> TestCase:
        steps = [_query(1), *_saved(), _save(1, 1), _load(), _tamper(change, other=1)]
        steps += [execute(v, slot=LOADED), execute(v.rolled(1), slot=LOADED)]
        return _case([*steps, *_whole(v)], v, v.other(1))

    text = "files that change after they were loaded change no result"
    return Scenario(TOPIC, f"changed.after.loading.{change}", make, text)


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(TOPIC, "save.and.load", _save_and_load, "what was saved can be loaded and works")
    yield from (_loaded_in_mode(mode) for mode in (ASYNC, BURST, FENCED, REUSABLE))
    yield Scenario(TOPIC, "position.moved", _position_moved, "the position of a descriptor makes no difference")
    yield Scenario(TOPIC, "overwritten", _overwritten, "saving leaves nothing of what the files held before", "C1")
    yield Scenario(TOPIC, "zero.token", _zero_token, "a token of zeros is a token", "C1")
    yield Scenario(TOPIC, "several", _several, "several caches do not get mixed up")
    yield Scenario(TOPIC, "restart", _restarted, "a cache outlives the driver's process", "C1", once=True)
    yield Scenario(TOPIC, "deadline", _deadlines, "loading meets its deadline or says that it does not")
    yield Scenario(TOPIC, "pool.constants", _pool_constants, "constants in pools are saved, too", once=True)
    yield _of_size("ten", lambda: _chain(10))
    yield _of_size("hundred", lambda: _chain(100))
    yield _of_size("megabyte", lambda: _weights(512))
    yield Scenario(TOPIC, "wrong.token", _wrong_token, "a wrong token is refused", "C1")
    yield Scenario(TOPIC, "odd.token", _odd_token, "a token of another length does no harm")
    yield _damaged("truncate", "it ends early", PLACES[1:])
    yield _damaged("extend", "it has one byte more")
    yield _damaged("flip", "one bit is another", PLACES, (4, 0, 7))
    yield _damaged("empty", "it is empty")
    yield _damaged("garbage", "it holds random bytes")
    yield _data_damaged("truncate", "it ends early", PLACES[1::2])
    yield _data_damaged("extend", "it has one byte more")
    yield _data_damaged("flip", "one bit is another", PLACES)
    yield _data_damaged("empty", "it is empty")
    yield _data_damaged("garbage", "it holds random bytes")
    yield _data_damaged("replace", "it is another model's")
    yield Scenario(TOPIC, "swapped", _swapped, "model and data files in each other's place are refused", "C1")
    yield Scenario(TOPIC, "never.saved", _never_saved, "empty files are refused", "C1")
    yield Scenario(TOPIC, "foreign", _foreign, "files of another token are refused", "C1")
    yield Scenario(TOPIC, "replaced", _replaced, "another model's model cache is refused", "C1")
    yield Scenario(TOPIC, "replaced.whole", _replaced_whole, "another model's files give its results or are refused")
    yield from (_wrong_at_save(fault) for fault in (*COUNTS, *ACCESSES, "no_descriptor"))
    yield from (_wrong_at_load(fault) for fault in (*COUNTS, *ACCESSES, "no_descriptor"))
    yield Scenario(TOPIC, "no.files", _no_lists, "without files the token is ignored", "C1")
    yield Scenario(TOPIC, "not.supported", _not_supported, "a driver without caching loads nothing", "C1")
    yield Scenario(TOPIC, "invalid.model", _invalid_model, "an invalid model is not saved", "C1")
    yield Scenario(TOPIC, "loads.at.once", _loads_at_once, "one cache is loaded several times at once")
    yield Scenario(TOPIC, "load.beside.save", _load_beside_save, "a cache is loaded while it is saved")
    yield Scenario(TOPIC, "saves.at.once", _saves_at_once, "models are saved into the same files at once")
    yield _changed_while_loading("replace")
    yield _changed_while_loading("flip")
    for change in ("replace", "garbage", "empty"):
        yield _changed_after_loading(change)


SCENARIOS = tuple(_scenarios())
