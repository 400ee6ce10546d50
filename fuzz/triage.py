"""Looks at one suspicious input again: in a fresh process of the driver, made smaller, saved as a case with the reason.

`python -m fuzz.triage` with its order in the file that NNCTS_TRIAGE names; the result goes beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz.graphs import origin_of, with_digest
from fuzz.known import Known
from fuzz.reducing import reduced
from fuzz.signature import crash_place, key_of
from fuzz.targets import TARGETS, Target
from fuzz.worker import own_failure, traceback_of
from harness.case import TestCase
from harness.case_file import save
from harness.driver import Driver, open_driver
from harness.editable import take_apart
from harness.listing import listing
from harness.minimize import minimize, prober
from harness.probing import Prober
from harness.record import plain, record_of
from harness.searching import alike
from harness.verdict import BAD, Cause, Judgement, Verdict
from nnhal.graph_dump import to_dot
from nnhal.loading import DriverSpec

ORDER = "NNCTS_TRIAGE"
RESULT, CASE, INPUT = "result.json", "found.case", "found.bin"
TRIES = 6  # of an input that fails by chance
BUDGET = {Verdict.HANG: 8, Verdict.CRASH: 60}  # inputs tried, where each costs a wait or a process
USUAL = 150
SECONDS = 60.0  # for making an input smaller
NOT_AGAIN = "it did not fail again in a process of its own"


@dataclass(frozen=True)
class Suspect:
    """An input that something was seen with.

    Attributes:
        target: its name.
        data: the input.
        verdict: that the fuzzing process came to, or what its end means.
        kind: what bounds how many like it are looked at.
        log: the end of what the process wrote.
    """

    target: str
    data: bytes
    verdict: str
    cause: str
    stage: str
    message: str
    kind: str
    log: str = ""

    @property
    def urgent(self) -> bool:
        """Whether it ended a process, or leaks."""
        return self.verdict in (Verdict.CRASH.value, Verdict.HANG.value) or self.cause == Cause.LEAK.value


@dataclass(frozen=True)
class TriageOrder:
    """What is to be looked at.

    Attributes:
        folder: with the input in it; gets the result.
        driver: as `--driver` names it, with what must be loaded before it.
        known: as text.
        suspect: all but the input.
    """

    folder: str
    target: str
    driver: str
    known: str
    verdict: str
    cause: str
    stage: str
    message: str
    log: str
    deadline: float
    memory: int | None = None

    @property
    def first(self) -> Judgement:
        """What was seen first."""
        return Judgement(Verdict(self.verdict), Cause(self.cause), self.stage, self.message)


class Triage:
    """One look."""

    def __init__(self, order: TriageOrder) -> None:
        self._order = order
        self._target: Target = TARGETS[order.target]
        self._known = Known.from_json(order.known) if order.known else Known.nothing()
        self._folder = Path(order.folder)
        self._end = time.monotonic() + SECONDS

    def run(self) -> None:
        """Writes what comes of it."""
        order, data = self._order, (self._folder / INPUT).read_bytes()
        if self._target.read is not None:
            self._look_at_reader(data, self._target.read)
            return
        driver = open_driver(
            DriverSpec.parse(order.driver),
            log_path=self._folder / "driver.log",
            deadline=order.deadline,
            memory=order.memory,
            spare=False,
        )
        try:
            self._look(driver, data)
        finally:
            driver.close()

    def _look_at_reader(self, data: bytes, read: Callable[[bytes], None]) -> None:
        """The same for a reader of the suite's own, in this process."""
        first = self._raised(data, read)
        if first is None:
            self._write(TestCase(origin_of(self._target.name), (), ()), self._unrepeated(), data)
            return
        small, _ = reduced(data, lambda smaller: self._raised(smaller, read) == first, USUAL * 10)
        text = f"reading {len(small)} bytes raised {first}; bytes that are wrong are refused in one sentence"
        judgement = Judgement(Verdict.FAIL, Cause.UNCLEAN_ERROR, "read", text)
        self._write(TestCase(origin_of(self._target.name, rule=first), (), ()), judgement, small)

    @staticmethod
    def _raised(data: bytes, read: Callable[[bytes], None]) -> str | None:
        """What a reader raises, and where."""
        try:
            read(data)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{type(error).__name__} in {Path(last.filename).name} {last.name}"
        return None

    def _case(self, data: bytes) -> TestCase | None:
        """The case of an input, with all that is due."""
        attempt = self._target.decode(data, self._known)
        return None if attempt is None else attempt.complete

    def _look(self, driver: Driver, data: bytes) -> None:
        try:
            case = self._case(data)
        except Exception as error:  # the suite's own defect: told like any other finding, never lost
            self._nothing(own_failure(error), data, traceback_of(error))
            return
        if case is None:
            self._nothing("the input becomes no case when it is read again", data)
            return
        for pages in (False, True):
            with contextlib.closing(prober(driver, level=self._known.level, pages=pages)) as probe:
                first = self._failing(case, probe)
                if first is None:
                    continue
                data, case, last = self._smaller(data, case, first, probe)
                self._write(case, last, data, driver.log)
                return
        self._write(case, self._unrepeated(), data)

    def _nothing(self, text: str, data: bytes, log: str = "") -> None:
        """Writes that the suite makes no case of an input."""
        nothing = TestCase(origin_of(self._target.name), (), ())
        self._write(nothing, Judgement(Verdict.INTERNAL, Cause.SUITE, "make", text), data, log)

    def _failing(self, case: TestCase, probe: Prober) -> Judgement | None:
        """The first of some runs that fails; each is in a fresh process."""
        for _ in range(TRIES if len(case.steps) > 3 else 2):
            judgement = probe.patient(case)
            if judgement.verdict in BAD:
                return judgement
        return None

    def _unrepeated(self) -> Judgement:
        """The verdict where nothing came of it: what a sanitizer saw counts all the same."""
        first = self._order.first
        if first.verdict == Verdict.CRASH and crash_place(self._order.log):
            return Judgement(first.verdict, first.cause, first.stage, f"{first.message}; {NOT_AGAIN}")
        if first.verdict == Verdict.INTERNAL or first.cause == Cause.LEAK:
            return first
        return Judgement(Verdict.FLAKY, first.cause, first.stage, f"{first.message}; {NOT_AGAIN}")

    def _smaller(
        self, data: bytes, case: TestCase, first: Judgement, probe: Prober
    ) -> tuple[bytes, TestCase, Judgement]:
        """A smaller input and case that fail alike with all the time that a driver has; those given where none does."""
        probe.hurried = first.verdict == Verdict.HANG
        small, made = self._reduced(data, case, first, probe)
        for found in (self._minimised(made, first, probe), made):
            if found is not case and alike(first, last := probe.patient(found)):
                return small, found, last
        return data, case, first

    def _reduced(self, data: bytes, case: TestCase, first: Judgement, probe: Prober) -> tuple[bytes, TestCase]:
        def fails(smaller: bytes) -> bool:
            if time.monotonic() > self._end:
                return False
            made = self._case(smaller)
            if made is None or (case.negative and made.origin.rule != case.origin.rule):
                return False  # breaking another rule is another finding
            return alike(first, probe(made))

        small, _ = reduced(data, fails, BUDGET.get(first.verdict, USUAL))
        made = self._case(small)
        return (data, case) if small == data or made is None else (small, made)

    def _minimised(self, case: TestCase, first: Judgement, probe: Prober) -> TestCase:
        """A case of one valid graph is made smaller as a graph, too."""
        try:
            take_apart(case)
        except (ValueError, KeyError):
            return case
        found = minimize(case, probe, budget=BUDGET.get(first.verdict, USUAL))
        return case if found.note else found.case

    def _write(self, case: TestCase, judgement: Judgement, data: bytes, log: str = "") -> None:
        case = with_digest(case)
        log = log or self._order.log
        record = record_of(case, judgement, log=log[-16384:])
        (self._folder / INPUT).write_bytes(data)
        save(case, self._folder / CASE)
        row = {
            "record": asdict(record),
            "key": list(key_of(case, record, log)),
            "listing": _words(lambda: listing(case)) if case.models else "",
            "dot": _words(lambda: to_dot(case.models[0], case.id)) if case.models else "",
        }
        part = self._folder / "result.part"
        part.write_text(json.dumps(plain(row)), encoding="utf-8")
        part.replace(self._folder / RESULT)


def _words(make: Callable[[], str]) -> str:
    """A description of a model, which may be one that nothing can be said of."""
    try:
        return make()
    except Exception:
        return ""


def main() -> int:
    """Does what the order says."""
    row = json.loads(Path(os.environ[ORDER]).read_text(encoding="utf-8"))
    Triage(TriageOrder(**row)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
