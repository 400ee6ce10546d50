"""The page of runs in a real browser: it is quiet, what one filters is right, and what a driver says stays text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from harness.record import Record, Run
from reports import html
from tests.browser import Opened, chromium
from tests.report_runs import made, write_run

HOSTILE = "</script><script>alert(1)</script>\"><img src=x onerror=alert(2)>\x00\u202e\u2028'{{7*7}}"
FORMULA = "=HYPERLINK(1)"


def records() -> list[Record]:
    """Cases of all sorts: 130 that pass, and a few of each other verdict."""
    found = [made(n, error=n / 200, ulp=float(n % 7), seconds=n / 1000) for n in range(120)]
    found += [made(n, operation="CONV_2D", signature="quant8_asymm.default", error=0.0) for n in range(10)]
    found += [
        made(200 + n, "FAIL", cause="VALUE", stage="execute", error=2.0 + n, seconds=1.5, repeated="same",
             message=f"output 'o' differs in {n + 1} of 48 elements\n  worst at ({n}, 1)", log="driver's last words",
             detail=f"a: TENSOR_FLOAT32[{n + 2},3]", saved=f"failures/ADD-float32-sync-drawn-{200 + n}-abcdef.case",
             worst={"output": "o", "index": [n, 1], "got": 1.5, "expected": 1.0, "allowed": 0.25, "ratio": 2.0 + n})
        for n in range(5)
    ]  # fmt: skip
    found += [
        made(300, "CRASH", "CONV_2D", "quant8_asymm.default", cause="DIED", message=HOSTILE, detail=HOSTILE,
             log=HOSTILE, notes=(HOSTILE,)),
        made(301, "FAIL", "EXP", "float16", cause="STATUS", message=FORMULA, error=float("inf")),
        made(302, "NOT_SUPPORTED", "EXP", "float16", cause="UNSUPPORTED", message="no float16 <here>"),
        made(303, "NOT_APPLICABLE", "EXP", "float16", cause="LEVEL", message="level"),
        made(304, "POOR", cause="QUALITY", message="biased", error=0.7),
        made(305, "FAIL", cause="VALUE", message="known", waiver="tracker <7>"),
        made(306, "CRASH", "EXP", "float32", cause="DIED", message="x" * 5000),
        made(0, kind="broken"),
    ]  # fmt: skip
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("runs") / "one", records(), driver=f"vendor,{HOSTILE}")


@pytest.fixture(scope="module")
def page(run: Run) -> Path:
    html.write(html.render(run), run.folder / "report.html")
    return run.folder / "report.html"


@pytest.fixture(scope="module")
def two(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs: the second has one case of the first with another verdict, and a case of its own."""
    again = [made(200, operation="ADD"), made(7, "HANG", "ELU", cause="SILENT", message="silent")]
    other = write_run(tmp_path_factory.mktemp("runs") / "two", again, driver="other")
    html.write(html.render([run, other]), other.folder / "report.html")
    return other.folder / "report.html"


def listed(opened: Opened) -> int:
    """Number of cases that the list says it shows."""
    opened.page.wait_for_selector("#case-list table")
    return int(opened.texts(".status")[0].split(" ")[0].replace(",", ""))


def ids(opened: Opened) -> list[str]:
    return opened.texts(".cases tbody a")


def chosen(run: Run, **wanted: str) -> list[str]:
    return [r.id for r in run.records.values() if all(getattr(r, name) == value for name, value in wanted.items())]


# --- the page is quiet, and hostile texts are texts -------------------------------------------------------------------


def test_a_page_loads_without_an_error_a_request_or_a_dialog(browser: object, page: Path, run: Run) -> None:
    with Opened(browser, page) as opened:
        assert opened.texts("h1") == ["Not conformant: 8 of 143 cases failed"]
        assert opened.page.evaluate("document.images.length") == 0
        assert opened.page.evaluate("document.querySelectorAll('[style]').length") == 0
        opened.page.evaluate("location.hash = '#cases'")
        assert listed(opened) == len(run.records)


def test_what_a_driver_says_stays_text(browser: object, page: Path) -> None:
    shown = HOSTILE.replace("\x00", "\ufffd").replace("\u202e", "\ufffd")
    with Opened(browser, page, "#case=CONV_2D-quant8_asymm.default-sync-drawn-300") as opened:
        opened.page.wait_for_selector(".drawer:not([hidden])")
        drawer = opened.texts(".drawer")[0]
        assert drawer.count(shown) == 5  # message, operands, note, log and driver
        assert opened.page.evaluate("document.querySelectorAll('img, .drawer script').length") == 0
        assert shown in opened.texts(".name bdi")[0]
        assert shown in opened.texts("#failures")[0]


