"""The public crash tests as workloads, with their parameters: threads, processes, lengths, shares that are killed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stress.models import mapped
from stress.scene import LIVENESS, Group, Scene
from stress.workloads import Kit, workload

MINUTE, HOUR = 60.0, 3600.0
REST_BETWEEN_LOADS = 0.55  # seconds, of which a client takes between 0.55 and 1.45 times: 300 to 800 ms


def liveness(kit: Kit) -> Group:
    """The checker beside: a client that must get its right answers all the time."""
    return Group("infer", kit.small[:1], role=LIVENESS, rest=0.01)


@workload("inference_stress", "in.turn", "one model executed again and again for an hour", public=True)
def inference_stress(kit: Kit) -> Iterator[Scene]:
    """One hour of inference for each model; in short presets one run takes them in turn."""
    yield from _for_models(kit, "inference_stress", HOUR, "infer", "executed again and again", {})


@workload(
    "model_loading_stress", "in.turn", "one model prepared, executed once and let go, again and again", public=True
)
def model_loading_stress(kit: Kit) -> Iterator[Scene]:
    """Thirty minutes of loading for each model."""
    words = "prepared, executed once and let go, again and again"
    yield from _for_models(kit, "model_loading_stress", 30 * MINUTE, "load", words, {"once": True})


def _for_models(
    kit: Kit, name: str, seconds: float, activity: str, words: str, parameters: dict[str, object]
) -> Iterator[Scene]:
    sets = [(case,) for case in kit.cases] if kit.preset.whole else [kit.cases]
    for number, cases in enumerate(sets):
        text = f"{'a model is' if len(cases) == 1 else 'models in turn are'} {words}, for {kit.public(seconds):g} s"
        setting = f"model{number}" if kit.preset.whole else "in.turn"
        group = Group(activity, cases, parameters=parameters)
        yield Scene(
            name, setting, text, (group,), kit.public(seconds), probe=cases[0], shortened=kit.shortened(seconds)
        )


@workload(
    "parallel_inference",
    "threads8 threads12",
    "8, then 12 threads of a client execute at once",
    public=True,
)
def parallel_inference(kit: Kit) -> Iterator[Scene]:
    """The driver is a service of its own."""
    yield from _parallel(kit, "parallel_inference", in_process=False)


@workload(
    "parallel_inference_in_process",
    "threads8 threads12",
    "the same, the driver in the client's process",
    public=True,
)
def parallel_inference_in_process(kit: Kit) -> Iterator[Scene]:
    """The driver is in the client's own process, and dies with it."""
    yield from _parallel(kit, "parallel_inference_in_process", in_process=True)


def _parallel(kit: Kit, name: str, *, in_process: bool) -> Iterator[Scene]:
    for threads, seconds in ((8, 30 * MINUTE), (12, 20 * MINUTE)):
        text = f"{threads} threads execute for {kit.public(seconds):g} s"
        group = Group("infer", kit.cases, threads=threads, in_process=in_process)
        yield Scene(
            name,
            f"threads{threads}",
            text,
            (group,),
            kit.public(seconds),
            probe=kit.small[0],
            shortened=kit.shortened(seconds),
        )


@workload("client_early_termination", "killed", "a client is killed while its threads prepare models", public=True)
def client_early_termination(kit: Kit) -> Iterator[Scene]:
    """Killed at a moment between a quarter and half of the time; the driver must live and serve others."""
    seconds = kit.public(70.0)
    loading = Group("load", kit.cases, threads=4, killed=1, window=(0.25, 0.5))
    text = f"a client that prepares models in four threads is killed; another executes all the {seconds:g} s"
    groups = (loading, liveness(kit))
    yield Scene(
        "client_early_termination",
        "killed",
        text,
        groups,
        seconds,
        probe=kit.small[0],
        shortened=kit.shortened(70.0),
    )


@workload(
    "multi_process_inference",
    "killed0 killed80",
    "many processes execute; none or most are killed",
    public=True,
)
def multi_process_inference(kit: Kit) -> Iterator[Scene]:
    """Kill -9 at moments drawn from the seed."""
    for share, seconds in ((0, 30 * MINUTE), (80, 20 * MINUTE)):
        yield _processes(kit, "multi_process_inference", "infer", "execute", share, seconds, 0.0)


