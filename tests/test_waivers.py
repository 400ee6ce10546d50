"""Waivers cover known failures, complain when they no longer do, and are refused in one sentence when malformed."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from harness.waivers import Waiver, Waivers, load_waivers, matches, without_digest
from nnhal.errors import UsageError

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
    assert waivers.cover(CASE, failed=True) == "table has 64 entries"
    assert waivers.cover(OTHER, failed=True) == ""
    assert waivers.complaints(filtered=False) == []


def test_what_passes_is_not_covered() -> None:
    waivers = only("SOFTMAX-*")
    assert waivers.cover(CASE, failed=False) == ""
    (complaint,) = waivers.complaints(filtered=True)
    assert complaint == "waiver 'SOFTMAX-*' covers nothing: nothing that it names fails; delete it"


def test_one_failure_among_passes_is_use_enough() -> None:
    waivers = only("*")
    waivers.cover(CASE, failed=False)
    waivers.cover(OTHER, failed=True)
    assert waivers.complaints(filtered=False) == []


def test_a_waiver_with_the_digest_covers_that_content_alone() -> None:
    waivers = only(CASE)
    assert waivers.cover(CASE, failed=True)
    changed = f"{without_digest(CASE)}-ffffff"
    assert waivers.cover(changed, failed=True) == ""


def test_a_stale_digest_is_told_with_the_new_id() -> None:
    waivers = only(CASE)
    changed = f"{without_digest(CASE)}-ffffff"
    waivers.cover(changed, failed=True)
    assert waivers.complaints(filtered=True) == [
        f"waiver {CASE!r} is stale: the case is now {changed}; look at it again"
    ]


def test_an_expired_waiver_covers_nothing() -> None:
    yesterday, tomorrow = TODAY - datetime.timedelta(1), TODAY + datetime.timedelta(1)
    waivers = only("SOFTMAX-*", yesterday)
    assert waivers.cover(CASE, failed=True) == ""
    (complaint,) = waivers.complaints(filtered=True)
    assert complaint == f"waiver 'SOFTMAX-*' expired on {yesterday}: mend the driver or renew it"
    for day in (TODAY, tomorrow):
        assert only("SOFTMAX-*", day).cover(CASE, failed=True)


def test_a_waiver_that_names_no_case_is_told_unless_the_run_was_filtered() -> None:
    waivers = only("SOFTMIN-*")
    waivers.cover(CASE, failed=True)
    (complaint,) = waivers.complaints(filtered=False)
    assert complaint == "waiver 'SOFTMIN-*' names no case of this run; delete it or correct the pattern"
    assert waivers.complaints(filtered=True) == []


def test_the_first_of_several_gives_the_reason_and_all_are_in_use() -> None:
    waivers = Waivers([Waiver("SOFTMAX-*", "first"), Waiver("*", "second")], TODAY)
    assert waivers.cover(CASE, failed=True) == "first"
    assert [waiver.covered for waiver in waivers.waivers] == [1, 1]


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
