"""A process that fuzzes one target for a while: atheris feeds it, the board says what it is at, files what it found.

`python -m fuzz.worker` with its order in the file that NNCTS_FUZZ names. It may die at any moment, by the driver.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.board import Board
from fuzz.frontier import Frontier
from fuzz.watching import Features, watch_code, without_numbers

if TYPE_CHECKING:
    from fuzz.known import Known
    from fuzz.targets import Target
    from harness.driver import Driver

ORDER = "NNCTS_FUZZ"
MUTATOR = "NNCTS_MUTATOR"  # variable: what was preloaded for changes, in processes of a sanitizer's runtime
SAVED_PER_KIND = 3  # findings alike that a process writes down
REPEATS = 8  # of an input that may leak
REMEMBERED = 20_000  # inputs of which it is known how much of them was read
SETTLING = 2  # of them that may still fill caches
LEAKED_BYTES = 16  # at least, in each of the others


@dataclass(frozen=True)
class Order:
    """What a process is to do.

    Attributes:
        target: its name.
        driver: as `--driver` names it; empty for a reader of the suite's own.
        known: what is known of the driver, as text.
        covered: files and folders whose code is looked at.
        in_process: the driver is loaded here; otherwise it has a process of its own.
        folder: where the board, findings and logs go.
        corpus: folders of inputs, the first of which gets new ones.
        arguments: of the fuzzer, in front of the folders.
        deadline: seconds for a call of a driver in a process of its own.
        memory: bytes of its address space.
        leaks: seconds for which inputs of the corpus are looked at for leaks first, except these digests.
        checked: those.
        changes: inputs are rows of choices, which the suite changes by itself.
        edges: file with the edges of the driver in the order in which they were met first; empty for none.
    """

    target: str
    driver: str
    known: str
    covered: tuple[str, ...]
    in_process: bool
    folder: str
    corpus: tuple[str, ...]
    arguments: tuple[str, ...]
    deadline: float = 10.0
    memory: int | None = None
    leaks: float = 0.0
    checked: tuple[str, ...] = ()
    changes: bool = False
    edges: str = ""

    @classmethod
    def load(cls, path: Path) -> Order:
        """The order in a file."""
        row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lists = ("covered", "corpus", "arguments", "checked")
        fields: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in row.items()}
        return cls(**fields)

    def save(self, path: Path) -> None:
        """Writes it for `load`."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def own_failure(error: Exception) -> str:
    """A defect of the suite, in words."""
    return f"the suite itself failed: {type(error).__name__}: {error}"


def traceback_of(error: Exception) -> str:
    """Where it came from."""
    return "".join(traceback.format_exception(error))