def test_injected_scripts_would_not_run(browser: object, page: Path, tmp_path: Path) -> None:
    content = page.read_text(encoding="utf-8").replace("<h1>", "<script>document.title = 'taken'</script><h1>", 1)
    (tmp_path / "page.html").write_text(content, encoding="utf-8")
    opened = Opened(browser, tmp_path / "page.html")
    assert opened.page.title() != "taken"
    assert any("Content Security Policy" in words for words in opened.troubles)


# --- the list of cases ------------------------------------------------------------------------------------------------


def test_filters_find_what_the_records_hold(browser: object, page: Path, run: Run) -> None:
    with Opened(browser, page, "#cases?verdict=FAIL&verdict=CRASH") as opened:
        assert listed(opened) == len(chosen(run, verdict="FAIL")) + len(chosen(run, verdict="CRASH"))
        opened.page.uncheck(".verdicts input[value=CRASH]")
        assert set(ids(opened)) == set(chosen(run, verdict="FAIL"))
        opened.page.select_option("select[aria-label=operation]", "EXP")
        assert ids(opened) == chosen(run, verdict="FAIL", operation="EXP")
        assert opened.page.evaluate("location.hash") == "#cases?verdict=FAIL&operation=EXP"
        opened.page.click("text=Clear filters")
        opened.page.select_option("select[aria-label=cause]", "DIED")
        assert set(ids(opened)) == set(chosen(run, cause="DIED"))
        opened.page.click("text=Clear filters")
        opened.page.select_option("select[aria-label=type]", "q8")
        assert set(ids(opened)) == set(chosen(run, signature="quant8_asymm.default"))
        assert listed(opened) == 11


SEARCHES = {
    "conv_2d": {r.id for r in records() if r.operation == "CONV_2D"},
    "ADD-*-drawn-20?-*": {f"ADD-float32-sync-drawn-20{n}-abcdef" for n in range(5)},
    "ADD-float32-sync-drawn-1?": {f"ADD-float32-sync-drawn-1{n}-abcdef" for n in range(10)},
    "no float16": {"EXP-float16-sync-drawn-302-abcdef"},
    "differs 5": {"ADD-float32-sync-drawn-204-abcdef"},
    "(4,": {"ADD-float32-sync-drawn-204-abcdef"},
    "nothing of the kind": set(),
}


def test_the_search_takes_words_and_patterns(browser: object, page: Path) -> None:
    with Opened(browser, page, "#cases") as opened:
        for words, found in SEARCHES.items():
            opened.page.fill("#case-search", words)
            assert set(ids(opened)) == found
            assert listed(opened) == len(found)


def test_columns_sort_and_pages_turn(browser: object, page: Path, run: Run) -> None:
    with Opened(browser, page, "#cases") as opened:
        listed(opened)
        opened.page.click(".cases thead >> text=error")
        assert opened.page.get_attribute(".cases thead th:has-text('error')", "aria-sort") == "descending"
        assert ids(opened)[:2] == ["EXP-float16-sync-drawn-301-abcdef", "ADD-float32-sync-drawn-204-abcdef"]
        opened.page.click(".cases thead >> text=time")
        opened.page.click(".cases thead >> text=time")
        first = ids(opened)
        assert len(first) == 100
        opened.page.click("text=Next")
        shown = [*first, *ids(opened)]
        assert sorted(shown) == sorted(r.id for r in run.records.values())
        took = {r.id: r.seconds for r in run.records.values()}
        times = [float(f"{took[name]:.2g}") for name in shown]
        assert times == sorted(times)


def test_fields_of_the_matrix_and_groups_lead_to_their_cases(browser: object, page: Path, run: Run) -> None:
    with Opened(browser, page) as opened:
        opened.page.click("#matrix tr:has(th:has-text('EXP')) td:nth-of-type(2) a")
        assert set(ids(opened)) == set(chosen(run, operation="EXP", signature="float16"))
        opened.page.click("text=All 5 cases of this kind")
        opened.page.wait_for_selector(".chip")
        assert set(ids(opened)) == {f"ADD-float32-sync-drawn-20{n}-abcdef" for n in range(5)}
        opened.page.click(".chip")
        assert set(ids(opened)) == set(chosen(run, operation="ADD", verdict="FAIL", cause="VALUE"))
        opened.page.click("#signatures a:has-text('quant8_asymm.default')")
        opened.page.wait_for_function("document.querySelector('.status').textContent.startsWith('11 ')")


