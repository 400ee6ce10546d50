"""Judges a run: a pure function of the scene and what is known of it, with the words for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from harness.process import describe_exit, find_crash_trace
from harness.verdict import Cause
from stress.board import Place
from stress.evidence import Evidence
from stress.leaks import judge_leak, slope_numbers
from stress.result import Ending, Result, Side
from stress.scene import HOSTILE, JUDGED, LIVENESS, Scene

NAMED = 5  # models that are named in a note
WORST = 3  # failures that are told in words

Judge = Callable[[Scene, Evidence, Mapping[str, float]], Result | None]


def judge_run(scene: Scene, evidence: Evidence) -> Result:
    """How a run ended. What came first in time decides; a wrong answer counts where nobody died or fell silent."""
    found = next(_defects(evidence), None) or _first_end(evidence) or _answers(scene, evidence)
    if found is None:
        found = next((r for name, told in scene.judges.items() if (r := JUDGES[name](scene, evidence, told))), None)
    found = found or _left(evidence) or _nothing_done(scene, evidence) or Result(Ending.SUCCESS)
    slopes = slope_numbers(evidence) if "leak" in scene.judges else {}
    numbers = {**evidence.numbers, **_numbers(evidence), **slopes, **found.numbers}
    return replace(found, numbers=numbers, notes=(*found.notes, *_notes(scene, evidence)))


def _defects(evidence: Evidence) -> Iterator[Result]:
    for client in evidence.clients:
        if client.suite:
            text = f"client {client.number} of the suite failed by itself: {client.suite}"
            yield Result(Ending.INTERNAL, Side.CLIENT, Cause.SUITE, client.place.text, text, log=client.log)


def _first_end(evidence: Evidence) -> Result | None:
    """The death or silence that was seen first."""
    found = [*_driver_death(evidence), *_silence(evidence), *_client_deaths(evidence)]
    return min(found, key=lambda result: result.at, default=None)


def _driver_death(evidence: Evidence) -> Iterator[Result]:
    driver = evidence.driver
    if driver is None or driver.at is None or evidence.silence is not None:
        return
    if driver.refused:
        yield Result(Ending.FAILURE, Side.DRIVER, Cause.UNCLEAN_ERROR, "load", driver.reason, driver.at)
        return
    step = driver.step or "no call"
    during = "while it was loaded" if driver.loading else f"during {step}"
    text = driver.reason if driver.loading else f"the driver's process {driver.reason} {during}"
    trace = find_crash_trace(driver.log) or ""
    yield Result(
        Ending.CRASH, Side.DRIVER, Cause.DIED, step, text, driver.at, driver.exit, trace, driver.log
    )  # fmt: skip


def _silence(evidence: Evidence) -> Iterator[Result]:
    silence = evidence.silence
    if silence is None:
        return
    side = Side.DRIVER if silence.driver else Side.CLIENT
    who = "the driver" if silence.driver else f"client {silence.client}"
    how = "was stopped by a signal" if silence.stopped else "did not go on"
    text = f"{who} {how}: {silence.seconds:.3g} s in {silence.step}"
    ends = [client.log for client in evidence.clients if client.number == silence.client]
    own = evidence.driver.log if evidence.driver is not None and silence.driver else "".join(ends)
    trace = "\n".join(part for part in (find_crash_trace(own) or "", silence.stacks) if part)
    yield Result(Ending.HANG, side, Cause.SILENT, silence.step, text, silence.at, None, trace, own)


def _client_deaths(evidence: Evidence) -> Iterator[Result]:
    for client in evidence.clients:
        if client.group.role == HOSTILE or client.killed:
            continue
        place = client.place
        inside = client.group.in_process and place.place == Place.DRIVER
        side = Side.DRIVER if inside else Side.CLIENT
        who = "the driver, in client" if inside else "client"
        step, at = place.text, client.at if client.at is not None else evidence.seconds
        trace = find_crash_trace(client.log) or ""
        if client.nonsense:
            text = f"{who} {client.number} sent what is no message: {client.nonsense}"
            yield Result(Ending.CRASH, side, Cause.MALFORMED, step, text, at, client.exit, log=client.log)
        elif client.refused:
            text = f"client {client.number} could not load the driver: {client.refused}"
            side = Side.DRIVER if client.group.in_process else Side.CLIENT
            yield Result(Ending.FAILURE, side, Cause.UNCLEAN_ERROR, "load", text, at, log=client.log)
        elif client.closed and client.stopped and not client.done:
            text = f"{who} {client.number} closed its connection and went on, in {step or 'its start'}"
            yield Result(Ending.CRASH, side, Cause.DIED, step, text, at, client.exit, trace, client.log)
        elif client.exit is not None and not (client.done or client.stopped):
            how = describe_exit(client.exit)
            text = f"{who} {client.number}: its process {how} in {step or 'its start'}"
            yield Result(Ending.CRASH, side, Cause.DIED, step, text, at, client.exit, trace, client.log)


def _answers(scene: Scene, evidence: Evidence) -> Result | None:
    """Wrong answers, under load and after it."""
    failures = evidence.failures
    if failures:
        first = failures[0]
        number = max(evidence.failed, len(failures))
        runs = evidence.counts((JUDGED, LIVENESS))["executions"]
        lines = [f"{number} wrong {'answer' if number == 1 else 'answers'} in {runs} executions"]
        for failure in failures[:WORST]:
            who = f"client {failure.client}, thread {failure.thread}, turn {failure.turn}, after {failure.at:.3g} s"
            lines.append(f"{who}: {failure.id}: {failure.message}")
        cause = Cause(first.cause) if first.cause in {c.value for c in Cause} else Cause.VALUE
        text = "\n".join(lines)
        return Result(Ending.FAILURE, Side.DRIVER, cause, first.stage, text, first.at, saved=first.saved)
    if evidence.probe:
        text = f"when all clients were gone, the driver did not answer as before: {evidence.probe}"
        return Result(Ending.FAILURE, Side.DRIVER, Cause.STATUS, "the last question", text, evidence.seconds)
    return None


def _left(evidence: Evidence) -> Result | None:
    """Processes that outlive those who started them, and what the suite itself leaves."""
    if evidence.driver is not None and evidence.driver.strays:
        text = f"the driver left {evidence.driver.strays} processes behind when it ended"
        return Result(Ending.FAILURE, Side.DRIVER, Cause.LEFTOVERS, "end", text)
    for client in evidence.clients:
        if client.strays and client.group.role != HOSTILE and not client.killed:
            inside = client.group.in_process
            who = "the driver in client" if inside else "client"
            text = f"{who} {client.number} left {client.strays} processes behind when it ended"
            return Result(Ending.FAILURE, Side.DRIVER if inside else Side.CLIENT, Cause.LEFTOVERS, "end", text)
    if evidence.leftovers:
        text = f"the suite left behind: {', '.join(evidence.leftovers)}"
        return Result(Ending.INTERNAL, Side.NONE, Cause.SUITE, "end", text)
    return None


def _nothing_done(scene: Scene, evidence: Evidence) -> Result | None:
    counts = evidence.counts((JUDGED,))
    if counts["executions"] or counts["preparations"] or not evidence.unsupported:
        return None
    name, reason = next(iter(evidence.unsupported.items()))
    text = f"none of {len(evidence.unsupported)} models is supported; {name}: {reason}"
    return Result(Ending.NOT_SUPPORTED, Side.NONE, Cause.UNSUPPORTED, "query", text)


def _numbers(evidence: Evidence) -> dict[str, float]:
    counts = evidence.counts((JUDGED, LIVENESS))
    numbers = {name: float(counts[name]) for name in ("executions", "preparations", "declined") if counts[name]}
    if evidence.seconds:
        numbers["seconds"] = round(evidence.seconds, 3)
        # Clients take a while to end; what they did, they did before.
        working = [client.numbers.get("working_seconds", evidence.seconds) for client in evidence.clients]
        numbers["executions_per_second"] = round(counts["executions"] / max(working, default=evidence.seconds), 3)
    latencies = [client.numbers for client in evidence.clients if client.group.role == JUDGED and client.numbers]
    for name in ("latency_p50", "latency_p90", "latency_p99", "latency_max"):
        known = [found[name] for found in latencies if name in found]
        if known:
            numbers[name] = round(max(known) if name == "latency_max" else sum(known) / len(known), 9)
    for client in evidence.clients:
        if client.group.role == JUDGED:
            numbers |= {k: v for k, v in client.numbers.items() if not k.startswith("latency")}
    return numbers


def _notes(scene: Scene, evidence: Evidence) -> Iterator[str]:
    if evidence.unsupported:
        names = list(evidence.unsupported)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield f"not supported: {', '.join(names[:NAMED])}{more}"
    if scene.shortened is not None:
        yield f"shortened: {scene.seconds:g} s, where the public test takes {scene.shortened:g} s"
    if not evidence.quiet:
        yield "the machine was not quiet when it began"
    killed = sum(client.killed for client in evidence.clients)
    if killed:
        yield f"{killed} of {len(evidence.clients)} clients were killed by plan"


def judge_slowdown(scene: Scene, evidence: Evidence, told: Mapping[str, float]) -> Result | None:
    """Executions may not become slower than so many times what they took before others joined."""
    numbers = [client.numbers for client in evidence.clients if "alone_mean" in client.numbers]
    ratios = [n["beside_mean"] / n["alone_mean"] for n in numbers if n.get("beside_mean") and n["alone_mean"] > 0]
    if not ratios or max(ratios) <= told["most"]:
        return None
    text = (
        f"executions took {max(ratios):.3g} times as long beside others as alone, {told['most']:g} times at most is due"
    )
    return Result(Ending.FAILURE, Side.DRIVER, Cause.SLOWDOWN, "execute", text, evidence.seconds)


JUDGES: dict[str, Judge] = {"leak": judge_leak, "slowdown": judge_slowdown}