class Worker:
    """Runs inputs of a target.

    Attributes:
        frontier: knows which of them came where none had come before.
    """

    def __init__(self, order: Order, target: Target, known: Known | None, board: Board) -> None:
        from harness.guards import Arena

        self._order, self._target, self._known, self._board = order, target, known, board
        self._features = Features()
        self._arena = Arena()
        self._kinds: Counter[str] = Counter()
        self._driver: Driver | None = None
        self._used: dict[bytes, int] = {}
        self.frontier = Frontier(None)

    def load(self) -> None:
        """Loads the driver.

        Raises:
            UsageError: it cannot be.
        """
        from harness.driver import open_driver
        from nnhal.loading import DriverSpec

        order = self._order
        self._driver = open_driver(
            DriverSpec.parse(order.driver),
            log_path=Path(order.folder) / "driver.log",
            in_process=order.in_process,
            deadline=order.deadline,
            memory=order.memory,
            spare=False,
        )
        _ = self._driver.device

    def look_ahead(self) -> None:
        """From now on the fuzzer clears the counters of coverage before each input, so that they tell where it came."""
        order = self._order
        if order.edges and order.in_process:
            self.frontier = Frontier(Path(order.edges))

    def one(self, data: bytes) -> None:
        """Runs an input."""
        self._board.begin(data)
        try:
            self.handle(data)
        except Exception as error:  # a defect of the suite: it must be seen, and must not end the night
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} in {Path(last.filename).name} {last.name}"
            self._found(data, "INTERNAL", "SUITE", "make", own_failure(error), kind, traceback_of(error))
        finally:
            self._board.end()
        self.frontier.note(self.used(data))

    def handle(self, data: bytes) -> None:
        """Makes what the target makes of an input, and looks at what comes of it."""
        target = self._target
        if target.read is not None:
            self._read(data)
            return
        assert self._known is not None
        attempt, used = target.decoded(data, self._known)
        self._note_used(data, used)
        if attempt is None:
            return
        self._board.cases += 1
        self._check(data, attempt)

    def _note_used(self, data: bytes, used: int) -> None:
        if len(self._used) >= REMEMBERED:
            self._used.clear()
        self._used[data] = used

    def used(self, data: bytes) -> bytes:
        """The front of an input that had a say in its case, where that is known: the rest is not worth a change."""
        return data[: self._used.get(data, len(data))]

    def _read(self, data: bytes) -> None:
        assert self._target.read is not None
        self._board.cases += 1
        try:
            self._target.read(data)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            words = f"{self._target.name} raised {type(error).__name__}: {error} at {place}"
            self._found(data, "FAIL", "UNCLEAN_ERROR", "read", words, f"{type(error).__name__} {place}")

    def _check(self, data: bytes, attempt: Any) -> None:
        from fuzz.attempt import checked
        from harness.verdict import BAD, Verdict
        from nnhal.errors import DriverDied, DriverTimedOut, SuiteError, UsageError

        assert self._driver is not None
        assert self._known is not None
        try:
            device = self._driver.device
            case, judgement, outcome = checked(
                attempt, device, self._arena, self._known.level, in_process=self._driver.in_process
            )
        except (UsageError, DriverDied, DriverTimedOut) as error:  # it could be started before
            self._found(data, "CRASH", "DIED", "start", f"does not start again: {error}", "start")
            return
        except SuiteError as error:
            self._found(data, "INTERNAL", "SUITE", "run", str(error), str(error))
            return
        if judgement.verdict == Verdict.NOT_SUPPORTED:
            self._board.unsupported += 1
        for done in outcome.steps:
            step = case.steps[done.step]
            status = "none" if done.status is None else done.status.name
            self._features.saw(f"{step.action.value} {int(step.mode)} {status} {without_numbers(done.message)}")
        if not self._driver.in_process:  # else where it has been says more, and should not drown in this
            self._saw_model(case)
        if judgement.verdict in BAD:
            alike = f"{judgement.verdict.value} {judgement.cause.value} {judgement.stage}"
            rule = case.origin.rule if case.negative else ""  # whichever of its types and operands broke it
            kind = f"{alike} {rule or without_numbers(judgement.message)}"
            self._found(data, judgement.verdict.value, judgement.cause.value, judgement.stage, judgement.message, kind)

    def _saw_model(self, case: Any) -> None:
        """Notes which operations came, in pairs of neighbours, with the type of what they take."""
        before = 0
        for operation in case.models[0].main.operations if case.models else ():
            operands = case.models[0].main.operands
            first = operation.inputs[0] if operation.inputs else -1
            kind = operands[first].type if 0 <= first < len(operands) else -1
            self._features.saw(f"operation {operation.type} {kind} {before}")
            before = operation.type

    def _found(self, data: bytes, verdict: str, cause: str, stage: str, message: str, kind: str, log: str = "") -> None:
        """Writes a finding down, unless there are enough like it."""
        self._board.findings += 1
        self._kinds[kind] += 1
        if self._kinds[kind] > SAVED_PER_KIND:
            return
        name = hashlib.sha256(data).hexdigest()[:16]
        row = {"verdict": verdict, "cause": cause, "stage": stage, "message": message, "kind": kind, "log": log}
        folder = Path(self._order.folder)
        (folder / f"{name}.bin").write_bytes(data)
        part = folder / f"{name}.part"
        part.write_text(json.dumps(row), encoding="utf-8")
        part.replace(folder / f"{name}.json")  # whoever sees it sees it whole

    # ---- leaks

    def look_for_leaks(self) -> None:
        """Runs inputs of the corpus that nobody has looked at again and again, and sees whether something grows."""
        meter = Meter()
        done = set(self._order.checked)
        end = time.monotonic() + self._order.leaks
        with (Path(self._order.folder) / "checked").open("a", encoding="ascii") as file:
            for path in _newest_first(Path(self._order.corpus[0])):
                if time.monotonic() >= end:
                    return  # the next process goes on
                if path.name in done:
                    continue
                self._look(path.read_bytes(), meter)
                file.write(f"{path.name}\n")
                file.flush()

    def _look(self, data: bytes, meter: Meter) -> None:
        readings: list[dict[str, int]] = []
        growing = list(meter.kinds)
        while growing and len(readings) < REPEATS:
            self.one(data)
            readings.append(meter.read())
            if len(readings) > SETTLING + 1:
                growing = [k for k in growing if readings[-1][k[0]] - readings[-2][k[0]] >= k[2]]
        for name, unit, _ in growing:
            values = [reading[name] for reading in readings[SETTLING:]]
            steps = [after - before for before, after in itertools.pairwise(values)]
            if max(steps) <= 2 * min(steps):
                words = f"each run keeps {min(steps)} {unit}: {', '.join(map(str, values))} after {len(values)} runs"
                self._found(data, "FAIL", "LEAK", "end", words, f"leak {name}")


