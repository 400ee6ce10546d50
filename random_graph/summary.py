"""What a campaign says at its end: counts, each distinct failure in full, where the time went, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness import waivers
from harness.session import failure_text
from random_graph.folder import DriverRun
from random_graph.plan import Plan
from random_graph.progress import State, clock, verdicts
from random_graph.spending import STAGES
from random_graph.triage import Distinct
from reports.text import clean, count_words, percent

SEEDS = 5  # that are named for a failure
SHOWN = 25  # failures in full


def summary(plan: Plan, runs: Sequence[DriverRun], state: State, *, interrupted: bool) -> str:
    """All of it, for standard output."""
    lines: list[str] = []
    for run in runs:
        lines += _of(run)
    lines += complaints(runs)
    lines += ["", f"{count_words(state.done, 'graph', 'graphs')} in {clock(state.seconds)}, {state.rate:.3g} graphs/s"]
    lines += [f"time of {run.driver}: {shares(run.spent)}" for run in runs if any(run.spent.values())]
    if interrupted:
        lines += [f"interrupted; go on: python -m random_graph --resume={run.folder}" for run in runs]
    lines += [f"records: {run.folder}; as a page: python -m reports {run.folder}" for run in runs]
    lines.append(f"again: {plan.command()}")
    lines.append("one graph again: the same with its --mix alone and --graph=SEED in place of count or time and seed")
    return "\n".join(clean(line) for line in lines)


def _of(run: DriverRun) -> Iterator[str]:
    distinct = sorted(run.failures.distinct, key=lambda found: -found.count)
    yield f"{run.driver}: {count_words(run.done, 'graph', 'graphs')}: {verdicts(run.counts)}"
    failing = sum(found.count for found in distinct)
    if distinct:
        number = count_words(len(distinct), "distinct failure", "distinct failures")
        yield f"{number} in {count_words(failing, 'graph', 'graphs')}:"
    for found in distinct[:SHOWN]:
        yield ""
        yield from failure_lines(found, run)
    if len(distinct) > SHOWN:
        yield f"and {len(distinct) - SHOWN} more: {run.folder / 'failures.jsonl'} has all"


def complaints(runs: Sequence[DriverRun]) -> list[str]:
    """What is wrong with the waivers; a campaign's graphs are a sample."""
    return waivers.complaints([run.waivers for run in runs], filtered=True, sampled=True)


def failure_lines(found: Distinct, run: DriverRun) -> Iterator[str]:
    """A distinct failure in full, with the graphs that hit it."""
    yield failure_text(found.record, run.driver, run.folder)
    yield f"  operations: {', '.join(found.look.operations) or 'none'}"
    if found.note:
        yield f"  not minimised: {found.note}"
    yield f"  seen in {count_words(found.count, 'graph', 'graphs')}: {_graphs(found)}"


def _graphs(found: Distinct) -> str:
    """The first graphs that were minimised to a failure, then those that are counted to it, by mix and seed."""
    names = [f"{mix} {seed}" for seeds in (found.seeds, found.alike) for mix in seeds for seed in seeds[mix]]
    return ", ".join(names[:SEEDS]) + (", ..." if len(names) > SEEDS else "")


def shares(spent: Mapping[str, float]) -> str:
    """Shares of the time in words."""
    total = sum(spent.values()) or 1.0
    return ", ".join(f"{stage} {percent(spent.get(stage, 0.0) / total)}" for stage in STAGES)
