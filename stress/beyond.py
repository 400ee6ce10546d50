"""Workloads that no public test has: resources that run out, processors that are busy, drivers that die, and so on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from harness.case import Step, TestCase
from harness.case_file import seal
from harness.expectations import Returns
from harness.steps import Action, Preparation, Releasing, Running, Thing
from nnhal.device import Traits
from nnhal.types import FL3, FL4, ErrorStatus, ExecutionMode, FeatureLevel, OperandType, Priority
from nnhal.types import OperationType as Op
from opset.call import Argument, int32_tensor, scalar
from stress.mlts import liveness
from stress.models import Layers, built, chain
from stress.scene import HOSTILE, Disturbance, Group, Scene
from stress.workloads import Kit, workload

MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)
ANY = tuple(status for status in ErrorStatus if status != ErrorStatus.NONE)
MIB = 1 << 20
GREEDY, ALLOWED = 192, 96  # MiB that a request needs, and that the driver may have
SOON = (0, 1_000, 30_000, 300_000, 3_000_000, 1_000_000_000)  # nanoseconds from the call on


def changed(case: TestCase, steps: tuple[Step, ...], level: FeatureLevel | None = None) -> TestCase:
    """The case with other steps."""
    return seal(replace(case, steps=steps, level=max(case.level, level or case.level)))


def returns(case: TestCase) -> Returns:
    """What the last step of a case must return."""
    expect = case.steps[-1].expect
    assert isinstance(expect, Returns)
    return expect


def floats(*shape: int) -> Argument:
    """A float32 tensor of drawn values."""
    values = np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)
    return Argument(OperandType.TENSOR_FLOAT32, shape, value=values)


def adding(name: str, *shape: int) -> TestCase:
    """ADD of a constant to an input of some size."""
    other = replace(floats(*shape), value=np.full(shape, 0.5, np.float32))
    return built(name, [(Op.ADD, (other, scalar(OperandType.INT32, 0)))], floats(*shape))


# ---- resources


@workload("soak", "light", "a light load for long: memory, descriptors and threads may not grow")
def soak(kit: Kit) -> Iterator[Scene]:
    """Two clients execute with rests; one prepares now and then."""
    groups = (Group("infer", kit.small, 2, rest=0.01), Group("load", kit.small, rest=0.2, parameters={"once": True}))
    text = f"executions with rests for {kit.soak:g} s, and models prepared now and then; growth is measured"
    sampling = min(0.5, kit.soak / 200)
    yield Scene("soak", "light", text, groups, kit.soak, probe=kit.small[0], judges={"leak": {}}, sampling=sampling)


@workload("low_memory", "limited", "a request that needs more memory than the driver may have, beside small ones")
def low_memory(kit: Kit) -> Iterator[Scene]:
    """The limit is on for the middle of the run; then all must be as before."""
    reduce = (Op.REDUCE_MAX, (int32_tensor([0]), scalar(OperandType.BOOL, True)))

    def layers(copies: int) -> Layers:
        return [(Op.TILE, (int32_tensor([copies]),)), reduce]

    # The largest of many copies is the largest: what is due needs no memory here.
    few = built("tiled", layers(2), floats(64))
    large = seal(replace(few, models=(chain(layers(GREEDY * MIB // 4 // 64), floats(64)),)))
    limits = (Disturbance("limit", 0.05, value=float(ALLOWED * MIB)), Disturbance("lift", 0.75))
    groups = (Group("greedy", (large,), rest=0.05), replace(liveness(kit), parameters={"tolerant": True}))
    text = f"the driver may have {ALLOWED} MiB more and no more; a request needs {GREEDY} MiB between two operations"
    yield Scene("low_memory", "limited", text, groups, kit.own, limits, kit.small[0])


@workload("cpu_starvation", "pinned", "the driver has one processor, which others keep busy")
def cpu_starvation(kit: Kit) -> Iterator[Scene]:
    """It may be slow; it may not be wrong, and slowness is no hang."""
    groups = (Group("infer", kit.small, threads=2), Group("hog", processes=2, role=HOSTILE))
    text = f"the driver shares one processor with two busy processes for {kit.own:g} s"
    yield Scene("cpu_starvation", "pinned", text, groups, kit.own, (Disturbance("pin", 0.05),), kit.small[0])


@workload("many_prepared_models", "held", "thousands of prepared models are held at the same time")
def many_prepared_models(kit: Kit) -> Iterator[Scene]:
    """Any of them must still give its own results."""
    count = {"smoke": 60, "short": 1000}.get(kit.preset.name, 4000)
    group = Group("hoard", kit.small, threads=2, parameters={"count": count // 2})
    text = f"up to {count} prepared models are held, and any of them executed"
    yield Scene("many_prepared_models", "held", text, (group,), kit.own, probe=kit.small[0])


@workload("mixed_sizes", "interleaved", "requests of a few bytes and of many megabytes at the same time")
def mixed_sizes(kit: Kit) -> Iterator[Scene]:
    """What is tiny may not get what is huge, nor wait for it for ever."""
    side = 256 if kit.preset.name == "smoke" else 1536
    tiny, huge = adding("tiny", 1), adding("huge", side, side)
    group = Group("infer", (tiny, huge), 2, 3, {"chunk": 3})
    text = f"{4 / MIB * side * side:.3g} MiB and 4 bytes in turn, from two processes of three threads"
    yield Scene("mixed_sizes", "interleaved", text, (group,), kit.own, probe=tiny)


# ---- time


@workload("stopped_driver", "paused", "the driver's process is stopped and goes on, again and again")
def stopped_driver(kit: Kit) -> Iterator[Scene]:
    """SIGSTOP for a tenth of the time, well below the deadline; every call gets its answer afterwards."""
    pause = min(0.1, 0.25 * kit.deadline / kit.own)
    acts = (Disturbance("stop", 0.2, 0.25, last=0.8), Disturbance("continue", 0.2 + pause, 0.25, last=0.8 + pause))
    text = f"the driver is stopped for {pause * kit.own:.3g} s, three times"
    yield Scene("stopped_driver", "paused", text, (Group("infer", kit.small, threads=2),), kit.own, acts, kit.small[0])


@workload("signals_during_calls", "three", "signals that mean nothing interrupt the driver's system calls")
def signals_during_calls(kit: Kit) -> Iterator[Scene]:
    """SIGURG, SIGWINCH and SIGCHLD: ignored unless asked for."""
    numbers = (signal.SIGURG, signal.SIGWINCH, signal.SIGCHLD)
    acts = tuple(Disturbance("signal", 0.01 * n, 0.02, float(number), 0.98) for n, number in enumerate(numbers))
    text = "SIGURG, SIGWINCH and SIGCHLD, each fifty times"
    group = Group("infer", kit.small, threads=2)
    yield Scene("signals_during_calls", "three", text, (group,), kit.own, acts, kit.small[0])


@workload("deadline_storm", "mixed", "executions whose deadline is past, or about to be")
def deadline_storm(kit: Kit) -> Iterator[Scene]:
    """Each must give right results, or MISSED_DEADLINE_TRANSIENT or _PERSISTENT."""
    if kit.level < FL4:
        return
    cases = [_hurried(case, deadline) for case in kit.small for deadline in SOON]
    group = Group("each", tuple(cases), 2, 2)
    text = f"deadlines of 0 to {SOON[-1] // 1_000_000} ms from two processes of two threads"
    yield Scene("deadline_storm", "mixed", text, (group, liveness(kit)), kit.own, probe=kit.small[0])


def _hurried(case: TestCase, deadline: int) -> TestCase:
    last = case.steps[-1]
    step = replace(last, expect=replace(returns(case), unless=MISSED), how=Running(deadline=deadline))
    return changed(case, (*case.steps[:-1], step), FL4)


@workload("priority_inversion", "high.beside.low", "executions of high priority beside many of low priority")
def priority_inversion(kit: Kit) -> Iterator[Scene]:
    """Measured and reported: no contract says how much faster they must be."""
    high, low = Priority.HIGH, Priority.LOW
    alone = kit.own * 0.4
    apart = kit.own * 0.1
    measured = Group("alone_then_beside", (_with_priority(kit, high),), parameters={"alone": alone, "apart": apart})
    others = Group("wait_then_infer", (_with_priority(kit, low),), 3, parameters={"wait": alone + apart / 2})
    text = "one client of high priority alone, then beside three of low priority; the ratio is reported"
    yield Scene("priority_inversion", "high.beside.low", text, (measured, others), kit.own, probe=kit.small[0])


def _with_priority(kit: Kit, priority: Priority) -> TestCase:
    case = kit.small[0]
    if kit.level < FL4:
        return case
    how = Preparation(priority=priority)
    steps = tuple(replace(step, how=how) if step.action == Action.PREPARE else step for step in case.steps)
    return changed(case, steps, FL4)


# ---- clients and deaths


def _without(mode: ExecutionMode, word: str) -> Callable[[Traits], str]:
    def needs(traits: Traits) -> str:
        return "" if mode in traits.execution_modes else f"the driver does not declare {word}"

    return needs


@workload(
    "burst_cut",
    "ended",
    "bursts are ended while they execute, and by clients that are killed",
    needs=_without(ExecutionMode.BURST, "burst execution"),
)
def burst_cut(kit: Kit) -> Iterator[Scene]:
    """An execution on it gives right results or an error; the model goes on."""
    if kit.level < FL3:
        return
    cases = tuple(_cut(case) for case in kit.small)
    groups = (Group("each", cases, 2, 2), Group("each", cases, 1, 2, killed=1, window=(0.2, 0.8)), liveness(kit))
    text = "a burst is ended by one thread while others execute on it; one client of three is killed"
    yield Scene("burst_cut", "ended", text, groups, kit.own, probe=kit.small[0])


def _cut(case: TestCase) -> TestCase:
    last, due = case.steps[-1], returns(case)
    loose = replace(due, unless=ANY)
    run = replace(last, mode=ExecutionMode.BURST, expect=loose, how=Running(uses=0))
    steps = (
        *case.steps[:-1],
        Step(Action.OPEN_BURST),
        replace(run, thread=1),
        replace(run, thread=1),
        replace(run, thread=2),
        Step(Action.RELEASE, thread=3, how=Releasing(Thing.BURST)),
        last,
    )
    return changed(case, steps, FL3)


@workload("fork_in_client", "forked", "a client forks while its threads execute")
def fork_in_client(kit: Kit) -> Iterator[Scene]:
    """The child has copies of connection and memory, and ends at once."""
    groups = (Group("forks", kit.small), Group("infer", kit.small, threads=2))
    text = "a client forks after each execution; another executes meanwhile"
    yield Scene("fork_in_client", "forked", text, groups, kit.own, probe=kit.small[0])


@workload("driver_restart", "killed", "the driver dies and is started again, while clients wait for it")
def driver_restart(kit: Kit) -> Iterator[Scene]:
    """As a system service does it; the time until clients get answers again is measured."""
    groups = (Group("infer", kit.small, 2, 2, patient=True),)
    text = "the driver is killed and started again, twice; clients join it again and go on"
    acts = (Disturbance("kill", 0.3, 0.35, last=0.7),)
    yield Scene("driver_restart", "killed", text, groups, max(kit.own, 2.0), acts, kit.small[0])


@workload("hostile_client", "malformed", "a client sends nonsense, floods and vanishes, beside one that is judged")
def hostile_client(kit: Kit) -> Iterator[Scene]:
    """What others do may not change anybody's results."""
    groups = (Group("hostile", kit.small, 2, role=HOSTILE), Group("infer", kit.small, threads=2))
    text = "two clients send malformed messages, floods of requests and halves of messages, and vanish"
    yield Scene("hostile_client", "malformed", text, groups, kit.own, probe=kit.small[0])


