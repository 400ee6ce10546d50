"""Pictures as inputs of models: packaged ones with their classes, a user's folder, and made ones.

Pictures that a model's ranges are taken from (`calibration`) are never among those that it is judged on.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path
from typing import Any

import numpy as np

from mlts.catalogue import CHANNELS, GENERATED, Entry, Input, data_sets
from mlts.packages import fetch
from nnhal.errors import UsageError
from nnhal.types import Array

INSTALL = 'pip install -e ".[mlts]"'
WHITE = 255
MOST_PIXELS = 2**25  # of a picture in a user's folder
GENERATED_SEED, CALIBRATION_SEED = 1, 2  # of made pictures that models are judged on, and calibrated with
GENERATED_COUNT, CALIBRATION_COUNT = 50, 24
# Of scikit-image's pictures those in colour or grey that show scenes and textures.
PHOTOS = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "color.png", "grass.png",
    "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg",
    "rocket.jpg", "text.png",
)  # fmt: skip
STAMPS = Path(__file__).with_name("stamps.json")


@dataclass(frozen=True)
class Sample:
    """Inputs of one run.

    Attributes:
        inputs: in the model's order and stored types.
        truth: indexes of the outputs that are right; None where nobody knows.
        name: of the picture.
        golden: outputs that are due, where a file gives them.
    """

    inputs: tuple[Array, ...]
    truth: tuple[int, ...] | None
    name: str
    golden: tuple[Array, ...] | None = None


def samples(entry: Entry, cache: Path, data_set: str = "", most: int | None = None) -> Iterator[Sample]:
    """The inputs that a model is judged on, one by one, in the same order each time.

    Args:
        entry: the model.
        cache: where packages are kept.
        data_set: another one than the entry's own, such as "stamps".
        most: how many; None for all there are (of made ones 50).

    Raises:
        UsageError: the data set is unknown, cannot be had, or does not fit the model.
    """
    chosen = data_set or entry.data_set
    if entry.recipe.calibration and chosen == entry.recipe.calibration != GENERATED:
        raise UsageError(f"{entry.name} is calibrated on {chosen}; take other pictures to judge it")
    if entry.goldens and not data_set:
        found = _goldens(entry)
    elif chosen == GENERATED or (not entry.pictures and entry.preprocessing is None):
        found = generated(entry.inputs, most or GENERATED_COUNT, GENERATED_SEED, entry)
    else:
        found = _prepared(entry, _pictures(entry, chosen, cache))
    return itertools.islice(found, most)


def calibration(entry: Entry, cache: Path) -> list[list[Array]]:
    """Real inputs, float32, for the ranges of a model that is quantised.

    Raises:
        UsageError: the pictures cannot be had.
    """
    chosen, preprocessing = entry.recipe.calibration, entry.preprocessing
    if preprocessing is None or not chosen:
        raise UsageError(f"{entry.name} is not calibrated: its recipe names no pictures")
    shape = entry.inputs[0].shape
    if chosen == GENERATED:
        made = smooth(shape[1], shape[2], CALIBRATION_COUNT, CALIBRATION_SEED)
        return [[preprocessing.real(pixels)[None]] for pixels in made]
    found = _pictures(entry, chosen, cache)
    return [[preprocessing.real(load(shape[1], shape[2]))[None]] for _, load, _ in found]


# --- made pictures ----------------------------------------------------------------------------------------------------


def generated(inputs: Sequence[Input], count: int, seed: int, entry: Entry | None = None) -> Iterator[Sample]:
    """Seeded inputs without a truth.

    Args:
        inputs: what the model takes: smooth pictures where it is one picture, normal noise else.
        count: how many.
        seed: for the same ones again.
        entry: for its preprocessing; without one pixels become -1 to 1.
    """
    preprocessing = entry.preprocessing if entry is not None else None
    source = np.random.default_rng(seed)
    one = inputs[0]
    is_picture = len(inputs) == 1 and len(one.shape) == 4 and CHANNELS in (one.shape[1], one.shape[3])
    if is_picture:
        height, width = _edges(one)
        pictures = smooth(height, width, count, seed)
    for number in range(count):
        name = f"generated {seed}.{number}"
        if is_picture:
            pixels = next(pictures)
            real = preprocessing.real(pixels) if preprocessing else pixels.astype(np.float32) / 127.5 - 1
            yield Sample((one.stored(_batch(real, one)),), None, name)
        else:
            noise = [source.standard_normal(each.shape) for each in inputs]
            yield Sample(tuple(i.stored(n) for i, n in zip(inputs, noise, strict=True)), None, name)


def smooth(height: int, width: int, count: int, seed: int) -> Iterator[Array]:
    """Seeded pictures [height, width, 3] of uint8: patches of colour on three scales, over the whole range."""
    for number in range(count):
        source = np.random.default_rng((seed, number))
        total = np.zeros((height, width, CHANNELS))
        for cells, weight in ((2, 1.0), (5, 0.7), (13, 0.4)):
            grid = source.standard_normal((cells + 1, cells + 1, CHANNELS))
            total += weight * _stretched(_stretched(grid, height, 0), width, 1)
        low, high = total.min(), total.max()
        yield np.round((total - low) / max(high - low, 1e-9) * 255).astype(np.uint8)


def _stretched(values: Array, size: int, axis: int) -> Array:
    """Linear interpolation along an axis, ends on ends."""
    places = np.linspace(0, values.shape[axis] - 1, size)
    before = np.minimum(places.astype(int), values.shape[axis] - 2)
    share = (places - before).reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    first, second = values.take(before, axis), values.take(before + 1, axis)
    return np.asarray(first * (1 - share) + second * share)


# --- pictures in files ------------------------------------------------------------------------------------------------

Loader = Callable[[int, int], Array]  # a picture of height and width, as pixels
Picture = tuple[str, Loader, tuple[int, ...] | None]  # name, pixels, classes of the data set


def _prepared(entry: Entry, pictures: Iterator[Picture]) -> Iterator[Sample]:
    (one,) = entry.inputs
    height, width = _edges(one)
    for name, load, classes in pictures:
        pixels = load(height, width)
        real = entry.preprocessing.real(pixels) if entry.preprocessing else pixels.astype(np.float32)
        truth = None if classes is None else tuple(number + entry.first_class for number in classes)
        yield Sample((one.stored(_batch(real, one)),), truth, name)


def _edges(one: Input) -> tuple[int, int]:
    """Height and width, wherever the channels are.

    Raises:
        UsageError: it is no picture.
    """
    shape = one.shape
    if len(shape) == 4 and shape[3] == CHANNELS:
        return shape[1], shape[2]
    if len(shape) == 4 and shape[1] == CHANNELS:
        return shape[2], shape[3]
    raise UsageError(f"an input {list(shape)} is no picture of three colours; leave the data set out")


def _batch(real: Array, one: Input) -> Array:
    """A picture with its channels where the model has them, as often as its batch is large."""
    placed = real if one.shape[3] == CHANNELS else np.ascontiguousarray(real.transpose(2, 0, 1))
    return np.ascontiguousarray(np.broadcast_to(placed, (one.shape[0], *placed.shape)))


def _pictures(entry: Entry, data_set: str, cache: Path) -> Iterator[Picture]:
    """The pictures of a data set."""
    if entry.pictures and data_set == entry.data_set:
        return ((file.name, cropped(file), None if n is None else (n,)) for file, n in entry.pictures)
    packages = data_sets()
    if data_set not in packages:
        raise UsageError(f"there is no data set {data_set!r}; choose {', '.join((*packages, GENERATED))}")
    folder = fetch(packages[data_set], cache)
    if data_set == "photos":
        return ((name, cropped(folder / name), None) for name in PHOTOS)
    if data_set == "stamps":
        table = _stamps()
        return ((name, on_white(folder / f"{name}.png"), classes) for name, classes in table.items())
    return _numbered(folder)


def _numbered(folder: Path) -> Iterator[Picture]:
    """Pictures whose names end in their class."""
    for file in sorted(folder.iterdir()):
        found = re.search(r"_(\d+)\.\w+$", file.name)
        yield file.stem, cropped(file), (int(found[1]),) if found else None


@remember
def _stamps() -> dict[str, tuple[int, ...]]:
    """Classes of ImageNet that each stamp's name means, several where it is broad."""
    table: dict[str, list[int]] = json.loads(STAMPS.read_text(encoding="utf-8"))
    return {name: tuple(classes) for name, classes in table.items()}


