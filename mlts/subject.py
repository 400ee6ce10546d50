"""What is measured: a model of the list, ready for a driver and for the baseline, and what comes of it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from importers.imported import Imported
from nnhal import wire
from nnhal.model import Model, Translation
from nnhal.types import Array


@dataclass(frozen=True)
class Subject:
    """A model and its inputs.

    Attributes:
        name: as the list has it.
        slot: which row of the public benchmark it stands for.
        size, type: parts of the name, for tables.
        reality: whose weights these are.
        file: the .tflite file; empty where there is none, as for ONNX.
        samples: inputs in stored form, each with what is known to be right.
        truths: for each sample what the evaluator holds outputs against; None where nothing is known.
    """

    name: str
    slot: str
    size: str
    type: str
    reality: str
    imported: Imported
    file: bytes
    samples: tuple[tuple[Array, ...], ...]
    truths: tuple[Any, ...]
    off_by: int | None = None
    relaxed: bool = False

    @property
    def model(self) -> Model:
        """The model as drivers get it."""
        model = self.imported.require()
        return replace(model, relax_computation_float32_to_float16=self.relaxed)

    @property
    def baseline_model(self) -> Model:
        """The model with its own file beside it, which LiteRT runs as it is."""
        model = self.imported.require()
        if not self.file:
            return model
        return replace(model, translation=Translation(self.file, (None,) * len(model.main.operations)))

    @property
    def digest(self) -> str:
        """Tells models apart."""
        return hashlib.sha256(wire.dumps(self.model)).hexdigest()[:16]


@dataclass
class Measured:
    """What was measured of a model on a driver, in one tier; all times are in seconds.

    Attributes:
        operations, on_driver: of the model, and how many of them the driver runs.
        prepare, to_cache, from_cache: preparations: without cache, with saving to it, out of it.
        first: the first execution after the first preparation.
        warm_up: executions that were run before counting began.
        latency: synchronous executions, in order.
        pairs: for each round the medians of the driver's executions and of the baseline's.
        modes: executions in other modes.
        in_flight: number of requests at the same time: executions a second, and the median of one.
        told: executions as seen here, on the device, in the driver (the latter two as the driver says, or None).
        memory: bytes of the driver's process, by moment; the largest as the system counted it.
        processor: seconds of processor time for one execution.
    """

    model: str
    driver: str
    tier: str
    operations: int = 0
    on_driver: int = 0
    partition: str = ""
    prepare: list[float] = field(default_factory=list)
    to_cache: list[float] = field(default_factory=list)
    from_cache: list[float] = field(default_factory=list)
    cache_bytes: int = 0
    first: float | None = None
    warm_up: int = 0
    latency: list[float] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    modes: dict[str, list[float]] = field(default_factory=dict)
    in_flight: dict[int, tuple[float, float]] = field(default_factory=dict)
    told: list[tuple[float, float | None, float | None]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    processor: float | None = None
    energy: float | None = None
    notes: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """For a line of the run's measurements."""
        return asdict(self)
