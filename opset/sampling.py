"""Results drawn at random: RANDOM_MULTINOMIAL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from nnhal.types import FL3, Array, OperandType, OperationType
from opset.call import Call, int32_tensor, with_shape, with_value
from opset.definition import (
    F16,
    F32,
    Example,
    ExecutionRule,
    Judging,
    OperationDef,
    Sampling,
    form,
    int32,
    no_error,
    same,
    tensor,
)
from opset.drawing import Draft
from opset.values import Values

INT32 = np.iinfo(np.int32)
WORD = 0xFFFFFFFF  # a seed as the generator takes it


def _probabilities(v: Values) -> Mapping[str, Array]:
    logits = v["logits"].astype(np.float64)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return {"output": weights / weights.sum(axis=1, keepdims=True)}


def _sample(v: Values) -> Mapping[str, Array]:
    """By the inverse of the cumulated probabilities, from a generator that the seeds start."""
    ladder = np.cumsum(_probabilities(v)["output"], axis=1)
    seeds = [seed & WORD for seed in v.ints("seeds")]
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds if any(seeds) else None)))
    chances = rng.random((ladder.shape[0], v.integer("samples"))) * ladder[:, -1:]
    places = [np.searchsorted(row, u, side="right") for row, u in zip(ladder, chances, strict=True)]
    return {"output": np.minimum(np.stack(places), ladder.shape[1] - 1)}


def _reseeded(call: Call) -> Call:
    """The same call with other seeds, neither 0."""
    seeds = call["seeds"].value
    assert seeds is not None
    other = seeds.astype(np.int64) * 3 + (7919, 104729)
    return call.with_input("seeds", replace(call["seeds"], value=(other & INT32.max | 1).astype(np.int32)))


def _draw(draft: Draft) -> None:
    """Logits that tell softmax from what looks like it: far from 0, of both signs, with a class that hardly comes."""
    batches, classes = draft.choose((1, 1, 2, 3)), draft.choose((2, 3, 4, 5, 7, 9, 1))
    reach = draft.choose((0.7, 1.5, 2.5))
    middle = draft.choose((0.0, 0.0, -3.0, 20.0, 60.0))  # beyond 12, float16 overflows unless the largest is taken off
    draft.tensor("logits", (batches, classes), low=middle - reach, high=middle + reach)
    draft.scalar("samples", draft.integer(500, 3000) if draft.chance(85) else draft.choose((1, 2, 31, 100)))
    ways = draft.integer(0, 9)
    first, second = draft.integer(INT32.min, INT32.max), draft.integer(1, INT32.max)
    draft.ints("seeds", (0, 0) if ways == 0 else (first, 0) if ways == 1 and first else (first * (ways != 2), second))


def _break_seeds(call: Call) -> Call:
    return call.with_input("seeds", int32_tensor((*call["seeds"].value, 1)))  # type: ignore[misc]


RANDOM_MULTINOMIAL = OperationDef(
    code=OperationType.RANDOM_MULTINOMIAL,
    doc="Draws classes of each row at random, each sample by itself, with the probabilities softmax(logits). The seeds "
    "start the generator; when both are 0 they are taken at random. No sequence is prescribed, so samples are judged "
    "by how often each class comes, and other seeds must give other samples. Equal seeds may repeat them.",
    forms=(
        form(
            tensor("logits", "Unnormalised logarithms of probabilities, [batches, classes].", 2, 2),
            int32("samples", "Samples of each row, above 0."),
            replace(tensor("seeds", "Two seeds, [2]; both 0 for random ones.", 1, 1), type=OperandType.TENSOR_INT32),
            since=FL3,
        ),
    ),
    results=(replace(tensor("output", "Classes, [batches, samples].", 2, 2), type=OperandType.TENSOR_INT32),),
    rows=same(("logits",), (F32, FL3), (F16, FL3)),
    rules=(
        ExecutionRule(
            "RANK_LOGITS",
            "logits has rank 2",
            lambda call: call["logits"].rank == 2,
            lambda call: with_shape(call, "logits", (1, *call["logits"].shape)),
        ),
        ExecutionRule(
            "SAMPLES",
            "samples is above 0",
            lambda call: call.integer("samples") > 0,
            lambda call: with_value(call, "samples", 0),
        ),
        ExecutionRule("SEEDS", "seeds has two elements", lambda call: call["seeds"].shape == (2,), _break_seeds),
    ),
    infer=lambda call: {"output": (call["logits"].shape[0], call.integer("samples"))},
    kernel=_sample,
    judging=Judging(
        no_error,
        "that of chance: each class comes as often as its probability softmax(logits) allows, with one false alarm in "
        "10^9 over all classes and rows; single samples are not compared, but other seeds must give other ones",
        sampling=Sampling(_probabilities, _reseeded),
    ),
    draw=_draw,
    examples=(
        # A class whose logit is so much larger leaves the others less than one chance in 10^20.
        Example(
            "float32",
            {"logits": [[-50.0, 0.0], [60.0, 10.0]], "samples": 3, "seeds": [37, 42]},
            {"output": [[1, 1, 1], [0, 0, 0]]},
        ),
    ),
    second_opinion="SciPy: chi-square of the frequencies against scipy.special.softmax, and NumPy's own choice()",
)
