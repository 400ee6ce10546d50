"""One archive of runs that a vendor hands on: records, environment, waivers, failures, the page, and what they say.

The archive is a zip file with its members in the order of their names and one date for all, so that the same runs make
the same file. `SHA256SUMS` has the digest of every other member, in the form that `sha256sum -c` reads. What
`statement.json` says follows from the records alone; `reports/verifying.py` computes it anew and compares.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.record import Run, plain
from nnhal.errors import UsageError
from reports import headline as heading
from reports import html, tabular
from reports.comparable import checkout
from reports.parts import suite_of
from reports.standing import PROFILES, standing
from reports.text import clean, clip

ARCHIVE = "statement.zip"
STATEMENT, WORDS, SUMS, PAGE = "statement.json", "statement.txt", "SHA256SUMS", "report.html"
RUNS, WAIVERS, FAILURES = "runs", "waivers", "failures"
FORMAT, VERSION = "nncts-statement", 1
SCHEMA = Path(__file__).with_name("statement.schema.json")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say
RECORDS, ENVIRONMENT = re.compile(r"records[A-Za-z0-9_-]*\.jsonl"), "environment.json"
BESIDE = ("measurements.jsonl", "samples.jsonl")
_PLAIN = re.compile(r"[^A-Za-z0-9.,=+_-]+")

MOST_BYTES = 4 << 30  # of all members; more is not packed, and not unpacked
MOST_MEMBERS = 100_000


@dataclass(frozen=True)
class Packed:
    """An archive that was made.

    Attributes:
        statement: what its statement.json says.
        digest: SHA-256 of the archive.
    """

    statement: dict[str, Any]
    digest: str


def describe(runs: Sequence[Run]) -> dict[str, Any]:
    """What runs say, from their records and environments alone."""
    verdict, reasons = standing(runs)
    plan, suite = runs[0].plan, checkout(runs[0])
    return {
        "format": FORMAT,
        "version": VERSION,
        "standing": verdict,
        "reasons": reasons,
        "driver": {
            "driver": plain(plan.get("driver")),
            "name": plain(plan.get("driver_name")),
            "version": plain(plan.get("driver_version")),
            "type": plain(plan.get("driver_type")),
            "feature_level": plain(plan.get("feature_level")),
            "traits": plain(heading.traits(runs[0])),
        },
        "suite": {
            "version": plain(plan.get("suite_version")),
            "commit": plain(suite.get("commit")),
            "dirty": plain(suite.get("dirty")),
            "changed": plain(suite.get("changed")) or [],
        },
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    totals = heading.totals(run)
    document = tabular.document(run, records=False)
    profile = run.plan.get("profile") or run.plan.get("preset")
    why = heading.unvalidated(run, totals)
    return {
        "folder": run.folder.name,
        "suite": suite_of(run),
        "time": plain(run.plan.get("time")),
        "profile": plain(profile),
        "profile_words": PROFILES.get(str(profile), "") if suite_of(run) == "conformance" else "",
        "seed": plain(run.plan.get("seed")),
        "level": plain(run.plan.get("level")),
        "options": heading.options(run),
        "filtered": bool(run.plan.get("filtered")),
        "validation_tested": suite_of(run) == "conformance" and not why,
        "complete": run.complete,
        "headline": document["headline"]["text"],
        "counts": document["counts"],
        "totals": document["totals"],
        "waivers": document["waivers"],
        "waivers_file": plain(run.plan.get("waivers_file")),
    }


def words(statement: Mapping[str, Any]) -> str:
    """A statement as a person reads it; no word of a driver begins a line of its own."""
    driver, suite = statement["driver"], statement["suite"]
    dirty = {True: "changed since that commit", False: "unchanged"}.get(suite["dirty"], "state not known")
    told = [
        f"Statement of nncts: {statement['standing']}",
        "",
        f"Driver:         {_line(driver['driver'])}",
        f"Version:        {_line(driver['version'])}",
        f"Level:          {_line(driver['feature_level'])}",
        f"Kind:           {_line(driver['type'])}",
        f"Declares:       {_line(', '.join(f'{name}: {value}' for name, value in driver['traits'].items()) or None)}",
        f"Tested by:      nncts {_line(suite['version'])}, commit {_line(suite['commit'])}, {dirty}",
        "",
    ]
    if statement["reasons"]:
        told += [
            "It is no statement of conformance because:",
            *(f"  - {_line(one)}" for one in statement["reasons"]),
            "",
        ]
    for run in statement["runs"]:
        told += _run_words(run)
    told += [
        f"Checksums of all members are in {SUMS}. They show damage, not forgery: whoever changes a member can change",
        "its checksum. Who stands behind this archive is shown by a signature over the file as a whole.",
    ]
    return clean("\n".join(told)) + "\n"


def _run_words(run: Mapping[str, Any]) -> list[str]:
    profile = f"{_line(run['profile'])}{': ' + run['profile_words'] if run['profile_words'] else ''}"
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in run["counts"].items() if count) or "no cases"
    told = [
        f"Run {_line(run['folder'])} ({run['suite']}, {_line(run['time'])})",
        f"  {_line(run['headline'])}",
        f"  profile:    {profile}",
        f"  seed:       {_line(run['seed'])}",
        f"  cases:      {counts}",
    ]
    if run["suite"] == "conformance":
        told.append(f"  validation: {'tested' if run['validation_tested'] else 'NOT tested'}")
    if run["waivers"]:
        told.append("  waivers:")
        told += [f"    - {_line(one['reason'])} ({one['covered']:,} cases)" for one in run["waivers"]]
    return [*told, ""]


def _line(value: object) -> str:
    """A value in one line."""
    return "not recorded" if value in (None, "") else clip(" ".join(clean(value).split()), 400)


def lines(statement: Mapping[str, Any]) -> list[str]:
    """The verdict and its reasons for a terminal."""
    return [statement["standing"], *(f"  - {_line(reason)}" for reason in statement["reasons"])]


def schema() -> dict[str, Any]:
    """The schema of statement.json."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


