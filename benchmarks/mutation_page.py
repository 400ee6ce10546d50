"""What `benchmarks.mutation_score` counts, and the page `docs/mutation-score.md` that it makes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.generic_faults import FAULTS
from benchmarks.mutation_reasons import CONFORMING, EQUIVALENT, REASONS, UNREACHED


class Pair(NamedTuple):
    """An operation with a fault at a place."""

    operation: str
    fault: str
    place: str


@dataclass
class Tally:
    """Counts of the cases of a pair.

    Attributes:
        tried: cases in which the fault can be put.
        changed: those whose stored results it changes.
        noticed: those judged FAIL or POOR.
        where: signatures in which the fault can be put.
        changing: signatures with a case that it changes.
        noticing: signatures with a case that notices it.
        worst: largest error met, in units of the allowed one.
    """

    tried: int = 0
    changed: int = 0
    noticed: int = 0
    where: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    noticing: set[str] = field(default_factory=set)
    worst: float = 0.0

    def count(self, signature: str, changes: bool, notices: bool, error: float | None) -> None:
        """One more case."""
        self.tried += 1
        self.where.add(signature)
        if changes:
            self.changed += 1
            self.changing.add(signature)
            self.worst = max(self.worst, error or 0.0)
        if notices:
            self.noticed += 1
            self.noticing.add(signature)

    def add(self, other: Tally) -> None:
        """The cases of another tally too."""
        self.tried += other.tried
        self.changed += other.changed
        self.noticed += other.noticed
        self.where |= other.where
        self.changing |= other.changing
        self.noticing |= other.noticing
        self.worst = max(self.worst, other.worst)


Tallies = dict[Pair, Tally]


def gather(into: Tallies, more: Mapping[Pair, Tally]) -> None:
    """Adds tallies to others."""
    for pair, tally in more.items():
        into.setdefault(pair, Tally()).add(tally)


def total(tallies: Iterable[Tally]) -> Tally:
    """All cases of several tallies."""
    result = Tally()
    for tally in tallies:
        result.add(tally)
    return result


@dataclass
class Scores:
    """Tallies of all pairs.

    Attributes:
        first: by the same few cases of each signature.
        rest: by the profile's other cases, for pairs that those did not notice.
        others: by draws with another seed, for pairs that change nothing in the profile.
    """

    first: Tallies = field(default_factory=dict)
    rest: Tallies = field(default_factory=dict)
    others: Tallies = field(default_factory=dict)

    def all(self, pair: Pair) -> Tally:
        """All the profile's cases of a pair that were tried."""
        return total(t[pair] for t in (self.first, self.rest) if pair in t)

    def pairs(self, operation: str | None = None, fault: str | None = None) -> list[Pair]:
        """Pairs that can be made in the profile's cases."""
        found = {**self.first, **self.rest}
        return [p for p in found if operation in (None, p.operation) and fault in (None, p.fault)]

    def noticed(self, pair: Pair) -> bool:
        """Whether a case notices it."""
        return self.all(pair).noticed > 0

    def unchanged(self, pair: Pair) -> bool:
        """Whether it changes nothing, neither in the profile nor in other draws."""
        return not self.all(pair).changed and not (pair in self.others and self.others[pair].changed)

    def doubtful(self, pair: Pair, draws: int) -> bool:
        """Whether it has changed nothing so far, in fewer other draws than these."""
        return self.unchanged(pair) and (pair not in self.others or self.others[pair].tried < draws)

    def equivalent(self, pair: Pair) -> bool:
        """Whether the fault is none: nothing changes, and not for want of draws that could show it."""
        return self.unchanged(pair) and pair not in UNREACHED

    def conforming(self, pair: Pair) -> bool:
        """Whether what it changes is right as well, and so is not noticed."""
        faults, _ = CONFORMING.get((pair.operation, pair.place), (frozenset({""}), ""))
        return not self.noticed(pair) and not self.unchanged(pair) and (not faults or pair.fault in faults)

    def telling(self, pairs: Iterable[Pair]) -> list[Pair]:
        """Pairs that ought to be noticed."""
        return [pair for pair in pairs if not self.equivalent(pair) and not self.conforming(pair)]

    def counted(self, pairs: Iterable[Pair]) -> tuple[int, int]:
        """How many pairs are noticed, of how many that ought to be."""
        telling = self.telling(pairs)
        return sum(map(self.noticed, telling)), len(telling)

    def missed(self) -> list[Pair]:
        """Pairs that ought to be noticed and are not."""
        return sorted(pair for pair in self.telling(self.pairs()) if not self.noticed(pair))

    def in_order(self, operations: Sequence[str]) -> Scores:
        """The same with pairs in the order of the operations and the faults, not in that in which they came in."""
        faults = [fault.key for fault in FAULTS]

        def ordered(tallies: Tallies) -> Tallies:
            key = {pair: (operations.index(pair.operation), faults.index(pair.fault), pair.place) for pair in tallies}
            return {pair: tallies[pair] for pair in sorted(tallies, key=key.__getitem__)}

        return Scores(ordered(self.first), ordered(self.rest), ordered(self.others))

    def cases(self, pairs: Iterable[Pair]) -> Tally:
        """The first round's cases of those pairs that ought to be noticed."""
        return total(self.first[pair] for pair in self.telling(pairs) if pair in self.first)

    def summary(self) -> str:
        """The scores in a sentence."""
        noticed, telling = self.counted(self.pairs())
        cases = self.cases(self.pairs())
        return (
            f"{noticed} of {telling} pairs noticed ({share(noticed, telling)}), "
            f"{cases.noticed} of {cases.changed} changed cases ({share(cases.noticed, cases.changed)})"
        )


