"""The definitions against a folder of golden documents that NNCTS_GOLDEN names; skipped when it names none."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from nnhal.device import Device
from nnhal.errors import DriverError
from nnhal.types import OperationType
from opset import OPSET
from reference_driver.device import ReferenceDevice
from tests.golden import Golden, Json, disagreement, operations_of, parse, read_documents, run

FOLDER = os.environ.get("NNCTS_GOLDEN")


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


def subject(document: Json) -> str:
    """What a document is about: the first operation, but an ADD may only be there to make an input internal."""
    names = operations_of(document)
    return next((name for name in names if name != "ADD"), names[0])


def collect() -> tuple[dict[str, list[tuple[str, Json]]], int]:
    """Batches of covered documents by version and first operation, and the number of all documents."""
    batches: dict[str, list[tuple[str, Json]]] = {}
    total = 0
    for version, document in read_documents(Path(FOLDER)) if FOLDER else ():
        total += 1
        if covered(document):
            batches.setdefault(f"{version}-{subject(document)}", []).append((version, document))
    return batches, total


BATCHES, TOTAL = collect()


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Tally:
    counts = Tally(total=TOTAL)
    request.config.pluginmanager.register(counts)
    return counts


def trouble(golden: Golden, device: Device, *, shared: bool) -> str | None:
    """What is wrong with the answer of a device, or None."""
    try:
        results = run(golden, device, shared=shared)
    except DriverError as refusal:
        return None if golden.must_fail else f"refused: {refusal}"
    except Exception as error:  # an unclean error is a disagreement of this document, not the end of its batch
        return f"raised {error!r}"
    return "answered although it must fail" if golden.must_fail else disagreement(golden, results)


@pytest.mark.skipif(not FOLDER, reason="NNCTS_GOLDEN names no folder of golden documents")
@pytest.mark.parametrize("batch", BATCHES or ["none"])
def test_covered_documents_agree(batch: str, tally: Tally) -> None:
    device = ReferenceDevice()
    found = []
    for number, (version, document) in enumerate(BATCHES[batch]):
        golden = parse(version, document)
        wrong = trouble(golden, device, shared=number % 2 == 0)
        tally.covered += 1
        tally.agreed += wrong is None
        if wrong is not None:
            found.append(f"{golden.name}: {wrong}")
    assert not found, f"{len(found)} of {len(BATCHES[batch])} documents disagree:\n" + "\n".join(found)


# --- the reader and its criteria, on documents made here --------------------------------------------------------------


def tensor(values: object, dtype: str) -> Json:
    array = np.asarray(values, dtype)
    return {"dtype": dtype, "shape": list(array.shape), "b64": base64.b64encode(array.tobytes()).decode()}


def operand(kind: str, lifetime: str, dimensions: list[int], data: Json | None = None, scale: float = 0.0) -> Json:
    return {"type": kind, "dimensions": dimensions, "scale": scale, "zero_point": 0, "lifetime": lifetime, "data": data}


def add_document(kind: str, dtype: str, scale: float, due: list[float], **changes: object) -> Json:
    """a + 1 for a = 1, 2, with b as a constant in a pool."""
    return {
        "name": "add",
        "is_relaxed": False,
        "expect_failure": False,
        "expected_multinomial_distribution_tolerance": 0.0,
        "operands": [
            operand(kind, "SUBGRAPH_INPUT", [2], scale=scale),
            operand(kind, "CONSTANT_REFERENCE", [1], tensor([1], dtype), scale=scale),
            operand("INT32", "CONSTANT_COPY", [], tensor(0, "int32")),
            operand(kind, "SUBGRAPH_OUTPUT", [2], scale=scale),
        ],
        "operations": [{"op": "ADD", "inputs": [0, 1, 2], "outputs": [3]}],
        "input_indexes": [0],
        "output_indexes": [3],
        "referenced": [],
        "examples": [{"inputs": [tensor([1, 2], dtype)], "outputs": [tensor(due, dtype)]}],
        **changes,
    }


FLOAT = ("TENSOR_FLOAT32", "float32", 0.0)
QUANT = ("TENSOR_QUANT8_ASYMM", "uint8", 0.5)


@pytest.mark.parametrize(
    ("document", "agrees"),
    [
        (add_document(*FLOAT, [2, 3]), True),
        (add_document(*FLOAT, [2, 3.00001]), True),
        (add_document(*FLOAT, [2, 3.001]), False),
        (add_document(*FLOAT, [2, 3.001], is_relaxed=True), True),
        (add_document(*FLOAT, [2, 3.03], is_relaxed=True), False),
        (add_document("TENSOR_FLOAT16", "float16", 0.0, [2, 3.01]), True),
        (add_document("TENSOR_FLOAT16", "float16", 0.0, [2, 3.03]), False),
        (add_document(*FLOAT, [2, float("nan")]), False),
        (add_document(*FLOAT, [2, 3, 3]), False),
        (add_document(*QUANT, [2, 4]), True),
        (add_document(*QUANT, [2, 5]), False),
        (add_document(*QUANT, [2, 6], name="mobilenet_add"), True),
        (add_document(*QUANT, [2, 7], name="mobilenet_add"), False),
        (add_document("TENSOR_INT32", "int32", 0.0, [2, 4]), True),
        (add_document("TENSOR_INT32", "int32", 0.0, [2, 5]), False),
        (add_document(*FLOAT, [2, 3], expect_failure=True), False),
        (add_document(*FLOAT, [2, 3], expect_failure=True, output_indexes=[0]), True),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_criteria(document: Json, agrees: bool, shared: bool) -> None:
    golden = parse("V1_3", document)
    assert (trouble(golden, ReferenceDevice(), shared=shared) is None) == agrees


def test_ignored_outputs_are_not_looked_at() -> None:
    document = add_document(*FLOAT, [2, 3], examples=[{"inputs": [tensor([1, 2], "float32")], "outputs": [None]}])
    assert trouble(parse("V1_3", document), ReferenceDevice(), shared=True) is None
