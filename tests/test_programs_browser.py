"""The pages of comparisons and histories in a browser: no trouble, nothing loaded, usable by keyboard, both themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.__main__ import main
from tests.browser import Opened, chromium
from tests.report_runs import made, sound, write_run

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of three runs, and the comparison of the latter two."""
    found = tmp_path_factory.mktemp("runs")
    for day in (1, 2, 3):
        bad = [made(9, "FAIL", cause="VALUE", message=f"off {HOSTILE}")] if day == 3 else [made(9)]
        records = [*sound(), *bad, *(made(n, seconds=0.01, operation="EXP") for n in range(40))]
        write_run(found / f"2026010{day}T000000-v", records, time=f"2026-01-0{day}T00:00:00+00:00", driver=HOSTILE)
    runs = [str(found / f"2026010{day}T000000-v") for day in (2, 3)]
    assert main(["compare", *runs, "-o", str(found / "compare.html")]) == 1
    assert main(["history", str(found)]) == 1
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["compare.html", "history.html"])
def test_a_page_opens_without_trouble_and_shows_hostile_words_as_text(
    browser: Any, folder: Path, page: str, scheme: str
) -> None:
    with Opened(browser, folder / page, color_scheme=scheme) as opened:
        assert opened.page.title().startswith("nncts")
        assert HOSTILE in opened.page.inner_text("body")
        assert opened.page.eval_on_selector_all("img", "found => found.length") == 0
        wide = opened.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0  # tables scroll within themselves
        contrasts = opened.contrasts("main p, main td, main th, main h2, main figcaption")
        assert min(contrasts.values()) >= 4.5, min(contrasts.items(), key=lambda one: one[1])


def test_tables_are_sorted_by_keyboard(browser: Any, folder: Path) -> None:
    with Opened(browser, folder / "history.html") as opened:
        head = opened.page.locator("th[data-sort]", has_text="folder").first
        head.focus()
        before = opened.texts("table:has(th:text-is('folder')) tbody td:nth-child(2)")
        assert before == [f"2026010{day}T000000-v" for day in (3, 2, 1)]
        opened.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"


def test_a_chart_stands_as_a_picture_with_words(browser: Any, folder: Path) -> None:
    with Opened(browser, folder / "history.html") as opened:
        labels = opened.page.eval_on_selector_all("svg.trend", "found => found.map(e => e.getAttribute('aria-label'))")
        assert labels[0] == "failed over 3 runs; the table below holds the numbers"
        assert opened.page.locator("svg.trend circle").count() == 3 * len(labels)
        assert opened.page.locator("svg.trend").first.bounding_box()["width"] > 100
