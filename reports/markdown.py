"""Summaries in Markdown, fit for a pull request: short, with details folded away, and no text of a driver is markup.

GitHub takes at most 65,536 characters in a comment. A driver's words stand in `<code>` elements with every sign that
means something to Markdown or HTML written as a character reference, so that they break neither tables nor pages and
name no people and no issues; or in fenced blocks, whose fence is longer than any in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.fates import IN_USE
from harness.record import Record, Run
from reports import compare as comparing
from reports import headline as heading
from reports import tables
from reports.headline import Headline, cases
from reports.parts import suite_of
from reports.speed import PER_SECOND, SECONDS, SLOWER, Pace
from reports.text import clean, clip, count_words, number, seconds

LIMIT = 65_536
ROOM = 2_000  # kept free for the lines that say what is left out, and for what a reader puts around the summary
CELL, LINE = 160, 600  # characters of a text in a table, and of a line to repeat a case
TOP, FOLDED = 10, 60  # groups with their line that repeats one, and rows in a folded table
SLOWEST = 15

_MARKUP = re.compile(r"[&<>|`*_~#$\[\]\\]")
_NAMING = re.compile(
    r"[@#]|:(?=//)|www(?=\.)", re.IGNORECASE
)  # what GitHub makes links of, where it stands before a name
TONES = {"good": "✅", "warn": "⚠️", "bad": "❌"}
_SPECIAL = re.compile(r"[&<>|`*_~#!$:@(){}\[\]\\\"']|(?<=www)\.", re.IGNORECASE)


def code(text: object, limit: int = CELL) -> str:
    """A foreign text in one line, as it stands; an empty one stays empty."""
    line = clip(" ".join(clean(text).split()), limit)
    return f"<code>{_SPECIAL.sub(_reference, line)}</code>" if line else ""


def _reference(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def block(text: object, limit: int = LINE) -> str:
    """A foreign text as a fenced block."""
    body = clip(clean(text), limit)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{body}\n{fence}"


@dataclass
class Sheet:
    """A summary that grows until it is full; what does not fit is counted.

    Attributes:
        limit: characters of the whole.
    """

    limit: int = LIMIT
    _parts: list[str] = field(default_factory=list)
    _length: int = 0

    def add(self, *lines: str) -> bool:
        """Adds a paragraph of lines as a whole, or nothing; says whether it fits."""
        text = "\n".join(lines) + "\n\n"
        if self._length + len(text) > self.limit - ROOM:
            return False
        self._parts.append(text)
        self._length += len(text)
        return True

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], most: int, summary: str = "") -> None:
        """Adds a table of at most so many rows, as many as fit; folded away under a summary where there is one."""
        every = list(rows)
        if not every:
            return
        before = [f"<details><summary>{summary}</summary>", ""] if summary else []
        lines = [_row(heads), _row(["---"] * len(heads))]
        room = self.limit - ROOM - self._length - sum(map(len, (*before, *lines))) - 400
        shown = 0
        for row in every[:most]:
            line = _row(row)
            room -= len(line) + 1
            if room < 0:
                break
            lines.append(line)
            shown += 1
        if shown < len(every):
            lines += ["", f"{len(every) - shown:,} more rows are not shown."]
        self.add(*before, *lines, *(["", "</details>"] if summary else []))

    def text(self) -> str:
        """The summary; never longer than the limit."""
        return "".join(self._parts).rstrip() + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(sheet: Sheet, title: str, headline: Headline, facts: Sequence[tuple[str, object]]) -> None:
    sheet.add(f"## {TONES[headline.tone]} {title}")
    sheet.add(f"**{_words(headline.text)}**")
    sheet.table(["", ""], [(label, code(value)) for label, value in facts if value not in (None, "")], 30)
    _list(sheet, headline.notes)


def _list(sheet: Sheet, sentences: Sequence[str]) -> None:
    if sentences:
        sheet.add(*(f"- {_words(sentence)}" for sentence in sentences))


def _words(sentence: str) -> str:
    """A sentence of ours, which may hold a foreign name: no sign in it is markup, and it names nobody and nothing."""
    line = _NAMING.sub(lambda found: f"{found[0]}\N{WORD JOINER}", " ".join(clean(sentence).split()))
    return _MARKUP.sub(_reference, line)


def of_run(run: Run, limit: int = LIMIT) -> str:
    """The summary of one run."""
    totals = heading.totals(run)
    sheet = Sheet(limit)
    plan = run.plan
    facts = [
        ("driver", plan.get("driver") or plan.get("driver_name")),
        ("version", plan.get("driver_version")),
        ("suite", suite_of(run)),
        ("profile", plan.get("profile") or plan.get("preset")),
        ("seed", plan.get("seed")),
        ("run", run.folder.resolve().name),
    ]
    _head(sheet, f"nncts: {suite_of(run)}", heading.headline(run, totals), facts)
    _list(sheet, totals.problems)
    shown = [verdict for verdict in tables.ORDER if totals.tally[verdict]]
    sheet.table(shown, [[f"{totals.tally[verdict]:,}" for verdict in shown]] if shown else [], 1)
    faults = {*tables.DRIVER_FAULTS, tables.INTERNAL} | ({tables.POOR} if heading.fail_poor(run) else set())
    _groups(sheet, "Failures", [r for r in run.records.values() if r.verdict in faults and not r.waiver])
    _waived(sheet, [record for record in run.records.values() if record.waiver])
    idle = [[code(fate.cases), fate.state, code(fate.reason)] for fate in run.waivers if fate.state != IN_USE]
    sheet.table(["waiver", "", "reason"], idle, FOLDED, f"Waivers that cover nothing: {len(idle):,}")
    return sheet.text()


def _alike(records: Iterable[Record]) -> list[list[Record]]:
    """Records that ended in the same way stand together; deaths first, then the largest groups."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        key = (record.operation, record.verdict, record.cause, tables.shape(record.message))
        found.setdefault(key, []).append(record)
    order = {verdict: place for place, verdict in enumerate((*tables.DRIVER_FAULTS, tables.INTERNAL))}
    return sorted(found.values(), key=lambda some: (order.get(some[0].verdict, 9), -len(some), some[0].id))


