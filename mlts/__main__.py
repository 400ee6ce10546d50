"""`python -m mlts`: real models on drivers, beside LiteRT on the CPU in the same run."""

from __future__ import annotations

import argparse
import os
import sys
import time
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.command_line import CommandParser
from harness.driver import ask_facts, open_driver
from harness.interrupting import Interrupted, interrupt, interruptible
from harness.record import Run, read_run
from harness.session import facts_header
from harness.waivers import complaints, load_waivers
from mlts import capabilities
from mlts.cases import BASELINE
from mlts.folder import SUITE, BenchFolder
from mlts.packages import cache_folder
from mlts.page import write_page
from mlts.plan import DEFAULT_TIER, PLANS, Plan, Tier, plan_of, tier_of
from mlts.progress import Progress
from mlts.rows import line_of, row_of
from mlts.running import DEADLINE, Outcome, Setting, run_subject
from mlts.subjects import Named, chosen, evaluation, listed, subject_of
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.loading import REFERENCE, DriverSpec
from random_graph.folder import drop_folder, new_folder
from reports.text import clean, count_words

GOOD, BAD, WRONG, INTERRUPTED = 0, 1, 2, 130
DEFAULT_PLAN = "short"
EPILOG = """\
exit status:
  0    no model failed (waived ones aside); slower than the baseline is POOR, which fails with --fail-poor alone
  1    results are worse than the baseline's, a driver died, hung or refused what it said that it runs, or a waiver is
       stale, expired or not needed any more
  2    wrong input, or a model, package or driver that cannot be had: one sentence says what, and the mend
  130  interrupted, and nothing failed so far

Ctrl-C ends the model that is under way, which then has no record; --resume goes on with it.
`python -m mlts capabilities RUN [RUN...]` writes what was measured as a driver's capabilities.
"""


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="python -m mlts",
        description="Runs real models on drivers: latency, results and stability beside LiteRT on the CPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--driver", action="append", metavar="NAME[,KEY=VALUE...]", help="driver to test; may be repeated. {threads} "
        "in it stands for the tier's threads")  # fmt: skip
    add("--baseline", metavar="NAME[,KEY=VALUE...]", help=f"what it is measured against (default: {BASELINE})")
    plans = "; ".join(f"{plan.name}: {plan.text}" for plan in PLANS.values())
    add("--preset", metavar="NAME", help=f"how long (default: {DEFAULT_PLAN}). {plans}")
    add(
        "--only", action="append", metavar="PATTERN", help="models of this name; * stands for anything; may be repeated"
    )
    add("--models", metavar="DIR", help="the user's own models beside those of the list, see docs/mlts.md")
    add("--list", action="store_true", help="name the models and end")
    add("--threads", type=int, metavar="N", help="threads of the baseline (default: 1)")
    add("--tier", action="append", metavar="NAME[:threads=N][:cpus=0-1][:memory=512M]",
        help="a device class that models are measured in; may be repeated")  # fmt: skip
    add("--strict", action="store_true", help="models are not relaxed: no driver may compute float32 in float16")
    add("--whole", action="store_true", help="models that a driver runs in part are not divided by the framework")
    add("--fail-poor", action="store_true", help="a driver that is slower than the baseline fails, too")
    add("--deadline", type=float, metavar="SECONDS", help=f"longest wait for an answer (default: {DEADLINE:g})")
    add("--waivers", metavar="FILE", help="known failures: a TOML file, see docs/waivers.md")
    add("--runs", default="runs", metavar="DIR", help="where runs are written (default: runs)")
    add("--resume", metavar="DIR", help="go on: models that have a record are not measured again")
    add("--report", metavar="FILE", help="where the page is written (default: in the run's folder)")
    add("--open", action="store_true", help="open the page when it is there")
    return parser


