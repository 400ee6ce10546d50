"""The sections of fuzzing runs and of campaigns of random graphs: what they reached, how fast, what they found.

What a run says of itself stands in its plan and its end marker; where that is missing, the records tell what they can.
Distinct failures of a campaign are in failures.jsonl of its folder, as the campaign told them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from harness.record import Record, Run
from reports import curves, reaching, sections, text
from reports.parts import Part, suite_of
from reports.tables import DRIVER_FAULTS, ORDER, real
from reports.text import count_words

FUZZ, GRAPHS = "fuzz", "graphs"
FAILURES = "failures.jsonl"
KNOWN = "known since"  # begins the note of a finding that is one more of a known one
FINDINGS = 100  # shown of a run
NAMED = 5  # graphs that are named of a failure
ROWS = 200  # of targets, mixes and operations
NUMBERS = ("inputs", "cases", "unsupported", "seconds", "edges", "corpus", "findings", "ends", "rate")


# --- fuzzing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a target came to.

    Attributes:
        numbers: by the names of `NUMBERS`; None where one is not known.
        found: number of records by what they are: `new` or `known`.
    """

    name: str
    numbers: Mapping[str, float | None]
    found: Mapping[str, int]

    @property
    def ran(self) -> bool:
        """Whether it had a turn, as far as is known."""
        return bool(self.numbers["inputs"] or self.numbers["seconds"])


@dataclass(frozen=True)
class Found:
    """A finding of a fuzzing run.

    Attributes:
        case: file of the minimised case, below the run's folder.
        input: file of the bytes that it was found with, below the run's folder; empty where they are not there.
    """

    record: Record
    case: str
    input: str


@dataclass(frozen=True)
class Fuzzed:
    """A fuzzing run.

    Attributes:
        facts: label and words.
        new: findings that were not known before.
        known: records that are one more of a known finding.
        looked: records of inputs that did not fail when they were looked at again, or are the suite's.
        curve: what it came to as it went on.
    """

    run: Run
    facts: Sequence[tuple[str, str]]
    targets: Sequence[Target]
    new: Sequence[Found]
    known: Sequence[Record]
    looked: Sequence[Record]
    problems: Sequence[str]
    curve: curves.Curve

    @property
    def furthest(self) -> float:
        """Places that the target that reached most has reached."""
        return max((target.numbers["edges"] or 0.0 for target in self.targets), default=0.0)


def fuzzing(runs: Sequence[Run]) -> list[Part]:
    """The section of all fuzzing runs, where there are any."""
    fuzzed = [_fuzzed(run) for run in runs if suite_of(run) == FUZZ]
    if not fuzzed:
        return []
    template = sections.environment().get_template("fuzzing.html")
    body = template.render(fuzzed=fuzzed, anchor=FUZZ, shown=FINDINGS)
    return [
        Part(
            FUZZ, "Fuzzing", Markup(body), sum(len(one.new) for one in fuzzed), charts=True, styles=(sections.sheet(),)
        )
    ]


def _fuzzed(run: Run) -> Fuzzed:
    records = list(run.records.values())
    known = [record for record in records if any(str(note).startswith(KNOWN) for note in record.notes)]
    seen = {id(record) for record in known}
    rest = [record for record in records if id(record) not in seen]
    new = [_found(run, record) for record in rest if record.verdict in DRIVER_FAULTS]
    looked = [record for record in rest if record.verdict not in DRIVER_FAULTS]
    targets = _targets(run, new, known)
    asked = sections.mapping_of(run.plan.get("fuzz"))
    inputs = [count for target in targets if (count := target.numbers["inputs"]) is not None]
    seconds = sections.amount_of(run.end.get("seconds"))
    facts = [
        ("inputs", f"{sum(inputs):,.0f}" if inputs else "not recorded"),
        ("inputs a second", text.number(sum(inputs) / seconds) if inputs and seconds else "not recorded"),
        ("new findings", f"{len(new):,}"),
        ("known ones, seen again", f"{len(known):,}"),
        ("time", _time_words(seconds, asked.get("seconds"))),
        ("processes at once", _words(asked.get("jobs"))),
        ("seed", _words(asked.get("seed"))),
        ("guided by", "its answers alone" if asked.get("isolated") is True else "coverage, where the driver has any"),
        ("ended", sections.ending_words(run)),
    ]
    problems = []
    if not sections.mapping_of(run.end.get("targets")):
        problems.append("The run has no numbers of its targets: what stands here is what its records tell.")
    curve = curves.curve_of(run)
    if curve.damaged:
        problems.append(f"{count_words(curve.damaged, 'line', 'lines')} of {curves.PROGRESS} could not be read.")
    return Fuzzed(run, facts, targets, new, known, looked, problems, curve)


