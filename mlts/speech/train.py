"""Trains the speech models and writes their parameters: `python -m mlts.speech.train asr|tts|held-out`.

Needs what the benchmark does not: pip install tensorflow-cpu==2.21.0 pocketsphinx==5.1.1. Seeded; another machine's
sums round in another order all the same, so that parameters differ while the figures stay.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mlts.packages import cache_folder
from mlts.speech import parameters
from mlts.speech.chunks import asr_chunks, carry, tts_chunks
from mlts.speech.evaluators import BIGRAM, asr_scores, tts_scores
from mlts.speech.held_out import pack
from mlts.speech.measures import pair_counts
from mlts.speech.parameters import LAYERS, LstmLayer, Parameters
from mlts.speech.phones import PHONES
from mlts.speech.plain import execute
from mlts.speech.recordings import Recording, asr_inputs, asr_targets, tts_inputs, tts_targets
from mlts.speech.training_data import aligned_recordings
from nnhal.errors import UsageError
from nnhal.types import Array

SEED = 20
Pair = tuple[Array, Array]  # inputs and targets of a recording, step by step


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        units: of each LSTM layer.
        steps: of a piece; pieces are cut from all recordings in a row, in an order and from a place drawn each epoch.
        batch: pieces in a batch.
        dropout: share of each layer's outputs that is left out.
        rate: of Adam at the start; it falls along half a cosine.
    """

    units: int
    steps: int
    batch: int
    epochs: int
    dropout: float
    rate: float


RECIPES = {
    "asr": Recipe(units=128, steps=60, batch=16, epochs=40, dropout=0.3, rate=4e-3),
    "tts": Recipe(units=96, steps=100, batch=16, epochs=25, dropout=0.1, rate=4e-3),
}


def train_asr(recordings: Sequence[Recording]) -> Parameters:
    """A model that gives the logits of the phones from log-mel bands."""
    bands = np.concatenate([r.bands for r in recordings])
    mean, deviation = (_half(v) for v in (bands.mean(0), bands.std(0)))
    pairs = [(asr_inputs(r.bands, mean, deviation), asr_targets(r)) for r in recordings]
    layers, dense, bias = _fit(RECIPES["asr"], pairs, len(PHONES), "sparse_categorical_crossentropy")
    return Parameters(layers, dense, bias, mean, deviation)


def train_tts(recordings: Sequence[Recording]) -> Parameters:
    """A model that gives cepstra and log F0 from phones in time."""
    targets = [tts_targets(r) for r in recordings]
    every = np.concatenate(targets)
    mean, deviation = every.mean(0), every.std(0)
    pairs = [
        (tts_inputs(r.segments, len(r.bands)), (target - mean) / deviation)
        for r, target in zip(recordings, targets, strict=True)
    ]
    layers, dense, bias = _fit(RECIPES["tts"], pairs, len(mean), "mse")
    # The dense layer undoes the normalisation of the targets.
    nothing = np.zeros(0, np.float32)
    return Parameters(layers, _half(dense * deviation[:, None]), _half(bias * deviation + mean), nothing, nothing)


def _fit(recipe: Recipe, pairs: Sequence[Pair], outputs: int, loss: str) -> tuple[tuple[LstmLayer, ...], Array, Array]:
    """Trains two LSTM layers and a dense one with Keras."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        tensorflow = import_module("tensorflow")
    except ImportError:
        raise UsageError("training needs TensorFlow: pip install tensorflow-cpu==2.21.0") from None
    keras = tensorflow.keras
    keras.utils.set_random_seed(SEED)
    rng = np.random.default_rng(SEED)
    inputs = pairs[0][0].shape[1]
    stack: list[Any] = [keras.Input((recipe.steps, inputs))]
    for _ in range(LAYERS):
        stack += [keras.layers.LSTM(recipe.units, return_sequences=True), keras.layers.Dropout(recipe.dropout)]
    softmax = "softmax" if loss.endswith("crossentropy") else None
    net = keras.Sequential([*stack, keras.layers.Dense(outputs, activation=softmax)])
    batches = sum(len(x) for x, _ in pairs) // recipe.steps // recipe.batch
    schedule = keras.optimizers.schedules.CosineDecay(recipe.rate, recipe.epochs * batches)
    net.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), loss)
    for epoch in range(recipe.epochs):
        fitted = net.fit(*_pieces(pairs, recipe.steps, rng), batch_size=recipe.batch, shuffle=False, verbose=0)
        sys.stderr.write(f"epoch {epoch + 1} of {recipe.epochs}: loss {fitted.history['loss'][0]:.4f}\n")
    *lstm, dense, bias = net.get_weights()
    layers = tuple(_layer(*lstm[3 * n : 3 * n + 3]) for n in range(LAYERS))
    return layers, _half(dense.T), _half(bias)


def _pieces(pairs: Sequence[Pair], steps: int, rng: np.random.Generator) -> Pair:
    """All recordings in a row, in a drawn order and from a drawn place, cut into pieces: [pieces, steps, size]."""
    order = rng.permutation(len(pairs))
    skip = int(rng.integers(steps))
    rows = [np.concatenate([pairs[i][side] for i in order])[skip:] for side in (0, 1)]
    count = len(rows[0]) // steps
    x, y = (row[: count * steps].reshape(count, steps, *row.shape[1:]) for row in rows)
    return x, y


def _layer(kernel: Array, recurrent: Array, bias: Array) -> LstmLayer:
    """A layer of Keras, whose gates lie in the same order one behind the other."""
    units = recurrent.shape[0]
    inward, back = (_half(w.T.reshape(4, units, -1)) for w in (kernel, recurrent))
    return LstmLayer(inward, back, _half(bias.reshape(4, units)))


def _half(values: Array) -> Array:
    """Rounded to float16, as the files have it; float32."""
    return np.asarray(values).astype(np.float16).astype(np.float32)


TRAINERS: dict[str, Callable[[Sequence[Recording]], Parameters]] = {"asr": train_asr, "tts": train_tts}


def make(name: str, training: Sequence[Recording], held_out: Sequence[Recording]) -> None:
    """Trains a model, writes its parameters, and into their record how they were made and what they reach."""
    made = TRAINERS[name](training)
    parameters.write(name, made)
    if name == "asr":
        parameters.write_arrays(BIGRAM, {"pairs": pair_counts(asr_targets(r) for r in training).astype(np.uint32)})
    cut, judge = (asr_chunks, asr_scores) if name == "asr" else (tts_chunks, tts_scores)
    chunks = cut(held_out, made)
    outputs = carry(chunks, partial(execute, made, probabilities=name == "asr"))
    record = parameters.record()
    record[name] = {
        "recipe": {"seed": SEED, **asdict(RECIPES[name])},
        "training": {"recordings": len(training), "frames": sum(len(r.bands) for r in training)},
        "held out": {"recordings": len(held_out), "frames": sum(len(r.bands) for r in held_out)},
        "scores": {measure: asdict(score) for measure, score in judge(chunks, outputs).items()},
    }
    parameters.write_record(record)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains what the command line names, on all prompts but the held-out ones."""
    parser = argparse.ArgumentParser(prog="python -m mlts.speech.train", description=__doc__)
    parser.add_argument("what", choices=[*TRAINERS, "held-out"], nargs="+")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="for the packages")
    options = parser.parse_args(arguments)
    try:
        training, held_out = aligned_recordings(options.cache)
        for name in options.what:
            if name == "held-out":
                pack(held_out)
            else:
                make(name, training, held_out)
    except UsageError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
