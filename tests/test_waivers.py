"""Waivers cover known failures, complain when they no longer do, and are refused in one sentence when malformed."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

import jinja2
import pytest

from harness.fates import Fate, merged, read_fates
from harness.record import Record, RecordFile, Run, read_run
from harness.waivers import Waiver, Waivers, complaints, load_waivers, matches, without_digest
from nnhal.errors import UsageError
from reports import waived

TODAY = datetime.date(2026, 6, 15)
CASE = "SOFTMAX-quant8_asymm.default.in3-sync-drawn-4-a1b2c3"
OTHER = "ADD-float32-sync-drawn-4-d4e5f6"


def only(cases: str, expires: datetime.date | None = None) -> Waivers:
    return Waivers([Waiver(cases, "table has 64 entries", "https://tracker.example/1", expires)], TODAY)


# ---- names


@pytest.mark.parametrize(
    "pattern",
    [
        CASE,
        without_digest(CASE),
        "SOFTMAX-*",
        "SOFTMAX-quant8_asymm*-sync-drawn-*",
        "*-drawn-4",
        "*-a1b2c3",
        "SOFTMAX-quant8_asymm.default.in3-sync-drawn-[345]",
    ],
)
def test_a_pattern_names_a_case_with_or_without_digest(pattern: str) -> None:
    assert matches(pattern, CASE)


@pytest.mark.parametrize(
    "pattern", ["", "SOFTMAX", "softmax-*", "*-drawn-5", "*-a1b2c4", f"{CASE}x", "SOFTMAX-quant8?asymm-sync-drawn-4"]
)
def test_a_pattern_that_names_another(pattern: str) -> None:
    assert not matches(pattern, CASE)


def test_the_digest_is_six_digits_at_the_end() -> None:
    assert without_digest(CASE) == CASE[:-7]
    for kept in ("ADD-float32-sync-drawn-4", "ADD-float32-sync-drawn-123456x", "A-a1b2c3-4"):
        assert without_digest(kept) == kept


# ---- covering


def test_a_failure_is_covered_with_the_reason() -> None:
    waivers = only("SOFTMAX-*")
    assert waivers.cover(CASE, "FAIL") == "table has 64 entries"
    assert waivers.cover(OTHER, "FAIL") == ""
    assert waivers.complaints(filtered=False) == []


def test_what_passes_is_not_covered() -> None:
    waivers = only("SOFTMAX-*")
    assert waivers.cover(CASE, "PASS") == ""
    (complaint,) = waivers.complaints(filtered=True)
    assert complaint == "waiver 'SOFTMAX-*' covers nothing: nothing that it names fails; delete it"


def test_one_failure_among_passes_is_use_enough() -> None:
    waivers = only("*")
    waivers.cover(CASE, "PASS")
    waivers.cover(OTHER, "FAIL")
    assert waivers.complaints(filtered=False) == []


def test_a_waiver_with_the_digest_covers_that_content_alone() -> None:
    waivers = only(CASE)
    assert waivers.cover(CASE, "FAIL")
    changed = f"{without_digest(CASE)}-ffffff"
    assert waivers.cover(changed, "FAIL") == ""


def test_a_stale_digest_is_told_with_the_new_id() -> None:
    waivers = only(CASE)
    changed = f"{without_digest(CASE)}-ffffff"
    waivers.cover(changed, "FAIL")
    assert waivers.complaints(filtered=True) == [
        f"waiver {CASE!r} is stale: the case is now {changed}; look at it again"
    ]


def test_an_expired_waiver_covers_nothing() -> None:
    yesterday, tomorrow = TODAY - datetime.timedelta(1), TODAY + datetime.timedelta(1)
    waivers = only("SOFTMAX-*", yesterday)
    assert waivers.cover(CASE, "FAIL") == ""
    (complaint,) = waivers.complaints(filtered=True)
    assert complaint == f"waiver 'SOFTMAX-*' expired on {yesterday}: mend the driver or renew it"
    for day in (TODAY, tomorrow):
        assert only("SOFTMAX-*", day).cover(CASE, "FAIL")


def test_a_waiver_that_names_no_case_is_told_unless_the_run_was_filtered() -> None:
    waivers = only("SOFTMIN-*")
    waivers.cover(CASE, "FAIL")
    (complaint,) = waivers.complaints(filtered=False)
    assert complaint == "waiver 'SOFTMIN-*' names no case of this run; delete it or correct the pattern"
    assert waivers.complaints(filtered=True) == []


def test_the_first_of_several_gives_the_reason_and_all_are_in_use() -> None:
    waivers = Waivers([Waiver("SOFTMAX-*", "first"), Waiver("*", "second")], TODAY)
    assert waivers.cover(CASE, "FAIL") == "first"
    assert [waiver.covered for waiver in waivers.waivers] == [1, 1]


def test_a_waiver_with_the_right_digest_is_not_stale_for_other_cases() -> None:
    waivers = only("*-a1b2c3")
    assert waivers.cover(CASE, "FAIL")
    assert waivers.cover(OTHER, "PASS") == ""
    assert waivers.waivers[0].stale == [OTHER]
    assert waivers.complaints(filtered=False) == []


def test_what_is_not_judged_neither_fails_nor_passes() -> None:
    waivers = only("SOFTMAX-*")
    assert waivers.cover(CASE, "NOT_SUPPORTED") == ""
    (fate,) = waivers.fates()
    assert (fate.state, fate.passed, fate.unjudged) == ("passing", 0, 1)


def test_a_case_that_could_not_be_made_has_no_digest_and_makes_nothing_stale() -> None:
    for verdict, state in (("NOT_APPLICABLE", "passing"), ("INTERNAL", "unmatched")):
        waivers = only(CASE)
        assert waivers.cover(without_digest(CASE), verdict) == ""
        assert waivers.fates()[0].state == state


@pytest.mark.parametrize("verdict", ["FAIL", "CRASH", "HANG", "FLAKY", "INTERNAL", "POOR"])
def test_each_verdict_that_can_be_waived(verdict: str) -> None:
    assert only("SOFTMAX-*").cover(CASE, verdict) == "table has 64 entries"


def test_a_sample_says_nothing_of_a_glob_that_passes() -> None:
    for cases, count in (("SOFTMAX-*", 0), (CASE, 1), (without_digest(CASE), 1)):
        waivers = only(cases)
        waivers.cover(CASE, "PASS")
        assert len(waivers.complaints(filtered=True, sampled=True)) == count
        assert len(waivers.complaints(filtered=True)) == 1


@pytest.mark.parametrize(
    ("cases", "told"),
    [("STRESS-*", 0), ("MLTS-mobilenet-cpu-results-0", 0), ("ADD-*", 1), ("*-drawn-9", 1), ("STRESSED-*", 1)],
)
def test_a_waiver_for_another_suite_is_not_missed(cases: str, told: int) -> None:
    waivers = only(cases)
    waivers.cover(CASE, "PASS")
    assert len(waivers.complaints(filtered=False)) == told
    waivers.cover("STRESS-remnants-run-quick-0", "PASS")
    assert waivers.fates()[0].concerned == (told == 1 or cases == "STRESS-*")


def test_drivers_of_one_run_need_a_waiver_together() -> None:
    first, second = only("SOFTMAX-*"), only("SOFTMAX-*")
    first.cover(CASE, "PASS")
    second.cover(CASE, "FAIL")
    assert complaints([first, second], filtered=False) == []
    assert len(complaints([first], filtered=False)) == 1


def test_many_waivers_are_told_apart() -> None:
    """A thousand ids among 20,000 cases: each covers its own."""
    ids = [f"ADD-float32-sync-drawn-{number}-{number:06x}" for number in range(20_000)]
    waivers = Waivers([Waiver(name, name) for name in ids[::20]], TODAY)
    found = [waivers.cover(name, "FAIL") for name in ids]
    assert [name for name in found if name] == ids[::20]
    assert all(waiver.covered == 1 and not waiver.stale for waiver in waivers.waivers)


# ---- what became of them, in the records


def test_what_becomes_of_a_waiver_that_is_too_wide() -> None:
    waivers = only("*", TODAY)
    for number in range(30):
        waivers.cover(f"ADD-float32-sync-drawn-{number}-aaaaaa", "PASS")
    waivers.cover(CASE, "FAIL")
    (row,) = waivers.ending()["waivers"]
    assert row == {
        "cases": "*",
        "reason": "table has 64 entries",
        "link": "https://tracker.example/1",
        "expires": "2026-06-15",
        "covered": 1,
        "passed": 30,
        "unjudged": 0,
        "passing": [f"ADD-float32-sync-drawn-{number}-aaaaaa" for number in range(20)],
        "stale": [],
        "concerned": True,
        "state": "in use",
    }


STATES = {
    "in use": {"covered": 2, "passed": 1, "passing": ("a",), "stale": ("b",)},
    "passing": {"passed": 1, "passing": ("a",), "stale": ("b",)},
    "stale": {"stale": ("b",)},
    "unmatched": {},
    "expired": {"expired": True, "passed": 3},
}


@pytest.mark.parametrize("state", STATES)
def test_a_fate_comes_back_from_an_end_marker(state: str) -> None:
    fate = Fate("X-*", "r", "l", "2027-01-01", **STATES[state])
    assert fate.state == state
    assert read_fates(json.loads(json.dumps([fate.row()]))) == [fate]


def test_parts_of_a_run_are_added_up() -> None:
    parts = [
        Fate("X-*", "r", covered=2, passed=1, passing=("a",), concerned=False),
        Fate("Y-*", "r", stale=("c",)),
        Fate("X-*", "r", covered=3, unjudged=4, passed=1, passing=("b",)),
        Fate("X-*", "other", passed=1, passing=("a",)),
    ]
    assert merged(parts) == [
        Fate("X-*", "r", covered=5, passed=2, unjudged=4, passing=("a", "b")),
        Fate("Y-*", "r", stale=("c",)),
        Fate("X-*", "other", passed=1, passing=("a",)),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        3, "x", None, {}, [None], [[]], [{}], [{"cases": "x"}],
        *([{**Fate("X", "r").row(), **odd}] for odd in (
            {"cases": 3}, {"covered": "2"}, {"covered": -1}, {"passed": True}, {"unjudged": 1e300}, {"covered": 2**64},
            {"stale": "abc"}, {"passing": [3]}, {"passing": {"a": 1}},
        )),
    ],
)  # fmt: skip
def test_what_is_no_fate_is_left_out(wrong: object) -> None:
    good = Fate("Y", "r", covered=1)
    assert read_fates(wrong) == []
    assert read_fates([*(wrong if isinstance(wrong, list) else []), good.row()]) == [good]


def record(number: int, verdict: str = "PASS", **rest: object) -> Record:
    batch = "ADD-float32-sync-drawn"
    return Record(f"{batch}-{number}-abcdef", batch, number, "ADD", "float32", "drawn", "sync", verdict, **rest)


def write(folder: Path, name: str, records: list[Record], *, part: str = "1", resumed: bool = False,
          ended: bool = True, selected: int = 4) -> None:  # fmt: skip
    """One file of a run, with a waiver for each number."""
    waivers = Waivers([Waiver(f"ADD-float32-sync-drawn-{number}", f"reason {number}") for number in range(4)], TODAY)
    file = RecordFile(folder / name)
    if resumed:
        file.resume()
    else:
        file.plan({"ADD-float32-sync-drawn": selected}, waivers.header())
    for one in records:
        waivers.cover(one.id, one.verdict)
        file.case(one)
    if ended:
        file.end({}, 1.0, resumed, part=part, **waivers.ending())
    file.close()


def states(run: Run) -> list[tuple[str, int, int]]:
    return [(fate.state, fate.covered, fate.passed) for fate in run.waivers]


def test_files_of_workers_add_up(tmp_path: Path) -> None:
    write(tmp_path, "records-gw0.jsonl", [record(0, "FAIL"), record(1)])
    write(tmp_path, "records-gw1.jsonl", [record(2, "CRASH"), record(3)])
    expected = [("in use", 1, 0), ("passing", 0, 1), ("in use", 1, 0), ("passing", 0, 1)]
    assert states(read_run(tmp_path)) == expected


def test_a_part_that_goes_on_counts_what_went_before(tmp_path: Path) -> None:
    write(tmp_path, "records-gw0.jsonl", [record(0, "FAIL"), record(1)])
    write(tmp_path, "records-gw1.jsonl", [record(2, "CRASH")], ended=False)
    assert read_run(tmp_path).waivers == []
    everything = [record(0, "FAIL"), record(1), record(2, "CRASH"), record(3)]
    write(tmp_path, "records.jsonl", everything, part="2", resumed=True)
    expected = [("in use", 1, 0), ("passing", 0, 1), ("in use", 1, 0), ("passing", 0, 1)]
    assert states(read_run(tmp_path)) == expected


# ---- on the page


def rows(folder: Path, *fates: Fate, name: str = "run", selected: int = 0, **plan: object) -> list[waived.Row]:
    file = RecordFile(folder / name / "records.jsonl")
    file.plan({}, {"driver": "d", "time": "2026-06-15T10:00:00+00:00", **plan})
    file.end({}, 1.0, waivers=[fate.row() for fate in fates])
    file.close()
    return waived.rows([read_run(folder / name)])


def table(found: list[waived.Row]) -> str:
    loader = jinja2.FileSystemLoader(Path(waived.__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string('{% from "waived.html" import waiver_table %}{{ waiver_table(rows) }}').render(
        rows=found
    )


def test_problems_come_before_what_is_in_use(tmp_path: Path) -> None:
    fates = [Fate(state, "r", "", "2027-01-01", **values) for state, values in STATES.items()]
    found = rows(tmp_path, *fates)
    assert [row.state for row in found] == ["expired", "stale", "unmatched", "passing", "in use"]
    assert [row.cases for row in found] == ["expired", "stale", "unmatched", "passing", "in use"]
    assert found[-1].words == "covers 2 failing cases; 1 case that it names passes: it is too wide"
    assert (found[-1].covered, found[-1].ids) == (2, ("a",))
    page = table(found)
    for row in found:
        assert row.words in page


@pytest.mark.parametrize(
    ("expires", "soon"),
    [("2026-06-15", True), ("2026-07-15", True), ("2026-07-16", False), ("", False), ("nonsense", False)],
)
def test_a_waiver_that_expires_within_thirty_days(tmp_path: Path, expires: str, soon: bool) -> None:
    (row,) = rows(tmp_path, Fate("X", "r", "", expires, covered=1))
    assert row.soon == soon
    assert ("expires soon" in table([row])) == soon


def test_a_run_of_unknown_time_has_nothing_that_expires_soon(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, Fate("X", "r", "", "2026-06-15", covered=1), time=["?"])
    assert not row.soon


def test_a_cut_off_run_tells_what_its_records_tell(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records.jsonl")
    file.plan({"ADD-float32-sync-drawn": 4}, {})
    for number, reason in enumerate(("known", "known", "slow", "")):
        file.case(record(number, "FAIL" if reason else "PASS", waiver=reason))
    file.close()
    found = waived.rows([read_run(tmp_path)])
    assert [(row.state, row.reason, row.covered) for row in found] == [("in use", "known", 2), ("in use", "slow", 1)]
    assert "covers 2 failing cases so far" in table(found)


def test_several_runs_are_one_table(tmp_path: Path) -> None:
    for name, fate in (("a", Fate("X", "r", covered=2)), ("b", Fate("X", "r", passed=1, passing=("X-1",)))):
        rows(tmp_path, fate, name=name)
    (row,) = waived.rows([read_run(tmp_path / "a"), read_run(tmp_path / "b")])
    assert (row.state, row.covered, row.passed) == ("in use", 2, 1)


def test_waivers_of_other_suites_are_not_listed_as_unmatched(tmp_path: Path) -> None:
    assert rows(tmp_path, Fate("STRESS-*", "r", concerned=False)) == []


def test_a_filtered_run_says_why_a_waiver_names_nothing(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, Fate("X", "r"), filtered=True)
    assert row.words == "names no case of this run, which was filtered"


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_nothing_of_a_waiver_is_markup(tmp_path: Path) -> None:
    page = table(rows(tmp_path, Fate(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, 0, (HOSTILE,), (HOSTILE,))))
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("alert(1)") >= 8
    assert "href" not in page


@pytest.mark.parametrize(
    ("link", "clickable"),
    [
        ("https://tracker.example/123", True),
        ("http://tracker.example/123?a=1&b=2", True),
        ("HTTPS://tracker.example", True),
        ("javascript:alert(1)", False),
        (" javascript:alert(1)", False),
        ("java\nscript:alert(1)", False),
        ("https:alert(1)", False),
        ("https://", False),
        ("https://[broken", False),
        ("https://a.example/\u202etxt", False),
        ("https://user:word@tracker.example/", False),
        ("//tracker.example", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("BUG-123", False),
    ],
)
def test_only_web_addresses_can_be_clicked(tmp_path: Path, link: str, clickable: bool) -> None:
    page = table(rows(tmp_path, Fate("X", "r", link, covered=1)))
    assert ("<a " in page) == clickable
    assert ('rel="noopener noreferrer"' in page) == clickable


# ---- the file


def loaded(tmp_path: Path, content: str | bytes) -> Waivers:
    path = tmp_path / "waivers.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_waivers(path, TODAY)


def sentence(tmp_path: Path, content: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        loaded(tmp_path, content)
    text = str(caught.value)
    assert "\n" not in text
    assert str(tmp_path / "waivers.toml") in text
    return text


WHOLE = """
[[waiver]]
cases = "SOFTMAX-*"
reason = "table has 64 entries"
link = "https://tracker.example/1"
expires = 2026-06-30

