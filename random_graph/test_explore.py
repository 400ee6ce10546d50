"""Hypothesis draws graphs from the same generator and shrinks what fails. Run by name, outside the count of cases.

`pytest --driver=mydriver random_graph/test_explore.py` explores anew each time; with `--hypothesis-profile=ci` the
same graphs come each time, as in the suite's own checks. `--mix` says what is drawn; `small` unless it is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from harness.driver import Driver, ask_facts, open_driver
from harness.guards import Arena
from harness.judge import judge
from harness.listing import listing
from harness.make import graph_case
from harness.plugin import KEY
from harness.run import run
from harness.verdict import BAD
from opset.drawing import UnsatisfiableError
from opset.source import HypothesisSource
from random_graph.cases import MASKED, origin_of, quality_of
from random_graph.generator import draw_model
from random_graph.mixes import mix

settings.register_profile("ci", derandomize=True, database=None, max_examples=25)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item for each driver and mix."""
    names = metafunc.config.getoption("mix") or ["small"]
    specs = metafunc.config.stash[KEY].specs
    rows = [pytest.param((spec, name), id=f"{spec.text}:{name}") for spec in specs for name in names]
    metafunc.parametrize("explored", rows, indirect=True)


@pytest.fixture
def explored(request: pytest.FixtureRequest) -> Iterator[tuple[Driver, str]]:
    """A driver in a process of its own, and the mix to explore."""
    spec, name = request.param
    driver = open_driver(spec, log_path=Path(os.devnull), deadline=request.config.getoption("deadline"))
    yield driver, name
    driver.close()


@settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_explore(explored: tuple[Driver, str], data: st.DataObject) -> None:
    """No graph that can be drawn fails; the smallest that does is shown."""
    driver, name = explored
    try:
        drawn = draw_model(HypothesisSource(data), mix(name))
        assume(drawn.sound)
        case = graph_case(drawn.model, drawn.inputs, origin_of(name, 0))
    except (UnsatisfiableError, ValueError):
        assume(False)
        return
    assume(quality_of(case).masked <= MASKED)
    level = ask_facts(driver.device).level
    assume(case.level <= level)
    arena = Arena()
    judgement = judge(case, run(case, driver.device, arena, in_process=driver.in_process, level=level))
    arena.close()
    note(listing(case))
    assert judgement.verdict not in BAD, judgement.message
