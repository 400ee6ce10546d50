"""Fixtures of the suite's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.isolation import IsolatedDriver
from harness.process import tagged

ROOT = Path(__file__).parents[1]
# The files that take longest, which go first: begun last, one would keep a single process at work for minutes.
LONGEST = ("test_plugin", "test_fuzz_runs", "test_nnapi", "test_opset", "test_reports_browser", "test_stress_runs",
           "test_isolation", "test_campaign_runs", "test_fuzz_slices", "test_faulty")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files in front; within a file the order stays."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


@pytest.fixture
def isolate(monkeypatch) -> Iterator[object]:
    monkeypatch.chdir(ROOT)
    running: list[IsolatedDriver] = []

    def start(spec: str, **options: object) -> IsolatedDriver:
        settings: dict[str, object] = {"spare": False, "native_stacks": False, "deadline": 5.0}
        driver = IsolatedDriver(spec, **(settings | options))  # type: ignore[arg-type]
        running.append(driver)
        return driver

    yield start
    for driver in running:
        driver.close()
        assert tagged(driver.tag) == []
