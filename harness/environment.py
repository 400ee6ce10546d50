"""What a run ran on: for the page, and for whoever compares two runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

SUITE_VERSION = "0.1.0"
PACKAGES = ("nncts", "pytest", "numpy", "ai-edge-litert", "tflite-runtime", "flatbuffers", "onnxruntime")


def environment() -> dict[str, Any]:
    """Python, platform, processor and the versions of packages that matter."""
    installed = {str(d.name).lower(): d.version for d in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "numpy": np.__version__,
        "packages": versions,
    }


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
