"""Makes a failing case smaller while it fails alike: fewer operations, operands and elements, plainer values.

`python -m harness.minimize FILE --driver=X` does it with a saved case. Every case that a driver is asked is complete
and valid, its due results computed anew, so that the smallest one stands by itself. The same case and the same driver
give the same result.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Display

from harness.branches import open_graphs, shrink_graphs
from harness.case import Origin, TestCase
from harness.case_file import load, save, seal
from harness.command_line import CommandParser
from harness.cuts import bypass_operations, drop_operands, drop_operations, drop_outputs, fix_operations
from harness.driver import Driver, ask_facts, open_driver
from harness.editable import take_apart
from harness.isolation import DEADLINE
from harness.listing import listing
from harness.option_values import level_of
from harness.probing import prober
from harness.searching import Fails, Progress, Search, alike, element_count, operation_count, remade
from harness.settling import settle
from harness.shrinking import shrink_shapes
from harness.simplifying import simplify_parameters, simplify_rest, simplify_values
from harness.verdict import BAD, Judgement, Verdict
from nnhal.errors import UsageError
from nnhal.loading import REFERENCE, DriverSpec
from nnhal.types import FeatureLevel

__all__ = ["Minimised", "Progress", "minimize", "prober"]

BUDGET = 400
FAILING = BAD - {Verdict.INTERNAL} | {Verdict.POOR}
MINIMISED = "minimised"
GOOD, NOTHING, WRONG = 0, 1, 2

WAYS: tuple[Callable[[Search], None], ...] = (
    drop_operations,
    open_graphs,
    drop_operations,
    bypass_operations,
    fix_operations,
    shrink_graphs,
    drop_outputs,
    drop_operands,
    shrink_shapes,
    simplify_parameters,
    simplify_values,
    simplify_rest,
)


@dataclass(frozen=True)
class Minimised:
    """What is left of a case.

    Attributes:
        case: the smallest that was found; the given one where nothing smaller fails alike, or it does not fail at all.
        judgement: of it.
        probes: how often the driver was asked.
        operations: of the given case and of the smallest.
        elements: of the constants and inputs of both.
        exhausted: the budget ended before all was tried.
        note: why nothing was done, as a sentence; empty where it was.
    """

    case: TestCase
    judgement: Judgement
    probes: int
    operations: tuple[int, int] = (0, 0)
    elements: tuple[int, int] = (0, 0)
    exhausted: bool = False
    note: str = ""

    @property
    def fails(self) -> bool:
        """Whether the case was seen to fail."""
        return self.judgement.verdict in FAILING

    @property
    def removed(self) -> int:
        """Operations that are gone."""
        return self.operations[0] - self.operations[1]


def minimize(
    case: TestCase,
    fails: Fails,
    *,
    budget: int = BUDGET,
    progress: Callable[[Progress], None] | None = None,
    confirm: Fails | None = None,
) -> Minimised:
    """The smallest case that was found to fail as the given one does: with its verdict, cause and stage.

    Args:
        case: fails; as `harness.make.graph_case` makes it, of a model of any size that is executed once.
        fails: runs and judges a case, such as `prober(driver)`.
        budget: how often it may be asked.
        progress: told after each time.
        confirm: the same without haste, asked at the end after a hang; `prober(driver).patient`.
    """
    first = fails(case)
    if first.verdict not in FAILING:
        return Minimised(case, first, 1, note=f"it does not fail: {first.verdict.value}")
    try:
        settled = settle(take_apart(case), case.level)
        start = remade(settled, _origin(case.origin))
    except (ValueError, KeyError) as error:
        return Minimised(case, first, 1, note=f"it cannot be made again: {error}")
    probes = 1
    if not _same(case, start):
        again = fails(start)
        probes += 1
        if not alike(first, again):
            text = f"made again it does not fail alike: {again.verdict.value} {again.cause.value}".rstrip()
            return Minimised(case, first, probes, note=text)
    tell = _tell_nobody if progress is None else progress
    search = Search(start, first, settled, fails, budget, probes, tell)
    _search(search)
    probes = search.probes
    if confirm is not None and first.verdict == Verdict.HANG:
        probes += _confirm(search, confirm)
    return Minimised(
        search.case,
        search.judgement,
        probes,
        operations=(operation_count(settled.net), operation_count(search.net)),
        elements=(element_count(settled.net), element_count(search.net)),
        exhausted=search.spent,
    )


def _tell_nobody(progress: Progress) -> None:
    """Nobody wants to know."""


def _origin(origin: Origin) -> Origin:
    kind = origin.kind if origin.kind.endswith(MINIMISED) else f"{origin.kind}.{MINIMISED}"
    return replace(origin, kind=kind, detail="")


def _same(case: TestCase, start: TestCase) -> bool:
    """Whether a case made again asks for the same and holds the driver to the same."""
    return seal(replace(start, origin=case.origin, level=case.level, needs=case.needs)).digest == seal(case).digest


def _search(search: Search) -> None:
    """Goes through all ways to make the case smaller, until none does."""
    while not search.spent:
        before = len(search.kept)
        for attempt in WAYS:
            attempt(search)
        if len(search.kept) == before:
            return


def _confirm(search: Search, confirm: Fails) -> int:
    """Goes back to the smallest case that hangs when it is waited for long enough; gives the number of probes.

    Whether an earlier case does is taken to follow from whether a smaller one made of it does.
    """
    probes = 1
    if alike(search.due, confirm(search.case)):
        return probes
    low, high = 0, len(search.kept) - 1  # low is known to hang, high not to
    while high - low > 1:
        middle = (low + high) // 2
        probes += 1
        if alike(search.due, confirm(search.kept[middle].case)):
            low = middle
        else:
            high = middle
    search.back_to(search.kept[low])
    return probes


# --- the command ------------------------------------------------------------------------------------------------------

DESCRIPTION = """\
Makes a case that a driver fails smaller, while it fails alike: fewer operations, operands and elements, plainer values.
FILE is a saved case, such as runs/<time>-<driver>/failures/<id>.case.
"""
EPILOG = """\
exit status:
  0   the smallest case found is in the file that the last line names
  1   the driver does not fail the case, or nothing can be made of it
  2   wrong input: one sentence on standard error says what, and the mend
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m harness.minimize",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the case")
    add("--driver", default=REFERENCE, metavar="NAME[,KEY=VALUE...]", help="driver that fails it")
    add("--out", type=Path, metavar="FILE", help="where the smallest case goes (default: beside FILE)")
    add("--budget", type=int, default=BUDGET, metavar="N", help="how often the driver is asked (default: %(default)s)")
    add("--level", type=int, metavar="1..8", help="ask at this feature level at most")
    add("--deadline", type=float, default=DEADLINE, metavar="SECONDS", help="longest wait (default: %(default)g)")
    add("--in-process", action="store_true", help="load the driver into this process, for debuggers")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
        return _run(options)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: {error.filename} cannot be written or read: {error.strerror}\n")
    return WRONG