def share(part: int, whole: int) -> str:
    """A share with three digits, cut off so that 1.000 means all."""
    return f"{part * 1000 // whole / 1000:.3f}" if whole else "-"


# --- the page ---------------------------------------------------------------------------------------------------------


def page(scores: Scores, profile: str, count: int, further: int) -> str:
    """The whole page."""
    parts = [
        _head(profile, count, further),
        _totals(scores),
        _by_fault(scores),
        _table(scores),
        _missed(scores),
        _signatures(scores),
        _conforming(scores),
        _equivalent(scores, further),
    ]
    return "\n".join("\n".join(part) for part in parts)


def _operations(scores: Scores) -> list[str]:
    return list(dict.fromkeys(pair.operation for pair in scores.first))


def _head(profile: str, count: int, further: int) -> Iterator[str]:
    yield f"""# Mutation score

Generated by `python -m benchmarks.mutation_score --profile={profile} --cases={count}`; do not edit.

How much of what a driver may get wrong do the conformance cases notice? Every operation gets each generic fault: its
right results are changed, or it computes on operands that it read wrongly. What comes out is judged by the suite's own
judge as if a driver had returned it. FAIL and POOR count as noticed.

A *pair* is an operation with a fault at a place: an input, a result, a flag. Each pair is tried on the first {count}
drawn cases of every signature of profile `{profile}`. A pair that none of them notices is tried on all the profile's
other drawn cases. A pair that changes the stored results of none of them is tried on {further} draws with another seed;
where it changes nothing there either, it counts as equivalent to no fault. A case in which the wrong operands let
nothing be computed is left out, and so are random results without a seed. Faults of single operations (a bias dropped,
surplus padding on the wrong side, a rounding mode) are in `tests/kernel_faults.py`.
"""


def _totals(scores: Scores) -> Iterator[str]:
    noticed, telling = scores.counted(scores.pairs())
    cases = scores.cases(scores.pairs())
    equivalent, conforming = (sum(map(test, scores.pairs())) for test in (scores.equivalent, scores.conforming))
    perfect = {op: scores.counted(scores.pairs(op)) for op in _operations(scores)}
    low = [op for op, (some, of) in perfect.items() if some < 0.95 * of]
    yield f"""## Totals

| what | noticed | of | share |
|---|---|---|---|
| pairs | {noticed} | {telling} | {share(noticed, telling)} |
| cases that a fault changes, first round | {cases.noticed} | {cases.changed} | \
{share(cases.noticed, cases.changed)} |
| operations with every pair noticed | {sum(a == b for a, b in perfect.values())} | {len(perfect)} | \
{share(sum(a == b for a, b in perfect.values()), len(perfect))} |

Beside these there are {equivalent} equivalent pairs and {conforming} whose results conform as well; both are listed \
below. Operations below 0.95: {", ".join(low) or "none"}.
"""


def _by_fault(scores: Scores) -> Iterator[str]:
    yield "## Faults\n"
    yield "| key | fault | pairs | noticed | share | changed cases | noticed | share |"
    yield "|---|---|---|---|---|---|---|---|"
    for fault in FAULTS:
        pairs = scores.pairs(fault=fault.key)
        noticed, telling = scores.counted(pairs)
        cases = scores.cases(pairs)
        yield (
            f"| {fault.key} | {fault.text} | {telling} | {noticed} | {share(noticed, telling)} "
            f"| {cases.changed} | {cases.noticed} | {share(cases.noticed, cases.changed)} |"
        )
    yield ""