def _found(run: Run, record: Record) -> Found:
    saved = sections.word_of(record.saved)
    folder, _, _ = saved.rpartition("/")
    name = f"{folder}/{record.signature}-{str(record.id).rpartition('-')[2]}.bin".lstrip("/")
    return Found(record, saved, name if saved and _is_file(run, name) else "")


def _is_file(run: Run, name: str) -> bool:
    """Whether a run's folder holds a file; a name that leads out of it is none."""
    try:
        path = (run.folder / name).resolve()
        return path.is_relative_to(run.folder.resolve()) and path.is_file()
    except (OSError, ValueError):
        return False


def _targets(run: Run, new: Iterable[Found], known: Iterable[Record]) -> list[Target]:
    told = sections.mapping_of(run.end.get("targets"))
    asked = sections.list_of(sections.mapping_of(run.plan.get("fuzz")).get("targets"))
    fresh = Counter(str(found.record.signature) for found in new)
    again = Counter(str(record.signature) for record in known)
    names = dict.fromkeys([*map(str, told), *map(str, asked), *fresh, *again])
    found = []
    for name in list(names)[:ROWS]:
        row = sections.mapping_of(told.get(name))
        numbers = {one: sections.amount_of(row.get(one)) for one in NUMBERS}
        found.append(Target(name, numbers, {"new": fresh[name], "known": again[name]}))
    return found


# --- campaigns of random graphs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Distinct:
    """Failing graphs that are one failure as far as can be told.

    Attributes:
        operations: of its minimised graph.
        how: in what way it fails.
        note: why it was not minimised; empty where it was.
        count: of graphs.
        case: file of the minimised case below the run's folder; empty where there is none.
        repeat: the line that repeats it.
        waiver: why it is waived, or empty.
        seeds: mix and seed of each graph.
    """

    verdict: str
    cause: str
    how: str
    operations: Sequence[str]
    message: str
    note: str
    count: int
    case: str
    repeat: str
    waiver: str
    seeds: Sequence[tuple[str, int]]

    @property
    def named(self) -> str:
        """The first of its graphs, each by its mix and seed."""
        return ", ".join(f"{mix} {seed}" for mix, seed in self.seeds[:NAMED])


@dataclass(frozen=True)
class Campaign:
    """A campaign of random graphs.

    Attributes:
        facts: label and words.
        spent: seconds by what they were spent on.
        mixes: number of graphs by verdict, by mix.
        operations: as `reaching.operations` gives them.
        strange: names among them that are no operations.
    """

    run: Run
    facts: Sequence[tuple[str, str]]
    spent: Mapping[str, float]
    mixes: Mapping[str, Mapping[str, int]]
    operations: Mapping[str, Mapping[str, int]]
    strange: int
    distinct: Sequence[Distinct]
    discovery: reaching.Discovery
    problems: Sequence[str] = field(default_factory=list)

    @property
    def shares(self) -> list[float]:
        """The same as `spent`, of the whole."""
        whole = sum(self.spent.values())
        return [seconds / whole for seconds in self.spent.values()] if whole else []


def graphs(runs: Sequence[Run]) -> list[Part]:
    """The section of all campaigns of random graphs, where there are any."""
    campaigns = [_campaign(run) for run in runs if suite_of(run) == GRAPHS]
    if not campaigns:
        return []
    there = {verdict for one in campaigns for tally in one.mixes.values() for verdict in tally}
    template = sections.environment().get_template("campaigns.html")
    body = template.render(
        campaigns=campaigns,
        anchor=GRAPHS,
        shown=FINDINGS,
        known=len(reaching.OPERATIONS),
        columns=[verdict for verdict in ORDER if verdict in there],
        faults=DRIVER_FAULTS,
        named=NAMED,
    )
    return [
        Part(
            GRAPHS,
            "Random graphs",
            Markup(body),
            sum(len(one.distinct) for one in campaigns),
            charts=True,
            styles=(sections.sheet(),),
        )
    ]


