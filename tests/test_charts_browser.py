"""Charts in a real browser: drawn when they come into sight, in the colours of the theme, under a strict policy."""

import base64
import contextlib
import hashlib

import pytest

from mlts import page_charts
from reports import charts
from tests.browser import Opened, chromium

HOSTILE = '</script><img src=x onerror=alert("1")>'
STEPS = [{"number": n, "operation": HOSTILE, "error": 10.0**-n, "allowed": 0.1} for n in range(5)]
PANELS = [("MiB", {HOSTILE: [1.0, 3.0, 2.0], "shared": [1.0, None, 1.0]}), ("number", {"threads": [1.0, 5.0, 5.0]})]
SIGHT = "[...document.querySelectorAll('figure')].map(f => f.querySelectorAll('.uplot').length)"
INK = """figure => { const found = new Set();
  const canvas = figure.querySelector('canvas'), ctx = canvas.getContext('2d');
  const data = ctx.getImageData(0, 0, canvas.width, canvas.height).data;
  for (let n = 0; n < data.length; n += 4) if (data[n + 3] === 255) found.add(data.slice(n, n + 3).join());
  return [...found] }"""


def until(page, holds):
    """Waits for what an expression says; the policy of the page forbids that a script of the page does so."""
    for _ in range(200):
        if page.evaluate(holds):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{holds} does not come true: {page.evaluate(SIGHT)}")


def digest(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def figures():
    data = {
        "distribution": page_charts.distribution([0.01, 0.02, 0.021], [0.01] * 5),
        "rounds": page_charts.rounds([1.0, 1.25, 1.125]),
        "accumulation": page_charts.accumulation(STEPS),
        "timeline": charts.timeline([0.0, 1.0, 2.0], "seconds", PANELS, [(0.5, HOSTILE), (1.5, "killed")]),
    }
    assert list(data) == list(charts.KINDS)
    return {kind: charts.figure(kind, HOSTILE, some, "what it shows") for kind, some in data.items()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    drawn = figures()
    body = "".join(drawn[kind] for kind in ("distribution", "rounds", "accumulation", "rounds"))
    body += f'<a href="#box">to the box</a><details id="box"><summary>box</summary>{drawn["timeline"]}</details>'
    sheet, scripts = "\n".join(charts.styles()), charts.scripts()
    policy = f"default-src 'none'; style-src {digest(sheet)}; script-src {' '.join(map(digest, scripts))}"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>charts</title>'
    ends = "".join(f"<script>{script}</script>" for script in scripts)
    found = tmp_path_factory.mktemp("charts") / "page.html"
    found.write_text(
        f"<!doctype html><html lang=en><head>{head}<style>{sheet}</style></head><body>{body}{ends}</body></html>"
    )
    return found


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser, path):
    """Opens the page; at the end of a test it has complained of nothing and asked for nothing."""
    with contextlib.ExitStack() as pages:

        def opened(**options):
            context = {"viewport": {"width": 1200, "height": 3000}, **options}
            return pages.enter_context(Opened(browser, path, **context)).page

        yield opened


def test_charts_are_drawn_when_their_box_is_opened(open_page):
    page = open_page()
    until(page, f"{SIGHT}.join() === '1,1,1,1,0'")
    page.click("a")
    until(page, f"{SIGHT}.join() === '1,1,1,1,2'")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.locator("img").count() == 0
    assert page.locator("figcaption").first.inner_text() == HOSTILE
    assert HOSTILE in page.locator("[data-kind=timeline] .u-legend").first.inner_text()


def test_charts_below_the_window_wait(open_page):
    page = open_page(viewport={"width": 1200, "height": 300})
    page.wait_for_selector(".uplot")
    assert page.evaluate(SIGHT)[3] == 0
    page.locator("figure").nth(3).scroll_into_view_if_needed()
    until(page, f"{SIGHT}[3] === 1")


def test_charts_follow_theme_paper_and_width(open_page):
    page = open_page(color_scheme="light")
    figure = page.locator("[data-kind=rounds]").first
    page.wait_for_selector("[data-kind=rounds] .uplot")
    light, dark = "31,85,181", "134,177,255"  # --driver in charts.css
    assert light in figure.evaluate(INK)
    page.emulate_media(color_scheme="dark")
    until(page, "document.querySelector('[data-kind=rounds]').dataset.drawn.includes('true')")
    inks = figure.evaluate(INK)
    assert dark in inks
    assert light not in inks
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert light in figure.evaluate(INK)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert dark in figure.evaluate(INK)
    page.set_viewport_size({"width": 500, "height": 3000})
    until(page, "document.querySelector('[data-kind=rounds] .uplot').clientWidth < 500")
    assert figure.locator(".uplot").count() == 1


def test_without_scripts_no_empty_figure_is_shown(open_page):
    page = open_page(java_script_enabled=False)
    assert not page.locator("figure").first.is_visible()
