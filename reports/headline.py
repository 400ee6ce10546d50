"""What a run amounts to: the verdict in one sentence, and what a reader must know before believing it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.record import Run
from reports.parts import SUITES, suite_of
from reports.tables import DRIVER_FAULTS, INTERNAL, NOT_APPLICABLE, NOT_RUN, NOT_SUPPORTED, POOR, Tally, planned

SHORT_PROFILES = ("ci",)  # a part of the quick profile; the others are profiles in their own right
TONES = ("bad", "warn", "good")  # the worst first
CONFORMANCE = SUITES[0]  # alone may call a driver conformant
_SHORT = {"stress": "The stress runs were shortened: they take less time than the public tests."}


@dataclass(frozen=True)
class Headline:
    """The sentence that heads a page.

    Attributes:
        tone: `bad`, `warn` or `good`.
        text: the verdict.
        notes: what limits it, a sentence each.
    """

    tone: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Totals:
    """Numbers that a verdict rests on.

    Attributes:
        tally: by verdict; what was selected and has no record is NOT_RUN.
        selected: number of cases that were to run.
        failed: number of cases that fail the run and are the driver's, without the waived ones.
        waived: number of failing or poor cases that a waiver covers.
        internal: number of cases that ended in a defect of the suite.
        negative: number of negative cases that were judged.
        problems: what is wrong with the records themselves.
    """

    tally: Tally
    selected: int
    failed: int
    waived: int
    internal: int
    negative: int
    problems: tuple[str, ...]


def options(run: Run) -> list[str]:
    """The command line's arguments, where they were recorded."""
    found = run.plan.get("options")
    return [str(item) for item in found] if isinstance(found, list) else str(found or "").split()


def fail_poor(run: Run) -> bool:
    """Whether the run counts poor arithmetic as a failure."""
    return run.plan.get("fail_poor") is True or "--fail-poor" in options(run)


def traits(run: Run) -> Mapping[str, object]:
    """What the driver declares of itself; empty where it was not recorded."""
    found = run.plan.get("traits")
    return found if isinstance(found, dict) else {}


def totals(run: Run) -> Totals:
    """Counts a run and checks that the counts are whole."""
    tally = Tally()
    faults = {*DRIVER_FAULTS, POOR} if fail_poor(run) else set(DRIVER_FAULTS)
    failed = waived = internal = negative = 0
    for record in run.records.values():
        tally.add(record)
        internal += record.verdict == INTERNAL
        waived += bool(record.waiver)
        failed += record.verdict in faults and not record.waiver
        negative += bool(record.rule) and (record.verdict == "PASS" or record.verdict in DRIVER_FAULTS)
    tally.counts[NOT_RUN] += max(run.selected - len(run.records), 0)
    return Totals(tally, run.selected, failed, waived, internal, negative, tuple(_problems(run, tally)))


def _problems(run: Run, tally: Tally) -> list[str]:
    found = []
    if not run.plan:
        found.append("The records hold no plan, so what was selected is not known.")
    elif tally.total != run.selected:
        found.append(
            f"The verdict counts add up to {tally.total:,}, but {run.selected:,} cases were selected: "
            "the records are not those of one whole run."
        )
    batches = planned(run)
    strangers = sum(record.batch not in batches for record in run.records.values()) if batches else 0
    if strangers:
        found.append(f"{strangers:,} records belong to no batch of the plan.")
    if batches and sum(batches.values()) != run.selected:
        found.append(f"The batches of the plan hold {sum(batches.values()):,} cases, not {run.selected:,}.")
    if run.damaged:
        lines = "1 line of the records" if run.damaged == 1 else f"{run.damaged:,} lines of the records"
        found.append(f"{lines} could not be read, as when the suite is killed while it writes.")
    if run.foreign:
        found.append(f"Records have verdicts or causes that this suite does not know: {', '.join(run.foreign)}.")
    return found


def cases(count: int) -> str:
    """A number of cases in words."""
    return "1 case" if count == 1 else f"{count:,} cases"


def unvalidated(run: Run, known: Totals) -> str:
    """Why validation was not tested; empty where it was."""
    if suite_of(run) != CONFORMANCE:
        return ""  # none of its business
    if traits(run).get("validates") is False:
        return "The driver is an adapter that does not check models itself, so no negative case was put to it."
    if not known.negative:
        return "No negative case was judged in this run."
    return ""


def limits(run: Run, known: Totals) -> list[str]:
    """Sentences on what makes a run less than the whole suite, or its failures fewer than they were."""
    found = []
    if run.plan.get("filtered"):
        found.append("The run was filtered: only the cases named on the command line were selected.")
    profile = run.plan.get("profile")
    if profile in SHORT_PROFILES:
        found.append(f"The run was shortened: profile {profile} holds a part of profile quick.")
    if run.plan.get("shortened"):
        short = "The run was shortened: it measures less, or for less time, than the whole benchmark."
        found.append(_SHORT.get(suite_of(run), short))
    if known.waived:
        verb = "is" if known.waived == 1 else "are"
        found.append(f"{cases(known.waived)} {verb} waived: counted below, with the reason, but not as a failure.")
    return found