def _groups(sheet: Sheet, title: str, records: Sequence[Record]) -> None:
    if not records:
        return
    groups = _alike(records)
    sheet.add(f"### {title}: {cases(len(records))} in {count_words(len(groups), 'group', 'groups')}")
    rows = [
        [code(some[0].operation, 80), f"{some[0].verdict} {some[0].cause}".strip(), f"{len(some):,}",
         code(tables.first_line(some[0].message))]
        for some in groups
    ]  # fmt: skip
    sheet.table(["operation", "verdict", "cases", "message of one"], rows[:TOP], TOP)
    _repeats(sheet, [some[0] for some in groups[:TOP]])
    sheet.table(["operation", "verdict", "cases", "message of one"], rows[TOP:], FOLDED, "The other groups")


def _repeats(sheet: Sheet, records: Sequence[Record]) -> None:
    lines = [record for record in records if record.repeat]
    if not lines:
        return
    body = [f"{code(record.id)}\n\n{block(record.repeat)}\n" for record in lines]
    while body and not sheet.add("<details><summary>Lines that repeat them</summary>", "", *body, "</details>"):
        body.pop()


def _waived(sheet: Sheet, records: Sequence[Record]) -> None:
    reasons: dict[str, list[Record]] = {}
    for record in records:
        reasons.setdefault(str(record.waiver), []).append(record)
    rows = [[code(reason), f"{len(some):,}", code(some[0].id)] for reason, some in reasons.items()]
    sheet.table(["reason of the waiver", "cases", "one of them"], rows, FOLDED, f"Waived: {cases(len(records))}")


# --- two runs ---------------------------------------------------------------------------------------------------------


