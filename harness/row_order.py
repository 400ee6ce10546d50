"""Puts rows that may come in any order into the order in which they are due, before the judge compares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.expectations import Expected, Returns
from nnhal.types import Array


def in_due_order(expect: Returns, outputs: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Outputs with the rows of each group rearranged, in all outputs alike, so that they fit what is due best.

    Outputs whose number of rows is not the due one stay as they are: their shape is wrong.
    """
    groups = np.array(expect.groups)
    given = [got for got in outputs if got is not None]
    if len(given) != len(outputs) or any(got.ndim == 0 or len(got) != len(groups) for got in given):
        return tuple(outputs)
    order = np.arange(len(groups))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        order[rows] = rows[_matched(_distances(expect.outputs, given, rows))]
    return tuple(got[order] for got in given)


def _distances(due: Sequence[Expected], given: Sequence[Array], rows: Array) -> Array:
    """How badly each row that came fits each row that is due, [due, came], in units of what is allowed."""
    worst = np.zeros((len(rows), len(rows)))
    for expected, got in zip(due, given, strict=True):
        if got.shape != expected.shape:
            continue
        value = expected.value[rows].reshape(len(rows), 1, -1)
        required = expected.required[rows].reshape(len(rows), 1, -1)
        with np.errstate(invalid="ignore"):
            apart = np.abs(got[rows].astype(np.float64).reshape(1, len(rows), -1) - value)
        ratio = np.where(np.isinf(required), 0.0, np.nan_to_num(apart, nan=np.inf) / (required + 1e-9))
        worst = np.maximum(worst, ratio.max(axis=-1, initial=0.0))
    return worst


def _matched(distances: Array) -> Array:
    """For each row that is due the row that came: the closest pairs first."""
    chosen = np.full(len(distances), -1)
    taken = np.zeros(len(distances), bool)
    for flat in np.argsort(distances, axis=None, kind="stable"):
        due, came = divmod(int(flat), len(distances))
        if chosen[due] < 0 and not taken[came]:
            chosen[due], taken[came] = came, True
    return chosen