def _run(options: argparse.Namespace) -> int:
    case = load(options.file)
    try:
        take_apart(case)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{options.file} cannot be minimised: {error}") from None
    if options.budget < 1:
        raise UsageError(f"--budget={options.budget} is no number of times; give 1 or more")
    if not 0 < options.deadline < math.inf:
        raise UsageError(f"--deadline={options.deadline:g} is no time; give seconds above 0")
    out = options.out or options.file.with_name(f"{options.file.stem}.{MINIMISED}.case")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        raise UsageError(f"{out} cannot be written; give another --out=FILE")
    spec = DriverSpec.parse(options.driver)
    driver = open_driver(spec, log_path=Path(os.devnull), in_process=options.in_process, deadline=options.deadline)
    try:
        found = _minimised(case, driver, _level(driver, case, options), options.budget)
    finally:
        driver.close()
    if not found.fails or found.note:
        sys.stdout.write(f"{case.id} on {spec.text}: nothing to make smaller, since {found.note}\n")
        return NOTHING
    save(found.case, out)
    sys.stdout.write(_words(found, spec, out))
    return GOOD


def _level(driver: Driver, case: TestCase, options: argparse.Namespace) -> FeatureLevel:
    """The level to ask at.

    Raises:
        UsageError: the driver does not say its own, or it is too low for the case.
    """
    try:
        own = ask_facts(driver.device).level
    except Exception as error:
        raise UsageError(f"driver {options.driver!r} does not say what it is: {error}") from None
    chosen = level_of(options.level)
    level = own if chosen is None else min(own, chosen)
    if level < case.level:
        raise UsageError(f"{options.file} needs level {case.level.version}; the driver is asked at {level.version}")
    return level


def _minimised(case: TestCase, driver: Driver, level: FeatureLevel, budget: int) -> Minimised:
    """Minimises with memory between canaries; between inaccessible pages where the case fails only there."""
    found = Minimised(case, Judgement(Verdict.NOT_RUN), 0)
    for pages in (False, True):
        with contextlib.closing(prober(driver, level=level, pages=pages)) as probe, _shown() as progress:
            found = minimize(case, probe, budget=budget, progress=progress, confirm=probe.patient)
        if found.fails or driver.in_process:
            break
    return found


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """Shows on a terminal how far it is."""
    console = Console(stderr=True)
    with Display(console=console, transient=True, disable=not console.is_terminal) as display:
        task = display.add_task("minimising")

        def tell(now: Progress) -> None:
            text = f"{now.stage:<13} {now.operations} operations, {now.elements} elements"
            display.update(task, total=now.budget, completed=now.probes, description=text)

        yield tell


def _words(found: Minimised, spec: DriverSpec, out: Path) -> str:
    """What was found, for a person."""
    judgement = found.judgement
    sizes = [f"{b} of {a} {what}" for (a, b), what in ((found.operations, "operations"), (found.elements, "elements"))]
    lines = [
        f"{found.case.id} on {spec.text}: {judgement.verdict.value} ({judgement.cause.value}) at {judgement.stage}",
        *(f"  {line}" for line in judgement.message.splitlines()),
        f"  left: {', '.join(sizes)}; the driver was asked {found.probes} times"
        + (", as often as it may be" if found.exhausted else ""),
        *(f"  {line}" for line in listing(found.case).splitlines()[1:]),
        f"  repeat: {shlex.join(['pytest', f'--driver={spec.text}', f'--case={out}'])}",
        str(out),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