# --- one case ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ADD-float32-sync-drawn-203-abcdef", "ADD-float32-sync-drawn-203"])
def test_an_address_opens_its_case(browser: object, page: Path, run: Run, name: str) -> None:
    record = run.records["ADD-float32-sync-drawn-203"]
    with Opened(browser, page, f"#case={name}") as opened:
        opened.page.wait_for_selector(".drawer:not([hidden])")
        assert opened.texts("#case-title") == [record.id]
        words = opened.texts(".drawer")[0]
        for due in (record.message, record.detail, record.saved, record.log, record.repeat, "5 × allowed", "1.5 s",
                    "failed again in a new process", "(3, 1)", "VALUE", "execute"):  # fmt: skip
            assert due in words
        assert opened.page.evaluate("location.hash") == f"#case={record.id}"


def test_an_unknown_case_is_said_to_be_unknown(browser: object, page: Path) -> None:
    name = "<img src=x onerror=alert(3)>"
    with Opened(browser, page, "#case=" + quote(name)) as opened:
        opened.page.wait_for_selector(".drawer:not([hidden])")
        assert opened.texts("#case-title") == ["No such case"]
        assert name in opened.texts(".drawer")[0]


def test_a_case_of_several_runs_is_told_apart(browser: object, two: Path) -> None:
    name = "ADD-float32-sync-drawn-200-abcdef"
    with Opened(browser, two, f"#case={name}@2") as opened:
        opened.page.wait_for_selector(".drawer:not([hidden])")
        assert opened.texts("#case-title") == [f"{name}@2"]
        assert opened.texts(".drawer dd .badge") == ["PASS"]
        opened.page.click(f".drawer a:has-text('{name}@1')")
        opened.page.wait_for_function("document.querySelector('#case-title').textContent.endsWith('@1')")
        assert opened.texts(".drawer dd .badge") == ["FAIL"]
        opened.page.keyboard.press("Escape")
        opened.page.select_option("select[aria-label=run]", "2")
        assert sorted(ids(opened)) == [name, "ELU-float32-sync-drawn-7-abcdef"]
        assert len(opened.texts("#matrix h3")) == 2


def test_the_command_is_copied(browser: object, page: Path, run: Run) -> None:
    permissions = {"permissions": ["clipboard-read", "clipboard-write"]}
    with Opened(browser, page, "#case=ADD-float32-sync-drawn-201", **permissions) as opened:
        opened.page.click(".drawer .command button")
        opened.page.wait_for_selector(".drawer .command button:text-is('Copied')")
        command = opened.page.evaluate("navigator.clipboard.readText()")
        assert command == run.records["ADD-float32-sync-drawn-201"].repeat


# --- downloads --------------------------------------------------------------------------------------------------------


def downloaded(opened: Opened, button: str) -> str:
    with opened.page.expect_download() as waiting:
        opened.page.click(f"text={button}")
    with open(waiting.value.path(), encoding="utf-8", newline="") as file:
        return file.read()


def test_downloads_hold_the_records_that_are_shown(browser: object, page: Path, run: Run) -> None:
    with Opened(browser, page, "#cases") as opened:
        assert listed(opened) == 143
        rows = {row["id"]: row for row in csv.DictReader(io.StringIO(downloaded(opened, "Download CSV"), newline=""))}
        cases = {case["id"]: case for case in json.loads(downloaded(opened, "Download JSON"))}
        opened.page.check(".verdicts input[value=POOR]")
        assert len(json.loads(downloaded(opened, "Download JSON"))) == 1
    by_id = {record.id: record for record in run.records.values()}
    assert rows.keys() == cases.keys() == by_id.keys()
    for name, record in by_id.items():
        for field in ("operation", "signature", "kind", "mode", "verdict", "cause", "stage", "rule", "waiver", "saved"):
            assert rows[name][field] == cases[name][field] == getattr(record, field)
        assert cases[name]["number"] == record.number
        assert cases[name]["seconds"] == pytest.approx(record.seconds, rel=0.05)
        if isinstance(record.error, float):
            assert cases[name]["error"] == pytest.approx(record.error, rel=1e-3)
            assert float(rows[name]["error"]) == cases[name]["error"]
    crashed = cases["CONV_2D-quant8_asymm.default-sync-drawn-300-abcdef"]
    assert crashed["message"] == re.sub("[\x00\u202e]", "\ufffd", HOSTILE)
    assert rows[crashed["id"]]["message"] == crashed["message"]
    failed = cases["ADD-float32-sync-drawn-202-abcdef"]
    assert (failed["repeat"], failed["detail"], failed["worst"][3]) == (
        by_id[failed["id"]].repeat,
        "a: TENSOR_FLOAT32[4,3]",
        1.0,
    )
    assert cases["EXP-float16-sync-drawn-301-abcdef"]["message"] == FORMULA
    assert rows["EXP-float16-sync-drawn-301-abcdef"]["message"] == "'" + FORMULA
    assert rows["EXP-float16-sync-drawn-301-abcdef"]["error"] == "inf"