# ---- memory of others


@workload("interleaved_memory", "one.pool", "values of several models lie in turn in one pool of shared memory")
def interleaved_memory(kit: Kit) -> Iterator[Scene]:
    """All are executed at the same time; nobody may touch what lies between."""
    group = Group("interleaved", kit.small, threads=1, parameters={"copies": 3})
    text = "three executions of each model at the same time, their inputs and outputs in turn in one pool"
    yield Scene("interleaved_memory", "one.pool", text, (group,), kit.own, probe=kit.small[0])


@workload("remnants", "pattern", "one client's data may not turn up in another's fresh buffers and outputs")
def remnants(kit: Kit) -> Iterator[Scene]:
    """A client's inputs hold a pattern; another looks for it wherever the driver gives it memory."""
    case = adding("secret", 64, 64)
    groups = (Group("writes_secret", (case,)), Group("looks_for_secret", (case,)))
    text = "one client's inputs are looked for in another's new buffers, and in outputs of executions that are refused"
    yield Scene("remnants", "pattern", text, groups, kit.own, probe=case)


@workload("stage_resources", "one.model", "what the driver holds and uses at each stage of a model's life")
def stage_resources(kit: Kit) -> Iterator[Scene]:
    """Reported: memory between preparation and first execution, after an idle while, and processor time."""
    group = Group("staged", kit.cases[-1:], parameters={"idle": kit.own / 6})
    text = "idle, prepared, executed, idle, let go: memory and processor time of the driver at each"
    yield Scene("stage_resources", "one.model", text, (group,), kit.own * 2, probe=kit.small[0])


