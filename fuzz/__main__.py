"""`python -m fuzz`: coverage-guided fuzzing of everything that a driver can be asked."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fuzz.again import minimized, reproduced
from fuzz.campaign import Campaign, Ground
from fuzz.covering import needs_fuzzer
from fuzz.folder import KNOWN, RunFolder, read_fuzzing
from fuzz.known import Known
from fuzz.opening import asked, opened
from fuzz.page import write_coverage
from fuzz.plan import DEFAULT_SECONDS, Plan, Way, default_state
from fuzz.progress import Progress, Standing, Tally
from fuzz.state import State
from fuzz.summary import complaints, summary
from fuzz.targets import DRIVER, GROUPS, OWN, TARGETS, targets_of
from harness.command_line import CommandParser
from harness.driver import DriverFacts
from harness.isolation import DEADLINE
from harness.option_values import level_of, memory_of
from harness.record import Run
from harness.waivers import load_waivers
from nnhal.errors import UsageError
from nnhal.loading import REFERENCE, DriverSpec
from random_graph.folder import drop_folder, new_folder
from random_graph.plan import checked_seed, seconds_of

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
DESCRIPTION = """\
Fuzzes a driver: inputs become models, requests, call sequences, cache files; what is valid must be answered rightly,
what is not must be refused, and the rest survived. Findings are told apart, made smaller and saved as cases. The corpus
and what is known are kept from run to run.
"""
EPILOG = """\
exit status:
  0    nothing new was found
  1    something was found that was not known and is not waived, or a waiver is stale or expired; with --reproduce: the
       input fails
  2    wrong input, or a driver that cannot be loaded: one sentence on standard error says what, and the mend
  130  interrupted, and nothing new so far

Ctrl-C ends in order: what was found is looked at no more, and --resume goes on. A second one ends at once.
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m fuzz",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--driver", metavar="NAME[,KEY=VALUE...]", help="driver to fuzz (default: the reference driver)")
    names = f"{', '.join(GROUPS[DRIVER])}; {OWN} for the suite's own readers ({', '.join(GROUPS[OWN])})"
    add("--target", action="append", metavar="NAME", help=f"what is fuzzed: {names}; several take turns (default: all)")
    add("--for", dest="time", metavar="TIME", help=f"how long: 90s, 30m, 4h (default: {DEFAULT_SECONDS // 60}m)")
    add("--jobs", type=int, metavar="N", help="processes at once (default: 1)")
    add("--seed", type=int, metavar="S", help="decides the first choices (default: 0)")
    add("--state", metavar="DIR", help="what is kept from run to run: corpus, known findings (default: by the driver)")
    add("--bare", action="store_true", help="begin without the inputs that are made from the definitions")
    add("--isolated", action="store_true", help="the driver in a process of its own, even where it could be guided")
    add("--first", action="store_true", help="end with the first new finding")
    add("--level", type=int, metavar="1..8", help="ask at this feature level at most")
    add("--memory", metavar="SIZE", help="limit of the address space of a driver in a process of its own, such as 4G")
    add("--deadline", type=float, metavar="SECONDS", help="longest wait for an answer (default: 10)")
    add("--waivers", metavar="FILE", help="known failures: a TOML file, see docs/waivers.md")
    add("--runs", default="runs", metavar="DIR", help="where runs are written (default: runs)")
    add("--resume", metavar="DIR", help="go on with a run, for the rest of its time")
    add("--reproduce", metavar="FILE", help="run a saved input or case again, in a process of its own, and end")
    add("--minimize", metavar="FILE", help="make a saved input that fails smaller, and end")
    add("--coverage", metavar="DIR", help="write pages of what the corpus reaches, and end")
    add("--list", action="store_true", help="name the targets and end")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(given)
        _check(options)
        if options.list:
            sys.stdout.writelines(f"{t.name:<13} {t.group:<7} {t.sentence}\n" for t in TARGETS.values())
            return GOOD
        return _act(options, given)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def _check(options: argparse.Namespace) -> None:
    """Refuses what is wrong before anything is begun."""
    targets_of(tuple(options.target or ()))
    if options.driver is not None:
        DriverSpec.parse(options.driver)
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs={options.jobs} is no number of jobs; give 1 or more")
    if options.deadline is not None and not 0 < options.deadline < math.inf:
        raise UsageError(f"--deadline={options.deadline:g} is no time; give seconds above 0")
    acts = [f"--{name}" for name in ("reproduce", "minimize", "coverage", "resume") if getattr(options, name)]
    if len(acts) > 1:
        raise UsageError(f"{' and '.join(acts)} are given; one of them at a time")
    level_of(options.level)
    memory_of(options.memory)


