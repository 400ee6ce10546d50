"""Fixtures of the suite's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.isolation import IsolatedDriver
from harness.process import tagged

ROOT = Path(__file__).parents[1]


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
