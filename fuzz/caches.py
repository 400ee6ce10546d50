"""Cache files out of bytes: what was saved is written over, cut, exchanged; then it is loaded and run."""

from __future__ import annotations

from hashlib import sha256

from fuzz.attempt import Attempt
from fuzz.graphs import origin_of
from fuzz.known import Known
from harness.case import Step, TestCase
from harness.expectations import MayReject, Rejects, Returns, Unspecified
from harness.steps import Action, Preparation, Tampering
from opset.source import Source, choice

TOKENS = tuple(sha256(word).digest() for word in (b"fuzzed", b"another"))
LOADED = 1
MOST_CHANGES = 4
MOST_BYTES = 32  # that one change writes
CHANGES = ("write", "write", "write", "cut", "truncate", "extend", "flip", "empty", "replace", "swap", "garbage")


def cache(source: Source, known: Known) -> Attempt | None:
    """A model that is saved, its files changed, loaded, and run where that succeeds."""
    vehicles = known.vehicles
    if not vehicles:
        return None
    first = source.integer(0, len(vehicles) - 1)
    chosen, other = vehicles[first], vehicles[(first + 1) % len(vehicles)]
    saves = [Preparation(cache=0, token=TOKENS[0]), Preparation(cache=1, token=TOKENS[1])]
    steps = [Step(Action.QUERY), Step(Action.PREPARE, how=saves[0])]
    steps += [Step(Action.QUERY, 1), Step(Action.PREPARE, 1, how=saves[1])]
    changes = [_change(source) for _ in range(source.integer(0, MOST_CHANGES))]
    steps += [Step(Action.TAMPER, how=change) for change in changes]
    wrong_token = source.integer(0, 7) == 0
    how = Preparation(cache=0, token=TOKENS[int(wrong_token)])
    text = "the cache files are not as they were saved"
    damaged = any(not change.data for change in changes) or wrong_token
    whole = not changes and not wrong_token
    # A driver must see what is wrong with a model cache; a data cache may give wrong numbers and no more.
    due = Returns() if whole else MayReject("C1", text)
    steps.append(Step(Action.LOAD, 0, due, slot=LOADED, how=how))
    run = chosen.execute(0, source.integer(0, 1))
    right = run.expect if whole or (damaged and not any(change.data for change in changes)) else Unspecified()
    if wrong_token and any(change.change == "replace" for change in changes):
        right = Unspecified()  # the files may be those of that token now
    elif wrong_token:
        steps[-1] = Step(Action.LOAD, 0, Rejects((), "C2", "the token is another's", valid=True), slot=LOADED, how=how)
        right = Unspecified()
    steps.append(Step(Action.EXECUTE, 0, right, inputs=run.inputs, slot=LOADED))
    steps.append(Step(Action.EXECUTE, 0, run.expect, inputs=run.inputs, slot=0))
    words = ", ".join(f"{c.change} {'data' if c.data else 'model'} file {c.file}" for c in changes) or "as saved"
    origin = origin_of("caches", words)
    return Attempt(TestCase(origin, (chosen.model, other.model), tuple(steps), known.level, needs=("caching",)))


def _change(source: Source) -> Tampering:
    """One change of the files."""
    change = choice(source, CHANGES)
    place = source.integer(0, 4096) / 4096
    content = bytes(source.integer(0, 255) for _ in range(source.integer(1, MOST_BYTES))) if change == "write" else b""
    return Tampering(
        0,
        change,
        data=source.integer(0, 3) == 0,
        file=source.integer(0, 1),
        place=place,
        other=1,
        bit=source.integer(0, 7),
        content=content,
        length=source.integer(1, 256) if change == "cut" else 0,
    )
