"""What the supervisor of stress runs costs: parallel inference under it against the same client code without it.

`python -m benchmarks.supervision [--driver=reference] [--threads=8] [--seconds=5] [--turns=5]`. Both take turns, so
that a busy machine slows both; the ratio is of the medians of executions a second. At least 0.95 is wanted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection

from harness.case import TestCase
from harness.case_file import dumps, loads
from harness.isolation import IsolatedDriver
from nnhal.channel import Channel
from nnhal.loading import DriverSpec
from stress.activities import ACTIVITIES
from stress.board import Board, Count, total
from stress.judging import judge_run
from stress.order import Order, Service
from stress.performing import get_ready
from stress.presets import PRESETS
from stress.result import Ending
from stress.scene import Group, Scene
from stress.supervision import Supervision
from stress.work import Shared, Stop, Worker

WANTED = 0.95


def _client(connection: Connection, order: Order, cases: list[bytes], seconds: float) -> None:
    """The client's threads, in a process that nobody supervises."""
    ours, theirs = socket.socketpair()
    board = Board.create(order.threads)
    shared = Shared(order, [loads(case, "a case") for case in cases], board, Channel(ours))
    shared.device()

    def work(worker: Worker) -> None:
        try:
            ACTIVITIES[order.activity](worker)
        except Stop:
            return

    workers = [Worker(shared, number) for number in range(order.threads)]
    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    begun = time.monotonic()
    shared.stop_at = begun + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.send(total(board.slots(), Count.EXECUTIONS) / (time.monotonic() - begun))
    theirs.close()


def alone(driver: str, cases: tuple[TestCase, ...], threads: int, seconds: float) -> float:
    """Executions a second without a supervisor."""
    with IsolatedDriver(driver, spare=False) as isolated:
        service = Service(isolated.hello.name, isolated.pid)
        order = Order(driver, "infer", service, threads=threads)
        ours, theirs = multiprocessing.Pipe()
        data = [dumps(case) for case in cases]
        process = multiprocessing.get_context("spawn").Process(target=_client, args=(theirs, order, data, seconds))
        process.start()
        found = float(ours.recv())
        process.join()
        return found


def supervised(driver: str, cases: tuple[TestCase, ...], threads: int, seconds: float) -> float:
    """Executions a second under the supervisor."""
    scene = Scene("parallel_inference", "measured", "", (Group("infer", cases, threads=threads),), seconds)
    result = judge_run(scene, Supervision(scene, DriverSpec.parse(driver)).run())
    if result.ending != Ending.SUCCESS:
        raise SystemExit(f"{result.ending.value}: {result.message}")
    return result.numbers["executions_per_second"]


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="reference")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    ready = get_ready(DriverSpec.parse(options.driver), PRESETS["short"], 0, 10.0)
    given = (options.driver, ready.kit.cases, options.threads, options.seconds)
    pairs = [(alone(*given), supervised(*given)) for _ in range(options.turns)]
    without, under = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{options.driver}, {options.threads} threads, {len(ready.kit.cases)} models, {options.turns} turns each")
    print(
        f"without supervisor {without:.1f} executions/s, under it {under:.1f}: {under / without:.3f} ({WANTED} wanted)"
    )
    return 0 if under >= WANTED * without else 1


if __name__ == "__main__":
    sys.exit(main())