# --- packing ----------------------------------------------------------------------------------------------------------


def pack(runs: Sequence[Run], path: Path, waivers: Path | None = None) -> Packed:
    """Packs runs into an archive.

    Args:
        runs: at least one.
        path: of the archive.
        waivers: the file that the runs were given; where it is None, the one that their options name, if unchanged.

    Raises:
        UsageError: the waiver file is none of the runs', there is too much to pack, or a file cannot be read or made.
    """
    folders = [f"{number}-{_PLAIN.sub('-', run.folder.resolve().name)[:80]}" for number, run in enumerate(runs, 1)]
    statement = describe([replace(run, folder=Path(name)) for run, name in zip(runs, folders, strict=True)])
    try:
        members: dict[str, bytes | Path] = {}
        for run, name in zip(runs, folders, strict=True):
            members |= {f"{RUNS}/{name}/{inside}": file for inside, file in _files(run.folder)}
        members |= {f"{WAIVERS}/{name}": content for name, content in _waiver_files(runs, waivers)}
        members[STATEMENT] = json.dumps(statement, indent=1).encode() + b"\n"
        members[WORDS] = words(statement).encode()
        members[PAGE] = html.render(runs).encode()
        _check_size(members)
        return Packed(statement, _write(members, path))
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be read or written: {error.strerror or error}") from None


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What of a run's folder is packed: no logs, which may hold what is nobody's business, and no links."""
    failures = folder / FAILURES
    for file in (*sorted(folder.iterdir()), *(sorted(failures.rglob("*")) if failures.is_dir() else ())):
        inside = file.relative_to(folder).as_posix()
        if is_of_run(inside) and file.is_file() and not file.is_symlink():
            yield inside, file


def is_of_run(inside: str) -> bool:
    """Whether a place below a run's folder is one that is packed."""
    known = RECORDS.fullmatch(inside) or inside in (ENVIRONMENT, *BESIDE) or inside.startswith(f"{FAILURES}/")
    return bool(known) and is_plain(inside)


def is_plain(name: str) -> bool:
    """Whether a member's name stays below the folder into which it is unpacked, on any system."""
    parts = name.split("/")
    return (
        bool(name)
        and len(name) <= 400
        and name.isprintable()
        and not any(part in ("", ".", "..") or part.endswith((" ", ".")) for part in parts)
        and not any(sign in name for sign in '\\:*?"<>|')
    )


def _waiver_files(runs: Sequence[Run], given: Path | None) -> Iterator[tuple[str, bytes]]:
    """The waiver files of the runs, known by their digests."""
    wanted = {found["sha256"]: found for run in runs if isinstance(found := run.plan.get("waivers_file"), dict)
              and isinstance(found.get("sha256"), str)}  # fmt: skip
    if given is not None:
        digest = hashlib.sha256(given.read_bytes()).hexdigest()
        if digest not in wanted:
            raise UsageError(f"{given} is not the waiver file that these runs were given, as it was then")
    places = [given] if given else []
    places += [Path(option.partition("=")[2]) for run in runs for option in heading.options(run)
               if option.startswith("--waivers=")]  # fmt: skip
    packed = set()
    for place in places:
        content = place.read_bytes() if place.is_file() else b""
        digest = hashlib.sha256(content).hexdigest()
        if digest in wanted and digest not in packed:
            packed.add(digest)
            yield f"{digest[:12]}-{_PLAIN.sub('-', place.name)[:80]}", content


def _check_size(members: Mapping[str, bytes | Path]) -> None:
    size = sum(one.stat().st_size if isinstance(one, Path) else len(one) for one in members.values())
    if size > MOST_BYTES or len(members) >= MOST_MEMBERS:
        raise UsageError(
            f"the runs have {len(members):,} files of {size / 2**30:.1f} GiB; an archive takes {MOST_MEMBERS:,} of "
            f"{MOST_BYTES >> 30} GiB, so pack fewer runs"
        )


def _write(members: Mapping[str, bytes | Path], path: Path) -> str:
    """Writes the archive as a whole or not at all; gives its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    sums = {name: hashlib.sha256(_content(one)).hexdigest() for name, one in members.items()}
    listed = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted({*members, SUMS}):
                archive.writestr(_info(name), listed if name == SUMS else _content(members[name]))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(member: bytes | Path) -> bytes:
    return member.read_bytes() if isinstance(member, Path) else member


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # as on Unix, wherever it is made
    info.external_attr = 0o644 << 16
    return info
