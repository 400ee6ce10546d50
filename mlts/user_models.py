"""A user's own models: a folder of .tflite and .onnx files, or the layout of the public benchmark's list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from importers.imported import Port
from importers.load import load
from mlts.catalogue import (
    CHANNELS,
    GENERATED,
    USER,
    Entry,
    Expected,
    Golden,
    Input,
    Preprocessing,
    Recipe,
    preprocessing,
)
from mlts.json_fields import Fields, parsed
from nnhal.errors import UsageError

MODELS = (".tflite", ".onnx")
SUFFIXES = (".jpg", ".jpeg", ".png")
LABELS = "labels.txt"
Pictures = tuple[tuple[Path, int | None], ...]
LIST_FOLDER = "models_list"
PREPROCESSING = "preprocessing.json"
FOLDER = "folder"  # the data set of a user's own pictures
UNIT = Preprocessing((127.5,) * CHANNELS, (127.5,) * CHANNELS)  # pixels as -1 to 1, where nothing else is said
OFF_BY = 3  # steps, as for the quantised models of the list


def user_entries(folder: Path) -> tuple[Entry, ...]:
    """The models of a folder, each of slot "other".

    A folder NAME beside NAME.tflite or NAME.onnx holds its pictures: `labels.txt` has lines `picture.jpg class`, and
    `preprocessing.json` may say {"mean": [r, g, b], "deviation": [r, g, b], "first_class": 0}. Where there is a folder
    `models_list`, its .json files are read as the public benchmark's own list, with the paths in them from `folder`.

    Raises:
        UsageError: there is no model, or something about one is wrong.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name one with .tflite or .onnx files")
    listed = folder / LIST_FOLDER
    found = tuple(_listed(folder, listed)) if listed.is_dir() else tuple(_files(folder))
    if not found:
        raise UsageError(f"{folder} has no models; put .tflite or .onnx files into it")
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{folder}: two models are named {twice[0]}; rename one")
    return found


def _files(folder: Path) -> Iterator[Entry]:
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in MODELS and file.is_file():
            yield _of_file(file)


def _of_file(file: Path) -> Entry:
    inputs = _inputs(file)
    data = file.with_suffix("")
    if not (data / LABELS).is_file():
        return _entry(file.stem, file, inputs, None if len(inputs) > 1 else UNIT)
    described = data / PREPROCESSING
    prepared, first = UNIT, 0
    if described.is_file():
        fields = Fields(parsed(_text(described), str(described)), str(described), ("mean", "deviation", "first_class"))
        prepared = preprocessing(fields.numbers("mean"), fields.numbers("deviation"), str(described))
        first = fields.optional("first_class", lambda: fields.integer("first_class")) or 0
    return _entry(file.stem, file, inputs, prepared, pictures=_labelled(data), first_class=first)


def _labelled(folder: Path) -> Pictures:
    """Lines `picture class` of a folder's labels.txt; a picture alone has no class. A `#` begins a comment.

    Raises:
        UsageError: a line is none, or names a picture that is not there.
    """
    place = folder / LABELS
    found: list[tuple[Path, int | None]] = []
    for number, line in enumerate(_text(place).splitlines(), 1):
        words = line.split("#", maxsplit=1)[0].split()
        if not words:
            continue
        name, rest = words[0], words[1:]
        if len(rest) > 1 or (rest and not rest[0].isdecimal()):
            raise UsageError(f"{place}, line {number}: write `picture.jpg class`, the class a number from 0")
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or path.suffix.lower() not in SUFFIXES:
            raise UsageError(f"{place}, line {number}: {name} is no .jpg or .png in this folder")
        if not (folder / path).is_file():
            raise UsageError(f"{place}, line {number}: there is no {name} in this folder")
        found.append((folder / path, int(rest[0]) if rest else None))
    if not found:
        raise UsageError(f"{place} names no pictures; write lines `picture.jpg class`")
    return tuple(found)


def _entry(
    name: str,
    file: Path,
    inputs: tuple[Input, ...],
    prepared: Preprocessing | None,
    *,
    pictures: Pictures = (),
    first_class: int = 0,
    expected: Expected | None = None,
    goldens: tuple[Golden, ...] = (),
    least_level: int = 0,
) -> Entry:
    quantized = any(one.dtype != "float32" for one in inputs)
    return Entry(
        name=name,
        slot="other",
        size="x".join(map(str, inputs[0].shape)) if inputs else "",
        type="quant8" if quantized else "float",
        reality=USER,
        source=None,
        seed=None,
        recipe=Recipe("file"),
        inputs=inputs,
        preprocessing=prepared,
        data_set=FOLDER if pictures else GENERATED,
        evaluator="top_k" if pictures else "difference",
        expected=expected,
        licence="",
        off_by=OFF_BY if quantized else 0,
        note=str(file),
        first_class=first_class,
        path=file,
        pictures=pictures,
        goldens=goldens,
        least_level=least_level,
    )


def _inputs(file: Path) -> tuple[Input, ...]:
    """What the file's graph takes; that its operators can be expressed is not asked here."""
    return tuple(_input(file, port) for port in load(file).inputs)


def _input(file: Path, port: Port) -> Input:
    if not port.dimensions or 0 in port.dimensions:
        raise UsageError(f"{file}: input {port.name} has an unknown size; fix its shape in the file")
    return Input(port.dimensions, port.dtype, port.scale, port.zero_point)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


# --- the public benchmark's list --------------------------------------------------------------------------------------

