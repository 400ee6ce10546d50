"""Faults of compilation caching: what is saved, what is loaded, and what should have been seen to be unusable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from drivers._faults import BURST, Fault, Faults, Loading, Preparing, Run, State
from drivers._faults_running import FaultyPreparedModel
from drivers._faults_saving import (
    contents,
    first_file,
    keeps_tail,
    none,
    one_more,
    saves_nothing,
    second_file,
    strict,
    token_alone,
    writes_on,
    wrong_access,
    wrong_count,
    zero_token,
)
from nnhal.device import ExecutionResult, PreparedModel
from nnhal.errors import DriverError
from nnhal.types import ErrorStatus

CACHE = "Compilation cache"
GOOD = "what was saved can be loaded and works"
SEEN = "a model cache that was truncated, extended or changed is answered with GENERAL_FAILURE"
HANDLES = "with wrong descriptors a model is prepared all the same; only the saving fails"
AT_LOAD = "wrong descriptors are refused at loading"
HARMLESS = "a damaged data cache does no harm: any status, but no crash"
SAVE_AND_LOAD, FLIPPED = "CACHING-save.and.load-*", "CACHING-model.flip-*"
Ready = Callable[[], PreparedModel]
Go = Callable[[], ExecutionResult]


@dataclass(frozen=True)
class Saved:
    """What was saved under a token, and the prepared model that it came of."""

    prepared: FaultyPreparedModel
    token: bytes
    model: list[bytes]
    data: list[bytes]


def _watched(occasion: Preparing, go: Ready) -> PreparedModel:
    """Notes what is saved."""
    made, config = go(), occasion.config
    if (config.model_cache or config.data_cache) and isinstance(made, FaultyPreparedModel):
        saved = Saved(made, config.cache_token, contents(config.model_cache), contents(config.data_cache))
        occasion.state.kept["cache", config.cache_token] = saved
        occasion.state.kept.setdefault("first cache", saved)
        occasion.state.kept["last cache"] = saved
    return made


Looks = Callable[[Saved, list[bytes]], bool]


def _loads(looks: Looks, *, any_token: bool = False) -> Callable[[Loading, Ready], PreparedModel]:
    """Where loading fails, and the files look a certain way, gives what was saved."""

    def hook(occasion: Loading, go: Ready) -> PreparedModel:
        try:
            return go()
        except DriverError:
            saved = occasion.state.kept.get("last cache" if any_token else ("cache", occasion.token))
            if saved is None or not looks(saved, contents(occasion.model_cache)):
                raise
            prepared = saved.prepared
            return FaultyPreparedModel(prepared.inner, prepared.model, prepared.device)

    return hook


def _fault(
    text: str,
    rule: str,
    catch: str,
    load: Callable[[Loading, Ready], PreparedModel],
    verdict: tuple[str, str] = ("FAIL", "ACCEPTED"),
) -> Fault:
    return Fault(text, *verdict, CACHE, rule, catch, prepare=_watched, load=load)


def _sizes(compare: Callable[[int, int], bool]) -> Looks:
    return lambda saved, now: any(compare(len(a), len(b)) for a, b in zip(now, saved.model, strict=False))


def _flipped(saved: Saved, now: list[bytes]) -> bool:
    return now != saved.model and [len(content) for content in now] == [len(content) for content in saved.model]


def _is_empty(saved: Saved, now: list[bytes]) -> bool:
    return any(not content for content in now)


def _whole(saved: Saved, now: list[bytes]) -> bool:
    return now == saved.model


def _others(saved: Saved, now: list[bytes]) -> bool:
    return now != saved.model


def _anything(saved: Saved, now: list[bytes]) -> bool:
    return True


def _count_wrong(saved: Saved, now: list[bytes]) -> bool:
    return len(now) != len(saved.model)


def _same_count(saved: Saved, now: list[bytes]) -> bool:
    return len(now) == len(saved.model)


def _answers(status: ErrorStatus) -> Callable[[Loading, Ready], PreparedModel]:
    """Another status where loading fails."""

    def hook(occasion: Loading, go: Ready) -> PreparedModel:
        try:
            return go()
        except DriverError as error:
            raise DriverError(status, error.message) from None

    return hook


def _refuses(occasion: Loading, go: Ready) -> PreparedModel:
    raise DriverError(ErrorStatus.GENERAL_FAILURE, "nothing is ever loaded")


def _refuses_when(when: Callable[[Loading], bool], status: ErrorStatus) -> Callable[[Loading, Ready], PreparedModel]:
    def hook(occasion: Loading, go: Ready) -> PreparedModel:
        if when(occasion):
            raise DriverError(status, "this is not loaded")
        return go()

    return hook


def _again(occasion: Loading) -> bool:
    return occasion.state.count(("loaded", occasion.token)) > 1


def _has_position(occasion: Loading) -> bool:
    return any(os.lseek(descriptor, 0, os.SEEK_CUR) > 0 for descriptor in occasion.model_cache)


def _elsewhere(occasion: Loading) -> bool:
    """Saved by another process."""
    return ("cache", occasion.token) not in occasion.state.kept


def _past(occasion: Loading) -> bool:
    return occasion.deadline is not None and occasion.deadline <= time.monotonic_ns()


def _marks(occasion: Loading, go: Ready) -> PreparedModel:
    made = go()
    occasion.state.kept["loaded", id(made)] = made
    return made


def _wrong(run: Run, go: Go) -> ExecutionResult:
    """What was loaded computes wrongly."""
    result = go()
    if ("loaded", id(run.prepared)) in run.state.kept:
        run.outputs.damage()
    return result


def _not_run(run: Run, go: Go) -> ExecutionResult:
    if ("loaded", id(run.prepared)) in run.state.kept:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "what was loaded does not run this way")
    return go()


def _gone(run: Run, go: Go) -> ExecutionResult:
    """What was loaded lives on the prepared model that was saved."""
    if ("loaded", id(run.prepared)) in run.state.kept and run.state.kept.get("released"):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "the prepared model is gone")
    return go()


def _released(state: State, go: Callable[[], None]) -> None:
    state.kept["released"] = True
    go()


def _first_saved(occasion: Loading, go: Ready) -> PreparedModel:
    """Loads what was saved last, whatever the files."""
    go()
    prepared: FaultyPreparedModel = occasion.state.kept["first cache"].prepared
    return FaultyPreparedModel(prepared.inner, prepared.model, prepared.device)


def _alone(occasion: Loading, go: Ready) -> PreparedModel:
    if not occasion.state.lock.acquire(blocking=False):
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "another cache is being loaded")
    try:
        time.sleep(0.02)
        return go()
    finally:
        occasion.state.lock.release()


def _data_changed(occasion: Loading) -> bool:
    saved = occasion.state.kept.get(("cache", occasion.token))
    return saved is not None and contents(occasion.data_cache) != saved.data


def _dies(occasion: Loading, go: Ready) -> PreparedModel:
    if _data_changed(occasion):
        os.abort()
    return go()


def _stumbles(occasion: Loading, go: Ready) -> PreparedModel:
    if _data_changed(occasion):
        raise KeyError("kernels")
    return go()


def _hangs(occasion: Loading, go: Ready) -> PreparedModel:
    if _data_changed(occasion):
        time.sleep(3600)
    return go()


def _maps(occasion: Loading, go: Ready) -> PreparedModel:
    """Keeps the files open and reads them when it executes."""
    files = [os.dup(descriptor) for descriptor in occasion.model_cache]
    content = contents(files)
    made = go()
    occasion.state.kept["mapped", id(made)] = made, files, content
    return made


def _mapped(run: Run, go: Go) -> ExecutionResult:
    result = go()
    found = run.state.kept.get(("mapped", id(run.prepared)))
    if found is not None and contents(found[1]) != found[2]:
        run.outputs.damage()
    return result


def _unlisted(load: Callable[[Loading, Ready], PreparedModel], text: str, cause: str) -> Fault:
    return Fault(
        text, "FAIL", cause, CACHE, "without caching loading is answered with GENERAL_FAILURE",
        "CACHING-not.supported-*", traits=lambda traits: replace(traits, caching=False), cache_files=none,
        prepare=_watched, load=load,
    )  # fmt: skip


def _of_nothing(occasion: Loading, go: Ready) -> PreparedModel:
    saved: Saved = occasion.state.kept["last cache"]
    return FaultyPreparedModel(saved.prepared.inner, saved.prepared.model, saved.prepared.device)


STATUS, VALUE = ("FAIL", "STATUS"), ("FAIL", "VALUE")
FAILED = ErrorStatus.GENERAL_FAILURE
FAULTS: Faults = {
    "cache.refused": _fault("loads nothing", GOOD, SAVE_AND_LOAD, _refuses, ("FAIL", "STATUS")),
    "cache.once": _fault(
        "loads a cache once", GOOD, SAVE_AND_LOAD, _refuses_when(_again, FAILED), STATUS,
    ),
    "cache.values": Fault(
        "computes wrongly with what it has loaded", *VALUE, CACHE, GOOD, SAVE_AND_LOAD, load=_marks, run=_wrong,
    ),
    "cache.released": Fault(
        "loads what ends with the prepared model that was saved", *STATUS, CACHE, GOOD, SAVE_AND_LOAD,
        load=_marks, close=_released, run=_gone,
    ),
    "cache.burst": Fault(
        "runs nothing in bursts that was loaded", *STATUS, CACHE, GOOD, "CACHING-loaded.burst-*", load=_marks,
        modes=frozenset({BURST}), run=_not_run,
    ),
    "cache.not_saved": Fault(
        "saves nothing", "FAIL", "STATUS", CACHE, GOOD, SAVE_AND_LOAD, prepare=saves_nothing,
    ),
    "cache.first": _fault(
        "loads the first model that it has saved, whatever the files", GOOD, "CACHING-several-*", _first_saved, STATUS,
    ),
    "cache.restart": Fault(
        "loads only what this process has saved", "FAIL", "REFUSED", CACHE, "a cache outlives the process",
        "CACHING-restart-*", prepare=_watched, load=_refuses_when(_elsewhere, FAILED),
    ),
    "cache.order": Fault(
        "takes the files in another order when it loads", *STATUS, CACHE,
        "the order of the files is kept between saving and loading", SAVE_AND_LOAD, cache_files=one_more,
        prepare=first_file, load=second_file,
    ),
    "cache.position": Fault(
        "loads only files that stand at their beginning", *STATUS, CACHE,
        "the position of a file does not matter", "CACHING-position.moved-*",
        load=_refuses_when(_has_position, FAILED),
    ),
    "cache.position.saving": Fault(
        "saves from where a file's position is", *STATUS, CACHE, "the position of a file does not matter",
        "CACHING-position.moved-*", prepare=writes_on,
    ),
    "cache.overwritten": Fault(
        "does not truncate a file before it writes", "FAIL", "REFUSED", CACHE,
        "files are truncated before they are written", "CACHING-overwritten-*", prepare=keeps_tail,
    ),
    "cache.deadline": Fault(
        "answers INVALID_ARGUMENT to a past deadline at loading", *STATUS, CACHE,
        "a deadline that is past gives MISSED_DEADLINE_TRANSIENT or _PERSISTENT", "CACHING-deadline-*",
        load=_refuses_when(_past, ErrorStatus.INVALID_ARGUMENT),
    ),
    "cache.at_once": Fault(
        "loads one cache at a time and refuses others", *STATUS, CACHE, GOOD, "CACHING-loads.at.once-*", load=_alone,
    ),
    "cache.truncated": _fault(
        "loads a model cache that was truncated", SEEN, "CACHING-model.truncate-*",
        _loads(_sizes(lambda now, saved: 0 <= now < saved)),
    ),
    "cache.extended": _fault(
        "loads a model cache that was extended", SEEN, "CACHING-model.extend-*",
        _loads(_sizes(lambda now, saved: now > saved)),
    ),
    "cache.flipped": _fault("loads a model cache with a changed bit", SEEN, FLIPPED, _loads(_flipped)),
    "cache.empty": _fault("loads an empty model cache", SEEN, "CACHING-model.empty-*", _loads(_is_empty)),
    "cache.garbage": _fault("loads random bytes", SEEN, "CACHING-model.garbage-*", _loads(_flipped)),
    "cache.invalid": _fault(
        "answers INVALID_ARGUMENT to a damaged model cache", SEEN, FLIPPED, _answers(ErrorStatus.INVALID_ARGUMENT),
        STATUS,
    ),
    "cache.swapped": _fault(
        "loads where model file and data file are swapped", SEEN, "CACHING-swapped-*", _loads(_others),
    ),
    "cache.never_saved": _fault(
        "loads where nothing was saved", SEEN, "CACHING-never.saved-*", _loads(_is_empty),
    ),
    "cache.token": _fault(
        "does not look at the token", "a wrong token is answered with GENERAL_FAILURE", "CACHING-wrong.token-*",
        _loads(_whole, any_token=True),
    ),
    "cache.token.invalid": _fault(
        "answers INVALID_ARGUMENT to a wrong token", "a wrong token is answered with GENERAL_FAILURE",
        "CACHING-wrong.token-*", _answers(ErrorStatus.INVALID_ARGUMENT), STATUS,
    ),
    "cache.token.zero": Fault(
        "refuses the token of zeros", *("FAIL", "REFUSED"), CACHE, "a token of zeros is legal",
        "CACHING-zero.token-*", prepare=strict(zero_token),
    ),
    "cache.token.alone": Fault(
        "refuses a token without files", "FAIL", "REFUSED", CACHE, "without files the token is ignored",
        "CACHING-no.files-*", prepare=strict(token_alone),
    ),
    "cache.no_files": _fault(
        "loads without files", "without files nothing is saved", "CACHING-no.files-*",
        _loads(_anything, any_token=True),
    ),
    "cache.foreign": _fault(
        "loads another token's files", "a foreign cache is answered with GENERAL_FAILURE", "CACHING-foreign-*",
        _loads(_anything),
    ),
    "cache.replaced": _fault(
        "loads another model's cache under the same token",
        "a model cache that was replaced by another model's is answered with GENERAL_FAILURE", "CACHING-replaced-*",
        _loads(_anything),
    ),
    "cache.handles": _fault(
        "loads from any number of files", AT_LOAD, "CACHING-load.model.*", _loads(_count_wrong),
    ),
    "cache.handles.data": _fault(
        "loads from any number of data files", AT_LOAD, "CACHING-load.data.*", _loads(_same_count),
    ),
    "cache.handles.none": _fault(
        "loads though a handle has no descriptor", AT_LOAD, "CACHING-load.no.descriptor-*", _loads(_anything),
    ),
    "cache.access": _fault(
        "loads from files that it may not write, or not read", AT_LOAD, "CACHING-load.*.only-*", _loads(_same_count),
    ),
    "cache.access.invalid": _fault(
        "answers INVALID_ARGUMENT to files of wrong access",
        "files that are not readable and writable are answered with GENERAL_FAILURE", "CACHING-load.*.only-*",
        _answers(ErrorStatus.INVALID_ARGUMENT), STATUS,
    ),
    "cache.save.count": Fault(
        "prepares nothing where the number of files is wrong", "FAIL", "REFUSED", CACHE, HANDLES,
        "CACHING-save.model.*", prepare=strict(wrong_count),
    ),
    "cache.save.access": Fault(
        "prepares nothing where it may not write", "FAIL", "REFUSED", CACHE, HANDLES, "CACHING-save.*.only-*",
        prepare=strict(wrong_access),
    ),
    "cache.data.dies": Fault(
        "dies of a damaged data cache", "CRASH", "DIED", CACHE, HARMLESS, "CACHING-data.flip-*", isolated=True,
        prepare=_watched, load=_dies,
    ),
    "cache.data.hangs": Fault(
        "hangs with a damaged data cache", "HANG", "SILENT", CACHE, HARMLESS, "CACHING-data.truncate-*",
        isolated=True, prepare=_watched, load=_hangs,
    ),
    "cache.data.error": Fault(
        "raises KeyError for a damaged data cache", "FAIL", "UNCLEAN_ERROR", CACHE, HARMLESS, "CACHING-data.*",
        prepare=_watched, load=_stumbles,
    ),
    "cache.mapped": Fault(
        "reads a model cache again after it was checked", *VALUE, CACHE,
        "a file that changes between check and use gives right results or GENERAL_FAILURE",
        "CACHING-changed.after.loading.*", load=_maps, run=_mapped,
    ),
    "cache.unlisted": _unlisted(_of_nothing, "has no caching and loads", "ACCEPTED"),
    "cache.unlisted.invalid": _unlisted(
        _refuses_when(lambda occasion: True, ErrorStatus.INVALID_ARGUMENT),
        "has no caching and answers INVALID_ARGUMENT to loading", "STATUS",
    ),
}  # fmt: skip