# ---- caches


def _caching(traits: Traits) -> str:
    return "" if traits.caching else "the driver does not declare caching"


@workload("cache_full_disk", "full", "cache files on a disk that is full", needs=_caching)
def cache_full_disk(kit: Kit) -> Iterator[Scene]:
    """Preparation succeeds or is refused; what was saved by halves gives right results or is refused."""
    yield from _cached(kit, "cache_full_disk", "full", "cache files have 4 KiB of disk for all")


@workload("cache_read_only", "read.only", "cache files that cannot be written", needs=_caching)
def cache_read_only(kit: Kit) -> Iterator[Scene]:
    """As before."""
    yield from _cached(kit, "cache_read_only", "read_only", "cache files cannot be written")


@workload("cache_corruption", "corrupt", "cache files are damaged while others load them", needs=_caching)
def cache_corruption(kit: Kit) -> Iterator[Scene]:
    """A damaged file is refused, or gives right results."""
    yield from _cached(kit, "cache_corruption", "corrupt", "cache files are damaged while four threads load them")


def _cached(kit: Kit, name: str, kind: str, text: str) -> Iterator[Scene]:
    if kit.level < FL3:
        return
    threads = 4 if kind == "corrupt" else 1
    groups = (Group("cached", kit.small, threads=threads, parameters={"kind": kind}), liveness(kit))
    yield Scene(name, kind.replace("_", "."), text, groups, kit.own, probe=kit.small[0])
