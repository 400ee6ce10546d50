"""The programs of `python -m reports`: each has its options, and a function that does what they say."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.command_line import CommandParser
from harness.record import Run
from nnhal.errors import UsageError
from reports import (
    compare,
    headline,
    history,
    history_page,
    html,
    junit,
    markdown,
    speed,
    standing,
    statement,
    tabular,
    verifying,
)
from reports.opening import open_run, open_runs
from reports.statement import RECORDS

GOOD, BAD, WRONG = 0, 1, 2
STANDARD = "-"
SCHEMAS = {"run": tabular.SCHEMA, "statement": statement.SCHEMA}


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        name: the word that calls it; empty for the one that needs none.
        short: what it does, in a line.
        long: the same, with its exit statuses.
        options: adds its options to a parser.
        run: does it; gives the exit status.
    """

    name: str
    short: str
    long: str
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def main(self, arguments: list[str]) -> int:
        """Runs it with arguments.

        Raises:
            UsageError: the arguments, or what they name, are wrong.
        """
        parser = CommandParser(
            prog=f"python -m reports {self.name}".rstrip(),
            description=self.long,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.options(parser)
        return self.run(parser.parse_args(arguments))


def write(content: str, place: str) -> None:
    """Writes a text to a file, as a whole or not at all, or to standard output where the place is a hyphen.

    Raises:
        UsageError: it cannot be written, or would take the place of a run's records.
    """
    if Path(place).is_file() and RECORDS.fullmatch(Path(place).name):
        raise UsageError(f"{place} holds records, which would be lost; name another file")
    if place == STANDARD:
        sys.stdout.write(content.encode("utf-8", "replace").decode("utf-8"))
        return
    try:
        html.write(content, Path(place))
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror or error}") from None


def tell(lines: Iterable[str], *places: str | None) -> None:
    """Says what was done: on standard error where standard output holds a document."""
    stream = sys.stderr if STANDARD in places else sys.stdout
    stream.writelines(f"{line}\n" for line in lines)


def apart(*places: object) -> None:
    """Sees that documents go to files of their own.

    Raises:
        UsageError: two of them, where they are given, are one.
    """
    given = [str(place) for place in places if place]
    if len(set(given)) < len(given):
        raise UsageError("two documents are to go to the same file; give each its own")


def failed(run: Run) -> bool:
    """Whether a run ends in 1: a case failed that no waiver covers, or the run is incomplete."""
    totals = headline.totals(run)
    return bool(totals.failed or totals.internal) or not run.complete


# --- the page ---------------------------------------------------------------------------------------------------------


def _page_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to FILE")
    parser.add_argument("--junit", metavar="FILE", help="also write the run as JUnit XML; for one run")
    parser.add_argument("--open", action="store_true", help="open the page when it is there")


def _page(options: argparse.Namespace) -> int:
    runs = open_runs(options.runs)
    if options.junit and len(runs) > 1:
        raise UsageError(f"--junit takes one run, not {len(runs)}; python -m reports export writes each for itself")
    own = runs[0].folder if len(runs) == 1 else runs[0].folder.resolve().parent
    path = Path(options.output) if options.output else own / html.REPORT
    apart(path, options.junit)
    write(html.render(runs), str(path))
    lines = [headline.headline(run, headline.totals(run)).text for run in runs]
    lines = lines if len(runs) == 1 else [f"{run.folder}: {line}" for run, line in zip(runs, lines, strict=True)]
    if options.junit:
        write(junit.text(runs[0]), options.junit)
    tell([*lines, str(path), *([options.junit] if options.junit else [])], options.junit)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    return BAD if any(map(failed, runs)) else GOOD


# --- the others -------------------------------------------------------------------------------------------------------


def _compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, metavar="OLD", help="folder of the run to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of the run that may be worse")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to FILE (default: NEW/compare.html)")
    parser.add_argument("--markdown", metavar="FILE", help="also write a summary for a pull request")
    parser.add_argument("--json", metavar="FILE", help="also write what differs as JSON")
    parser.add_argument("--fail-slower", action="store_true", help="exit with 1 also where NEW is surely slower")
    parser.add_argument("--open", action="store_true", help="open the page when it is there")


def _compare(options: argparse.Namespace) -> int:
    first, second = open_runs([options.old, options.new])
    found = compare.compare(first, second)
    found = replace(found, paces=speed.paces(first, second))
    path = Path(options.output) if options.output else second.folder / html.COMPARISON
    apart(path, options.markdown, options.json)
    write(html.render_comparison(first, second, found), str(path))
    if options.markdown:
        write(markdown.of_comparison(first, second, found), options.markdown)
    if options.json:
        write(json.dumps(tabular.comparison(first, second, found), indent=1) + "\n", options.json)
    others = [place for place in (options.markdown, options.json) if place and place != STANDARD]
    tell([compare.headline(found).text, str(path), *others], options.markdown, options.json)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    return BAD if found.regressed or (options.fail_slower and found.slower) else GOOD


_EXPORTS: dict[str, tuple[str, Callable[[Run], str]]] = {
    "junit": ("JUnit XML: a testcase for each case", junit.text),
    "json": ("the run as JSON, by the schema that `python -m reports schema` prints", tabular.text),
    "csv": (
        "the records as CSV; cells that a spreadsheet would take for formulas begin with an apostrophe",
        tabular.table,
    ),
    "markdown": ("a summary for a pull request", markdown.of_run),
}