def of_comparison(first: Run, second: Run, found: comparing.Comparison, limit: int = LIMIT) -> str:
    """The summary of two runs side by side."""
    sheet = Sheet(limit)
    facts = [("first run", _name(first)), ("second run", _name(second))]
    _head(sheet, "nncts: two runs compared", comparing.headline(found), facts)
    kinds = [(kind, found.changes[kind.key]) for kind in comparing.KINDS if found.changes.get(kind.key)]
    rows = [
        [kind.title, f"{len(changes):,}", "worse" if kind.worse else "", _words(kind.doc)] for kind, changes in kinds
    ]
    sheet.table(["change", "cases", "", "meaning"], rows, len(rows))
    _regressions(sheet, found)
    for kind, changes in kinds:
        if not kind.worse:
            _changes(sheet, f"{kind.title}: {len(changes):,}", changes)
    accuracy = [
        [code(one.operation, 80), code(one.signature), f"{one.compared:,}", number(one.before), number(one.after),
         f"× {number(one.factor)}"]
        for one in found.accuracy
    ]  # fmt: skip
    heads = ["operation", "signature", "cases", "error before", "error after", "factor"]
    sheet.table(heads, accuracy, FOLDED, f"Accuracy that changed, in units of what is allowed: {len(accuracy):,}")
    for table in found.paces:
        paces = sorted(table.rows, key=lambda row: row.verdict != SLOWER)
        lines = [
            [code(row.name), pace_value(row, row.before), pace_value(row, row.after), pace_ratio(row), row.verdict]
            for row in paces
        ]
        heads = ["", "before", "after", "ratio", ""]
        sheet.table(heads, lines, SLOWEST, f"{table.title}: {table.slower:,} slower of {len(lines):,}")
    _waived(sheet, found.waived)
    return sheet.text()


def _regressions(sheet: Sheet, found: comparing.Comparison) -> None:
    worse = [kind for kind in comparing.KINDS if kind.worse and found.changes.get(kind.key)]
    bundles = [(kind, bundle) for kind in worse for bundle in comparing.bundles(found.changes[kind.key])]
    if not bundles:
        return
    sheet.add(f"### Regressions: {cases(found.worse)} in {count_words(len(bundles), 'group', 'groups')}")
    rows = [
        [code(bundle.one.record.operation, 80), _ending(bundle.one.before), _ending(bundle.one.after),
         f"{len(bundle.changes):,}", code(tables.first_line(bundle.one.record.message))]
        for _, bundle in bundles
    ]  # fmt: skip
    heads = ["operation", "before", "after", "cases", "message of one"]
    sheet.table(heads, rows[:TOP], TOP)
    _repeats(sheet, [bundle.one.record for _, bundle in bundles[:TOP]])
    sheet.table(heads, rows[TOP:], FOLDED, "The other regressions")


def _changes(sheet: Sheet, title: str, changes: Sequence[comparing.Change]) -> None:
    rows = [
        [code(bundle.one.name), _ending(bundle.one.before), _ending(bundle.one.after), f"{len(bundle.changes):,}"]
        for bundle in comparing.bundles(changes)
    ]
    sheet.table(["one of the cases", "before", "after", "cases alike"], rows, FOLDED, title)


def _ending(record: Record | None) -> str:
    if record is None:
        return "–"
    return f"{record.verdict} {record.cause}".strip() + (", waived" if record.waiver else "")


def _name(run: Run) -> str:
    words = [
        str(run.plan.get("driver") or "unknown driver"),
        str(run.plan.get("driver_version") or ""),
        run.folder.name,
    ]
    return " · ".join(word for word in words if word)


def pace_value(row: Pace, value: float) -> str:
    """A measured number with its unit."""
    if row.unit == SECONDS:
        return seconds(value)
    return f"{number(value)} /s" if row.unit == PER_SECOND else f"{number(value)} ×"


def pace_ratio(row: Pace) -> str:
    """A ratio with its interval."""
    words = f"× {number(row.ratio.value)}"
    if row.ratio.low is None or row.ratio.high is None:
        return words
    return f"{words} ({number(row.ratio.low)} to {number(row.ratio.high)})"
