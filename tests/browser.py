"""Chromium for tests of pages, driven by Playwright: whatever a page logs, asks for or opens is kept as a trouble."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT = 20_000  # milliseconds; a loaded machine takes its time


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, headless; skips where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("Playwright is not installed: pip install -e '.[dev]'")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page in a browser.

    Attributes:
        page: Playwright's page.
        troubles: console errors and warnings, exceptions, requests beyond the page itself, and dialogs.
    """

    def __init__(self, browser: Any, path: Path, fragment: str = "", **context: Any) -> None:
        self._context = browser.new_context(accept_downloads=True, **context)
        self._context.set_default_timeout(WAIT)
        self.page = self._context.new_page()
        self.address = path.resolve().as_uri()
        self.troubles: list[str] = []
        self.page.on("console", lambda said: said.type in ("error", "warning") and self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self._note("exception", error))
        self.page.on(
            "request",
            lambda request: request.url.partition("#")[0] == self.address or self._note("request", request.url),
        )
        self.page.on("dialog", self._dismiss)
        self.page.goto(self.address + fragment)

    def _note(self, kind: str, words: object) -> None:
        self.troubles.append(f"{kind}: {words}")

    def _dismiss(self, dialog: Any) -> None:
        self._note("dialog", dialog.message)
        dialog.dismiss()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()
        if not any(error):
            # Blobs that a page makes for downloads are no requests beyond it.
            assert [words for words in self.troubles if not words.startswith("request: blob:")] == []

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that a selector finds."""
        return [
            str(text) for text in self.page.eval_on_selector_all(selector, "found => found.map(e => e.textContent)")
        ]

    def contrasts(self, selector: str) -> dict[str, float]:
        """The least contrast of text and background by colours, of what is visible of a selector."""
        pairs = self.page.eval_on_selector_all(selector, _COLOURS)
        return {f"{text} on {' over '.join(below)}": contrast(text, below) for text, below in pairs}


# Colour of the text, and backgrounds from the element outwards until one lets nothing through.
_COLOURS = """found => found.filter(e => e.checkVisibility() && e.textContent.trim()).map(e => {
  const below = [];
  for (let at = e; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") below.push(colour);
    if (below.length && !below.at(-1).startsWith("rgba")) break;
  }
  return [getComputedStyle(e).color, below];
})"""


def contrast(text: str, below: list[str]) -> float:
    """The ratio of two luminances, as WCAG 2 defines it; `below` are opaque but for the first ones."""
    assert len(below) == 1, f"a background that lets light through: {below}"
    light, dark = sorted((_luminance(text), _luminance(below[0])), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