def cropped(file: Path) -> Loader:
    """The shorter edge fitted to the size, the middle of the longer one."""

    def load(height: int, width: int) -> Array:
        image = _opened(file)
        factor = max(height / image.height, width / image.width)
        size = (max(width, round(image.width * factor)), max(height, round(image.height * factor)))
        image = image.resize(size, _bilinear())
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        return np.asarray(image.crop((left, top, left + width, top + height)))

    return load


def on_white(file: Path) -> Loader:
    """The whole picture in the middle of a white square."""

    def load(height: int, width: int) -> Array:
        from PIL import Image

        image = _opened(file)
        edge = max(image.size)
        square = Image.new("RGB", (edge, edge), (WHITE,) * CHANNELS)
        square.paste(image, ((edge - image.width) // 2, (edge - image.height) // 2))
        return np.asarray(square.resize((width, height), _bilinear()))

    return load


def _opened(file: Path) -> Any:
    """A picture in red, green and blue, on white where it is transparent.

    Raises:
        UsageError: Pillow is missing, or the file is no picture.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise UsageError(f"Pillow, which reads pictures, is missing; run {INSTALL}") from None
    try:
        with Image.open(io.BytesIO(file.read_bytes()), formats=("JPEG", "PNG")) as image:
            if math.prod(image.size) > MOST_PIXELS:
                raise UsageError(f"{file} has {image.width} x {image.height} pixels; make it smaller")
            if image.has_transparency_data:
                whole = image.convert("RGBA")
                ground = Image.new("RGBA", whole.size, (WHITE,) * 4)
                return Image.alpha_composite(ground, whole).convert("RGB")
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file} cannot be read as a picture: {error}") from None


def _bilinear() -> Any:
    from PIL import Image

    return Image.Resampling.BILINEAR


# --- files of inputs and outputs --------------------------------------------------------------------------------------


def _goldens(entry: Entry) -> Iterator[Sample]:
    """A user's inputs with the outputs that are due; these in float32 or bytes, whose shape only the model knows."""
    (one,) = entry.inputs
    for golden in entry.goldens:
        data = _bytes(golden.input)
        due = math.prod(one.shape) * np.dtype(one.dtype).itemsize
        if len(data) != due:
            raise UsageError(f"{golden.input} has {len(data)} bytes, the model {entry.name} takes {due}")
        value = np.frombuffer(data, one.dtype).reshape(one.shape)
        outputs = tuple(np.frombuffer(_bytes(file), one.dtype) for file in golden.outputs)
        yield Sample((value,), None, golden.input.name, outputs)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
