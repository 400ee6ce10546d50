"""Makes the .tflite file of a model out of its recipe, once, and keeps it in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache as remember
from pathlib import Path

from mlts import graph_def, nets, weights
from mlts.catalogue import Entry
from mlts.interpreting import tflite_of
from mlts.nets import layers, plan
from mlts.nets.layers import Layers
from mlts.nets.seeding import seeded
from mlts.packages import Package, fetch, locked, workshop
from mlts.pictures import calibration
from mlts.quantizing import quantize
from mlts.repairing import repaired
from nnhal.errors import UsageError
from nnhal.model import Model

HERE = Path(__file__).parent
# What they say decides how files come out: a change there makes them anew.
MAKERS = ("nets/*.py", "files.py", "observing.py", "pictures.py", "quantizing.py", "rebuilding.py", "repairing.py")


def model_file(entry: Entry, cache: Path) -> Path:
    """The .tflite or .onnx file of a model: a user's own, one out of a package, or one that is made here.

    Args:
        entry: the model.
        cache: where files are kept.

    Raises:
        UsageError: a package cannot be had, or is damaged.
    """
    if entry.path is not None:
        return entry.path
    if entry.recipe.builder == "file":
        return fetch(_source(entry), cache)
    place = cache / "models" / f"{entry.name}-{recipe_digest(entry)}.tflite"
    if not place.exists():
        with locked(cache, f"{entry.name}.model"):
            if not place.exists():
                made = tflite_of(model_of(entry, cache))
                with workshop(cache) as folder:
                    (folder / place.name).write_bytes(made)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    (folder / place.name).rename(place)
    return place


def model_of(entry: Entry, cache: Path) -> Model:
    """The model that a recipe makes.

    Raises:
        UsageError: a package cannot be had, or is damaged.
    """
    recipe = entry.recipe
    model = _build(entry, _layers(entry, cache))
    if not recipe.quantized:
        return model
    pictures = calibration(entry, cache)
    if recipe.repaired:
        model = repaired(model, pictures)
    return quantize(model, pictures, entry.preprocessing.range if entry.preprocessing else None)


def recipe_digest(entry: Entry) -> str:
    """Tells recipes apart: what goes in, what is done with it, and the code that does it."""
    parts = {
        "recipe": asdict(entry.recipe),
        "source": asdict(entry.source) if entry.source else None,
        "seed": entry.seed,
        "preprocessing": asdict(entry.preprocessing) if entry.preprocessing else None,
        "code": _code_digest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@remember
def _code_digest() -> str:
    files = sorted(file for pattern in MAKERS for file in HERE.glob(pattern))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _build(entry: Entry, given: Layers) -> Model:
    recipe = entry.recipe
    if recipe.builder == "mobilenet_v1":
        return nets.mobilenet_v1(given, recipe.width, recipe.size)
    if recipe.builder == "mobilenet_v2":
        # Weights that torchvision trained expect its padding; seeded ones follow the public models.
        return nets.mobilenet_v2(given, recipe.width, recipe.size, symmetric=entry.seed is None)
    return nets.efficientnet_lite0(given, recipe.size)


def _layers(entry: Entry, cache: Path) -> Layers:
    recipe = entry.recipe
    if entry.seed is not None:
        return seeded(recipe.builder, recipe.width, entry.seed)
    file = fetch(_source(entry), cache)
    return _READERS[recipe.builder](file.read_bytes(), file.name, recipe.width)


def _source(entry: Entry) -> Package:
    if entry.source is None:
        raise UsageError(f"{entry.name} has no source: its entry in the list is incomplete")
    return entry.source


def _of_mobilenet_v1(data: bytes, name: str, width: float) -> Layers:
    return layers.of_mobilenet_v1(graph_def.constants(data, name), plan.v1(width))


def _of_mobilenet_v2(data: bytes, name: str, width: float) -> Layers:
    return layers.of_mobilenet_v2(weights.state_dict(data, name), plan.v2(width))


def _of_lite0(data: bytes, name: str, width: float) -> Layers:
    del width  # there is one
    return layers.of_lite0(weights.state_dict(data, name), plan.lite0())


_READERS: Mapping[str, Callable[[bytes, str, float], Layers]] = {
    "mobilenet_v1": _of_mobilenet_v1,
    "mobilenet_v2": _of_mobilenet_v2,
    "efficientnet_lite0": _of_lite0,
}
