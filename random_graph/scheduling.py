"""Jobs on other machines, by an existing Dask scheduler, whose workers offer a resource that stands for a device.

A worker that offers one of it does one batch at a time, whoever asks. A batch is one task: the scheduler hands a lost
worker's tasks to others, and what a batch found comes back whole when it is done. So each graph is recorded once.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

from harness.environment import SUITE_VERSION
from nnhal.errors import UsageError
from random_graph.jobs import Answer, Check, Checked, Job, Lost, Ready, Reduce, Setting
from random_graph.worker import Worker

INSTALL = "pip install -e '.[dask]'"
RESOURCE = "device"
CONNECT_SECONDS = 10.0
WORKER_SECONDS = 30.0  # that the first worker may take to come
LOOK_SECONDS = 1.0  # between two looks at which workers there are
REST_SECONDS = 30.0  # without a batch after which a worker ends its drivers
BATCH_SECONDS = 2.0  # that a batch should take
BATCHES = 2  # for each worker, so that it need not wait for the next one
FIRST, MOST = 4, 64  # graphs of a batch, before it is known how long they take, and at most


# ---- in a worker of the scheduler


class _Keeper:
    """Keeps the drivers of one campaign from batch to batch, and ends them when no more come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._batches = 0

    def ready(self, setting: Setting) -> Ready:
        with self._lock:
            found = self._for(setting).ready()
        self._rest_later()
        return found

    def do(self, setting: Setting, jobs: Sequence[Job]) -> list[Answer]:
        with self._lock:
            worker = self._for(setting)
            found = [worker.do(job) for job in jobs]
        self._rest_later()
        return found

    def _for(self, setting: Setting) -> Worker:
        self._batches += 1
        if self._worker is None or self._worker.setting != setting:
            self._end()
            if setting.suite != SUITE_VERSION:
                raise UsageError(
                    f"a worker of the scheduler has version {SUITE_VERSION} of the suite, the campaign {setting.suite}"
                )
            self._worker = Worker(setting)
        return self._worker

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _rest_later(self) -> None:
        timer = threading.Timer(REST_SECONDS, self._rest, [self._batches])
        timer.daemon = True
        timer.start()

    def _rest(self, batches: int) -> None:
        with self._lock:
            if self._batches == batches:
                self._end()

    def leave(self, campaign: str) -> None:
        """Ends the drivers of a campaign that has come to its end; the caller is not kept waiting."""

        def end() -> None:
            with self._lock:
                if self._worker is not None and self._worker.setting.campaign == campaign:
                    self._end()

        threading.Thread(target=end, daemon=True).start()


_KEEPER = _Keeper()


def get_ready(setting: Setting) -> Ready:
    """Task: loads the drivers."""
    return _KEEPER.ready(setting)


def do_batch(setting: Setting, jobs: Sequence[Job]) -> list[Answer]:
    """Task: does jobs one after the other."""
    return _KEEPER.do(setting, jobs)


def leave(campaign: str) -> None:
    """What each worker is told when a campaign ends."""
    _KEEPER.leave(campaign)


# ---- where the campaign runs


