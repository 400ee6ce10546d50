"""Parameters of the two models: two LSTM layers and a dense one, kept as .npz beside a record of their making."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.errors import UsageError
from nnhal.types import Array

FOLDER = Path(__file__).parent / "weights"
RECORD = FOLDER / "weights.json"
LAYERS = 2


@dataclass(frozen=True)
class LstmLayer:
    """An LSTM layer; gates in the order input, forget, cell, output.

    Attributes:
        inward: float32 [4, units, inputs].
        recurrent: float32 [4, units, units].
        bias: float32 [4, units].
    """

    inward: Array
    recurrent: Array
    bias: Array


@dataclass(frozen=True)
class Parameters:
    """A trained model, float32.

    Attributes:
        layers: the LSTM layers, from the input on.
        dense: [outputs, units] behind them.
        bias: [outputs].
        mean: of the inputs in training, which are to be normalised; empty where they are not.
        deviation: the same of their standard deviations.
    """

    layers: tuple[LstmLayer, ...]
    dense: Array
    bias: Array
    mean: Array
    deviation: Array


def read(name: str, folder: Path = FOLDER) -> Parameters:
    """The trained parameters of "asr" or "tts".

    Raises:
        UsageError: the file is missing or is not the one of the record.
    """
    arrays = read_arrays(f"{name}.npz", folder)
    layers = tuple(
        LstmLayer(*(arrays[f"lstm{n}_{part}"] for part in ("inward", "recurrent", "bias"))) for n in range(LAYERS)
    )
    return Parameters(layers, *(arrays[part] for part in ("dense", "bias", "mean", "deviation")))


def write(name: str, parameters: Parameters, folder: Path = FOLDER) -> None:
    """Writes parameters as float16, which is exact when they were rounded to it."""
    arrays = {}
    for number, layer in enumerate(parameters.layers):
        for part in ("inward", "recurrent", "bias"):
            arrays[f"lstm{number}_{part}"] = getattr(layer, part)
    for part in ("dense", "bias", "mean", "deviation"):
        arrays[part] = getattr(parameters, part)
    write_arrays(f"{name}.npz", {key: value.astype(np.float16) for key, value in arrays.items()}, folder)


def read_arrays(file: str, folder: Path = FOLDER) -> dict[str, Array]:
    """The arrays of a file whose digest is in the record; those of float16 become float32.

    Raises:
        UsageError: the file is missing or is not the one of the record.
    """
    path = folder / file
    try:
        data = path.read_bytes()
        due = record(folder)["sha256"].get(file)
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be read ({error.strerror}); restore it from the repository"
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != due:
        raise UsageError(f"{path} has SHA-256 {found}, its record says {due}; restore both from the repository")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in arrays.items()}


def write_arrays(file: str, arrays: dict[str, Array], folder: Path = FOLDER) -> None:
    """Writes arrays and their digest; the same arrays give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in sorted(arrays.items()):
            plain = io.BytesIO()
            np.lib.format.write_array(plain, np.ascontiguousarray(value), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), plain.getvalue(), zipfile.ZIP_DEFLATED)
    (folder / file).write_bytes(packed.getvalue())
    known = record(folder)
    known.setdefault("sha256", {})[file] = hashlib.sha256(packed.getvalue()).hexdigest()
    write_record(known, folder)


def record(folder: Path = FOLDER) -> dict[str, Any]:
    """What is known of the files: digests, how each model was trained, what it reached; empty before the first."""
    path = folder / RECORD.name
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known


def write_record(known: dict[str, Any], folder: Path = FOLDER) -> None:
    """Writes the record."""
    (folder / RECORD.name).write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
