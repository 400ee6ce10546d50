"""A client that means harm: nonsense, floods, halves of messages, claims of gigabytes; nothing of it in earnest."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable

from nnhal import wire
from nnhal.parts import Parts
from stress.work import Worker

SEND_SECONDS = 0.5  # that the driver's service may leave bytes unread
FLOOD = 200  # requests without reading an answer


def _message(body: object) -> bytes:
    return b"".join(bytes(chunk) for chunk in wire.pack(body, Parts()))  # type: ignore[arg-type]


def _garbage(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 5000))


def _huge(rng: random.Random) -> bytes:
    """A header that announces more than there will ever be."""
    return wire.HEADER.pack(wire.MAGIC, rng.choice((1 << 20, (1 << 32) - 1)), rng.choice((0, 1 << 40)), 0) + b"{"


def _half(rng: random.Random) -> bytes:
    whole = _message([1, "get_capabilities", [], []])
    return whole[: rng.randrange(1, len(whole))]


def _wrong(rng: random.Random) -> bytes:
    """Whole messages that ask for nothing that there is."""
    bodies: list[object] = [
        None,
        [],
        {},
        [1, "no_such_method", [], []],
        [1, "release", [rng.randrange(1 << 40)], []],
        ["x", 5, "y", "z"],
        [1, "execute_synchronously", [rng.randrange(100), 1, 2, 3], []],
        [1, "prepare_model", [[1, {"main": "nothing"}], 7], [-1, "a", None]],
        [1, "get_supported_operations", [[rng.randrange(100)]], [1, 2, 3]],
        [[[[[[]]]]]],
    ]
    return b"".join(_message(body) for body in rng.sample(bodies, 3))


def _flood(rng: random.Random) -> bytes:
    return b"".join(_message([number, "get_capabilities", [], []]) for number in range(1, FLOOD))


def _descriptors(rng: random.Random) -> bytes:
    """A message that refers to descriptors which did not come with it."""
    return wire.HEADER.pack(wire.MAGIC, 2, 0, rng.randrange(1, 1000)) + b"{}"


ATTACKS: tuple[Callable[[random.Random], bytes], ...] = (_garbage, _huge, _half, _wrong, _flood, _descriptors)


def hostile(worker: Worker) -> None:
    """Joins the driver's service again and again, and sends what no client sends."""
    service = worker.order.service
    while service is not None and worker.goes_on():
        attack = worker.rng.choice(ATTACKS)
        with worker.own(f"sends {attack.__name__.strip('_')}"), contextlib.suppress(OSError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(SEND_SECONDS)
                connection.connect(f"\0{service.name}")
                connection.sendall(attack(worker.rng))
                if worker.rng.random() < 0.5:
                    connection.recv(1 << 16)
            worker.shared.over.wait(0.002)
        if worker.rng.random() < 0.05:
            _run_into(service.name, worker)


def _run_into(name: str, worker: Worker) -> None:
    """Many connections at once, all dropped without a word."""
    with worker.own("opens and drops connections"), contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        for _ in range(20):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(SEND_SECONDS)
            connection.connect(f"\0{name}")
            if worker.rng.random() < 0.5:
                os.set_inheritable(connection.fileno(), True)
