"""A run of cases against one driver: run, judge, repeat, waive, record. Every suite's cases go through here."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from harness.batch import Batch, Draft, NotApplicableError, SettledError
from harness.case import EXTENSION, TestCase
from harness.case_file import save, seal
from harness.crash_stacks import STACKS, crash_stack, frames_in
from harness.driver import Driver, DriverFacts, ask_facts
from harness.guards import Arena
from harness.judge import judge
from harness.record import Record, RecordFile, record_of
from harness.remarks import NO_REMARKS, Remarks, remarked
from harness.repeat import HISTORY, confirm
from harness.run import run
from harness.verdict import BAD, Cause, Judgement, Verdict
from harness.waivers import Waivers
from nnhal.device import Device
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.types import ExecutionMode, FeatureLevel

REPEATS_PER_KIND = 5  # failures of one operation and cause that are run again; more of the same say nothing new
REPEATS = 60  # in a run
SAVED_PER_KIND = 20
DRAWN = 50  # partitions in a run
LOG_BYTES = 4096
SHOWN = 200  # characters of a line of a native stack
LOG_SECONDS = 5.0


@dataclass(frozen=True)
class Options:
    """What the command line says that a session needs.

    Attributes:
        driver: as the run calls it; `--driver` says it so, unless `selection` does.
        selection: the options that choose the driver, where it takes more than one.
        level: highest level to test at; None for the driver's own.
        arguments: other options that a repetition needs.
        fail_poor: POOR fails the run.
        driver_log: file or command that gives the driver's own log, beside what its process writes.
        pages: memory lies between inaccessible pages from the first run on, not only when a failure is repeated.
    """

    driver: str = "reference"
    level: FeatureLevel | None = None
    arguments: tuple[str, ...] = ()
    fail_poor: bool = False
    driver_log: str = ""
    pages: bool = False
    selection: tuple[str, ...] = ()


class Asked(NamedTuple):
    """What a driver answered to the question that goes before a case, with its log, and when it was asked."""

    judgement: Judgement
    log: str
    started: float


@dataclass
class Session:
    """One driver's run. `check` takes a case from start to record.

    Attributes:
        done: cases that are left out, by batch and number.
        counts: number of records by verdict.
        failed: how many of them fail the run.
        asking: seconds spent on asking the driver, all repetitions included.
    """

    driver: Driver
    folder: Path
    records: RecordFile
    waivers: Waivers
    options: Options
    done: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    asking: float = 0.0
    _canaries: Arena = field(default_factory=Arena)
    _pages: Arena = field(default_factory=lambda: Arena(pages=True))
    _history: deque[TestCase] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    _repeats: int = 0
    _stacks: set[str] = field(default_factory=set)
    _remarks: Remarks = NO_REMARKS
    _drawn: int = 0

    @cached_property
    def facts(self) -> DriverFacts | Judgement:
        """What the driver says of itself; a verdict, which every case gets, where it does not."""
        try:
            return ask_facts(self.driver.device)
        except Exception as error:
            return _silence(error, self.driver.in_process)

    @cached_property
    def extensions(self) -> frozenset[str]:
        """Names of the extensions that the driver lists; none where it does not answer, which another case tells."""
        try:
            return frozenset(extension.name for extension in self.driver.device.get_supported_extensions())
        except Exception:
            return frozenset()

    @property
    def level(self) -> FeatureLevel:
        """The level at which the driver is tested."""
        facts = self.facts
        own = facts.level if isinstance(facts, DriverFacts) else max(FeatureLevel)
        return own if self.options.level is None else min(own, self.options.level)

    def header(self) -> dict[str, Any]:
        """What the plan's line says of driver and waivers."""
        facts = facts_header(self.facts) if isinstance(self.facts, DriverFacts) else {}
        return {**facts, **self.waivers.header()}

    def end(self, seconds: float, *, part: str, resumed: bool) -> None:
        """Writes the end marker; `part` is the same in all files of one part of a run, and later in later parts."""
        self.records.end(self.counts, seconds, resumed, part=part, **self.waivers.ending())

    def check_batch(self, batch: Batch) -> list[Record]:
        """Runs a batch's cases and returns the records that fail the run."""
        failing = []
        for number in batch.numbers:
            if f"{batch.id}-{number}" in self.done:
                continue
            record = self.check_number(batch, number)
            if record.bad or (record.verdict == Verdict.POOR.value and self.options.fail_poor):
                failing += [] if record.waiver else [record]
        return failing

    def check_number(self, batch: Batch, number: int) -> Record:
        """Makes and checks one case."""
        origin = replace(batch.origin, number=number)
        try:
            case, asked = self._made(batch, number)
        except NotApplicableError as reason:
            judgement = Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "make", str(reason))
            return self._finish(TestCase(origin, (), ()), judgement)
        except SettledError as settled:
            return self._finish(TestCase(origin, (), ()), settled.judgement, **settled.rest)
        except Exception as error:  # a defect of the suite; it must not end the run or be charged to the driver
            text = f"the case could not be made: {type(error).__name__}: {error}"
            return self._finish(TestCase(origin, (), ()), Judgement(Verdict.INTERNAL, Cause.SUITE, "make", text))
        return self.check(case, batch.file, asked)

    def _made(self, batch: Batch, number: int) -> tuple[TestCase, Asked | None]:
        """A case of a batch, or the question before it where all ends there; then with what was answered."""
        if batch.drafts is None:
            return batch.make(number), None
        for draft in batch.drafts(number):
            question = draft.question
            if self._barred(question) is not None:
                return question, None
            started = time.perf_counter()
            asked = Asked(*self._attempt(question, pages=self.options.pages), started)
            if asked.judgement.verdict in BAD:
                return _failing(draft), asked
            if asked.judgement.verdict != Verdict.PASS:
                return question, asked
            self._history.append(question)
            case = draft.make()
            if case is not None:
                self._history.pop()  # the case asks it again
                return case, None
        raise ValueError(f"none of its drafts can be {batch.id}-{number}")

    def check(self, case: TestCase, file: str = "", asked: Asked | None = None) -> Record:
        """Runs, judges, repeats where it failed, waives and records a case.

        Args:
            case: what to check.
            file: where the case was loaded from, if it was.
            asked: what came of running it, where that is known.
        """
        started = time.perf_counter() if asked is None else asked.started
        barred = self._barred(case) if asked is None else None
        if barred is not None:
            return self._finish(case, barred, file)
        judgement, log = self._attempt(case, pages=self.options.pages) if asked is None else asked[:2]
        repeated, saved = "", ""
        if judgement.verdict in BAD and judgement.verdict != Verdict.INTERNAL:
            judgement, repeated, saved = self._look_again(case, judgement)
            stack = self._stack(case, judgement, repeated)
            log = "\n".join(text for text in (log, stack, driver_log(self.options.driver_log)) if text)
        self._history.append(case)
        self._draw(case, judgement)
        if repeated == "sequence" and saved:
            file = str(self.folder / saved)  # alone the case does not fail
        seconds = time.perf_counter() - started
        rest = {"repeated": repeated, "saved": saved, "log": log, "seconds": seconds}
        return self._finish(case, judgement, file, sample=self.driver.sample(), **rest)

    def _look_again(self, case: TestCase, judgement: Judgement) -> tuple[Judgement, str, str]:
        """Repeats a failure and saves it, as far as there is not enough of its kind: verdict, how, file."""
        kind = (case.origin.operation, judgement.cause.value)
        self._failures[kind] += 1
        repeated, kept = "", case
        if self._failures[kind] <= REPEATS_PER_KIND and self._repeats < REPEATS:
            self._repeats += 1
            found = confirm(case, judgement, list(self._history), self._fresh)
            judgement, repeated, kept = found.judgement, found.how, found.case
        if repeated or judgement.verdict in (Verdict.CRASH, Verdict.HANG):
            self._history.clear()  # another process has seen none of it
        saved = self._save(kept) if self._failures[kind] <= SAVED_PER_KIND else ""
        return judgement, repeated, saved

    def _stack(self, case: TestCase, judgement: Judgement, repeated: str) -> str:
        """The native stack of a crash that repeats, for the first of each operation."""
        operation = case.origin.operation
        crashed = judgement.verdict == Verdict.CRASH and repeated == "same" and not self.driver.in_process
        if not crashed or self.driver.spec is None or operation in self._stacks or len(self._stacks) >= STACKS:
            return ""
        self._stacks.add(operation)
        return crash_stack(self.driver.spec, lambda device: run(case, device, self._canaries, level=self.level))

    def _restarted(self, fill: int | None = None, /) -> Device:
        self.driver.restart(fill)
        return self.driver.device

    def close(self) -> None:
        """Ends driver and records."""
        self.driver.close()
        self._canaries.close()
        self.records.close()

    def _draw(self, case: TestCase, judgement: Judgement) -> None:
        """Keeps the partition of a case that failed, or where a failure was hidden."""
        interesting = judgement.verdict in BAD or self._remarks.hidden
        if interesting and self._remarks.draw is not None and self._drawn < DRAWN:
            self._drawn += 1
            folder = self.folder / "partitions"
            folder.mkdir(exist_ok=True)
            (folder / f"{case.id}.dot").write_text(self._remarks.draw(), encoding="utf-8")

    def _attempt(self, case: TestCase, *, pages: bool) -> tuple[Judgement, str]:
        """Runs and judges a case, and adds what the driver's side remarks."""
        judgement, log = self._try(case, pages=pages)
        self._remarks = self.driver.remarks()
        return remarked(judgement, self._remarks), log

    def _try(self, case: TestCase, *, pages: bool) -> tuple[Judgement, str]:
        """Runs and judges a case, its memory between canaries or between inaccessible pages."""
        arena = self._pages if pages and not self.driver.in_process else self._canaries
        try:
            device, level = self.driver.device, self.level
            started = time.perf_counter()
            outcome = run(case, device, arena, in_process=self.driver.in_process, level=level, restart=self._restarted)
            self.asking += time.perf_counter() - started
            return judge(case, outcome), outcome.log
        except UsageError as error:  # it could be loaded before
            return Judgement(Verdict.CRASH, Cause.DIED, "start", f"does not start again: {error}"), ""
        except SuiteError as error:
            return Judgement(Verdict.INTERNAL, Cause.SUITE, "run", str(error)), ""
        except Exception as error:  # a defect of the suite; it must not end the run or be charged to the driver
            text = f"{type(error).__name__} in the suite: {error}"
            return Judgement(Verdict.INTERNAL, Cause.SUITE, "run", text), ""

    def _fresh(self, cases: Sequence[TestCase]) -> Judgement:
        """Runs cases in a fresh process and judges the last one.

        A case alone is run with the other kind of guards first: pages find the first byte outside, canaries name it.
        """
        if len(cases) == 1 and not self.driver.in_process:
            judgement = self._sequence(cases, pages=not self.options.pages)
            if judgement.verdict in BAD:
                return judgement
        return self._sequence(cases, pages=self.options.pages)

    def _sequence(self, cases: Sequence[TestCase], *, pages: bool) -> Judgement:
        try:
            self.driver.restart()
        except UsageError as error:  # it could be loaded before
            return Judgement(Verdict.CRASH, Cause.DIED, "start", f"does not start again: {error}")
        judgement = Judgement(Verdict.PASS)
        for case in cases:
            judgement, _ = self._attempt(case, pages=pages)
        return judgement

    def _barred(self, case: TestCase) -> Judgement | None:
        """Why a case does not apply to this driver, or None."""
        facts, level = self.facts, self.level
        if isinstance(facts, Judgement):
            return facts
        if case.highest is not None and case.highest < level:
            text = f"there is no such thing above level {case.highest.version}; the driver is tested at {level.version}"
            return Judgement(Verdict.NOT_APPLICABLE, Cause.LEVEL, "select", text)
        if case.level > level:
            text = f"needs level {case.level.version}; the driver is tested at {level.version}"
            return Judgement(Verdict.NOT_APPLICABLE, Cause.LEVEL, "select", text)
        if case.until is not None and facts.level >= case.until:
            text = f"the rule is lifted at level {case.until.version}; the driver is of {facts.level.version}"
            return Judgement(Verdict.NOT_APPLICABLE, Cause.LEVEL, "select", text)
        if case.negative and not facts.traits.validates:
            text = "the driver is an adapter that does not validate models itself"
            return Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "select", text)
        modes = {step.mode for step in case.steps} - {ExecutionMode.SYNCHRONOUS, *facts.traits.execution_modes}
        if modes:
            text = f"the driver does not declare {', '.join(sorted(mode.name.lower() for mode in modes))} execution"
            return Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "select", text)
        for need in case.needs:
            if need.startswith(EXTENSION):
                if need.removeprefix(EXTENSION) not in self.extensions:
                    text = f"the driver does not list the extension {need.removeprefix(EXTENSION)}"
                    return Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "select", text)
            elif not getattr(facts.traits, need):
                text = f"the driver does not declare {need.replace('_', ' ')}"
                return Judgement(Verdict.NOT_APPLICABLE, Cause.TRAIT, "select", text)
        return None

    def _save(self, case: TestCase) -> str:
        path = self.folder / "failures" / f"{case.id}.case"
        save(case, path)
        return str(path.relative_to(self.folder))

    def _finish(self, case: TestCase, judgement: Judgement, file: str = "", **rest: Any) -> Record:
        poor = judgement.verdict == Verdict.POOR
        name = case.id if case.digest else f"{case.origin.batch}-{case.origin.number}"
        waiver = self.waivers.cover(name, judgement.verdict.value)
        options = self.options
        line = shlex.join(
            [
                "pytest",
                *(options.selection or (f"--driver={options.driver}",)),
                *options.arguments,
                f"--case={file or name}",
            ]
        )
        record = record_of(case, judgement, repeat=line, waiver=waiver, **rest)
        record = replace(record, id=name)
        self.records.case(record)
        self.counts[record.verdict] += 1
        if not waiver and (judgement.verdict in BAD or (poor and options.fail_poor)):
            self.failed += 1
        return record