def _newest_first(folder: Path) -> list[Path]:
    """The files of a corpus, those first that came deepest into a driver."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may take it out
            found.append((-path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


class Meter:
    """What this process holds: descriptors, threads, and memory of a native driver's allocator."""

    def __init__(self) -> None:
        import ctypes
        import gc

        gc.collect()
        gc.freeze()  # what is there by now stays: to go through it at each reading would take all the time
        self.kinds: list[tuple[str, str, int]] = [("descriptors", "descriptors", 1), ("threads", "threads", 1)]
        self._allocated: Any = None
        process = ctypes.CDLL(None)
        with contextlib.suppress(AttributeError):
            # By its words: in a class a name that begins with two underlines would become another.
            self._allocated = getattr(process, "__sanitizer_get_current_allocated_bytes")
            self._allocated.restype = ctypes.c_size_t
            self.kinds.append(("memory", "bytes", LEAKED_BYTES))

    def read(self) -> dict[str, int]:
        """What is held now."""
        import gc

        gc.collect()
        held = {
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  # the quickest way
            "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        }
        if self._allocated is not None:
            held["memory"] = int(self._allocated())
        return held


def main(arguments: list[str] | None = None) -> int:
    """Does what the order says, until its time is over.

    Args:
        arguments: of the fuzzer, its own name in front, where it has started itself; the order's when None.
    """
    order = Order.load(Path(os.environ[ORDER]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who watches decides
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_GLOBAL)  # a native driver must find the fuzzer's counters
    import atheris

    preloaded = atheris.native.libfuzzer_is_loaded()  # with a sanitizer's runtime
    preloads = os.environ.get("LD_PRELOAD", "").split(":")
    if (library := os.environ.pop(MUTATOR, "")) in preloads:  # a process begun from here is no Python
        os.environ["LD_PRELOAD"] = ":".join(place for place in preloads if place != library)
    if not preloaded:
        if order.changes:
            import atheris.custom_mutator  # before the fuzzer, which looks for it when it is loaded
        import atheris.core_with_libfuzzer
    sys.setdlopenflags(flags)
    watch_code(order.covered)
    faulthandler.enable()
    from fuzz.known import Known
    from fuzz.mutating import changed
    from fuzz.targets import TARGETS

    board = Board(Path(order.folder) / "board")
    worker = Worker(order, TARGETS[order.target], Known.from_json(order.known) if order.known else None, board)
    if order.driver:
        worker.load()
    if order.leaks:
        worker.look_for_leaks()
    worker.look_ahead()
    (Path(order.folder) / "ready").touch()
    line = arguments or ["fuzz", *order.arguments, *order.corpus]
    more: dict[str, Any] = {"internal_libfuzzer": not preloaded}
    if order.changes:

        def mutated(data: bytes, most: int, seed: int) -> bytes:
            rng = random.Random(seed)
            board.changes += 1
            return changed(worker.frontier.pick(rng) or worker.used(data), most, rng, atheris.Mutate)

        more["custom_mutator"] = mutated
    atheris.Setup(line, worker.one, **more)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
