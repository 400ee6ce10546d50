"""`python -m stress`: workloads that put drivers under stress, each run with its own verdict."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.command_line import CommandParser
from harness.interrupting import Interrupted, interrupt, interruptible
from harness.isolation import DEADLINE
from harness.option_values import level_of, matching
from harness.record import Record, Run, read_run
from harness.session import facts_header, failure_text
from harness.waivers import complaints, load_waivers
from nnhal.errors import UsageError
from nnhal.loading import REFERENCE, DriverSpec
from random_graph.folder import drop_folder, new_folder
from random_graph.plan import checked_seed, seconds_of
from random_graph.progress import clock, verdicts
from reports.text import clean, count_words
from stress.evidence import Evidence
from stress.gate import wait_until_quiet
from stress.performing import Ready, get_ready, perform, scenes_of, selected
from stress.presets import PRESETS, Preset, preset_of
from stress.progress import Progress
from stress.records import StressFolder, command
from stress.result import Ending, Result, Side
from stress.scene import Scene
from stress.workloads import WORKLOADS, Workload

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
DEFAULT_PRESET = "short"
EPILOG = """\
exit status:
  0    no run failed (waived ones aside)
  1    a run ended in FAILURE, HANG or CRASH, or a waiver is stale, expired or not needed any more
  2    wrong input, or a driver that cannot be loaded: one sentence on standard error says what, and the mend
  130  interrupted, and nothing failed so far

Ctrl-C ends the run that is under way, which then has no record; --resume goes on with it.
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m stress",
        description="Puts drivers under stress. Each run ends in SUCCESS, FAILURE, HANG or CRASH, with the reason.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--driver", action="append", metavar="NAME[,KEY=VALUE...]", help="driver to test; may be repeated")
    add("--driver-match", metavar="REGEX", help="test every driver found whose name matches")
    presets = "; ".join(f"{preset.name}: {preset.text}" for preset in PRESETS.values())
    add("--preset", metavar="NAME", help=f"lengths and numbers (default: {DEFAULT_PRESET}). {presets}")
    add("--only", action="append", metavar="NAME[/SETTING]", help="this workload alone; may be repeated")
    add("--list", action="store_true", help="name the workloads and end")
    add("--for", dest="time", metavar="TIME", help="how long each run goes on, in place of the preset's: 90s, 30m, 2h")
    add("--seed", type=int, metavar="S", help="decides all that is drawn (default: 0)")
    add("--level", type=int, metavar="1..8", help="test at this feature level at most")
    add("--deadline", type=float, metavar="SECONDS", help="longest wait for an answer (default: 10)")
    add("--waivers", metavar="FILE", help="known failures: a TOML file, see docs/waivers.md")
    add("--runs", default="runs", metavar="DIR", help="where runs are written (default: runs)")
    add("--resume", metavar="DIR", help="go on: runs that have a record are not run again")
    add("--wait-quiet", type=float, metavar="SECONDS", help="wait so long for a quiet machine before each run")
    return parser