class DaskPool:
    """The workers of a scheduler that offer a resource.

    Args:
        setting: for the workers.
        address: of the scheduler, such as `tcp://host:8786`.
        resource: that a task asks one of.

    Raises:
        UsageError: the package is missing, or no scheduler answers.
    """

    def __init__(self, setting: Setting, address: str, resource: str = RESOURCE) -> None:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError:
            raise UsageError(f"--scheduler needs the package distributed: {INSTALL}") from None
        known = importlib.import_module("distributed.comm.registry").backends
        scheme, separator, _ = address.partition("://")
        if separator and scheme not in known:
            raise UsageError(f"--scheduler={address} is no address; give one such as tcp://host:8786")
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the campaign says what is wrong itself
        self._setting, self._address, self._resource = setting, address, resource
        self._killed = distributed.KilledWorker
        self._done: queue.Queue[Any] = queue.Queue()
        self._jobs: dict[str, tuple[Any, tuple[Job, ...]]] = {}  # by key: the future and what it is of
        self._count = 0
        self._size, self._looked = 0, 0.0
        self._seconds, self._graphs = 0.0, 0
        try:
            self._client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            text = f"no Dask scheduler answers at --scheduler={address} ({error}); start one with: dask scheduler"
            raise UsageError(text) from None

    def start(self) -> Ready:
        end = time.monotonic() + WORKER_SECONDS
        while not self.size():
            if time.monotonic() > end:
                raise UsageError(
                    f"no worker of {self._address} offers the resource {self._resource}; start one with: "
                    f"dask worker {self._address} --resources {self._resource}=1 --nthreads 1"
                )
            time.sleep(LOOK_SECONDS / 5)
        ready: Ready = self._result(self._submit(get_ready, self._setting))
        return ready

    def size(self) -> int:
        """How many batches can be under way at the same time."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            with contextlib.suppress(Exception):  # its own words follow when something is asked of it
                workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
                self._size = sum(int(worker["resources"].get(self._resource, 0)) for worker in workers)
        return self._size

    def room(self) -> int:
        if len(self._jobs) >= BATCHES * self.size():
            return 0
        if not self._graphs:
            return FIRST
        return min(max(round(BATCH_SECONDS * self._graphs / max(self._seconds, 1e-9)), 1), MOST)

    def submit(self, jobs: Sequence[Check]) -> None:
        self._hand_over(tuple(jobs))

    def reduce(self, job: Reduce) -> None:
        self._hand_over((job,))

    def _hand_over(self, jobs: tuple[Job, ...]) -> None:
        future = self._submit(do_batch, self._setting, jobs)
        self._jobs[future.key] = future, jobs
        future.add_done_callback(self._done.put)

    def _submit(self, function: Any, *arguments: Any) -> Any:
        self._count += 1
        key = f"random_graph-{self._setting.campaign}-{self._count}"
        return self._client.submit(function, *arguments, key=key, pure=False, resources={self._resource: 1})

    def answers(self, seconds: float) -> list[Answer]:
        found: list[Answer] = []
        with contextlib.suppress(queue.Empty):
            found += self._take(self._done.get(timeout=seconds))
            while True:
                found += self._take(self._done.get_nowait())
        return found

    def _take(self, future: Any) -> list[Answer]:
        _, jobs = self._jobs.pop(future.key, (None, ()))
        if not jobs:
            return []  # dropped
        try:
            found: list[Answer] = self._result(future)
        except self._killed:
            if len(jobs) > 1:
                for job in jobs:  # whichever it was, the others get their answers
                    self._hand_over((job,))
                return []
            return [Lost(jobs[0], "every worker of the scheduler that ran it ended")]
        for answer in found:
            if isinstance(answer, Checked):
                self._graphs += 1
                self._seconds += sum(sum(spent.values()) for spent in answer.spent)
        return found

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except (UsageError, self._killed):
            raise
        except Exception as error:  # of Dask or of what a worker lacks
            if self._client.status != "running" or future.status in ("cancelled", "lost"):
                raise UsageError(f"the scheduler at {self._address} is gone; go on with --resume") from None
            raise UsageError(
                f"a worker of the scheduler does not run the suite ({type(error).__name__}: {error}); "
                "start workers in a checkout of it, with PYTHONPATH naming it"
            ) from None

    def drop_reductions(self) -> None:
        for key, (future, jobs) in list(self._jobs.items()):
            if any(isinstance(job, Reduce) for job in jobs):
                del self._jobs[key]
                future.cancel()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            for future, _ in self._jobs.values():
                future.cancel()
            self._client.run(leave, self._setting.campaign, on_error="ignore")
        self._jobs = {}
        with contextlib.suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)