def _plan(options: argparse.Namespace) -> Plan:
    """The plan of the command line."""
    targets = targets_of(tuple(options.target or ()))
    named = any(target.group == DRIVER for target in targets)
    driver = (options.driver or REFERENCE) if named else ""
    seconds = DEFAULT_SECONDS if options.time is None else seconds_of(options.time)
    return Plan(
        driver,
        tuple(target.name for target in targets),
        seconds,
        options.jobs or 1,
        checked_seed(options.seed or 0),
        options.state or str(default_state(driver)),
        options.isolated,
        options.bare,
        options.first,
        options.level,
        options.memory,
        options.deadline or DEADLINE,
    )


def _act(options: argparse.Namespace, given: Sequence[str]) -> int:
    plan = _plan(options)
    if options.reproduce:
        return reproduced(plan, Path(options.reproduce), tuple(options.target or ()))
    if options.minimize:
        return minimized(plan, Path(options.minimize), tuple(options.target or ()))
    needs_fuzzer()
    if options.coverage:
        return write_coverage(plan, Path(options.coverage))
    return _run(options, plan, given)


def _resumed(options: argparse.Namespace) -> tuple[Plan, Run]:
    """The run that goes on.

    Raises:
        UsageError: there is none, or an option says otherwise.
    """
    plan, run = read_fuzzing(Path(options.resume))
    mine = _plan(options)
    wrong = {
        "driver": options.driver and mine.driver != plan.driver,
        "target": options.target and mine.targets != plan.targets,
        "for": options.time and mine.seconds != plan.seconds,
        "seed": options.seed is not None and mine.seed != plan.seed,
        "state": options.state and mine.state != plan.state,
    }
    for name, differs in wrong.items():
        if differs:
            raise UsageError(f"--{name} is not that of {options.resume}, which was begun by: {plan.command()}")
    return plan, run


def _run(options: argparse.Namespace, plan: Plan, given: Sequence[str]) -> int:
    """Runs from the folders to the summary."""
    resumed = None
    if options.resume:
        plan, resumed = _resumed(options)
    waivers = load_waivers(Path(options.waivers) if options.waivers else None)
    state = State.open(Path(plan.state))
    place = Path(options.resume) if resumed else new_folder(Path(options.runs), plan.driver or OWN, "fuzz")
    arguments = [f"--level={plan.level}"] if plan.level is not None else []
    folder = RunFolder(place, plan.driver, arguments, waivers)
    begun = False
    try:
        way, facts, known = _driver(plan, place) if plan.driver else (None, None, None)
        plan = _applicable(plan, known)
        if resumed:
            folder.resume(resumed)
        else:
            folder.begin(plan, facts, given)
        begun = True
        if known is not None:
            (place / KNOWN).write_text(known.to_json(), encoding="utf-8")
        return _go(Ground(plan, way, known, state, folder), resumed)
    finally:
        folder.close()
        if not begun and not resumed:
            drop_folder(place)


def _driver(plan: Plan, folder: Path) -> tuple[Way, DriverFacts, Known]:
    """How a driver is fuzzed, and what is known of it.

    Raises:
        UsageError: it cannot be loaded, or does not say what it is.
    """
    with opened(plan, folder / "driver.log") as (way, driver):
        return way, *asked(plan, driver)


def _applicable(plan: Plan, known: Known | None) -> Plan:
    """The plan with the targets that apply to the driver; the others are told.

    Raises:
        UsageError: none does.
    """
    if known is None:
        return plan
    left = []
    for name in plan.targets:
        barred = TARGETS[name].barred(known) if TARGETS[name].read is None else ""
        if barred:
            sys.stderr.write(f"{name} is left out: {barred}\n")
        else:
            left.append(name)
    if not left:
        raise UsageError("none of the targets applies to the driver; see python -m fuzz --list")
    return replace(plan, targets=tuple(left))


def _go(ground: Ground, resumed: Run | None) -> int:
    """Runs a campaign whose driver is loaded; returns the exit status."""
    plan = ground.plan
    before, tallies = _before(resumed) if resumed is not None else (0.0, {})
    standing = Standing(float(plan.seconds), before, tallies)
    words = f" ({ground.way.words})" if ground.way else ""
    sys.stderr.write(f"fuzzing: {plan.command()}{words}\n")
    with Progress(standing) as progress:
        campaign = Campaign(ground, progress, standing)
        campaign.go()
    sys.stdout.write(f"{summary(ground, standing, interrupted=campaign.interrupted)}\n")
    if ground.folder.failed or complaints(ground):
        return BAD
    return INTERRUPTED if campaign.interrupted else GOOD


def _before(run: Run) -> tuple[float, dict[str, Tally]]:
    """Seconds and numbers of the parts before."""
    end = run.end
    seconds = end.get("seconds", 0.0)
    names = set(vars(Tally()))
    told = end.get("targets", {})
    tallies = {
        str(name): Tally(**{key: value for key, value in row.items() if key in names})
        for name, row in (told.items() if isinstance(told, dict) else ())
    }
    return float(seconds), tallies


if __name__ == "__main__":
    sys.exit(main())
