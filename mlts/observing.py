"""What the values within a float model are, over some pictures: what quantisation is fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlts.interpreting import Interpreter, revealed, tflite_of
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array


@dataclass(frozen=True)
class Seen:
    """Values of an operand, for each index along its last dimension: the smallest, the largest, and the mean."""

    low: Array
    high: Array
    mean: Array

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest of all."""
        return float(self.low.min()), float(self.high.max())


def observe(model: Model, samples: Sequence[Sequence[Array]]) -> dict[int, Seen]:
    """Runs a float model and looks at each operand that is no constant; by index.

    Args:
        model: float32 throughout.
        samples: inputs of each run, in the order of the model's list.

    Raises:
        UsageError: there are no samples, or LiteRT does not run the model.
    """
    if not samples:
        raise UsageError("there are no pictures to calibrate with; give at least one")
    shown, indexes = revealed(model)
    interpreter = Interpreter(tflite_of(shown))
    gathered: dict[int, list[Seen]] = {}
    for sample in samples:
        values = [*sample, *interpreter.run(sample)]
        for index, value in zip((*model.main.input_indexes, *indexes), values, strict=True):
            gathered.setdefault(index, []).append(_seen(value))
    return {index: _joined(parts) for index, parts in gathered.items()}


def _seen(value: Array) -> Seen:
    rows = value.reshape(-1, value.shape[-1])
    return Seen(rows.min(axis=0), rows.max(axis=0), rows.mean(axis=0, dtype=np.float64))


def _joined(parts: Sequence[Seen]) -> Seen:
    low = np.min([part.low for part in parts], axis=0)
    return Seen(low, np.max([part.high for part in parts], axis=0), np.mean([part.mean for part in parts], axis=0))
