"""What a fuzzing run says at its end: numbers by target, each new finding in full, what to do next."""

from __future__ import annotations

from fuzz.campaign import Ground
from fuzz.progress import Standing, line_of
from harness.session import failure_text
from random_graph.progress import clock
from reports.text import clean, count_words

SHOWN = 25  # findings in full


def complaints(ground: Ground) -> list[str]:
    """What is wrong with the waivers; what is fuzzed is a sample."""
    return ground.folder.waivers.complaints(filtered=True, sampled=True)


def summary(ground: Ground, standing: Standing, *, interrupted: bool) -> str:
    """All of it, for standard output."""
    folder, plan = ground.folder, ground.plan
    fresh = [record for record in folder.records if record.saved]
    lines = [f"{standing.inputs:,} inputs in {clock(standing.seconds)}, {plan.jobs} at once"]
    lines += [line_of(name, tally) for name, tally in standing.tallies.items()]
    lines.append(f"{count_words(len(fresh), 'new finding', 'new findings')}, {standing.known} known")
    for record in fresh[:SHOWN]:
        lines += ["", failure_text(record, plan.driver, folder.folder)]
    if len(fresh) > SHOWN:
        lines.append(f"and {len(fresh) - SHOWN} more: {folder.folder / 'failures'} has all")
    lines += complaints(ground)
    lines.append("")
    if interrupted:
        lines.append(f"interrupted; go on: python -m fuzz --resume={folder.folder}")
    lines.append(f"records: {folder.folder}; as a page: python -m reports {folder.folder}")
    lines.append(f"corpus and known findings: {ground.state.folder}")
    lines.append(f"again: {plan.command()}")
    return "\n".join(clean(line) for line in "\n".join(lines).split("\n"))
