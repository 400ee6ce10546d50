"""The definitions against a folder of golden documents that NNCTS_GOLDEN names; skipped when it names none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from nnhal.device import Device
from nnhal.errors import DriverError
from nnhal.types import OperationType
from opset import OPSET
from opset.graph import evaluate
from tests.golden import Golden, Json, disagreement, operations_of, parse, read_documents, run

try:
    from reference_driver.device import ReferenceDevice
except ImportError:  # until the driver is there: INTERIM
    ReferenceDevice = None  # type: ignore[assignment,misc]

FOLDER = os.environ.get("NNCTS_GOLDEN")
pytestmark = pytest.mark.skipif(not FOLDER, reason="NNCTS_GOLDEN names no folder of golden documents")


@dataclass
class Tally:
    """Counts over the run, said in one line at its end."""

    agreed: int = 0
    covered: int = 0
    total: int = 0

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"golden: {self.agreed} of {self.covered} covered documents agree (of {self.total} in the corpus)"
        )


def covered(document: Json) -> bool:
    """Whether every operation of every graph has a definition."""
    codes = OperationType.__members__
    return all(name in codes and codes[name] in OPSET for name in operations_of(document))


def collect() -> tuple[dict[str, list[tuple[str, Json]]], int]:
    """Batches of covered documents by version and first operation, and the number of all documents."""
    batches: dict[str, list[tuple[str, Json]]] = {}
    total = 0
    for version, document in read_documents(Path(FOLDER)) if FOLDER else ():
        total += 1
        if covered(document):
            batches.setdefault(f"{version}-{operations_of(document)[0]}", []).append((version, document))
    return batches, total


BATCHES, TOTAL = collect()


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Tally:
    counts = Tally(total=TOTAL)
    request.config.pluginmanager.register(counts)
    return counts


def trouble(golden: Golden, device: Device, *, shared: bool) -> str | None:
    """What is wrong with the answer of a device, or None."""
    if device is None:
        if golden.must_fail:
            return None
        return disagreement(golden, [result.stored for result in evaluate(golden.model, golden.inputs)])
    try:
        results = run(golden, device, shared=shared)
    except DriverError as refusal:
        return None if golden.must_fail else f"refused: {refusal}"
    return "answered although it must fail" if golden.must_fail else disagreement(golden, results)


@pytest.mark.parametrize("batch", BATCHES or ["none"])
def test_covered_documents_agree(batch: str, tally: Tally) -> None:
    device = ReferenceDevice() if ReferenceDevice else None
    found = []
    for number, (version, document) in enumerate(BATCHES[batch]):
        golden = parse(version, document)
        wrong = trouble(golden, device, shared=number % 2 == 0)
        tally.covered += 1
        tally.agreed += wrong is None
        if wrong is not None:
            found.append(f"{golden.name}: {wrong}")
    assert not found, f"{len(found)} of {len(BATCHES[batch])} documents disagree:\n" + "\n".join(found)
