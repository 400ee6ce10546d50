"""Runs of pytest in a process of its own, for the tests of the plugin, and drivers to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.record import Run, read_run

ROOT = Path(__file__).parents[1]
OK, FAILED, USAGE = 0, 1, 4
LIGHT = "tests/light_driver.py:DRIVER"  # starts in half the time that the reference driver takes
SECONDS = 300  # after which a run is taken for hung


@dataclass(frozen=True)
class Ran:
    """A run of pytest that has ended."""

    status: int
    out: str
    err: str
    runs: tuple[Path, ...]

    @property
    def run(self) -> Run:
        """The only run's records."""
        (folder,) = self.runs
        return read_run(folder)

    def of(self, driver: str) -> Run:
        """The records of one of several drivers."""
        (found,) = [run for run in map(read_run, self.runs) if run.plan["driver"] == driver]
        return found


def command(runs: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--runs={runs}", *arguments]


def pytest_run(runs: Path, *arguments: str) -> Ran:
    # Others' plugins take a fifth of the start, and only pytest-xdist is of use here.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    workers = ["-p", "xdist"] if any(text.startswith("-n") for text in arguments) else []
    done = subprocess.run(
        command(runs, *workers, *arguments), cwd=ROOT, env=alone, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert "INTERNALERROR" not in done.stdout + done.stderr, done.stdout[-2000:]
    return Ran(done.returncode, done.stdout, done.stderr, tuple(sorted(runs.glob("*/"))))


def adds_up(run: Run) -> None:
    """As many records as cases were selected, each in the counts once."""
    assert len(run.records) == run.selected == sum(run.counts().values())
    assert run.counts()["NOT_RUN"] == 0
    assert run.complete
    lines = (run.folder / "records.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["record"] for line in lines)["case"] == run.selected


def verdicts(run: Run) -> dict[str, str]:
    return {record.id: record.verdict for record in run.records.values()}


def faulty(fault: str) -> str:
    return f"faulty,inner={LIGHT},fault={fault}"


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def once(factory: pytest.TempPathFactory, name: str, compute: Callable[[Path], object]) -> tuple[Path, Any]:
    """A folder and what `compute` gave for it, as JSON; of the workers of pytest-xdist, one computes for all."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    result = folder / "result.json"
    try:
        folder.mkdir()
    except FileExistsError:
        until(lambda: result.exists() and result.read_bytes().endswith(b"\n"))
    else:
        try:
            text = json.dumps(compute(folder))
        except BaseException:
            text = "null"
            raise
        finally:
            result.write_text(text + "\n")
    return folder, json.loads(result.read_text())


def shared_run(factory: pytest.TempPathFactory, name: str, *arguments: str) -> Ran:
    """A run that several tests look at."""

    def compute(folder: Path) -> list[object]:
        ran = pytest_run(folder / "runs", *arguments)
        return [ran.status, ran.out, ran.err]

    folder, (status, out, err) = once(factory, name, compute)
    return Ran(status, out, err, tuple(sorted((folder / "runs").glob("*/"))))


# ---- drivers of the tests' own

DRIVERS = {
    "raises": "raise RuntimeError('no licence\\nfor this machine')",
    "syntax": "def (",
    "extra": "import a_runtime_that_is_not_here",
    "told": "from nnhal.errors import UsageError\nraise UsageError(\"install the extra: pip install 'x[runtime]'\")",
    "empty": "",
    "number": "DRIVER = 3",
    "other": "DRIVER = object",
    "abstract": "from nnhal.device import Device\nclass DRIVER(Device): pass",
    "exits": "import sys\nsys.exit(3)",
    "dies": "import os\nos._exit(7)",
    "starts": "def DRIVER():\n    raise OSError('no such device')",
    "nothing": """
from nnhal.device import Device
class DRIVER(Device):
    def get_supported_operations(self, model): return [False for _ in model.main.operations]
    def explain_unsupported(self, model): return ["nothing is" for _ in model.main.operations]
    def prepare_model(self, model, config=None): raise AssertionError
""",
    "speechless": """
from reference_driver import ReferenceDevice
class DRIVER(ReferenceDevice):
    def get_version_string(self): raise ValueError("no version")
""",
    # Gets the first execution of all wrong, whatever process it is in.
    "once": """
import os
from drivers.faulty import make
class DRIVER:
    def __new__(cls):
        wrong = not os.path.exists({marker!r})
        open({marker!r}, "w").close()
        return make(inner={light!r}, fault="wrong_value", after="0" if wrong else "1000000")
""",
    # Is silent from the fourth model on, until a file is there; a model is asked about at query and at prepare.
    "stalls": """
import os, time
from reference_driver import ReferenceDevice
class DRIVER(ReferenceDevice):
    asked = 0
    def get_supported_operations(self, model):
        self.asked += 1
        with open({marker!r} + ".pid", "w") as file:
            file.write(str(os.getpid()))
        while self.asked > 6 and not os.path.exists({marker!r}):
            time.sleep(0.02)
        return super().get_supported_operations(model)
""",
    # Quantised results are one step too high.
    "coarse": """
import numpy as np
from nnhal.buffers import argument_bytes
from reference_driver import ReferenceDevice
class DRIVER(ReferenceDevice):
    def prepare_model(self, model, *rest):
        prepared = super().prepare_model(model, *rest)
        right = prepared.execute_synchronously
        def execute(request, *rest):
            result = right(request, *rest)
            data = np.frombuffer(argument_bytes(request, request.outputs[0]), np.uint8)
            data[data < 255] += 1
            return result
        prepared.execute_synchronously = execute
        return prepared
""",
}


def write_driver(folder: Path, name: str) -> str:
    """Writes a driver file and gives what to say after `--driver=`; its marker is `NAME.marker` beside it."""
    path = folder / f"mine_{name}.py"
    text = DRIVERS[name].replace("{marker!r}", repr(str(folder / f"{name}.marker")))
    path.write_text(text.replace("{light!r}", repr(LIGHT)))
    return f"{path}:DRIVER"
