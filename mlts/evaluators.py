"""What outputs are worth: against the right classes, and against the outputs of the baseline on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from mlts.pictures import Sample
from mlts.statistics import CONFIDENCE
from nnhal.types import Array
from reports.paired import Interval

Scores = Mapping[str, Interval]
Outputs = Sequence[Sequence[Array]]  # of each sample, as real numbers, in the order of the model's list
FIRST = 5  # classes that are looked at
SEED, DRAWS = 0, 2000  # of the bootstrap


class Evaluator(Protocol):
    """Scores a driver's outputs; those of speech are `mlts.speech.evaluators.asr_scores` and `tts_scores`."""

    def __call__(self, samples: Sequence[Any], outputs: Outputs, baseline: Outputs | None = None, /) -> Scores:
        """Scores by name, each with an interval of `CONFIDENCE` where one can be given.

        Args:
            samples: what was put in.
            outputs: of each sample.
            baseline: the outputs that others are compared with, or those that a file gives; None where there are none.
        """
        ...


def evaluator(name: str) -> Evaluator:
    """The evaluator that an entry names, "top_k" or "difference"."""
    return {"top_k": top_k, "difference": difference}[name]


def top_k(samples: Sequence[Sample], outputs: Outputs, baseline: Outputs | None = None, /) -> Scores:
    """Shares of samples whose right class is among the first 1 to 5, and how far the baseline agrees.

    Of classes with the same value the one with the lower index comes first. Samples without a truth count for the
    agreement alone.
    """
    scores: dict[str, Interval] = {}
    ranks = [ranked(given[0]) for given in outputs]
    known = [(sample.truth, order) for sample, order in zip(samples, ranks, strict=True) if sample.truth is not None]
    for k in range(1, FIRST + 1) if known else ():
        hits = sum(not set(order[:k]).isdisjoint(truth) for truth, order in known)
        scores[f"top {k}"] = wilson(hits, len(known))
    if baseline is None:
        return scores
    others = [ranked(given[0]) for given in baseline]
    pairs = list(zip(ranks, others, strict=True))
    scores["top 1 agrees"] = wilson(sum(a[0] == b[0] for a, b in pairs), len(pairs))
    scores[f"top {FIRST} overlap"] = mean([len(set(a) & set(b)) / len(b) for a, b in pairs])
    return {**scores, **difference(samples, outputs, baseline)}


def difference(samples: Sequence[Sample], outputs: Outputs, baseline: Outputs | None = None, /) -> Scores:
    """How outputs differ from the baseline's; errors above and below it stand apart. Empty without a baseline."""
    del samples
    if baseline is None:
        return {}
    pairs = [(_flat(ours), _flat(theirs)) for ours, theirs in zip(outputs, baseline, strict=True)]
    moved = [a - b for a, b in pairs]
    count = sum(m.size for m in moved)
    highest, lowest = max(float(m.max()) for m in moved), min(float(m.min()) for m in moved)
    return {
        "mean squared error": mean([float(np.mean(m**2)) for m in moved]),
        "largest error above": Interval(max(highest, 0.0), None, None, count),
        "largest error below": Interval(min(lowest, 0.0), None, None, count),
        "cosine": mean([cosine(a, b) for a, b in pairs]),
    }


def ranked(values: Array) -> list[int]:
    """Indexes of the first classes, best first."""
    flat = np.asarray(values, np.float64).reshape(-1)
    order: list[int] = np.argsort(-flat, kind="stable")[:FIRST].tolist()
    return order


def cosine(first: Array, second: Array) -> float:
    """Cosine of the angle between two vectors; 1 where both are 0, and 0 where one is."""
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    if not all(lengths):
        return float(not any(lengths))
    return float(np.clip(np.dot(first / lengths[0], second / lengths[1]), -1.0, 1.0))


def wilson(hits: int, count: int) -> Interval:
    """A share with Wilson's score interval (E. B. Wilson 1927), which also holds near 0 and 1 and for few samples.

    Args:
        hits: how often it was so.
        count: out of how many, at least one.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share = hits / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    return Interval(share, low, 1.0 if hits == count else min(1.0, middle + half), count)


def mean(values: Sequence[float]) -> Interval:
    """A mean over samples, with the interval of a seeded bootstrap."""
    numbers = np.asarray(values, np.float64)
    draws = np.random.default_rng(SEED).integers(len(numbers), size=(DRAWS, len(numbers)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(numbers[draws].mean(axis=1), (tail, 100 - tail))
    return Interval(float(numbers.mean()), float(low), float(high), len(numbers))


def _flat(outputs: Sequence[Array]) -> Array:
    return np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in outputs])