@workload(
    "multi_process_model_load",
    "killed0 killed50 killed80 killed100",
    "many processes prepare; some or all are killed",
    public=True,
)
def multi_process_model_load(kit: Kit) -> Iterator[Scene]:
    """As before, with rests of 300 to 800 ms between two loads of a thread."""
    for share, minutes in ((0, 20), (50, 20), (80, 20), (100, 10)):
        yield _processes(
            kit, "multi_process_model_load", "load", "prepare models", share, minutes * MINUTE, REST_BETWEEN_LOADS
        )


def _processes(kit: Kit, name: str, activity: str, words: str, share: int, seconds: float, rest: float) -> Scene:
    processes, threads = kit.preset.crowd
    text = f"{processes} processes of {threads} threads {words} for {kit.public(seconds):g} s, {share} % are killed"
    killed = math.ceil(processes * share / 100)
    group = Group(activity, kit.cases, processes, threads, rest=rest, killed=killed)
    groups = (group, liveness(kit))
    length = kit.public(seconds)
    short = kit.shortened(seconds)
    return Scene(name, f"killed{share}", text, groups, length, probe=kit.small[0], shortened=short)


@workload("memory_mapped_load", "threads4", "models whose constants lie in mapped files are prepared", public=True)
def memory_mapped_load(kit: Kit) -> Iterator[Scene]:
    """Four threads prepare for 70 s."""
    cases = tuple(mapped(case) for case in kit.cases)
    groups = (Group("load", cases, threads=4), liveness(kit))
    text = f"four threads prepare models with constants in mapped files for {kit.public(70.0):g} s"
    yield Scene(
        "memory_mapped_load",
        "threads4",
        text,
        groups,
        kit.public(70.0),
        probe=kit.small[0],
        shortened=kit.shortened(70.0),
    )


RANDOM = (("ten", "10 operations, dimensions up to 1,000"), ("huge", "600 operations, dimensions up to 10"))


@workload("random_graph_load", "ten huge", "graphs drawn at random are prepared, large and long ones", public=True)
def random_graph_load(kit: Kit) -> Iterator[Scene]:
    """Each graph is asked for and prepared; what is not supported is counted."""
    yield from _random(kit, "random_graph_load", "random_load", "prepared")


@workload("random_graph_execution", "ten huge", "graphs drawn at random are executed and judged", public=True)
def random_graph_execution(kit: Kit) -> Iterator[Scene]:
    """Each result is held against what the graph gives."""
    yield from _random(kit, "random_graph_execution", "random_run", "prepared and executed")


def _random(kit: Kit, name: str, activity: str, words: str) -> Iterator[Scene]:
    seconds = 15 * MINUTE
    for mix, what in RANDOM:
        parameters = {"mix": mix, "count": kit.preset.random, "seed": kit.seed}
        group = Group(activity, parameters=parameters, rest=0.3 if kit.preset.whole else 0.0)
        text = f"up to {kit.preset.random} random graphs ({what}) are {words}, for {kit.public(seconds):g} s at most"
        length, short = kit.public(seconds), kit.shortened(seconds)
        yield Scene(name, mix, text, (group,), length, probe=kit.small[0] if kit.small else None, shortened=short)


@workload("performance_degradation", "beside.loads", "preparing may not slow down what others execute", public=True)
def performance_degradation(kit: Kit) -> Iterator[Scene]:
    """Mean latency beside a client that prepares models: at most 1.5 times that alone."""
    public = 45.5  # 5 s and 20 s alone, half a second, 20 s beside
    seconds = kit.public(public)
    alone, apart = seconds * 0.5, seconds * 0.02
    measured = Group("alone_then_beside", kit.small[:1], parameters={"alone": alone, "apart": apart})
    others = Group("wait_then_load", kit.cases, parameters={"wait": alone + apart / 2}, rest=0.02)
    text = f"a client executes for {alone:g} s alone, then beside one that prepares models"
    yield Scene(
        "performance_degradation",
        "beside.loads",
        text,
        (measured, others),
        seconds,
        probe=kit.small[0],
        judges={"slowdown": {"most": 1.5}},
        shortened=kit.shortened(public),
    )