@dataclass(frozen=True)
class Wish:
    """What the command line asks for, checked."""

    drivers: tuple[str, ...]
    baseline: str
    plan: Plan
    only: tuple[str, ...]
    models: tuple[Named, ...]
    folder: str | None
    tiers: tuple[Tier, ...]
    strict: bool
    whole: bool
    fail_poor: bool
    deadline: float

    def words(self) -> list[str]:
        """Options that a repetition of one model needs besides it and the driver."""
        found = [f"--preset={self.plan.name}"]
        found += [f"--baseline={self.baseline}"] if self.baseline != BASELINE else []
        found += [f"--models={self.folder}"] if self.folder else []
        return found + ["--strict"] * self.strict + ["--whole"] * self.whole

    def header(self) -> dict[str, Any]:
        """For the plan's line."""
        return {
            "preset": self.plan.name,
            "baseline": self.baseline,
            "only": list(self.only),
            "models": self.folder,
            "tiers": [_words(tier) for tier in self.tiers],
            "strict": self.strict,
            "whole": self.whole,
            "fail_poor": self.fail_poor,
            "deadline": self.deadline,
            "filtered": bool(self.only),
            "shortened": self.plan.name != "mlts",
        }


def _words(tier: Tier) -> str:
    """The tier as the command line has it."""
    found = [tier.name, f"threads={tier.threads}"]
    found += [f"cpus={','.join(map(str, tier.cpus))}"] if tier.cpus else []
    return ":".join([*found, *([f"memory={tier.memory}"] if tier.memory is not None else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["capabilities"]:
            return capabilities.main(given[1:])
        options = _parser().parse_args(given)
        if options.list:
            sys.stdout.write(_list(listed(Path(options.models) if options.models else None)))
            return GOOD
        return _run(options)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG
    except (KeyboardInterrupt, Interrupted):
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def _list(models: Sequence[Named]) -> str:
    return "".join(f"{named.name:32} {named.slot:14} {named.reality}\n" for named in models)


def _wish(options: argparse.Namespace) -> tuple[Wish, Run | None]:
    run = read_run(Path(options.resume)) if options.resume else None
    plan = dict(run.plan) if run is not None else {}
    if run is not None and not (plan.get("suite") == SUITE and isinstance(plan.get("driver"), str)):
        raise UsageError(f"{options.resume} is no run of this benchmark; give the folder that python -m mlts wrote")
    if run is not None and options.driver and options.driver != [plan["driver"]]:
        raise UsageError(f"{options.resume} is of driver {plan['driver']}; --resume goes on with that one alone")
    if options.threads is not None and options.threads < 1:
        raise UsageError(f"--threads={options.threads} is no number of threads; give 1 or more")
    if options.deadline is not None and not 0 < options.deadline < float("inf"):
        raise UsageError(f"--deadline={options.deadline:g} is no time; give seconds above 0")
    threads = options.threads or 1
    tiers = [tier_of(text, threads) for text in options.tier or plan.get("tiers") or [DEFAULT_TIER]]
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise UsageError(f"two tiers are called {max(names, key=names.count)}; give each a name of its own")
    drivers = tuple(dict.fromkeys(options.driver or [plan.get("driver", REFERENCE)]))
    baseline = options.baseline or plan.get("baseline", BASELINE)
    for text in (*drivers, baseline):
        DriverSpec.parse(text.replace("{threads}", str(threads)))
    folder = options.models or plan.get("models")
    only = tuple(options.only or plan.get("only", ()))
    wish = Wish(
        drivers,
        baseline,
        plan_of(options.preset or plan.get("preset", DEFAULT_PLAN)),
        only,
        chosen(listed(Path(folder) if folder else None), only),
        folder,
        tuple(tiers),
        options.strict or bool(plan.get("strict")),
        options.whole or bool(plan.get("whole")),
        options.fail_poor or bool(plan.get("fail_poor")),
        options.deadline or plan.get("deadline", DEADLINE),
    )
    return wish, run


def _run(options: argparse.Namespace) -> int:
    wish, resumed = _wish(options)
    waivers = [load_waivers(Path(options.waivers) if options.waivers else None) for _ in wish.drivers]
    pairs = [(named.name, tier.name) for tier in wish.tiers for named in wish.models]
    facts = [_facts(text, wish) for text in wish.drivers]
    _facts(wish.baseline, wish)
    parts: list[BenchFolder] = []
    interrupted, begun = False, time.monotonic()
    try:
        for text, known, said in zip(wish.drivers, waivers, facts, strict=True):
            path = Path(options.resume) if resumed else new_folder(Path(options.runs), text, SUITE)
            parts.append(BenchFolder(path, text, known))
            if resumed is not None:
                known.check_resumed(resumed.plan, path)
                parts[-1].resume(resumed.records, pairs)
            else:
                parts[-1].begin(pairs, {**wish.header(), **said})
        with interruptible(interrupt), Progress(len(pairs) * len(parts)) as progress:
            try:
                for part in parts:
                    _all_of(part, wish, progress)
            except Interrupted:
                interrupted = True
        for part in parts:
            part.end(time.monotonic() - begun, interrupted=interrupted)
    finally:
        for part in parts:
            part.close()
            if not part.done and not interrupted:
                drop_folder(part.path)
    pages = [
        write_page(part.path, Path(options.report) if options.report and len(parts) == 1 else None) for part in parts
    ]
    _tell(parts, pages, wish, interrupted=interrupted)
    if options.open:
        for page in pages:
            webbrowser.open(page.absolute().as_uri())
    if any(part.failed or (wish.fail_poor and part.poor) for part in parts):
        return BAD
    if _complaints(parts, interrupted=interrupted):
        return BAD
    return INTERRUPTED if interrupted else GOOD


def _facts(text: str, wish: Wish) -> dict[str, Any]:
    """What a driver says of itself.

    Raises:
        UsageError: it cannot be loaded, or says nothing that makes sense.
    """
    spec = DriverSpec.parse(text.replace("{threads}", str(wish.tiers[0].threads)))
    driver = open_driver(spec, log_path=Path(os.devnull), deadline=wish.deadline, spare=False)
    with closing(driver):
        try:
            return facts_header(ask_facts(driver.device))
        except (DriverError, DriverDied, DriverTimedOut, UncleanError) as error:
            raise UsageError(f"driver {spec.name!r} does not say what it is: {error}") from None


def _all_of(part: BenchFolder, wish: Wish, progress: Progress) -> None:
    cache = cache_folder()
    for tier in wish.tiers:
        for named in wish.models:
            if (named.name, tier.name) in part.done:
                progress.done(f"{named.name}: has its records")
                continue
            progress.show(named.name, "is made ready", 0.0)
            subject = subject_of(named, cache, wish.plan.samples, relaxed=not wish.strict)
            log = (part.path / "driver.log").absolute()
            setting = Setting(part.driver, wish.baseline, wish.plan, tier, cache, log, not wish.whole, wish.deadline)
            found = run_subject(
                subject,
                setting,
                evaluation(named),
                lambda words, share, name=named.name: progress.show(name, words, share),  # type: ignore[misc]
            )
            _record(part, named, tier, found, wish)
            part.measured(row_of(named, subject, tier, found))
            progress.done(line_of(named.name, tier, found))


def _record(part: BenchFolder, named: Named, tier: Tier, found: Outcome, wish: Wish) -> None:
    tiers = [f"--tier={_words(tier)}"] if tier.name != DEFAULT_TIER or tier.threads > 1 else []
    words = ["python", "-m", "mlts", f"--driver={part.driver}", f"--only={named.name}", *wish.words(), *tiers]
    repeat = " ".join(f"'{word}'" if "{" in word or " " in word or "*" in word else word for word in words)
    part.add(named.name, tier.name, found.judgements, repeat=repeat, log=found.log, seconds=found.seconds)


def _tell(parts: Sequence[BenchFolder], pages: Sequence[Path], wish: Wish, *, interrupted: bool) -> None:
    """The summary, on standard output."""
    lines: list[str] = []
    for part, page in zip(parts, pages, strict=True):
        found = read_run(part.path)
        for record in found.records.values():
            if record.verdict not in ("PASS", "NOT_APPLICABLE"):
                lines.append(f"{record.verdict} {record.id}: {record.message.partition(chr(10))[0]}")
                lines += [f"  waived: {record.waiver}"] if record.waiver else [f"  again: {record.repeat}"]
        counts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(part.counts.items()))
        lines.append(f"{part.driver}: {count_words(len(part.done), 'model', 'models')}: {counts}")
        lines += ["shorter than the public benchmark"] if wish.plan.name != "mlts" else []
        lines.append(f"page: {page}")
        lines += [f"interrupted; go on: python -m mlts --resume={part.path}"] if interrupted else []
    lines += _complaints(parts, interrupted=interrupted)
    sys.stdout.write("\n".join(clean(line) for line in lines) + "\n")


def _complaints(parts: Sequence[BenchFolder], *, interrupted: bool) -> list[str]:
    """What is wrong with the waivers; models and tiers are those of the command line, so none must be named."""
    return complaints([part.waivers for part in parts], filtered=True, sampled=interrupted)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SuiteError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(WRONG)
