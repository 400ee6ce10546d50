"""What is kept of a model's measurements: a line of JSON, from which pages are made, and a line for the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mlts.plan import Tier
from mlts.running import Outcome
from mlts.statistics import Paired, percentile
from mlts.subject import Subject
from mlts.subjects import Named, facts_of
from reports.paired import Interval

PERCENTILES = (50, 90, 99)


def row_of(named: Named, subject: Subject, tier: Tier, found: Outcome) -> dict[str, Any]:
    """A model's line. Times are seconds; an interval is [value, low, high, count], None where it is not bounded."""
    judged = found.judged
    return {
        "model": named.name,
        "tier": tier.name,
        "tier_words": str(tier),
        "slot": named.slot,
        "size": subject.size,
        "type": subject.type,
        "reality": named.reality,
        "digest": subject.digest,
        "relaxed": subject.relaxed,
        "operators": len(subject.imported.operators),
        **facts_of(named),
        "verdicts": {
            aspect: {"verdict": one.verdict.value, "message": one.message, "notes": list(one.notes)}
            for aspect, one in found.judgements.items()
        },
        "driver": None if found.measured is None else found.measured.row(),
        "baseline": None if found.baseline is None else found.baseline.row(),
        "ratio": _paired(found.paired),
        "error_ratio": _paired(judged.paired) if judged else None,
        "errors": [asdict(one) for one in judged.errors] if judged else [],
        "baseline_errors": [asdict(one) for one in judged.baseline_errors] if judged else [],
        "numbers": dict(judged.judgement.numbers) if judged else {},
        "scores": {
            side: {name: interval_row(one) for name, one in scores.items()} for side, scores in found.scores.items()
        },
        "accumulation": [asdict(one) for one in found.blames],
        "seconds": found.seconds,
    }


def interval_row(one: Interval) -> list[float | None]:
    """An interval for a line."""
    return [one.value, one.low, one.high, float(one.count)]


def _paired(paired: Paired | None) -> dict[str, Any] | None:
    if paired is None:
        return None
    return {
        "ratio": interval_row(paired.ratio),
        "p_worse": paired.p_worse,
        "p_not_worse": paired.p_not_worse,
        "margin": paired.margin,
        "verdict": paired.verdict.value,
    }


def line_of(name: str, tier: Tier, found: Outcome) -> str:
    """A model in one line for the terminal."""
    verdicts = ", ".join(f"{aspect} {one.verdict.value}" for aspect, one in found.judgements.items())
    if found.measured is None or not found.measured.latency or found.baseline is None or not found.baseline.latency:
        message = next((one.message for one in found.judgements.values() if one.message), "")
        return f"{name} ({tier.name}): {verdicts}: {message.partition(chr(10))[0]}"
    mine, base = (percentile(one.latency, 50).value * 1000 for one in (found.measured, found.baseline))
    ratio = f", {found.paired.ratio.value:.2f} times" if found.paired else ""
    return f"{name} ({tier.name}): {mine:.2f} ms, baseline {base:.2f} ms{ratio}; {verdicts}"
