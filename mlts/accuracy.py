"""What outputs are worth: their errors against the reference in float64, a driver's beside the baseline's.

A hundred pictures cannot show by their classes that one kernel rounds wrongly; the errors of all outputs can. So the
verdict stands on them, picture by picture, and what the classes say is told beside it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlts.statistics import MARGIN, Paired, compare
from nnhal import wire
from nnhal.model import Model
from nnhal.types import Array, info
from opset.graph import evaluate
from opset.quantization import QUANTIZED

# Root mean square errors below these are nothing: as a share of the outputs' own, and in steps where quantised.
NOTHING, NOTHING_RELAXED, NOTHING_QUANTISED = 1e-5, 1e-2, 0.05


@dataclass(frozen=True)
class Exact:
    """What the reference gives for an input.

    Attributes:
        real: each output as real numbers, before the last rounding; quantised ones in steps.
    """

    real: tuple[Array, ...]


def exact_outputs(
    model: Model, samples: Sequence[Sequence[Array]], cache: Path, show: Callable[[int], None] = lambda done: None
) -> list[Exact]:
    """The reference's outputs for each input, kept in the cache: large models take a second each.

    Args:
        model: a valid one.
        samples: inputs in stored form.
        cache: folder for them.
        show: is told how many are there.
    """
    body = wire.dumps(model)
    name = hashlib.sha256(body).hexdigest()[:24]
    found = []
    for number, values in enumerate(samples):
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(v).tobytes() for v in values)).hexdigest()[:24]
        found.append(_kept(cache / "exact" / f"{name}-{digest}.npz", model, values))
        show(number + 1)
    return found


def _kept(path: Path, model: Model, values: Sequence[Array]) -> Exact:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Exact(tuple(kept[f"output{number}"] for number in range(len(kept.files))))
    except (OSError, ValueError, KeyError, EOFError):
        pass  # not there, or damaged: made anew
    real = tuple(np.asarray(result.exact, np.float64) for result in evaluate(model, list(values)))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.npz")
    with part.open("wb") as file:
        named = {f"output{number}": value for number, value in enumerate(real)}
        np.savez(file, allow_pickle=False, **named)
    part.replace(path)
    return Exact(real)


@dataclass(frozen=True)
class Errors:
    """How far the outputs for one input are off.

    Attributes:
        rms: root of the mean square, over all elements of all outputs, each in units of its output's own root mean
            square (of a step where quantised).
        mean: the mean with its sign, in the same units.
        lowest, highest: the largest error below 0 and above it.
    """

    rms: float
    mean: float
    lowest: float
    highest: float


def errors(outputs: Sequence[Array], exact: Exact, model: Model) -> Errors:
    """The errors of the outputs for one input."""
    parts = []
    for stored, real, index in zip(outputs, exact.real, model.main.output_indexes, strict=True):
        operand = model.main.operands[index]
        difference = stored.astype(np.float64) - real.reshape(stored.shape)
        unit = 1.0 if operand.type in QUANTIZED else float(np.sqrt(np.mean(np.square(real)))) if real.size else 0.0
        parts.append(np.where(np.isfinite(difference), difference, np.inf).ravel() / (unit or 1.0))
    every = np.concatenate(parts) if parts else np.zeros(1)
    if not np.isfinite(every).all():
        return Errors(float("inf"), float("inf"), float("-inf"), float("inf"))
    return Errors(
        float(np.sqrt(np.mean(np.square(every)))),
        float(every.mean()),
        float(min(every.min(), 0.0)),
        float(max(every.max(), 0.0)),
    )


def nothing(model: Model) -> float:
    """The root mean square error below which outputs of this model are as good as exact."""
    kinds = {model.main.operands[index].type for index in model.main.output_indexes}
    if kinds & QUANTIZED:
        return NOTHING_QUANTISED
    return NOTHING_RELAXED if model.relax_computation_float32_to_float16 else NOTHING


def worse(driver: Sequence[Errors], baseline: Sequence[Errors], model: Model, margin: float = MARGIN) -> Paired:
    """Whether a driver's errors are larger than the baseline's, input by input."""
    least = nothing(model)
    return compare([max(one.rms, least) for one in driver], [max(one.rms, least) for one in baseline], margin)


def steps_apart(first: Sequence[Array], second: Sequence[Array], model: Model) -> int:
    """The largest difference between stored quantised outputs, in steps; 0 where no output is quantised."""
    found = 0
    for a, b, index in zip(first, second, model.main.output_indexes, strict=True):
        if model.main.operands[index].type in QUANTIZED and a.size:
            found = max(found, int(np.abs(a.astype(np.int64) - b.astype(np.int64)).max()))
    return found


def real_outputs(outputs: Sequence[Array], model: Model) -> list[Array]:
    """Stored outputs as real numbers."""
    found = []
    for stored, index in zip(outputs, model.main.output_indexes, strict=True):
        operand = model.main.operands[index]
        value = stored.astype(np.float64)
        if operand.type in QUANTIZED and info(operand.type).scaled:
            value = (value - operand.zero_point) * operand.scale
        found.append(value)
    return found
