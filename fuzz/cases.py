"""The fuzz targets in pytest: small inputs made of the definitions, and inputs that once showed a fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from fuzz.graphs import origin_of
from fuzz.known import Known, modes_of
from fuzz.seeds import seeds_of
from fuzz.targets import DRIVER, GROUPS, TARGETS
from harness.batch import Batch, NotApplicableError
from harness.case import Origin, TestCase
from harness.case_file import load, seal
from harness.driver import DriverFacts
from harness.session import Session

CORPUS = Path(__file__).with_name("corpus")
SEED, REGRESSION = "seed", "regression"
COUNT = {"ci": 6, "quick": 12, "full": 24, "nightly": 24}  # inputs of each target
ALL = Known.nothing()


def batches(profile: str) -> Iterator[Batch]:
    """A batch for each target, and one of regressions; what is in them only a driver decides."""
    for name in GROUPS[DRIVER]:
        yield Batch(replace(origin_of(name), kind=SEED), tuple(range(COUNT[profile])), _unmade)
    files = regressions()
    if files:
        yield Batch(Origin("FUZZ", REGRESSION, REGRESSION, 0), tuple(range(len(files))), _unmade)


def regressions() -> list[Path]:
    """Cases that some driver failed once, in order."""
    return sorted(CORPUS.glob("*.case"))


def _unmade(number: int) -> TestCase:
    raise NotApplicableError("a driver decides what its inputs become")


def fitted(session: Session, batch: Batch) -> Batch:
    """The batch whose cases are made for the driver of a session."""
    if batch.origin.kind == REGRESSION:
        return replace(batch, make=partial(_regression, batch.origin))
    facts = session.facts
    known = ALL
    if isinstance(facts, DriverFacts):
        traits, level = facts.traits, session.level
        known = replace(
            ALL,
            level=level,
            modes=modes_of(traits, level),
            caching=traits.caching,
            buffers=traits.buffers,
            dynamic_shapes=traits.dynamic_shapes,
            validates=traits.validates,
        )
    return replace(batch, make=partial(_seeded, batch.origin, known))


def _regression(origin: Origin, number: int) -> TestCase:
    case = load(regressions()[number])
    return seal(replace(case, digest="", origin=replace(origin, number=number, detail=case.origin.detail)))


@lru_cache(maxsize=32)
def _seeds(target: str, known: Known) -> tuple[bytes, ...]:
    return tuple(seeds_of(TARGETS[target], known))


def _seeded(origin: Origin, known: Known, number: int) -> TestCase:
    target = TARGETS[origin.signature]
    barred = target.barred(known)
    if barred:
        raise NotApplicableError(barred)
    seeds = _seeds(target.name, known)
    # Spread over all, so that few of them are of many operations.
    data = seeds[number * max(len(seeds) // COUNT["full"], 1) % len(seeds)]
    attempt = target.decode(data, known)
    if attempt is None:
        raise NotApplicableError("the input becomes no case for this driver")
    case = attempt.complete
    return seal(replace(case, digest="", origin=replace(case.origin, kind=SEED, number=number)))
