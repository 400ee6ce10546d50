"""`python -m reports`: the page of a run, or of two runs side by side, from their records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.command_line import CommandParser
from harness.record import Run, read_run
from nnhal.errors import UsageError
from reports import compare, headline, html, junit

GOOD, BAD, WRONG = 0, 1, 2

DESCRIPTION = """\
Makes pages from the records of a run, a folder such as runs/<time>-<driver>. Nothing but the records is read, so a page
can be made on another machine, and of a run that was killed: it then says that it is incomplete.

  RUN          writes RUN/report.html
  RUN1 RUN2    compares them case by case and writes RUN2/compare.html: what differs first, then both matrices
"""
EPILOG = """\
exit status:
  0   RUN is complete and no case failed (waived ones aside); or RUN2 is nowhere worse than RUN1
  1   a case failed or RUN is incomplete; or, in RUN2, a case fails, is poor, is not supported or was lost that was not
      so in RUN1
  2   wrong input: one sentence on standard error says what, and the mend
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m reports",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run; two of them are compared")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the page to FILE")
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="also write the run (of two, the second) as JUnit XML"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
        if len(options.runs) > 2:
            raise UsageError(f"{len(options.runs)} runs given; one makes its page, two are compared")
        runs = [read_run(folder) for folder in options.runs]
        status = _report(runs[0], options.output) if len(runs) == 1 else _compare(runs[0], runs[1], options.output)
        if options.junit:
            junit.write(runs[-1], options.junit)
            sys.stdout.write(f"{options.junit}\n")
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} cannot be written or read: {error.strerror}\n")
        return WRONG
    return status


def _report(run: Run, output: Path | None) -> int:
    path = output or run.folder / html.REPORT
    html.write(html.render(run), path)
    totals = headline.totals(run)
    sys.stdout.write(f"{headline.headline(run, totals).text}\n{path}\n")
    return BAD if totals.failed or totals.internal or not run.complete else GOOD


def _compare(first: Run, second: Run, output: Path | None) -> int:
    path = output or second.folder / html.COMPARISON
    found = compare.compare(first, second)
    html.write(html.render_comparison(first, second, found), path)
    sys.stdout.write(f"{compare.headline(found).text}\n{path}\n")
    return BAD if found.worse else GOOD


if __name__ == "__main__":
    sys.exit(main())
