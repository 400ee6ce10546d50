from __future__ import annotations

import numpy as np

from mlts.speech.parameters import LstmLayer, Parameters
from mlts.speech.phones import Segments
from mlts.speech.recordings import Recording
from nnhal.types import Array


def small_parameters(inputs: int, outputs: int, units: int = 6) -> Parameters:
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> Array:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    sizes = (inputs, units)
    layers = tuple(LstmLayer(drawn(4, units, size), drawn(4, units, units), drawn(4, units)) for size in sizes)
    return Parameters(layers, drawn(outputs, units), drawn(outputs), np.zeros(40), np.ones(40))


def a_recording(frames: int = 233, name: str = "one") -> Recording:
    rng = np.random.default_rng(frames)
    lengths = (60, 45, 80, 40)
    pitch = np.where(rng.random(frames) < 0.5, 5.2, 0.0)
    bands = rng.normal(-5, 2, (frames, 40)).astype(np.float32)
    return Recording(name, Segments((0, 7, 12, 7), lengths), bands, pitch, "drawn")
