"""What the documents show works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from drivers import _faults_page
from drivers.faulty import FAULTS
from harness.record import read_run

ROOT = Path(__file__).parents[1]


def listing(document: str) -> str:
    """The first Python listing of a document."""
    found = re.search(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_smallest_driver_is_short_and_works(tmp_path: Path) -> None:
    code = listing("docs/writing-a-driver.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 35
    (tmp_path / "add_driver.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--runs={tmp_path}/runs",
         f"--driver={tmp_path}/add_driver.py:AddDriver", "--case=ADD-float32-*", "--case=ADD-float16-*-drawn-1",
         *(f"--case={part}-*" for part in ("DEVICE", "EXTENSIONS", "MEMORY", "QOS", "LIFETIMES"))],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    counts = read_run(folder).counts()
    assert counts["PASS"] >= 8
    assert counts["NOT_SUPPORTED"] >= 1
    assert sum(counts.values()) == counts["PASS"] + counts["NOT_SUPPORTED"] + counts["NOT_APPLICABLE"]


def test_every_link_between_documents_leads_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_options_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    programs: dict[str, set[str]] = {}
    for program, options in re.findall(r"`python -m (\w+) ([^`]*)`", text):
        programs.setdefault(program, set()).update(re.findall(r"--[a-z][a-z-]+", options))
    for program, wanted in programs.items():
        own = subprocess.run(
            [sys.executable, "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert {option for option in wanted if option not in own.stdout} == set(), program
    shown = set(re.findall(r"--[a-z][a-z-]+", re.sub(r"`python -m [^`]*`", "", text)))
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert {option for option in shown if option not in listed} == set()


def test_the_page_of_faults_says_what_the_faults_say() -> None:
    assert not _faults_page.stale(), "run `python -m drivers._faults_page`"
    assert {fault.section for fault in FAULTS.values()} == set(_faults_page.SECTIONS)
    text = _faults_page.page_text()
    assert all(text.count(f"\n| `{name}` |") == 1 for name in FAULTS)
