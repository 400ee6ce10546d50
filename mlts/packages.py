"""Gets files out of packages of PyPI and Debian with the ordinary clients, checks their digests, and keeps them.

Nothing is installed, and of a package no more is unpacked than what is asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import gzip
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from nnhal.errors import UsageError

CACHE_VARIABLE = "NNCTS_CACHE"
LARGEST_FILE = 2**28  # bytes; no file that the benchmark takes is near it
WAIT = 900  # seconds for a client
WITHIN = "//"  # between an archive in a package and a file in that archive
SOURCES = ("pypi", "debian")
DAMAGE = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error, EOFError, NotImplementedError,
    RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class Package:
    """A file, or several, in a package.

    Attributes:
        source: "pypi" or "debian".
        version: exact; Debian's may be empty, for what the release has.
        file: path inside, of which the beginning may be left off. With `*` behind its last slash all files below that
            folder whose path from there matches. A path in an archive inside follows the archive's after `//`.
        sha256: of the file's bytes; where there are several, see `digest_of`.
        tags: options of pip that choose a wheel of another Python or platform: nothing of it is run.
    """

    source: str
    name: str
    version: str
    file: str
    sha256: str
    tags: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether it is a folder of files."""
        return "*" in self.file

    @property
    def words(self) -> str:
        """The package as its client names it."""
        mark = "==" if self.source == "pypi" else "="
        return f"{self.name}{mark}{self.version}" if self.version else self.name

    @property
    def command(self) -> tuple[str, ...]:
        """What downloads it into the working folder."""
        if self.source == "debian":
            return ("apt-get", "download", self.words)
        quiet = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30")
        return (sys.executable, "-m", "pip", "download", "--no-deps", *quiet, *self.tags, "--dest", ".", self.words)


def cache_folder() -> Path:
    """Where packages and files made of them are kept: $NNCTS_CACHE, or ~/.cache/nncts."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else Path("~/.cache/nncts").expanduser()


def fetch(package: Package, cache: Path) -> Path:
    """The file of a package, or the folder of files, out of the cache; downloaded where it is not there.

    Several processes may ask at once, and one may be interrupted: what is in the cache is complete.

    Raises:
        UsageError: it cannot be had, or its digest is another.
    """
    kept = cache / "packages" / package.sha256[:16] / (package.name if package.several else _base(package.file))
    if not kept.exists():
        with locked(cache, package.name):
            try:
                if not kept.exists():
                    _get(package, cache, kept)
            except OSError as error:
                raise _unwritable(error) from None
    found = digest_of(kept)
    if found != package.sha256:
        raise UsageError(f"{kept} has SHA-256 {found}, {package.sha256} is due; remove it, and it is fetched again")
    return kept


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Keeps other processes from making the same thing in the cache.

    Raises:
        UsageError: the folder cannot be written.
    """
    place = cache / "locks" / name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def workshop(cache: Path) -> Iterator[Path]:
    """A folder beside what is kept, so that what is made in it can be moved there in one step."""
    (cache / "tmp").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=cache / "tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def digest_of(place: Path) -> str:
    """SHA-256 of a file; of a folder that of the lines `digest  path`, sorted by path, of its files."""
    if place.is_dir():
        files = sorted(file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file())
        text = "".join(f"{digest_of(place / file)}  {file}\n" for file in files)
        return hashlib.sha256(text.encode()).hexdigest()
    digest = hashlib.sha256()
    with place.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _unwritable(error: OSError) -> UsageError:
    reason = f"{error.strerror}: {error.filename}"
    return UsageError(f"the cache cannot be written ({reason}); name another folder in ${CACHE_VARIABLE}")