_KEYS = (
    "name", "testName", "modelFile", "baselineSec", "inputSize", "dataSize", "inputOutputs", "dataset", "inputScale",
    "inputZeroPoint", "evaluator", "minSdkVersion",
)  # fmt: skip


def _listed(folder: Path, listed: Path) -> Iterator[Entry]:
    for file in sorted(listed.glob("*.json")):
        top = Fields(parsed(_text(file), str(file)), str(file), ("models",))
        for where, one in top.objects("models"):
            yield _of_list(folder, Fields(one, where, _KEYS))


def _of_list(folder: Path, fields: Fields) -> Entry:
    name = fields.text("name")
    fields.where = f"{fields.where} ({name})"
    stem = fields.optional("modelFile", lambda: fields.text("modelFile")) or name
    file = _model(folder, stem, fields.where)
    shape, bytes_each = tuple(fields.integers("inputSize")), fields.integer("dataSize")
    if bytes_each not in (1, 4) or not shape or min(shape) < 1:
        raise UsageError(f"{fields.where}: dataSize is 1 (quantised) or 4 (float), inputSize has sizes from 1")
    scale = fields.optional("inputScale", lambda: fields.number("inputScale")) or 0.0
    zero_point = fields.optional("inputZeroPoint", lambda: fields.integer("inputZeroPoint")) or 0
    one = Input(shape, "uint8" if bytes_each == 1 else "float32", scale, zero_point)
    described = "dataset" in fields.value
    if described and (len(shape) != 4 or shape[0] != 1 or shape[1] != shape[2] or shape[3] != CHANNELS):
        raise UsageError(f"{fields.where}: a dataset goes with square pictures, inputSize [1, D, D, 3]")
    if described and bytes_each == 1 and not ({"inputScale", "inputZeroPoint"} <= set(fields.value)):
        raise UsageError(f"{fields.where}: a quantised model with a dataset needs inputScale and inputZeroPoint")
    return _entry(
        fields.optional("testName", lambda: fields.text("testName")) or name,
        file,
        (one,),
        UNIT if len(shape) == 4 else None,
        pictures=_data_set(folder, fields.object("dataset")) if described else (),
        expected=_expected(fields),
        goldens=_goldens(folder, fields),
        least_level=fields.optional("minSdkVersion", lambda: fields.integer("minSdkVersion")) or 0,
    )


def _model(folder: Path, stem: str, where: str) -> Path:
    for suffix in MODELS:
        file = _inside(folder, stem + suffix, where)
        if file.is_file():
            return file
    raise UsageError(f"{where}: there is no {stem}.tflite or {stem}.onnx in {folder}")


def _inside(folder: Path, name: str, where: str) -> Path:
    """A path in the folder, and nowhere else."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UsageError(f"{where}: {name} lies outside {folder}; write paths from there")
    return path


def _expected(fields: Fields) -> Expected | None:
    """The accuracy that an evaluator of type TopK demands; the others have none."""
    given: Any = fields.value.get("evaluator")
    if not isinstance(given, dict) or "expectedTop1" not in given:
        return None
    share = fields.object("evaluator").number("expectedTop1")
    if not 0 <= share <= 1:
        raise UsageError(f"{fields.where}: expectedTop1 is {share:g}; write a share from 0 to 1")
    return Expected(share)


def _goldens(folder: Path, fields: Fields) -> tuple[Golden, ...]:
    if "inputOutputs" not in fields.value:
        return ()
    found = []
    for where, one in fields.objects("inputOutputs"):
        pair = Fields(one, where, ("input", "output", "outputs"))
        outputs = [pair.text("output")] if "output" in pair.value else pair.texts("outputs")
        paths = tuple(_inside(folder, name, where) for name in outputs)
        found.append(Golden(_inside(folder, pair.text("input"), where), paths))
    return tuple(found)


def _data_set(folder: Path, fields: Fields) -> Pictures:
    """The pictures of a data set with their classes.

    `groundTruth` has lines `picture class`; or a class alone, one line for each picture in the order of their names.
    A class is a number, or a line of the file `labels`. What `preprocessor` names is taken to be pixels as -1 to 1.
    """
    fields.only(("inputPath", "groundTruth", "labels", "preprocessor"))
    paths = {key: _inside(folder, fields.text(key), fields.where) for key in ("inputPath", "groundTruth", "labels")}
    source, truth = paths["inputPath"], paths["groundTruth"]
    if not source.is_dir():
        raise UsageError(f"{fields.where}: there is no folder {source}")
    files = sorted(file for file in source.iterdir() if file.suffix.lower() in SUFFIXES)
    numbers = {line.strip(): number for number, line in enumerate(_text(paths["labels"]).splitlines())}
    rows = [line.strip() for line in _text(truth).splitlines() if line.strip()]
    by_name = {file.name: file for file in files}
    named = [row.partition(" ") for row in rows]
    if all(name in by_name for name, _, _ in named):
        return tuple((by_name[name], _class(word.strip(), numbers, truth)) for name, _, word in named)
    if len(rows) != len(files):
        raise UsageError(f"{truth} has {len(rows)} lines for {len(files)} pictures; write one for each")
    return tuple((file, _class(row, numbers, truth)) for file, row in zip(files, rows, strict=True))


def _class(word: str, numbers: Mapping[str, int], truth: Path) -> int:
    if word in numbers:
        return numbers[word]
    if not word.isdecimal():
        raise UsageError(f"{truth}: {word!r} is neither a number nor a line of the labels")
    return int(word)
