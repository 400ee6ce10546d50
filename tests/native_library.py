"""Builds the sample library of tests/native/, sound or with a fault, with the machine's C compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).with_name("native")
COMPILERS = ("gcc", "cc", "clang")
OPTIONS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
SUPPORT = "support_library.c"
MISSING = "needs a C compiler: apt-get install gcc"


def compiler(*names: str) -> str | None:
    """The first of some compilers that is installed."""
    return next((found for name in names or COMPILERS if (found := shutil.which(name))), None)


def build(folder: Path, fault: str = "NONE", *, support: bool = False, program: str | None = None,
          options: tuple[str, ...] = ()) -> Path:  # fmt: skip
    """The library in a folder.

    Args:
        folder: where it goes.
        fault: one of those of native.h, without its front part.
        support: as a support library, which exports one function.
        program: the compiler; the machine's own when None.
        options: more of them.
    """
    path = folder / f"lib{fault.lower()}{'_support' if support else ''}.so"
    sources = [str(source) for source in sorted(SOURCES.glob("*.c")) if support or source.name != SUPPORT]
    hidden = ("-fvisibility=hidden",) if support else ()
    line = [program or compiler() or "gcc", *OPTIONS, *hidden, *options, f"-DFAULT=FAULT_{fault}", *sources]
    subprocess.run([*line, "-o", str(path), "-lm", "-lpthread"], check=True)
    return path


def build_text(folder: Path, name: str, text: str) -> Path:
    """A library of other source text."""
    source, path = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(text, encoding="utf-8")
    subprocess.run([compiler() or "gcc", *OPTIONS, f"-I{SOURCES}", str(source), "-o", str(path)], check=True)
    return path
