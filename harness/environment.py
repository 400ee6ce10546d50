"""What a run ran on: for the page, and for whoever compares two runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SUITE_VERSION = "0.1.0"
ROOT = Path(__file__).resolve().parent.parent
CHANGES = 20  # changed files of the suite that are named
GIT_SECONDS = 10.0
PACKAGES = ("nncts", "pytest", "numpy", "ai-edge-litert", "tflite-runtime", "flatbuffers", "onnxruntime")


def environment() -> dict[str, Any]:
    """Python, platform, processor, the versions of packages that matter, and the state of the suite itself."""
    installed = {str(d.name).lower(): d.version for d in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "numpy": np.__version__,
        "packages": versions,
        "suite": checkout(),
    }


def checkout(root: Path = ROOT) -> dict[str, Any]:
    """Which suite this is, as its own git checkout tells.

    Returns:
        `version`; `commit`, None where it is no checkout of its own or git cannot be asked; `dirty`, whether files
        differ from that commit or are there besides, None where that is not known; `changed`, the names of some.
    """
    found: dict[str, Any] = {"version": SUITE_VERSION, "commit": None, "dirty": None, "changed": []}
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()).resolve() != root.resolve():
        return found
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "-z", "--no-renames")
    if commit is not None and changes is not None:
        names = sorted(line[3:] for line in changes.split("\0") if line)
        found |= {"commit": commit.strip(), "dirty": bool(names), "changed": names[:CHANGES]}
    return found


def _git(root: Path, *words: str) -> str | None:
    """What git says, or None; variables that point it elsewhere are not handed on."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=GIT_SECONDS, env=clean)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write_environment(folder: Path, more: dict[str, Any]) -> None:
    """Writes environment.json into a run's folder."""
    content = json.dumps({**environment(), **more}, indent=1)
    (folder / "environment.json").write_text(content, encoding="utf-8")
