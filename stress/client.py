"""A client of a driver, in a process of its own: threads that do what an order says, and tell of what comes.

`python -m stress.client --fd N --parent PID`, started by the supervisor of a run. Nothing of it is trusted there: in
process a driver may do anything to it, and some clients misbehave on purpose.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import select
import socket
import sys
import threading
import time
import traceback
from typing import NoReturn

import numpy as np

from nnhal.channel import Channel, Closed
from nnhal.errors import DriverDied, DriverError, DriverTimedOut, SuiteError, UncleanError, UsageError
from nnhal.parts import Json
from nnhal.service import die_with, leave
from stress.activities import ACTIVITIES
from stress.board import Board, Place
from stress.order import Service, unpacked
from stress.work import Lost, Shared, Stop, Worker

BEAT_SECONDS = 0.1
PERCENTILES = (50, 90, 99)


def _receive(channel: Channel) -> Shared:
    message, parts = channel.receive()
    try:
        order, board, cases = unpacked(message, parts)
    finally:
        parts.close()
    return Shared(order, cases, board, channel)


def _act(worker: Worker) -> None:
    """Does what the order says, from its beginning again where the driver was lost meanwhile."""
    while True:
        with contextlib.suppress(Lost):
            return ACTIVITIES[worker.order.activity](worker)


def _begin(gate: threading.Event, worker: Worker) -> None:
    """Works once all threads are there."""
    gate.wait()
    _work(worker)


def _work(worker: Worker) -> None:
    """The life of a thread."""
    shared = worker.shared
    try:
        _act(worker)
    except Stop:
        pass
    except (UsageError, SuiteError) as error:
        shared.send({"event": "suite", "thread": worker.thread, "message": f"{type(error).__name__}: {error}"})
        shared.over.set()
    except DriverDied as death:
        worker.report_end("died", death.reason)
    except DriverTimedOut as silence:
        worker.report_end("silent", str(silence), silence.seconds)
    except (DriverError, UncleanError) as error:
        where = shared.board.read(worker.thread).text
        words: dict[str, Json] = {"event": "unclean", "thread": worker.thread, "step": where}
        shared.send({**words, "message": f"{type(error).__name__}: {error}"})
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-4000:]
        shared.send({"event": "suite", "thread": worker.thread, "message": text})
        shared.over.set()
    finally:
        with contextlib.suppress(Exception):
            worker.arena.close()
        shared.board.enter(worker.thread, Place.IDLE, "has ended")


def _load(shared: Shared) -> bool:
    """Gets the driver ready; a driver in this process may do anything meanwhile."""
    board, text = shared.board, "load"
    if shared.hook is not None:
        worker = Worker(shared, 0)
        with worker.own("before load"):
            shared.hook(worker, "load")
    board.enter(0, Place.DRIVER, text, 60.0)
    try:
        shared.device()
    except Exception as error:
        shared.send({"event": "refused", "message": f"{type(error).__name__}: {error}"})
        return False
    board.enter(0, Place.IDLE, "is ready")
    return True


def _listen(shared: Shared, channel: Channel) -> bool:
    """Takes what the supervisor says; False when it is gone."""
    try:
        channel.fill()
        while (message := channel.take()) is not None:
            words, parts = message
            parts.close()
            if not isinstance(words, dict):
                continue
            go = words.get("go")
            if isinstance(go, float):
                shared.stop_at = go
            service = words.get("service")
            if isinstance(service, list) and len(service) == 2 and isinstance(service[1], int):
                shared.move(Service(str(service[0]), service[1]))
            if words.get("stop"):
                shared.over.set()
    except (Closed, ValueError):
        return False
    return True


def _summary(shared: Shared, workers: list[Worker]) -> dict[str, Json]:
    """What is known at the end."""
    numbers: dict[str, Json] = dict(shared.numbers)
    seconds = np.array([value for worker in workers for value in worker.seconds])
    if seconds.size:
        numbers |= {f"latency_p{p}": float(np.percentile(seconds, p)) for p in PERCENTILES}
        numbers |= {"latency_mean": float(seconds.mean()), "latency_max": float(seconds.max())}
    return numbers


def _wait(channel: Channel, board: Board, seconds: float) -> bool:
    """Beats, and waits for a message."""
    board.beat()
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def serve(channel: Channel) -> int:
    """Does what the order says; the exit status."""
    shared = _receive(channel)
    try:
        return _serve(shared, channel)
    except Exception:  # a defect of the suite
        shared.send({"event": "suite", "message": traceback.format_exc()[-4000:]})
        return 1


def _serve(shared: Shared, channel: Channel) -> int:
    shared.board.beat()
    if not _load(shared):
        return 0
    shared.send({"ready": True})
    watch_exits(shared.board)
    while not shared.stop_at:
        if _wait(channel, shared.board, BEAT_SECONDS) and not _listen(shared, channel):
            return 0
    workers = [Worker(shared, number) for number in range(shared.order.threads)]
    gate = threading.Event()  # a driver in this process may use up its memory before the next thread is there
    threads = [threading.Thread(target=_begin, args=(gate, worker), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    gate.set()
    begun = time.monotonic()
    while any(thread.is_alive() for thread in threads):
        if _wait(channel, shared.board, BEAT_SECONDS) and not _listen(shared, channel):
            return 0
        if time.monotonic() > shared.stop_at:
            for thread in threads:
                thread.join(BEAT_SECONDS)
                shared.board.beat()
    shared.numbers["working_seconds"] = time.monotonic() - begun
    if shared.hook is not None:
        with workers[0].own("before its end"):
            shared.hook(workers[0], "exit")
    shared.send({"done": _summary(shared, workers)})
    shared.close()
    return 0


def watch_exits(board: Board) -> None:
    """Has the thread noted that ends this process at once: a crash has a trace that names it, this would have none."""
    end = os._exit

    def leaving(status: int) -> NoReturn:
        board.leave()
        end(status)

    os._exit = leaving


def main(arguments: list[str]) -> int:
    """Serves the supervisor behind the descriptor."""
    parser = argparse.ArgumentParser(prog="python -m stress.client", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    faulthandler.enable(all_threads=True)
    die_with(options.parent)
    try:
        return serve(Channel(socket.socket(fileno=options.fd)))
    except Closed:
        return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
