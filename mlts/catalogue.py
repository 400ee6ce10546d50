"""The list of models: what each is, where it comes from, what is put in, and how its answers are judged.

`models.json` holds it, `models.schema.json` describes the file for other programs. What is read is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mlts.json_fields import Fields, parsed
from mlts.packages import SOURCES, Package
from nnhal.errors import UsageError
from nnhal.types import Array

LIST = Path(__file__).with_name("models.json")
GENUINE, OTHER_TASK = "genuine weights", "genuine weights, other task"
TRAINED, SEEDED, USER = "trained by this project", "seeded, no trained weights", "the user's"
REALITIES = (GENUINE, OTHER_TASK, TRAINED, SEEDED)
SLOTS = ("mobilenet_v1", "mobilenet_v2", "tts", "asr", "other")
TYPES = ("float", "quant8")
BUILDERS = ("mobilenet_v1", "mobilenet_v2", "efficientnet_lite0", "file")
EVALUATORS = ("top_k", "difference")
GENERATED = "generated"  # the data set that needs no package
DTYPES = ("float32", "uint8", "int8")
CHANNELS = 3


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        dtype: as it is stored.
        scale: 0.0 where it is not quantised.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 0.0
    zero_point: int = 0

    def stored(self, real: Array) -> Array:
        """Real values as stored ones: nearest step, halves to even, saturated."""
        if self.dtype == "float32" or not self.scale:
            return real.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        steps = np.round(real.astype(np.float64) / self.scale) + self.zero_point
        return np.clip(steps, limits.min, limits.max).astype(self.dtype)


@dataclass(frozen=True)
class Preprocessing:
    """What a model reads of a pixel of 0 to 255, for each of red, green and blue: (pixel - mean) / deviation."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def real(self, pixels: Array) -> Array:
        """Pixels [height, width, 3] as real values, float32."""
        mean, deviation = (np.array(values, np.float32) for values in (self.mean, self.deviation))
        return np.asarray((pixels.astype(np.float32) - mean) / deviation)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value."""
        ends = [self.real(np.full((1, 1, CHANNELS), pixel)) for pixel in (0, 255)]
        return float(ends[0].min()), float(ends[1].max())


@dataclass(frozen=True)
class Recipe:
    """How the .tflite file is made.

    Attributes:
        builder: a network of `mlts.nets`, or "file" for one that is taken as it is.
        quantized: to TENSOR_QUANT8_ASYMM.
        repaired: before that, so that it bears one scale for each tensor of weights.
        calibration: data set whose pictures ranges are taken from; empty where nothing is quantised.
    """

    builder: str
    width: float = 1.0
    size: int = 0
    quantized: bool = False
    repaired: bool = False
    calibration: str = ""


@dataclass(frozen=True)
class Expected:
    """Shares of pictures for which the right class is the first, and among the first five; of so many pictures."""

    top1: float
    top5: float | None = None
    count: int = 0


@dataclass(frozen=True)
class Golden:
    """A file of inputs and those of the outputs that are due, as raw bytes in the model's types."""

    input: Path
    outputs: tuple[Path, ...]


@dataclass(frozen=True)
class Entry:
    """A model of the benchmark.

    Attributes:
        slot: which of the public models it stands for.
        size: width and edge of the picture, as in the public names.
        reality: where its weights come from, which every report says.
        source: its weights, or the file itself; None for seeded weights and for files of a user.
        first_class: index of the output that is class 0 of the data set.
        data_set: the pictures it is judged on.
        expected: on these pictures; None where no accuracy is known.
        off_by: steps that an output may be off without blame where the model is quantised.
        path: a user's file.
        pictures: a user's, each with its class where it has one.
        goldens: a user's inputs with the outputs that are due.
        least_level: of the runtime's interface, as the public list has it (its Android API level).
    """

    name: str
    slot: str
    size: str
    type: str
    reality: str
    source: Package | None
    seed: int | None
    recipe: Recipe
    inputs: tuple[Input, ...]
    preprocessing: Preprocessing | None
    data_set: str
    evaluator: str
    expected: Expected | None
    licence: str
    off_by: int
    note: str
    first_class: int = 0
    path: Path | None = None
    pictures: tuple[tuple[Path, int | None], ...] = ()
    goldens: tuple[Golden, ...] = ()
    least_level: int = 0


def entries() -> tuple[Entry, ...]:
    """All models of the list, in its order.

    Raises:
        UsageError: the list is damaged.
    """
    return _catalogue()[0]


def entry(name: str) -> Entry:
    """A model by its name.

    Raises:
        UsageError: there is none of that name.
    """
    for one in entries():
        if one.name == name:
            return one
    raise UsageError(f"there is no model {name!r}; the models are {', '.join(one.name for one in entries())}")


def data_sets() -> Mapping[str, Package]:
    """The packages of pictures, by the name of the data set."""
    return _catalogue()[1]


@cache
def _catalogue() -> tuple[tuple[Entry, ...], Mapping[str, Package]]:
    return read(LIST.read_text(encoding="utf-8"), LIST.name)


def read(text: str, name: str) -> tuple[tuple[Entry, ...], Mapping[str, Package]]:
    """A list of models and the data sets beside it.

    Args:
        text: JSON as `models.schema.json` describes it.
        name: of the file, for messages.

    Raises:
        UsageError: something in it is missing, unknown or contradicts the rest.
    """
    top = Fields(parsed(text, name), name, ("data_sets", "models", "speech"))  # the last by `mlts.speech_entries`
    sets = {}
    for where, one in top.objects("data_sets"):
        fields = Fields(one, where, ("name", "package", "licence", "note"))
        sets[fields.text("name")] = _package(fields.object("package"))
    found = []
    for where, one in top.objects("models"):
        found.append(_entry(one, where, set(sets)))
    names = [one.name for one in found]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UsageError(f"{name}: two models are named {twice[0]}; give each its own name")
    return tuple(found), sets


