"""What a client is told when it starts: all of it, however much it is and however late it reads."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import numpy as np
import pytest

from harness.case import Origin, Step, TestCase
from harness.steps import Action
from nnhal.channel import Channel
from stress.board import Board
from stress.order import Order, Service, packed, unpacked
from tests.add_model import add_model


def large(number: int) -> TestCase:
    values = np.random.default_rng(number).bytes(1 << 20)
    model = replace(add_model(), operand_values=values)
    return TestCase(Origin("ADD", "x", "drawn", number), (model,), (Step(Action.PREPARE),))


def test_an_order_of_many_megabytes_waits_for_a_client_that_does_not_read_yet() -> None:
    ours, theirs = socket.socketpair()
    board = Board.create(3)
    order = Order(
        "reference", "infer", Service("nncts-x", 7), {"most": 2}, threads=3, seed="4/a", hooking={"kind": "x"}
    )
    cases = [large(number) for number in range(8)]
    sender, receiver = Channel(ours), Channel(theirs)
    with packed(order, board, cases) as (body, parts):
        sender.send(body, parts, time.monotonic() + 1.0)  # nobody reads: what does not fit would be late
    message, came = receiver.receive()
    got, other, told = unpacked(message, came)
    came.close()
    assert got == order
    assert other.threads == 3
    assert [case.origin.number for case in told] == list(range(8))
    for case, due in zip(told, cases, strict=True):
        assert case.models[0].operand_values == due.models[0].operand_values
    other.close()
    board.close()
    for end in (ours, theirs):
        end.close()


def test_a_message_that_is_no_order_is_refused() -> None:
    from nnhal.parts import Parts

    with pytest.raises(ValueError, match="no order"):
        unpacked({"something": 1}, Parts())