def _get(package: Package, cache: Path, kept: Path) -> None:
    """Puts what is asked for in its place in the cache."""
    with workshop(cache) as folder:
        archive = _given(package, cache) or _download(package, cache, folder)
        made = folder / "unpacked"
        made.mkdir()
        try:
            _unpack(package, archive, made)
        except DAMAGE as error:
            raise UsageError(
                f"{archive} is damaged ({error}); remove it, and fetch it again with {_line(package)}"
            ) from None
        whole = made if package.several else made / _base(package.file)
        found = digest_of(whole)
        if found != package.sha256:
            raise UsageError(
                f"{package.file} of package {package.words} has SHA-256 {found}, {package.sha256} is due; it is not "
                f"used: get the package of exactly this version ({_line(package)})"
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        whole.rename(kept)


def _given(package: Package, cache: Path) -> Path | None:
    """The package where somebody has put it into the cache by hand, or an interrupted run has."""
    due = _plain(package.name) if not package.version else f"{_plain(package.name)}-{_plain(package.version)}"
    for file in sorted((cache / "downloads").glob("*")):
        if file.is_file() and _plain(file.name).startswith(due):
            return file
    return None


def _download(package: Package, cache: Path, folder: Path) -> Path:
    """Downloads a package into a folder, and from there into the cache."""
    into = folder / "downloaded"
    into.mkdir()
    into.chmod(0o777)  # apt's own user may have to write there
    complete = False
    try:
        ended = subprocess.run(package.command, cwd=into, capture_output=True, text=True, timeout=WAIT, check=False)
        complete = ended.returncode == 0
        words = (ended.stderr.strip().splitlines() or [f"it ended with status {ended.returncode}"])[-1]
    except FileNotFoundError:
        words = f"{package.command[0]} is not installed"
    except subprocess.TimeoutExpired:
        words = f"it took more than {WAIT} s"
    files = [file for file in into.iterdir() if file.is_file()]
    if not complete or len(files) != 1:
        raise UsageError(
            f"package {package.words} ({package.source}) cannot be had: {words}; where there is a network run "
            f"{_line(package)} and put the file into {cache / 'downloads'}"
        )
    place = cache / "downloads" / files[0].name
    place.parent.mkdir(parents=True, exist_ok=True)
    files[0].rename(place)
    return place


def _line(package: Package) -> str:
    """The command for a person."""
    if package.source == "debian":
        return f"`apt-get download {package.words}`"
    return f"`{' '.join(('pip download --no-deps', *package.tags, package.words))}`"


# --- unpacking --------------------------------------------------------------------------------------------------------


def _unpack(package: Package, archive: Path, folder: Path) -> None:
    """Puts the files that are asked for into a folder: one by its base name, several by their paths in the pattern."""
    outer, _, inner = package.file.partition(WITHIN)
    taken = 0
    for name, size, open_it in _members(archive):
        path = _asked(name, outer)
        if path is None:
            continue
        _check(package, path, size)
        _copy(open_it, folder / path, size)
        taken += 1
        if not package.several:
            break
    if not taken:
        raise UsageError(f"package {package.words} has no {outer} in it; another version is needed")
    if inner:
        nested = folder / PurePosixPath(outer).name
        _unpack(replace(package, file=inner), nested, folder)


def _asked(name: str, file: str) -> str | None:
    """Under which path a member is unpacked; None where it is not asked for."""
    rooted = "/" + name.removeprefix("./")
    if "*" not in file:
        return PurePosixPath(name).name if rooted.endswith("/" + file) else None
    folder, _, pattern = file.rpartition("/")
    _, found, path = rooted.partition(f"/{folder}/")
    return path if found and fnmatch.fnmatchcase(path, pattern) else None


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Name, size and opener of each file in a wheel, a source archive or a Debian package, in its order."""
    if archive.suffix == ".deb":
        yield from _debian(archive)
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for member in zipped.infolist():
                if not member.is_dir():
                    yield member.filename, member.file_size, lambda member=member: zipped.open(member)  # type: ignore[misc]
    else:
        with tarfile.open(archive) as tarred:
            yield from _tarred(tarred)


def _debian(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError(f"dpkg-deb is missing: {archive.name} cannot be unpacked; install dpkg") from None
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tarred:
            yield from _tarred(tarred)
    finally:
        process.kill()
        process.communicate()


def _tarred(tarred: tarfile.TarFile) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    for member in tarred:
        if member.isfile():
            yield member.name, member.size, lambda member=member: _opened(tarred, member)  # type: ignore[misc]


def _opened(tarred: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = tarred.extractfile(member)
    if file is None:
        raise tarfile.ReadError(f"{member.name} is no file")
    return file


def _check(package: Package, name: str, size: int) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(f"package {package.words} has a file named {name!r}, which lies outside; it is not unpacked")
    if size > LARGEST_FILE:
        raise UsageError(f"{name} of package {package.words} has {size} bytes; more than {LARGEST_FILE} are not taken")


def _copy(open_it: Callable[[], IO[bytes]], place: Path, size: int) -> None:
    """Writes a member, of which no more is taken than it says."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open_it() as source, place.open("wb") as target:
        left = size
        while left > 0 and (block := source.read(min(left, 2**20))):
            target.write(block)
            left -= len(block)


def _base(file: str) -> str:
    return PurePosixPath(file.replace(WITHIN, "/")).name


def _plain(name: str) -> str:
    """A name as both indexes compare it."""
    return re.sub(r"[-_.~+]+", "-", name).lower()
