"""`python -m random_graph`: campaigns of random graphs against drivers."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from harness.command_line import CommandParser
from harness.environment import SUITE_VERSION
from harness.isolation import DEADLINE
from harness.option_values import level_of, memory_of
from harness.record import Record, Run
from harness.waivers import Waivers, load_waivers
from nnhal.errors import UsageError
from nnhal.loading import REFERENCE, DriverSpec
from random_graph.campaign import Campaign
from random_graph.folder import DriverRun, drop_folder, new_folder, read_campaign
from random_graph.jobs import Graph, Ready, Setting
from random_graph.mixes import MIXES, mix
from random_graph.oracles import ORACLES, oracle_of
from random_graph.oracles import REFERENCE as ORACLE
from random_graph.plan import DEFAULT_COUNT, Plan, checked_seed, seconds_of
from random_graph.pools import LocalPool, Pool
from random_graph.progress import Progress, State
from random_graph.scheduling import RESOURCE, DaskPool
from random_graph.summary import complaints, summary

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
DEFAULT_MIX = "small"

DESCRIPTION = """\
Draws graphs, runs each with every driver, and minimises what fails until one or a few operations are left. Records,
failures and counts are written as they come; python -m reports makes a page of the folder.

A graph is decided by its mix and seed alone: a number of a campaign has the same seed whatever the number of graphs and
of processes.
"""
EPILOG = """\
exit status:
  0    no graph failed (waived ones aside)
  1    a graph failed, or a waiver is stale, expired or not needed any more
  2    wrong input, a driver that cannot be loaded, or a scheduler that is gone: one sentence on standard error says
       what, and the mend
  130  interrupted, and nothing failed so far

