"""The driver with one wrong kernel that benchmarks of random graphs look for."""

from __future__ import annotations

import pytest

from harness.judge import judge
from harness.run import run
from harness.verdict import Cause, Verdict
from nnhal import loading
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.types import OperationType
from random_graph.cases import graph_test_case
from tests.campaign_runs import failing

WRONG = "tests/wrong_driver.py,operation={},fault={}"


@pytest.mark.parametrize(("operation", "fault"), [("ADD", "ze"), ("RESHAPE", "ro"), ("CAST", "of")])
def test_only_graphs_with_the_operation_fail(operation: str, fault: str) -> None:
    wrong = loading.load(DriverSpec.parse(WRONG.format(operation, fault)))
    last = failing(WRONG.format(operation, fault), "small")[0]
    for seed in range(last + 1):
        case = graph_test_case("small", seed)
        found = judge(case, run(case, wrong, in_process=True))
        operations = [o.type for graph in (case.models[0].main, *case.models[0].referenced) for o in graph.operations]
        if seed == last:
            assert (found.verdict, found.cause) == (Verdict.FAIL, Cause.VALUE)
            assert OperationType[operation] in operations
        elif OperationType[operation] not in operations:
            assert found.verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("operation", "fault", "words"),
    [("ADDD", "ze", "driver option operation=ADDD is unknown"), ("IF", "ze", "driver option operation=IF is unknown"),
     ("ADD", "zz", "driver option fault=zz is unknown; give one of ze, ne")],
)  # fmt: skip
def test_what_is_no_fault_is_refused(operation: str, fault: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        loading.load(DriverSpec.parse(WRONG.format(operation, fault)))