def headline(run: Run, known: Totals) -> Headline:
    """The verdict on a run."""
    why = unvalidated(run, known)
    notes = [*limits(run, known), *([why] if why else [])]
    skipped = known.tally[NOT_SUPPORTED]
    if skipped:
        verb = "asks" if skipped == 1 else "ask"
        notes.append(f"{cases(skipped)} of {known.selected:,} {verb} for what the driver does not support.")
    if known.tally[NOT_APPLICABLE]:
        notes.append(f"{cases(known.tally[NOT_APPLICABLE])} left out, by the driver's level or by what it declares.")
    if known.tally[POOR]:
        poor = "arithmetic within what is allowed for each element, but poor as a whole."
        poor = "slower, or slower and slower, by more than the margin." if suite_of(run) == "mlts" else poor
        notes.append(f"{cases(known.tally[POOR])}: {poor}")
    tone, text = _verdict(run, known, filtered=bool(limits(run, known)), validated=not why)
    if why:
        text += "; validation not tested"
    return Headline(tone, text, tuple(notes))


def _verdict(run: Run, known: Totals, *, filtered: bool, validated: bool) -> tuple[str, str]:
    of = f"{known.selected:,}"
    internal = f"{cases(known.internal)} ended in an error of the suite itself"
    if not run.complete or known.tally[NOT_RUN]:
        return "bad" if known.failed else "warn", _incomplete(run, known)
    certifies = suite_of(run) == CONFORMANCE
    if known.failed:
        rest = f"; {internal}" if known.internal else ""
        return "bad", f"{'Not conformant' if certifies else 'Failures'}: {known.failed:,} of {of} cases failed{rest}"
    if known.internal:
        return "warn", f"No verdict: {internal}, of {of}; none failed"
    if suite_of(run) == "fuzz" and not known.tally.total:
        return "warn" if filtered else "good", "No failures: nothing was found"  # its records are findings
    if not known.tally.judged:
        return "warn", f"Nothing was judged: none of {cases(known.selected)} could be put to the driver"
    judged = f"{known.tally.judged:,} of {of} cases judged"
    if known.waived:
        return "warn", f"No failures that are not waived: {judged}, {known.waived:,} waived"
    if not certifies:
        return "warn" if filtered else "good", f"No failures: {judged}"
    if filtered or not validated:
        return "warn", f"No failures: {judged}" if filtered else "No failures"
    if known.tally[NOT_SUPPORTED]:
        return (
            "good",
            f"Conformant for what it supports: {judged}, none failed; {known.tally[NOT_SUPPORTED]:,} not supported",
        )
    return "good", f"Conformant: {judged}, none failed"


def overall(runs: Sequence[Run], found: Sequence[tuple[Headline, Totals]]) -> Headline:
    """The verdict on several runs: what each says stands in the table below it.

    Args:
        runs: of one driver or of several.
        found: headline and totals of each.
    """
    if len(runs) == 1:
        return found[0][0]
    failing = sum(bool(totals.failed) for _, totals in found)
    undone = sum(not run.complete or bool(known.tally[NOT_RUN]) for run, (_, known) in zip(runs, found, strict=True))
    limited = sum(bool(limits(run, known)) for run, (_, known) in zip(runs, found, strict=True))
    internal = sum(totals.internal for _, totals in found)
    judged = sum(totals.tally.judged for _, totals in found)
    failed, selected = (sum(getattr(totals, name) for _, totals in found) for name in ("failed", "selected"))
    of = f"of {len(runs):,} runs"
    parts = []
    if failing:
        parts.append(f"Failures in {failing:,} {of}: {failed:,} of {selected:,} cases failed")
    if undone:
        parts.append(f"INCOMPLETE: {undone:,} {of}")
    if internal:
        parts.append(f"{cases(internal)} ended in an error of the suite itself")
    text = "; ".join(parts) or f"No failures in {len(runs):,} runs: {judged:,} of {selected:,} cases judged"
    tones = {headline.tone for headline, _ in found}
    note = f"{limited:,} {of} {'was' if limited == 1 else 'were'} filtered or shortened, or had failures waived."
    return Headline(next(tone for tone in TONES if tone in tones), text, (note,) if limited else ())


def _incomplete(run: Run, known: Totals) -> str:
    have = len(run.records) - sum(record.verdict == NOT_RUN for record in run.records.values())
    if not run.plan:
        text = f"INCOMPLETE: {cases(have)} have a record; no plan says how many there should be"
    else:
        verb = "has" if known.selected == 1 else "have"
        text = f"INCOMPLETE: {have:,} of {cases(known.selected)} {verb} a record"
    text += "" if run.ended else "; the run did not end"
    if known.failed:
        text += f"; {known.failed:,} failed so far" if not run.ended else f"; {known.failed:,} failed"
    return text