def _campaign(run: Run) -> Campaign:
    records = list(run.records.values())
    distinct, damaged = _distinct(run)
    spent = {
        str(name)[:40]: seconds
        for name, value in list(sections.mapping_of(run.end.get("spent")).items())[:ROWS]
        if (seconds := sections.amount_of(value)) is not None
    }
    mixes: dict[str, Counter[str]] = {}
    for record in records:
        mixes.setdefault(str(record.signature), Counter())[record.verdict] += 1
    found, strange = reaching.operations(records)
    failing = [record for record in records if record.bad]
    problems = []
    if damaged:
        problems.append(f"{count_words(damaged, 'line', 'lines')} of {FAILURES} could not be read.")
    if failing and not distinct:
        told = count_words(len(failing), "failure was", "failures were")
        problems.append(f"{told} not told apart: there is no {FAILURES}.")
    if not sections.mapping_of(run.end):
        problems.append("The run has no end marker: where its time went is not known, and graphs may lack a record.")
    discovery = reaching.discovery(records, [one.seeds for one in distinct])
    facts = _graph_facts(run, len(records), len(distinct))
    return Campaign(run, facts, spent, mixes, found, strange, distinct, discovery, problems)


def _graph_facts(run: Run, count: int, distinct: int) -> list[tuple[str, str]]:
    plan = run.plan
    seconds = sections.amount_of(run.end.get("seconds", plan.get("seconds")))
    rate = sections.amount_of(run.end.get("rate"))
    if rate is None and seconds:
        rate = count / seconds
    asked = "single graphs, by their seeds" if plan.get("graphs") else _words(plan.get("count"))
    return [
        ("graphs", f"{count:,}" + (f" of {run.selected:,}" if run.selected > count else "")),
        ("graphs a second", text.number(rate) if rate is not None else "not recorded"),
        ("distinct failures", f"{distinct:,}"),
        ("time", _time_words(seconds, plan.get("for"))),
        ("asked for", asked if plan.get("for") is None else "as many as there is time for"),
        ("mixes", ", ".join(_words(mix) for mix in sections.list_of(plan.get("mixes"))[:20]) or "not recorded"),
        ("seed", _words(plan.get("seed"))),
        ("held against", _words(plan.get("against") or plan.get("oracle"))),
        ("ended", sections.ending_words(run)),
    ]


def _distinct(run: Run) -> tuple[list[Distinct], int]:
    """The distinct failures of a campaign, those in most graphs first, and how many lines could not be read."""
    found = []
    damaged = 0
    for row in sections.rows_of(run.folder / FAILURES):
        if row is None:
            damaged += 1
            continue
        record = sections.mapping_of(row.get("record"))
        seeds = [*_seeds(row.get("seeds")), *_seeds(row.get("alike"))]
        saved = sections.word_of(record.get("saved"))
        pending = "not come to before the end" if row.get("pending") is True else ""
        found.append(
            Distinct(
                sections.word_of(row.get("verdict"), 40),
                sections.word_of(row.get("cause"), 40),
                sections.word_of(row.get("mismatch")),
                [sections.word_of(one, 80) for one in sections.list_of(row.get("operations"))[:20]],
                sections.word_of(record.get("message"), 1000),
                sections.word_of(row.get("note")) or pending,
                max(int(sections.amount_of(row.get("count")) or 0), len(seeds)),
                saved if saved and _is_file(run, saved) else "",
                sections.word_of(record.get("repeat"), 2000),
                sections.word_of(record.get("waiver")),
                seeds,
            )
        )
    return sorted(found, key=lambda one: -one.count), damaged


def _seeds(value: object) -> list[tuple[str, int]]:
    pairs = (
        (str(mix)[:80], seed) for mix, some in sections.mapping_of(value).items() for seed in sections.list_of(some)
    )
    return [(mix, seed) for mix, seed in pairs if type(seed) is int and abs(seed) < 1e18]


# --- words ------------------------------------------------------------------------------------------------------------


def _words(value: object) -> str:
    return sections.word_of(value, 80) or "not recorded"


def _time_words(seconds: float | None, asked: object) -> str:
    limit = real(asked)
    words = text.seconds(seconds) if seconds is not None else "not recorded"
    return words if limit is None else f"{words}; {text.seconds(limit)} asked for"