Ctrl-C ends in order: what is under way is finished and recorded. A second one ends at once. Either way --resume goes
on.
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m random_graph",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--driver", action="append", metavar="NAME[,KEY=VALUE...]", help="driver to test; may be repeated")
    add("--mix", action="append", metavar="NAME", help=f"what graphs: {', '.join(MIXES)}; several take turns")
    add("--for", dest="time", metavar="TIME", help="how long: 90s, 30m, 2h, 1h30m")
    add("--count", type=int, metavar="N", help=f"how many graphs instead (default: {DEFAULT_COUNT})")
    add("--graph", type=int, action="append", metavar="SEED", help="the graph of this seed alone; may be repeated")
    add("--seed", type=int, metavar="S", help="decides all graphs (default: 0)")
    add("--jobs", type=int, metavar="N", help="processes on this machine, each with the drivers (default: 1)")
    add("--level", type=int, metavar="1..8", help="test at this feature level at most")
    add("--memory", metavar="SIZE", help="limit of a driver's address space, such as 4G")
    add("--oracle", metavar="NAME", help=f"what results are held against: {', '.join(ORACLES)} (default: {ORACLE})")
    add("--against", metavar="NAME[,KEY=VALUE...]", help="hold results against those of this driver instead")
    add("--deadline", type=float, metavar="SECONDS", help="longest wait for an answer (default: 10)")
    add("--waivers", metavar="FILE", help="known failures: a TOML file, see docs/waivers.md")
    add("--runs", default="runs", metavar="DIR", help="where runs are written (default: runs)")
    add("--resume", metavar="DIR", help="go on with a campaign: graphs that have a record are not run again")
    add("--scheduler", metavar="ADDRESS", help="send the work to the workers of a Dask scheduler")
    add("--resource", metavar="NAME", help=f"what a worker must offer one of for each job (default: {RESOURCE})")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(given)
        _check(options)
        return _run(options, given)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def _check(options: argparse.Namespace) -> None:
    """Refuses what is wrong before anything is begun."""
    for name in options.mix or ():
        mix(name)
    for driver in options.driver or ():
        DriverSpec.parse(driver)
    sizes = [name for name, value in (("--for", options.time), ("--count", options.count), ("--graph", options.graph))
             if value is not None]  # fmt: skip
    if len(sizes) > 1:
        raise UsageError(f"{' and '.join(sizes)} are given; one of them says how many graphs there are")
    if options.graph and options.seed is not None:
        raise UsageError("--graph and --seed are given; the seed of a campaign says nothing of single graphs")
    for name in ("count", "jobs"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UsageError(f"--{name}={getattr(options, name)} is no number of {name}; give 1 or more")
    if any(seed < 0 for seed in options.graph or ()):
        raise UsageError(f"--graph={min(options.graph)} is no seed; give 0 or more")
    if options.deadline is not None and not 0 < options.deadline < math.inf:
        raise UsageError(f"--deadline={options.deadline:g} is no time; give seconds above 0")
    if options.scheduler and options.jobs is not None:
        raise UsageError("--jobs is of this machine; with --scheduler its workers decide how much is done at a time")
    if options.resource and not options.scheduler:
        raise UsageError("--resource is of a scheduler's workers; give --scheduler=ADDRESS too")
    level_of(options.level)
    memory_of(options.memory)
    _check_oracle(options)


def _check_oracle(options: argparse.Namespace) -> None:
    """Refuses what results cannot be held against."""
    if options.oracle is not None:
        oracle_of(options.oracle)
    if options.against is None:
        return
    if options.oracle is not None:
        raise UsageError("--oracle and --against are given; one of them says what results are held against")
    text = DriverSpec.parse(options.against).text
    if text in (options.driver or (REFERENCE,)) and not options.resume:
        raise UsageError(f"--against={text} is the driver under test itself; give another, or other options of it")


def _given_plan(options: argparse.Namespace) -> Plan:
    """The plan of the command line."""
    seconds = None if options.time is None else seconds_of(options.time)
    count = None if seconds is not None or options.graph else options.count or DEFAULT_COUNT
    return Plan(
        tuple(dict.fromkeys(options.driver or (REFERENCE,))),
        tuple(dict.fromkeys(options.mix or (DEFAULT_MIX,))),
        checked_seed(options.seed or 0),
        count,
        seconds,
        tuple(dict.fromkeys(options.graph or ())),
        options.level,
        options.memory,
        options.deadline or DEADLINE,
        options.oracle or ORACLE,
        options.against or "",
    )


def _resumed_plan(options: argparse.Namespace) -> tuple[Plan, Run]:
    """The plan of the campaign that goes on.

    Raises:
        UsageError: there is none, or an option says otherwise.
    """
    plan, run = read_campaign(Path(options.resume))
    given = _given_plan(options)
    wrong = {
        "driver": options.driver and given.drivers != plan.drivers,
        "mix": options.mix and given.mixes != plan.mixes,
        "for": options.time and given.seconds != plan.seconds,
        "count": options.count and given.count != plan.count,
        "graph": options.graph and given.graphs != plan.graphs,
        "seed": options.seed is not None and given.seed != plan.seed,
        "level": options.level is not None and given.level != plan.level,
        "memory": options.memory is not None and given.memory != plan.memory,
        "deadline": options.deadline is not None and given.deadline != plan.deadline,
        "oracle": options.oracle is not None and (given.oracle, "") != (plan.oracle, plan.against),
        "against": options.against is not None and given.against != plan.against,
    }
    for name, differs in wrong.items():
        if differs:
            raise UsageError(f"--{name} is not that of {options.resume}, which was begun by: {plan.command()}")
    return plan, run


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Runs a campaign from the folders to the summary."""
    plan, resumed = _resumed_plan(options) if options.resume else (_given_plan(options), None)
    waivers = [_waivers(options) for _ in plan.drivers]
    folders = [Path(options.resume)] if resumed else [new_folder(Path(options.runs), name) for name in plan.drivers]
    logs = () if options.scheduler else tuple(str(folder.absolute() / "driver.log") for folder in folders)
    setting = plan.setting(logs=logs, campaign=uuid.uuid4().hex[:12], suite=SUITE_VERSION)
    parts: list[DriverRun] = []
    try:
        with contextlib.closing(_pool(options, setting)) as pool:
            ready = pool.start()
            for folder, driver, known in zip(folders, plan.drivers, waivers, strict=True):
                parts.append(DriverRun(folder, driver, setting.arguments, known))
            return _go(plan, parts, resumed, pool, ready, given)
    finally:
        for part in parts:
            part.close()
        if not parts and not resumed:
            for folder in folders:
                drop_folder(folder)


def _waivers(options: argparse.Namespace) -> Waivers:
    return load_waivers(Path(options.waivers) if options.waivers else None)


def _pool(options: argparse.Namespace, setting: Setting) -> Pool:
    if options.scheduler:
        return DaskPool(setting, options.scheduler, options.resource or RESOURCE)
    return LocalPool(setting, options.jobs or 1)


def _go(
    plan: Plan, parts: Sequence[DriverRun], resumed: Run | None, pool: Pool, ready: Ready, given: Sequence[str]
) -> int:
    """Runs a campaign whose drivers are loaded; returns the exit status."""
    uncounted: list[tuple[Graph, Record]] = []
    for number, part in enumerate(parts):
        if resumed is None:
            part.begin(plan, ready, number, given)
        else:
            uncounted = part.resume(plan, resumed)
    before = 0.0 if resumed is None else float(resumed.plan.get("seconds", 0.0))
    state = State(plan.total, plan.seconds, (parts[0].done, before), parts[0].done, {p.driver: p.counts for p in parts})
    sys.stderr.write(f"campaign: {plan.command()}\n")
    with Progress(state) as progress:
        campaign = Campaign(plan, parts, pool, progress, state)
        campaign.take_on(uncounted)
        most = None
        if all(ready.silent) and plan.seconds is not None:
            progress.say(f"one graph of each mix is tried and no more: {ready.silent[0]}")
            most = len(plan.mixes)
        campaign.go(most)
    sys.stdout.write(f"{summary(plan, parts, state, interrupted=campaign.interrupted)}\n")
    if any(part.failed for part in parts) or complaints(parts):
        return BAD
    return INTERRUPTED if campaign.interrupted else GOOD


if __name__ == "__main__":
    sys.exit(main())
