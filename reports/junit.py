"""JUnit XML from records: one testcase a case, so that a CI system shows what the page shows, also after a death."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from harness.record import Record, Run
from reports import headline as heading
from reports import html
from reports.html import driver_name
from reports.tables import INTERNAL, NOT_RUN, POOR, first_line, missing, planned, real
from reports.text import clean, clip, tail

FILE = "junit.xml"
MOST = 4000  # characters of one text
UNRUN = 20_000  # cases of a batch that have no record and an element of their own
_ERRORS = {"CRASH", "HANG", INTERNAL}
_FAILURES = {"FAIL", "FLAKY"}


def document(run: Run) -> ElementTree.Element:
    """The `testsuites` element of a run.

    A suite for each batch; failures and errors are those that fail the run, and skipped is what was not judged or is
    waived. A run that did not come to its end has one suite more, whose only testcase says so as an error.
    """
    root = ElementTree.Element("testsuites", name="nncts")
    batches: dict[str, list[ElementTree.Element]] = {name: [] for name in planned(run)}
    poor_fails = heading.fail_poor(run)
    for record in run.records.values():
        batches.setdefault(record.batch, []).append(_testcase(record, poor_fails))
    for name, count in planned(run).items():
        batches[name] += _unrun(name, count - len(batches[name]))
    spare = max(run.selected - len(run.records), 0) - missing(run).total()
    if spare > 0:
        batches.setdefault("unplanned", []).extend(_unrun("unplanned", spare))
    for name, found in batches.items():
        root.append(_suite(run, name, found))
    if not run.complete:
        root.append(_suite(run, "run", [_end(run)]))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.6f}")
    return root


def text(run: Run) -> str:
    """A run as JUnit XML."""
    root = document(run)
    ElementTree.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def write(run: Run, path: Path) -> None:
    """Writes a run as JUnit XML; whoever reads the file meanwhile sees the old one or the new one, whole."""
    html.write(text(run), path)


def _suite(run: Run, name: str, found: list[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=clean(name))
    suite.set("tests", str(len(found)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in found)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in found):.6f}")
    if run.plan.get("time"):
        suite.set("timestamp", clean(run.plan["time"]))
    properties = ElementTree.SubElement(suite, "properties")
    for key in ("driver", "driver_version", "feature_level", "profile", "seed", "suite_version"):
        if run.plan.get(key) is not None:
            value = driver_name(run) if key == "driver" else clip(run.plan[key], 200)
            ElementTree.SubElement(properties, "property", name=key, value=clean(value))
    suite.extend(found)
    return suite


def _testcase(record: Record, poor_fails: bool) -> ElementTree.Element:
    spent = max(real(record.seconds) or 0.0, 0.0)
    case = ElementTree.Element("testcase", classname=clean(f"{record.operation}.{record.signature}"))
    case.set("name", clean(record.id))
    case.set("time", f"{spent:.6f}")
    properties = ElementTree.SubElement(case, "properties")
    for key in ("verdict", "cause", "stage", "rule", "error", "waiver"):
        value = getattr(record, key)
        if value not in (None, ""):
            ElementTree.SubElement(properties, "property", name=key, value=clean(clip(value, 300)))
    line = clean(f"{record.verdict} {record.cause}: {first_line(record.message)}")
    tag = _tag(record, poor_fails)
    if tag == "skipped":
        words = f"waived ({clip(record.waiver, 300)}): {line}" if record.waiver else line
        ElementTree.SubElement(case, tag, message=clean(words))
    elif tag:
        child = ElementTree.SubElement(case, tag, message=line, type=clean(record.cause or record.verdict))
        child.text = clean(_words(record))
    if record.log:
        ElementTree.SubElement(case, "system-err").text = clean(tail(record.log, MOST))
    return case


def _tag(record: Record, poor_fails: bool) -> str:
    """The element that a verdict becomes; empty for a pass."""
    failure = record.verdict in _FAILURES or (record.verdict == POOR and poor_fails)
    if record.waiver and (failure or record.verdict in _ERRORS):
        return "skipped"
    if record.verdict in _ERRORS:
        return "error"
    if failure:
        return "failure"
    return "" if record.verdict in ("PASS", POOR) else "skipped"


def _words(record: Record) -> str:
    lines = [clip(record.message, MOST)]
    lines += [f"operands: {clip(record.detail, MOST)}"] if record.detail else []
    lines += [f"saved: {record.saved}"] if record.saved else []
    lines += [f"repeat: {clip(record.repeat, MOST)}"] if record.repeat else []
    return "\n".join(lines)


def _unrun(batch: str, count: int) -> list[ElementTree.Element]:
    """A testcase for each case without a record; one for all that are left of very many, as a damaged plan may say."""
    found = []
    for place in range(min(count, UNRUN)):
        case = ElementTree.Element("testcase", classname=clean(batch), name=clean(f"{batch}-unrun-{place}"), time="0")
        rest = f"; {count - place:,} of them" if place == UNRUN - 1 and count > UNRUN else ""
        ElementTree.SubElement(case, "skipped", message=f"{NOT_RUN}: selected, and without a record{rest}")
        found.append(case)
    return found


def _end(run: Run) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname="nncts.run", name="end", time="0")
    words = heading.headline(run, heading.totals(run)).text
    ElementTree.SubElement(case, "error", message=clean(words), type=NOT_RUN)
    return case