def _export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    for name, (words, _) in _EXPORTS.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=f"{words} (- for standard output)")


def _export(options: argparse.Namespace) -> int:
    wanted = {name: getattr(options, name) for name in _EXPORTS if getattr(options, name)}
    if not wanted:
        raise UsageError(f"nothing to export; give one or more of {', '.join(f'--{name}=FILE' for name in _EXPORTS)}")
    apart(*wanted.values())
    run = open_run(options.run)
    for name, place in wanted.items():
        write(_EXPORTS[name][1](run), place)
    tell([place for place in wanted.values() if place != STANDARD], *wanted.values())
    return GOOD


def _history_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with runs, or with folders of runs")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to FILE (default: DIR/history.html)")
    parser.add_argument("--json", metavar="FILE", help="also write it as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write a summary in Markdown")
    parser.add_argument("--open", action="store_true", help="open the page when it is there")


def _history(options: argparse.Namespace) -> int:
    found = history.read(options.folder)
    path = Path(options.output) if options.output else options.folder / history_page.PAGE
    apart(path, options.markdown, options.json)
    write(history_page.page(found), str(path))
    if options.json:
        write(json.dumps(history_page.document(found), indent=1) + "\n", options.json)
    if options.markdown:
        write(history_page.summary(found), options.markdown)
    others = [place for place in (options.markdown, options.json) if place and place != STANDARD]
    tell([*history_page.lines(found), str(path), *others], options.json, options.markdown)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    return BAD if history_page.regressed(found) else GOOD


def _statement_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("-o", "--output", metavar="FILE", help="the archive (default: statement.zip beside the first)")
    parser.add_argument("--waivers", type=Path, metavar="FILE", help="the waiver file that the runs were given")


def _statement(options: argparse.Namespace) -> int:
    runs = open_runs(options.runs)
    path = Path(options.output) if options.output else runs[0].folder.resolve().parent / statement.ARCHIVE
    made = statement.pack(runs, path, options.waivers)
    tell([*statement.lines(made.statement), f"{path}", f"SHA-256 of the file: {made.digest}"])
    return GOOD if made.statement["standing"] != standing.NONE else BAD


def _verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="an archive that python -m reports statement made")


def _verify(options: argparse.Namespace) -> int:
    found = verifying.verify(options.file)
    tell(verifying.lines(found))
    return BAD if found.reasons else GOOD


def _schema_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="run", metavar="NAME", help=f"one of {', '.join(SCHEMAS)}")


def _schema(options: argparse.Namespace) -> int:
    if options.name not in SCHEMAS:
        raise UsageError(f"there is no schema {options.name}; there are {', '.join(SCHEMAS)}")
    sys.stdout.write(SCHEMAS[options.name].read_text(encoding="utf-8"))
    return GOOD


PAGE = Program(
    "",
    "the page of one run or of several",
    """\
Makes one page of a run, or of several runs together, from their records. Nothing else is read, so a page can be made on
another machine, and of a run that was killed: it then says that it is incomplete. One run's page goes to
RUN/report.html, that of several to report.html in the folder above the first.

exit status:
  0   every run is complete, and no case failed (waived ones aside)
  1   a case failed, or a run is incomplete
  2   wrong input: one sentence on standard error says what, and the mend""",
    _page_options,
    _page,
)
PROGRAMS = (
    Program(
        "compare",
        "two runs side by side: what got worse, better, slower, less exact",
        """\
Compares two runs case by case: regressions first, then fixes and other changes, waivers, accuracy, how quick they were,
and both matrices.

exit status:
  0   NEW is complete and nowhere worse than OLD
  1   in NEW a case fails, is poor, is not supported or was lost that was not so in OLD; or NEW is incomplete, or the
      runs have no case in common; with --fail-slower also where a measurement is surely slower
  2   wrong input""",
        _compare_options,
        _compare,
    ),
    Program(
        "export",
        "a run as JUnit XML, JSON, CSV or Markdown",
        """\
Writes a run for other programs.

exit status:
  0   it is written, whatever the run came to
  2   wrong input""",
        _export_options,
        _export,
    ),
    Program(
        "history",
        "all runs in a folder: trends, what newly fails, what is flaky",
        """\
Makes a page of all runs in a folder and in folders right below it: for each driver and suite what came of its runs over
time. Folders that cannot be read are named with the reason.

exit status:
  0   no latest run of a driver and suite is incomplete or fails in what its last comparable run did not
  1   one does
  2   wrong input""",
        _history_options,
        _history,
    ),
    Program(
        "statement",
        "packs runs into one archive that says what was tested and what came of it",
        """\
Packs records, environment, waivers, failing cases, the page and a statement into one archive with checksums.

exit status:
  0   it is a statement of conformance
  1   it is none; the archive is written, and every reason is in it
  2   wrong input""",
        _statement_options,
        _statement,
    ),
    Program(
        "verify",
        "checks an archive of `statement`",
        """\
Checks an archive: that it is whole, that every checksum holds, and that its records say what the statement says. It
does not show who made it: checksums reveal damage, not forgery.

exit status:
  0   it holds
  1   it does not; every reason is told
  2   wrong input: there is no such file""",
        _verify_options,
        _verify,
    ),
    Program(
        "schema",
        "prints the schema of what `export --json` or `statement` writes",
        """\
Prints a JSON Schema (2020-12).

exit status:
  0   always, but for
  2   wrong input""",
        _schema_options,
        _schema,
    ),
)
