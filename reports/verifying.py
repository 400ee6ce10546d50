"""Checks an archive that `reports/statement.py` made: structure, checksums, and that the records say what it says.

Nothing in the archive is trusted. Names, number, sizes and rates of compression are looked at before anything is
unpacked, and only records and environments are, into a folder that is removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.record import read_run
from nnhal.errors import UsageError
from reports import statement as stating
from reports.statement import (
    ENVIRONMENT,
    MOST_BYTES,
    MOST_MEMBERS,
    PAGE,
    RECORDS,
    RUNS,
    STATEMENT,
    SUMS,
    WAIVERS,
    WORDS,
    is_of_run,
    is_plain,
)
from reports.text import clean, clip

MOST_TEXT = 256 << 20  # bytes of a statement, or of the list of checksums
RATIO, FROM = 500, 16 << 20  # records shrink to a fiftieth; a member this large that shrinks more is a bomb
CHUNK = 1 << 20
SHOWN = 50  # reasons that are told
HEADER, END = 30, 22  # bytes of a member's header, and of the archive's end, without names
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError, ValueError,
           OverflowError, OSError)  # fmt: skip


@dataclass
class Verified:
    """What a check came to.

    Attributes:
        reasons: why the archive does not hold; empty where it does.
        statement: computed from the records, or None where they could not be read.
        members: number of members.
        digest: SHA-256 of the archive.
    """

    reasons: list[str] = field(default_factory=list)
    statement: dict[str, Any] | None = None
    members: int = 0
    digest: str = ""


def verify(path: Path) -> Verified:
    """Checks an archive.

    Raises:
        UsageError: there is no such file, or it cannot be read.
    """
    found = Verified()
    try:
        if not path.is_file():
            raise UsageError(f"{path} is no file; give an archive that python -m reports statement made")
        with path.open("rb") as file:
            found.digest = _digest(file)
            found.reasons += _archive(file, found)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    return found


def lines(found: Verified) -> list[str]:
    """The result for a terminal; what an archive says is cleaned."""
    if found.reasons:
        told = [f"DOES NOT HOLD, for {len(found.reasons):,} reasons:"]
        told += [f"  - {clip(' '.join(clean(reason).split()), 500)}" for reason in found.reasons[:SHOWN]]
        told += [f"  and {len(found.reasons) - SHOWN:,} more"] if len(found.reasons) > SHOWN else []
        return told
    assert found.statement is not None
    driver = found.statement["driver"]
    name = " ".join(clean(f"{driver['driver']} {driver['version'] or ''}").split())
    return [
        f"holds: {found.members:,} members, every checksum right, and the records say what the statement says",
        f"driver: {clip(name, 200)}",
        *stating.lines(found.statement),
        f"SHA-256 of the file: {found.digest}",
        f"Not computed anew: {PAGE}. Who made the archive is not shown by it; see a signature over the file.",
    ]


def _digest(file: IO[bytes]) -> str:
    sha = hashlib.sha256()
    while chunk := file.read(CHUNK):
        sha.update(chunk)
    return sha.hexdigest()


def _archive(file: IO[bytes], found: Verified) -> Iterator[str]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            found.members = len(infos)
            wrong = [*_structure(file, archive, infos), *_sizes(infos)]
            yield from wrong
            if not wrong:
                yield from _contents(archive, found)
    except _BROKEN as error:
        yield f"It is no whole archive: {error or type(error).__name__}."


def _structure(file: IO[bytes], archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> Iterator[str]:
    """Whether it is laid out as it was written: members side by side in the order of their names, and nothing else."""
    names = [info.filename for info in infos]
    for name, count in Counter(name.casefold() for name in names).items():
        if count > 1:
            yield f"Member {name} is there {count} times."
    for info in infos:
        if not is_plain(info.filename) or "\0" in info.orig_filename:
            yield f"Member {info.orig_filename!r} has a name that may lead out of the folder it is unpacked to."
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 0x2041:
            yield f"Member {info.filename} is encrypted, or packed in another way than the statement's."
        if info.external_attr >> 16 not in (0o644, 0o100644):
            yield f"Member {info.filename} is no plain file."
        if info.extra or info.comment:
            yield f"Member {info.filename} carries more than its content."
    if names != sorted(names):
        yield "The members are not in the order of their names."
    place = 0
    for info in sorted(infos, key=lambda one: one.header_offset):
        if info.header_offset != place:
            yield f"There are bytes of no member before member {info.filename}, or members overlap."
            return
        file.seek(place)
        header = file.read(HEADER)
        if len(header) < HEADER:
            yield f"Member {info.filename} is cut off."
            return
        name, extra = struct.unpack("<HH", header[26:30])
        if extra:
            yield f"Member {info.filename} carries more than its content."
        place += HEADER + name + extra + info.compress_size
    if place != archive.start_dir:
        yield "There are bytes of no member behind the last one."
    file.seek(-END, 2)
    if not file.read(4).startswith(b"PK\x05\x06") or archive.comment:
        yield "There are bytes behind the archive's end."


def _sizes(infos: list[zipfile.ZipInfo]) -> Iterator[str]:
    """Whether it may be unpacked."""
    if len(infos) > MOST_MEMBERS:
        yield f"It has {len(infos):,} members; {MOST_MEMBERS:,} are looked at."
    total = sum(info.file_size for info in infos)
    if total > MOST_BYTES:
        yield f"Its members have {total / 2**30:.1f} GiB; {MOST_BYTES >> 30} GiB are looked at."
    for info in infos:
        ratio = info.file_size / max(info.compress_size, 1)
        if info.file_size > FROM and ratio > RATIO:
            yield f"Member {info.filename} unpacks to {ratio:,.0f} times its size."
        if info.filename in (STATEMENT, WORDS, SUMS) and info.file_size > MOST_TEXT:
            yield f"Member {info.filename} is too large to be read."


def _contents(archive: zipfile.ZipFile, found: Verified) -> Iterator[str]:
    names = set(archive.namelist())
    for name in (STATEMENT, WORDS, SUMS, PAGE):
        if name not in names:
            yield f"Member {name} is not there."
    for name in sorted(names - {STATEMENT, WORDS, SUMS, PAGE}):
        top, _, rest = name.partition("/")
        if not (top == WAIVERS and "/" not in rest) and not (top == RUNS and is_of_run(rest.partition("/")[2])):
            yield f"Member {name} is none of a statement."
    if SUMS in names:
        yield from _checksums(archive, names)
    with tempfile.TemporaryDirectory(prefix="nncts-verify-") as folder:
        yield from _said(archive, names, Path(folder), found)


def _checksums(archive: zipfile.ZipFile, names: set[str]) -> Iterator[str]:
    listed: dict[str, str] = {}
    for line in archive.read(SUMS).decode("utf-8", "replace").splitlines():
        match = _SUM.fullmatch(line)
        if match is None or match[2] in listed:
            yield f"A line of {SUMS} is no checksum, or of a member that another line is of: {line[:100]!r}."
        else:
            listed[match[2]] = match[1]
    for name in sorted(listed.keys() - names):
        yield f"Member {name} has a checksum and is not there."
    for name in sorted(names - {SUMS}):
        if name not in listed:
            yield f"Member {name} has no checksum."
            continue
        try:
            with archive.open(name) as file:
                digest = _digest(file)
        except _BROKEN as error:
            yield f"Member {name} cannot be unpacked: {error or type(error).__name__}."
            continue
        if digest != listed[name]:
            yield f"Member {name} is not what its checksum says."


def _said(archive: zipfile.ZipFile, names: set[str], folder: Path, found: Verified) -> Iterator[str]:
    """Whether the statement follows from the records."""
    places: dict[str, list[str]] = {}
    for name in sorted(names):
        parts = name.split("/")
        if parts[0] == RUNS and len(parts) == 3 and (RECORDS.fullmatch(parts[2]) or parts[2] == ENVIRONMENT):
            places.setdefault(parts[1], []).append(name)
    try:
        for run, members in places.items():
            (folder / run).mkdir()
            for name in members:
                with archive.open(name) as source, (folder / run / name.rpartition("/")[2]).open("wb") as target:
                    while chunk := source.read(CHUNK):
                        target.write(chunk)
        runs = [read_run(folder / run) for run in sorted(places, key=_number)]
    except (UsageError, *_BROKEN) as error:
        yield f"The records cannot be read: {str(error).replace(f'{folder}/', '')}."
        return
    if not runs:
        yield "It holds no run."
        return
    found.statement = json.loads(json.dumps(stating.describe(runs)))
    digests = {run.plan["waivers_file"].get("sha256") for run in runs if isinstance(run.plan.get("waivers_file"), dict)}
    for name in sorted(names):
        if name.startswith(f"{WAIVERS}/") and hashlib.sha256(archive.read(name)).hexdigest() not in digests:
            yield f"Member {name} is not the waiver file of a run."
    if STATEMENT in names:
        try:
            said = json.loads(archive.read(STATEMENT))
        except (ValueError, RecursionError):
            yield f"{STATEMENT} is no JSON."
        else:
            yield from _differences(found.statement, said, "statement")
    if WORDS in names and archive.read(WORDS) != stating.words(found.statement).encode():
        yield f"{WORDS} is not what follows from the records."


def _number(folder: str) -> tuple[int, str]:
    """Runs are numbered in the order in which they were given."""
    number = folder.partition("-")[0]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0, folder)


def _differences(right: object, said: object, where: str) -> Iterator[str]:
    """In what a document differs from what follows from the records, place by place."""
    if isinstance(right, Mapping) and isinstance(said, Mapping):
        for key in [*right, *(key for key in said if key not in right)]:
            place = f"{where}.{clip(key, 60)}"
            if key not in said:
                yield f"{place} is not there."
            elif key not in right:
                yield f"{place} is said, and is none of a statement."
            else:
                yield from _differences(right[key], said[key], place)
    elif isinstance(right, list) and isinstance(said, list) and len(right) == len(said):
        for number, (one, other) in enumerate(zip(right, said, strict=True)):
            yield from _differences(one, other, f"{where}[{number}]")
    elif type(right) is not type(said) or right != said:
        texts = [clip(json.dumps(one), 120) for one in (said, right)]
        yield f"{where} is said to be {texts[0]}; by the records it is {texts[1]}."