def _failing(draft: Draft) -> TestCase:
    """The case of a draft with whose question the driver fails; the question, where that says all that there is."""
    try:
        case = draft.make()
    except Exception:  # it is not applicable, cannot be made, or rests on a driver that fails, too
        case = None
    return seal(draft.question) if case is None else case


def _silence(error: Exception, in_process: bool) -> Judgement:
    """The verdict on a driver that does not say what it is."""
    text = f"the driver does not say what it is: {error}"
    if isinstance(error, DriverTimedOut):
        return Judgement(Verdict.HANG, Cause.SILENT, "start", text)
    if isinstance(error, (DriverDied, UsageError)):
        return Judgement(Verdict.CRASH, Cause.DIED, "start", text)
    if isinstance(error, DriverError):
        return Judgement(Verdict.FAIL, Cause.STATUS, "start", text)
    if isinstance(error, UncleanError) or in_process:
        return Judgement(Verdict.FAIL, Cause.UNCLEAN_ERROR, "start", text)
    return Judgement(Verdict.INTERNAL, Cause.SUITE, "start", f"{type(error).__name__} in the suite: {error}")


def driver_log(source: str) -> str:
    """The end of a log that is kept elsewhere: a file's, or what a command writes."""
    if not source:
        return ""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode(errors="replace")
    try:
        done = subprocess.run(source, shell=True, capture_output=True, timeout=LOG_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"the log command {source!r} did not end within {LOG_SECONDS:g} s"
    return (done.stdout + done.stderr)[-LOG_BYTES:].decode(errors="replace")


def failure_text(record: Record, driver: str, folder: Path = Path()) -> str:
    """A failing case in the form that a person reads: what was due, what came, where, how to repeat."""
    lines = [f"{record.id} on {driver}: {record.verdict} ({record.cause}) at {record.stage}"]
    lines += [f"  {line}" for line in record.message.splitlines()]
    if record.detail:
        lines.append(f"  operands: {record.detail}")
    if record.verdict == Verdict.CRASH.value:
        lines += [f"  {'  ' * bool(number)}{line[:SHOWN]}" for number, line in enumerate(frames_in(record.log))]
    lines += [f"  note: {note}" for note in record.notes]
    if record.repeated == "sequence":
        lines.append("  fails only behind the cases before it; the whole sequence is saved")
    if record.saved:
        lines.append(f"  saved: {folder / record.saved}")
    lines.append(f"  repeat: {record.repeat}")
    return "\n".join(lines)


def facts_header(facts: DriverFacts) -> dict[str, Any]:
    """What a plan's line says of the driver."""
    traits = asdict(facts.traits)
    traits["execution_modes"] = sorted(ExecutionMode(m).name.lower() for m in facts.traits.execution_modes)
    return {
        "driver_version": facts.version,
        "driver_type": facts.type,
        "feature_level": int(facts.level),
        "traits": traits,
    }