# --- keyboard, themes, paper ------------------------------------------------------------------------------------------


def test_everything_is_reached_by_keys(browser: object, page: Path) -> None:
    with Opened(browser, page) as opened:
        press = opened.page.keyboard.press
        press("Tab")
        assert opened.page.evaluate("document.activeElement.className") == "skip"
        press("/")
        opened.page.wait_for_function("document.activeElement.id === 'case-search'")
        opened.page.keyboard.type("differs /")  # a stroke here is a letter
        assert listed(opened) == 0
        press("Backspace")
        assert listed(opened) == 5
        for _ in range(40):
            if opened.page.evaluate("document.activeElement.matches('.cases tbody a')"):
                break
            press("Tab")
        first, second, *_ = ids(opened)
        assert opened.page.evaluate("document.activeElement.textContent") == first
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert opened.page.evaluate(outline) == "solid"
        press("ArrowDown")
        press("Enter")
        assert opened.texts("#case-title") == [second]
        assert opened.page.evaluate("document.activeElement.id") == "case-title"
        press("Escape")
        assert opened.page.is_hidden(".drawer")
        assert opened.page.evaluate("document.activeElement.textContent") == second
        press("Space")
        assert opened.texts("#case-title") == [second]
        press("Escape")
        press("Home")
        assert opened.page.evaluate("document.activeElement.textContent") == first


def test_what_a_screen_reader_needs_is_there(browser: object, page: Path) -> None:
    with Opened(browser, page, "#cases") as opened:
        listed(opened)
        assert opened.page.get_attribute("html", "lang") == "en"
        assert opened.page.get_attribute(".status", "aria-live") == "polite"
        assert opened.page.evaluate("document.querySelectorAll('thead th:not([scope])').length") == 0
        unnamed = """[...document.querySelectorAll('input, select, button, a, svg[role=img], nav')].filter((e) =>
          !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"""
        assert opened.page.evaluate(unnamed) == 0
        repeated = """(() => { const found = [...document.querySelectorAll('[id]')].map((e) => e.id);
          return found.filter((id, place) => found.indexOf(id) !== place); })()"""
        assert opened.page.evaluate(repeated) == []


MAIN_TEXTS = (
    "h1", "h2", "h3", ".lead", ".muted", "dt", "dd", "nav a", "nav .n", ".badge", "td", "tbody th", "thead th", "pre",
    "button", "select", "summary", ".matrix small", ".key:not(.c-unrun)", ".command code", ".strip dd", "footer",
    ".status", ".verdict li", "label", ".text",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_both_themes(browser: object, two: Path, page: Path, scheme: str) -> None:
    backgrounds = set()
    for path in (page, two):
        with Opened(browser, path, "#case=ADD-float32-sync-drawn-203", color_scheme=scheme) as opened:
            opened.page.wait_for_selector(".drawer:not([hidden])")
            backgrounds.add(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            for selector in MAIN_TEXTS:
                weak = {pair: round(ratio, 2) for pair, ratio in opened.contrasts(selector).items() if ratio < 4.5}
                assert not weak, selector
    (background,) = backgrounds
    assert (sum(map(int, re.findall(r"\d+", background))) > 600) is (scheme == "light")


def test_paper_shows_all_and_no_controls(browser: object, page: Path) -> None:
    with Opened(browser, page, "#cases", color_scheme="dark") as opened:
        listed(opened)
        opened.page.emulate_media(media="print", color_scheme="dark")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert opened.page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
        for selector in ("nav", ".tools", "#case-list", ".command button"):
            visible = f"[...document.querySelectorAll('{selector}')].some((e) => e.checkVisibility())"
            assert not opened.page.evaluate(visible), selector
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert opened.page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert opened.page.evaluate("document.querySelectorAll('details:not([open])').length") > 0


def test_without_scripts_the_page_says_where_the_cases_are(browser: object, page: Path) -> None:
    with Opened(browser, page, java_script_enabled=False) as opened:
        assert opened.page.is_visible(".noscript")
        assert opened.page.is_hidden("#case-list")
        assert opened.page.locator("#failures-groups > details").count() == 4


def test_a_page_without_cases_says_that_there_are_none(browser: object, tmp_path: Path) -> None:
    html.write(html.render(write_run(tmp_path, [])), tmp_path / "report.html")
    with Opened(browser, tmp_path / "report.html", "#cases") as opened:
        assert listed(opened) == 0
        assert downloaded(opened, "Download JSON") == "[]"
        opened.page.fill("#case-search", "a*")
        assert ids(opened) == []