def _table(scores: Scores) -> Iterator[str]:
    yield """## Operations and faults

Each cell: cases that notice / cases that the fault changes, over all places, in the first round. `=` changes nothing,
what `~` changes conforms as well, and an empty cell cannot be; `*` stands where a place was noticed by other cases of
the profile alone, `!` where one was not noticed. *pairs*: noticed / those that ought to be.
"""
    yield "| operation | pairs | share | " + " | ".join(fault.key for fault in FAULTS) + " |"
    yield "|---" * (3 + len(FAULTS)) + "|"
    for operation in _operations(scores):
        noticed, telling = scores.counted(scores.pairs(operation))
        cells = [_cell(scores, scores.pairs(operation, fault.key)) for fault in FAULTS]
        yield f"| {operation} | {noticed}/{telling} | {share(noticed, telling)} | " + " | ".join(cells) + " |"
    yield ""


def _cell(scores: Scores, pairs: list[Pair]) -> str:
    if not pairs:
        return ""
    telling, cases = scores.telling(pairs), scores.cases(pairs)
    if not telling:
        return "~" if any(map(scores.conforming, pairs)) else "="
    late = any(pair not in scores.first or not scores.first[pair].noticed for pair in telling)
    mark = "!" if not all(map(scores.noticed, telling)) else "*" if late else ""
    return f"{cases.noticed}/{cases.changed}{mark}"


def _missed(scores: Scores) -> Iterator[str]:
    yield "## Not noticed\n"
    missed = scores.missed()
    if not missed:
        yield "None.\n"
        return
    texts = {fault.key: fault.text for fault in FAULTS}
    yield "*Error*: the largest one met, in units of the allowed one.\n"
    yield "| operation | fault | place | changed | error | reason |"
    yield "|---|---|---|---|---|---|"
    for pair in missed:
        tally = scores.all(pair)
        reason = {**UNREACHED, **REASONS}.get(pair, "")
        if not tally.changed and pair in scores.others and scores.others[pair].changed:
            reason = f"changes {scores.others[pair].changed} of {scores.others[pair].tried} other draws, no case"
        yield (
            f"| {pair.operation} | {texts[pair.fault]} | {pair.place} | {tally.changed} of {tally.tried} "
            f"| {tally.worst:.3g} | {reason} |"
        )
    yield ""


def _signatures(scores: Scores) -> Iterator[str]:
    """Pairs that some signatures do not notice in the first round, though others do."""
    yield "## Signatures\n"
    rows = []
    noticing = changing = 0
    for pair in scores.telling(scores.first):
        tally = scores.first[pair]
        noticing, changing = noticing + len(tally.noticing), changing + len(tally.changing)
        if tally.noticed and (silent := tally.changing - tally.noticing):
            rows.append(f"| {pair.operation} | {pair.fault} | {pair.place} | {', '.join(sorted(silent))} |")
    yield f"A pair that changes a case of a signature is noticed by one in {noticing} of {changing} signatures"
    yield f"({share(noticing, changing)}), in the first round. Those whose few cases do not notice what others do:\n"
    yield "| operation | fault | place | signatures |"
    yield "|---|---|---|---|"
    yield from rows
    yield ""


def _conforming(scores: Scores) -> Iterator[str]:
    yield "## Conforming\n"
    yield "What these change is right as well, and every case passes.\n"
    yield "| operation | place | faults | reason |"
    yield "|---|---|---|---|"
    for (operation, place), (_, reason) in CONFORMING.items():
        keys = [p.fault for p in scores.pairs(operation) if p.place == place and scores.conforming(p)]
        if keys:
            yield f"| {operation} | {place} | {', '.join(keys)} | {reason} |"
    yield ""


def _equivalent(scores: Scores, further: int) -> Iterator[str]:
    yield f"""## Equivalent

These change no stored result, neither in the profile's drawn cases nor in the other draws, whose number is in \
brackets where it is below {further}.
"""
    yield "| fault | why | operations |"
    yield "|---|---|---|"
    for fault in FAULTS:
        words = []
        for pair in filter(scores.equivalent, scores.pairs(fault=fault.key)):
            number = scores.others[pair].tried if pair in scores.others else 0
            few = f"({number})" if number < further else ""
            words.append(" ".join(word for word in (pair.operation, pair.place, few) if word))
        if words:
            yield f"| {fault.key} | {EQUIVALENT.get(fault.key, '')} | {', '.join(words)} |"
    yield ""