[[waiver]]
cases = "ADD-*"
reason = "known"
"""


def test_a_whole_file(tmp_path: Path) -> None:
    first, second = loaded(tmp_path, WHOLE).waivers
    assert (first.cases, first.reason, first.link) == ("SOFTMAX-*", "table has 64 entries", "https://tracker.example/1")
    assert first.expires == datetime.date(2026, 6, 30)
    assert (second.link, second.expires) == ("", None)


def test_no_file_and_an_empty_file_hold_no_waivers(tmp_path: Path) -> None:
    assert load_waivers(None).waivers == []
    assert loaded(tmp_path, "# none\n").waivers == []


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml cannot be read: No such file or directory$"):
        load_waivers(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_waivers(tmp_path)


@pytest.mark.parametrize("content", ["[[waiver]", "cases = ", "- cases: x", b"\xff\xfe[[waiver]]", "a = 1\na = 2"])
def test_a_file_that_is_no_toml(tmp_path: Path, content: str | bytes) -> None:
    assert " is not TOML: " in sentence(tmp_path, content)


@pytest.mark.parametrize("content", ["[waiver]\ncases = 'x'", "waiver = 3", "[[waivers]]\ncases = 'x'", "other = 1"])
def test_a_file_with_something_else(tmp_path: Path, content: str) -> None:
    assert "must hold [[waiver]] entries and nothing else; see docs/waivers.md" in sentence(tmp_path, content)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("reason = 'r'", "'cases' is missing; give a text"),
        ("cases = 'c'", "'reason' is missing; give a text"),
        ("cases = ''\nreason = 'r'", "'cases' is missing"),
        ("cases = '  '\nreason = 'r'", "'cases' is missing"),
        ("cases = 3\nreason = 'r'", "'cases' is missing"),
        ("cases = ['c']\nreason = 'r'", "'cases' is missing"),
        ("cases = 'c'\nreason = ''", "'reason' is missing"),
        ("cases = 'c'\nreason = 'r'\nlink = 7", "'link' must be a text"),
        ("cases = 'c'\nreason = 'r'\nexpires = '2027-06-30'", "'expires' must be a date such as 2027-06-30, without"),
        ("cases = 'c'\nreason = 'r'\nexpires = 2027-06-30T01:00:00", "'expires' must be a date"),
        ("cases = 'c'\nreason = 'r'\nexpires = 2027", "'expires' must be a date"),
        ("cases = 'c'\nreason = 'r'\nexpiry = 2027-06-30", "unknown key 'expiry'; known are cases, expires, link, rea"),
    ],
)
def test_an_entry_that_is_wrong(tmp_path: Path, entry: str, words: str) -> None:
    text = sentence(tmp_path, f"[[waiver]]\ncases = 'a'\nreason = 'b'\n\n[[waiver]]\n{entry}\n")
    assert ", entry 2" in text
    assert words in text


def test_name_and_checksum_of_the_file(tmp_path: Path) -> None:
    waivers = loaded(tmp_path, WHOLE)
    expected = {"name": "waivers.toml", "sha256": hashlib.sha256(WHOLE.encode()).hexdigest()}
    assert waivers.header() == {"waivers_file": expected}
    assert waivers.ending()["waivers_file"] == expected
    assert load_waivers(None).header() == {"waivers_file": None}


def test_a_run_goes_on_with_the_waivers_that_it_was_begun_with(tmp_path: Path) -> None:
    waivers, none = loaded(tmp_path, WHOLE), load_waivers(None)
    begun = waivers.header()
    waivers.check_resumed(begun, tmp_path)
    waivers.check_resumed({}, tmp_path)  # by a suite that did not say
    none.check_resumed(none.header(), tmp_path)
    moved = {"waivers_file": {**begun["waivers_file"], "name": "other.toml"}}
    waivers.check_resumed(moved, tmp_path)
    for one, plan, words in (
        (none, begun, "was begun with the waivers of waivers.toml as it was then; --resume goes on with --waivers"),
        (loaded(tmp_path, WHOLE + "\n"), begun, "was begun with the waivers of waivers.toml as it was then"),
        (waivers, none.header(), "was begun without waivers; --resume goes on without --waivers"),
    ):
        with pytest.raises(UsageError, match=words):
            one.check_resumed(plan, tmp_path)


def test_an_entry_that_is_there_twice(tmp_path: Path) -> None:
    text = sentence(tmp_path, WHOLE + "\n[[waiver]]\ncases = 'ADD-*'\nreason = 'known'\n")
    assert text.endswith(", entry 3 is entry 2 once more; delete one of them")


def test_an_entry_that_is_no_table(tmp_path: Path) -> None:
    assert "entry 1 is not a [[waiver]] table" in sentence(tmp_path, "waiver = [3]")


def test_the_file_in_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "docs" / "waivers.md").read_text(encoding="utf-8")
    content = text.split("```toml\n")[1].split("```")[0]
    first, second = loaded(tmp_path, content).waivers
    assert first.names("SOFTMAX-quant8_asymm_signed.default.in3-sync-drawn-4-a1b2c3")
    assert first.expires == datetime.date(2027, 6, 30)
    assert second.names("CONV_2D-float32.explicit.in13-sync-drawn-17-a1b2c3")
    assert not second.names("CONV_2D-float32.explicit.in13-sync-drawn-17-ffffff")
