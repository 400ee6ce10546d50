"""What a client is told when it starts, and the messages that go both ways. All of it is JSON; cases go beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from harness.case import TestCase
from harness.case_file import dumps, loads
from nnhal.parts import Json, Parts
from stress.board import Board


@dataclass(frozen=True)
class Service:
    """Where a driver's service is: the abstract name of its socket, and its process."""

    name: str
    pid: int


@dataclass(frozen=True)
class Order:
    """What a client is to do.

    Attributes:
        driver: as `--driver` names it.
        service: where it runs; None has the client load it into its own process.
        activity: name of what each thread does, in `stress.activities.ACTIVITIES`.
        parameters: of the activity.
        threads: how many.
        seed: decides everything that is drawn in the client.
        number: of the client in the run.
        deadline: seconds for a call of the driver.
        level: at which the driver is tested.
        rest: seconds between two turns of a thread.
        patient: the driver may end and come back: the client waits for it and goes on.
        hook: `module:function` that is called at each step; for clients that misbehave on purpose.
        hooking: what the hook is told.
    """

    driver: str
    activity: str
    service: Service | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    seed: str = "0"
    number: int = 0
    deadline: float = 10.0
    level: int = 8
    rest: float = 0.0
    patient: bool = False
    hook: str = ""
    hooking: Mapping[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def packed(order: Order, board: Board, cases: Sequence[TestCase]) -> Iterator[tuple[Json, Parts]]:
    """The first message to a client.

    It is short whatever there are of cases, which lie in shared memory: a client that starts reads nothing for a while,
    and what does not fit into its socket until then would be lost.
    """
    data = [dumps(case) for case in cases]
    descriptor = os.memfd_create("nncts-cases", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines(data)
        parts = Parts()
        body: dict[str, Json] = {"order": asdict(order), "board": parts.add_descriptor(board.descriptor)}
        body |= {"cases": parts.add_descriptor(descriptor), "lengths": [len(one) for one in data]}
        yield body, parts
    finally:
        os.close(descriptor)


def unpacked(message: Json, parts: Parts) -> tuple[Order, Board, list[TestCase]]:
    """What the first message says.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(message, dict) or not isinstance(message.get("order"), dict):
        raise ValueError("a client got no order")
    known = {f.name for f in fields(Order)}
    words: dict[str, Any] = {k: v for k, v in dict(message["order"]).items() if k in known}  # type: ignore[arg-type]
    if words.get("service") is not None:
        words["service"] = Service(**words["service"])
    order = Order(**words)
    board = Board(parts.take(message["board"]), order.threads)
    lengths = message["lengths"]
    with open(parts.take(message["cases"]), "rb") as file:
        file.seek(0)
        wanted = lengths if isinstance(lengths, list) else []
        blobs = [file.read(length) for length in wanted if isinstance(length, int)]
    return order, board, [loads(blob, f"case {number}") for number, blob in enumerate(blobs)]
