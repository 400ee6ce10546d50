"""Judges samples by how often each class comes: what no prescribed sequence can be compared with."""

from __future__ import annotations

import math

import numpy as np

from nnhal.types import Array

FALSE_ALARM = 1e-9  # chance that samples of a right generator are refused, over all classes and rows of an output


def limit(probabilities: Array) -> float:
    """Largest divergence, times the number of samples, that counts as chance.

    A frequency q of n samples with probability p is met or passed with a chance of at most exp(-n KL(q||p)) on either
    side (Chernoff and Hoeffding), for any n; the chances of all classes and rows add up.
    """
    return math.log(2 * probabilities.size / FALSE_ALARM)


def excess(samples: Array, probabilities: Array) -> Array:
    """How far each class of each row is from its probability, as a share of the limit: above 1 is no chance.

    Args:
        samples: classes, [rows, samples]; what is no class counts for none.
        probabilities: [rows, classes].
    """
    rows, classes = probabilities.shape
    counts = np.stack([(samples == number).sum(axis=1) for number in range(classes)], axis=1).reshape(rows, classes)
    number = samples.shape[1]
    share = counts / number
    with np.errstate(divide="ignore", invalid="ignore"):
        present = np.where(share > 0, share * np.log(share / probabilities), 0.0)
        absent = np.where(share < 1, (1 - share) * np.log((1 - share) / (1 - probabilities)), 0.0)
    divergence = np.maximum(present + absent, 0.0)
    return np.asarray(number * divergence / limit(probabilities))


def may_repeat(shape: tuple[int, ...], probabilities: Array) -> bool:
    """Whether two runs of independent samples may be alike by chance more often than a false alarm may come."""
    with np.errstate(divide="ignore"):
        alike = shape[1] * float(np.log((probabilities**2).sum(axis=1)).sum())
    return alike > math.log(FALSE_ALARM)