def _entry(value: Any, where: str, sets: set[str]) -> Entry:
    fields = Fields(value, where, _KEYS)
    name = fields.text("name")
    fields.where = f"{where} ({name})"
    recipe = _recipe(fields.object("recipe"), sets)
    expected = fields.optional("expected", lambda: _expected(fields.object("expected")))
    one = Entry(
        name=name,
        slot=fields.one_of("slot", SLOTS),
        size=fields.text("size"),
        type=fields.one_of("type", TYPES),
        reality=fields.one_of("reality", REALITIES),
        source=fields.optional("source", lambda: _package(fields.object("source"))),
        seed=fields.optional("seed", lambda: fields.integer("seed")),
        recipe=recipe,
        inputs=(_input(fields.object("input")),),
        preprocessing=_preprocessing(fields.object("preprocessing")),
        data_set=fields.one_of("data_set", (*sorted(sets), GENERATED)),
        evaluator=fields.one_of("evaluator", EVALUATORS),
        expected=expected,
        licence=fields.text("licence"),
        off_by=fields.integer("off_by"),
        note=fields.text("note"),
        first_class=fields.integer("first_class"),
    )
    if (one.source is None) == (one.seed is None):
        raise UsageError(f"{fields.where}: its weights come from a source or from a seed; name one of the two")
    if (one.seed is not None) != (one.reality == SEEDED):
        raise UsageError(f"{fields.where}: a seed goes with the reality {SEEDED!r}, and only with it")
    if one.reality == SEEDED and expected is not None:
        raise UsageError(f"{fields.where}: seeded weights have no accuracy; leave `expected` out")
    if recipe.calibration and recipe.calibration == one.data_set != GENERATED:
        raise UsageError(f"{fields.where}: it is calibrated and judged on {one.data_set}; take two data sets")
    return one


_KEYS = (
    "name", "slot", "size", "type", "reality", "source", "seed", "recipe", "input", "preprocessing", "data_set",
    "evaluator", "expected", "licence", "off_by", "note", "first_class",
)  # fmt: skip


def _package(fields: Fields) -> Package:
    fields.only(("from", "name", "version", "file", "sha256", "pip_options"))
    digest = fields.text("sha256")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise UsageError(f"{fields.where}: sha256 is no digest; write its 64 hexadecimal digits")
    tags = fields.optional("pip_options", lambda: tuple(fields.texts("pip_options"))) or ()
    source = fields.one_of("from", SOURCES)
    return Package(source, fields.text("name"), fields.text("version"), fields.text("file"), digest, tags)


def _recipe(fields: Fields, sets: set[str]) -> Recipe:
    builder = fields.one_of("builder", BUILDERS)
    if builder == "file":
        fields.only(("builder",))
        return Recipe(builder)
    fields.only(("builder", "width", "size", "quantized", "repaired", "calibration"))
    quantized = fields.optional("quantized", lambda: fields.flag("quantized")) or False
    repaired = fields.optional("repaired", lambda: fields.flag("repaired")) or False
    calibration = fields.one_of("calibration", (*sorted(sets), GENERATED)) if quantized else ""
    width, size = fields.number("width"), fields.integer("size")
    if not 0 < width <= 2 or not 32 <= size <= 1024:
        raise UsageError(f"{fields.where}: width is above 0 and at most 2, size from 32 to 1024")
    return Recipe(builder, width, size, quantized, repaired, calibration)


def _input(fields: Fields) -> Input:
    fields.only(("shape", "dtype", "scale", "zero_point"))
    shape = tuple(fields.integers("shape"))
    if not shape or min(shape) < 1 or math.prod(shape) > 2**24:
        raise UsageError(f"{fields.where}: shape has sizes from 1, and not more than 2^24 elements")
    dtype = fields.one_of("dtype", DTYPES)
    scale = fields.optional("scale", lambda: fields.number("scale")) or 0.0
    zero_point = fields.optional("zero_point", lambda: fields.integer("zero_point")) or 0
    if scale < 0 or (dtype == "float32" and scale):
        raise UsageError(f"{fields.where}: scale is above 0 for quantised inputs, and is left out for float32")
    return Input(shape, dtype, scale, zero_point)


def _preprocessing(fields: Fields) -> Preprocessing:
    fields.only(("mean", "deviation"))
    return preprocessing(fields.numbers("mean"), fields.numbers("deviation"), fields.where)


def preprocessing(mean: Sequence[float], deviation: Sequence[float], where: str) -> Preprocessing:
    """A checked preprocessing.

    Raises:
        UsageError: it has not three channels, or divides by 0.
    """
    if len(mean) != CHANNELS or len(deviation) != CHANNELS or min(deviation) <= 0:
        raise UsageError(f"{where}: mean and deviation are three numbers each, deviations above 0")
    return Preprocessing(tuple(mean), tuple(deviation))


def _expected(fields: Fields) -> Expected:
    fields.only(("top1", "top5", "count"))
    found = Expected(fields.number("top1"), fields.number("top5"), fields.integer("count"))
    if not 0 <= found.top1 <= (found.top5 or 0) <= 1 or found.count < 1:
        raise UsageError(f"{fields.where}: top1 and top5 are shares, top5 is not below top1, and count is above 0")
    return found