@dataclass(frozen=True)
class Wish:
    """What the command line asks for, checked."""

    drivers: tuple[DriverSpec, ...]
    preset: Preset
    only: tuple[str, ...]
    chosen: tuple[tuple[Workload, str], ...]
    length: float | None
    seed: int
    level: int | None
    deadline: float
    time: str | None

    def arguments(self) -> list[str]:
        """Options besides driver, preset, seed and workload that a repetition needs."""
        found = [f"--for={self.time}"] if self.time else []
        found += [f"--level={self.level}"] if self.level is not None else []
        return found + ([f"--deadline={self.deadline:g}"] if self.deadline != DEADLINE else [])

    def header(self) -> dict[str, Any]:
        """For the plan's line."""
        return {
            "preset": self.preset.name,
            "only": list(self.only),
            "for": self.time,
            "seed": self.seed,
            "level": self.level,
            "deadline": self.deadline,
            "filtered": bool(self.only),
            "shortened": self.preset.name != "mlts" or self.length is not None,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(given)
        if options.list:
            sys.stdout.write(workload_list())
            return GOOD
        return _run(options)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG
    except (KeyboardInterrupt, Interrupted):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def workload_list() -> str:
    """The workloads, a line for each."""
    lines = []
    for title, public in (("of the public crash tests", True), ("beyond them", False)):
        lines.append(f"{title}:")
        lines += [f"  {w.name:30} {w.text}" for w in WORKLOADS.values() if w.public == public]
    return "\n".join([*lines, ""])


def _wish(options: argparse.Namespace) -> tuple[Wish, Run | None]:
    run = read_run(Path(options.resume)) if options.resume else None
    plan = run.plan if run is not None else {}
    if run is not None and not (plan.get("suite") == "stress" and isinstance(plan.get("driver"), str)):
        raise UsageError(f"{options.resume} is no folder of stress runs; give the folder that one of them wrote")
    drivers = [DriverSpec.parse(text) for text in dict.fromkeys(options.driver or ())]
    drivers += matching(options.driver_match, drivers) if options.driver_match else []
    if run is not None:
        if drivers and [spec.text for spec in drivers] != [plan["driver"]]:
            raise UsageError(f"{options.resume} is of driver {plan['driver']}; --resume goes on with that one alone")
        drivers = [DriverSpec.parse(str(plan["driver"]))]
    given = {"preset": options.preset, "only": options.only, "for": options.time, "seed": options.seed,
             "level": options.level, "deadline": options.deadline}  # fmt: skip
    for name, value in given.items():
        if run is not None and value is not None and value != plan.get(name):
            raise UsageError(f"{options.resume} was begun with --{name}={plan.get(name)}; --resume goes on with that")
        given[name] = plan.get(name) if run is not None else value
    if given["deadline"] is not None and not 0 < given["deadline"] < math.inf:
        raise UsageError(f"--deadline={given['deadline']:g} is no time; give seconds above 0")
    if options.wait_quiet is not None and not 0 <= options.wait_quiet < math.inf:
        raise UsageError(f"--wait-quiet={options.wait_quiet:g} is no time; give seconds, 0 or more")
    level_of(given["level"])
    only = tuple(given["only"] or ())
    wish = Wish(
        tuple(drivers or [DriverSpec.parse(REFERENCE)]),
        preset_of(given["preset"] or DEFAULT_PRESET),
        only,
        tuple(selected(only)),
        None if given["for"] is None else float(seconds_of(given["for"])),
        checked_seed(given["seed"] or 0),
        given["level"],
        given["deadline"] or DEADLINE,
        given["for"],
    )
    return wish, run


def _run(options: argparse.Namespace) -> int:
    wish, resumed = _wish(options)
    waivers = [load_waivers(Path(options.waivers) if options.waivers else None) for _ in wish.drivers]
    ready = [get_ready(s, wish.preset, wish.seed, wish.deadline, wish.level, wish.length) for s in wish.drivers]
    todo = [_scenes(wish, one) for one in ready]
    parts: list[StressFolder] = []
    interrupted, begun = False, time.monotonic()
    try:
        for one, scenes, known in zip(ready, todo, waivers, strict=True):
            path = Path(options.resume) if resumed else new_folder(Path(options.runs), one.spec.text, "stress")
            parts.append(StressFolder(path, one.spec.text, known))
            if resumed is not None:
                known.check_resumed(resumed.plan, path)
                parts[-1].resume(resumed.records)
            else:
                facts = facts_header(one.facts) if one.facts is not None else {}
                parts[-1].begin([scene for scene, _ in scenes], {**wish.header(), **facts})
        with interruptible(interrupt), Progress(sum(map(len, todo))) as progress:
            try:
                for one, scenes, part in zip(ready, todo, parts, strict=True):
                    _all_of(one, scenes, part, wish, progress, options.wait_quiet)
            except Interrupted:
                interrupted = True
        for part in parts:
            part.end(time.monotonic() - begun, interrupted=interrupted)
    finally:
        for part in parts:
            part.close()
            if not part.done and not interrupted:
                drop_folder(part.path)
    _tell(parts, ready, wish, time.monotonic() - begun, interrupted=interrupted)
    if any(part.failed for part in parts) or _complaints(parts, wish, interrupted=interrupted):
        return BAD
    return INTERRUPTED if interrupted else GOOD


def _scenes(wish: Wish, ready: Ready) -> list[tuple[Scene, str]]:
    """The runs, each with the reason why the driver cannot have it; empty where it can."""
    found: list[tuple[Scene, str]] = []
    for workload, setting in wish.chosen:
        reason = workload.needs(ready.kit.traits) if ready.trouble is None else ""
        found += [(scene, reason) for scene in scenes_of(workload, setting, ready.kit)]
    return found


def _all_of(
    ready: Ready,
    scenes: Sequence[tuple[Scene, str]],
    part: StressFolder,
    wish: Wish,
    progress: Progress,
    wait: float | None,
) -> None:
    for scene, reason in scenes:
        progress.number += 1
        if f"{scene.origin.batch}-0" in part.done:
            continue
        if ready.trouble is not None:
            result, evidence, seconds = ready.trouble, Evidence(), 0.0
        elif reason:
            result, evidence, seconds = Result(Ending.NOT_APPLICABLE, Side.NONE, message=reason), Evidence(), 0.0
        else:
            quiet = wait_until_quiet(wait or 0.0, progress.say)
            result, evidence, seconds = perform(
                scene,
                ready,
                log_path=(part.path / "driver.log").absolute(),
                quiet=quiet,
                show=lambda supervision: progress.show(supervision, part),
            )
        repeat = command(part.driver, wish.preset.name, wish.seed, scene.name, wish.arguments())
        record = part.add(scene, result, evidence, repeat, seconds)
        progress.done(scene.name, record, result.ending)


def _tell(
    parts: Sequence[StressFolder], ready: Sequence[Ready], wish: Wish, seconds: float, *, interrupted: bool
) -> None:
    """The summary, on standard output."""
    lines: list[str] = []
    for part, one in zip(parts, ready, strict=True):
        found = read_run(part.path)
        failing = [record for record in found.records.values() if record.bad and not record.waiver]
        for record in failing:
            lines += ["", _failure(record, part)]
        runs = count_words(len(found.records), "run", "runs")
        lines += ["", f"{part.driver}: {runs}: {verdicts(found.counts())}"]
        if one.refused:
            names = count_words(len(one.refused), "model", "models")
            lines.append(f"{names} not supported: {', '.join(list(one.refused)[:5])}")
        if wish.preset.name != "mlts" or wish.length is not None:
            lines.append(f"preset {wish.preset.name}: runs are shorter than those of the public crash tests")
        lines.append(f"records: {part.path}; as a page: python -m reports {part.path}")
        lines += [f"interrupted; go on: python -m stress --resume={part.path}"] if interrupted else []
    lines += _complaints(parts, wish, interrupted=interrupted)
    lines.append(f"took {clock(seconds)}")
    sys.stdout.write("\n".join(clean(line) if "\n" not in line else line for line in lines).lstrip() + "\n")


def _complaints(parts: Sequence[StressFolder], wish: Wish, *, interrupted: bool) -> list[str]:
    return complaints([part.waivers for part in parts], filtered=bool(wish.only), sampled=interrupted)


def _failure(record: Record, part: StressFolder) -> str:
    return "\n".join(clean(line) for line in failure_text(record, part.driver, part.path).splitlines())


if __name__ == "__main__":
    sys.exit(main())
