"""The board that a client's threads write to and the supervisor reads."""

from __future__ import annotations

import os
import threading
import time

import pytest

from stress.board import TEXT, Board, Count, Place, total


@pytest.fixture
def pair() -> tuple[Board, Board]:
    ours = Board.create(3)
    return ours, Board(os.dup(ours.descriptor), 3)


def test_what_is_written_is_read(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    assert reader.read(1).place == Place.IDLE
    writer.enter(1, Place.DRIVER, "execute of ADD", 2.5)
    writer.count(1, Count.EXECUTIONS)
    writer.count(1, Count.EXECUTIONS, 4)
    writer.count(1, Count.LONGEST, 7)
    writer.count(1, Count.LONGEST, 3)
    slot = reader.read(1)
    assert (slot.place, slot.text, slot.limit) == (Place.DRIVER, "execute of ADD", 2.5)
    assert slot.since == pytest.approx(time.monotonic(), abs=1)
    assert slot.ident == threading.get_ident()
    assert slot.counts[Count.EXECUTIONS] == 5
    assert slot.counts[Count.LONGEST] == 7
    assert total(reader.slots(), Count.EXECUTIONS) == 5
    assert reader.read(0).text == ""
    assert slot.overdue(slot.since + 3) == pytest.approx(0.5)
    for board in pair:
        board.close()


def test_long_texts_are_cut(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    writer.enter(0, Place.SUITE, "ü" * TEXT)
    assert len(reader.read(0).text) <= TEXT
    assert writer.where(0)[0] == Place.SUITE
    for board in pair:
        board.close()


def test_beats_are_seen(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    assert reader.last_beat() == 0
    writer.beat()
    assert reader.last_beat() == pytest.approx(time.monotonic(), abs=1)
    for board in pair:
        board.close()


def test_a_slot_is_read_whole_while_it_is_written(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            writer.enter(2, Place.DRIVER, str(number) * 40, float(number % 9))

    thread = threading.Thread(target=write)
    thread.start()
    torn = 0
    for _ in range(3000):
        text = reader.read(2).text
        size = len(text) // 40
        torn += text != text[:size] * 40
    over.set()
    thread.join()
    assert torn == 0
    for board in pair:
        board.close()


def test_nonsense_on_a_board_is_no_trouble(pair: tuple[Board, Board]) -> None:
    """A client that a driver has damaged may leave anything behind."""
    writer, reader = pair
    writer._map[:] = os.urandom(len(writer._map))
    for slot in reader.slots():
        assert slot.place in list(Place)
        assert len(slot.text) <= TEXT
    reader.last_beat()
    for board in pair:
        board.close()


def test_the_thread_that_ends_its_process_is_the_last_one_whatever_others_do(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    writer.enter(1, Place.SUITE, "ends it")
    other = threading.Thread(target=writer.enter, args=(0, Place.DRIVER, "execute"))
    other.start()
    other.join()
    writer.leave()
    other = threading.Thread(target=writer.enter, args=(0, Place.DRIVER, "execute again"))
    other.start()
    other.join()
    slots = reader.slots()
    assert max(slots, key=lambda slot: slot.since).text == "ends it"
    assert slots[0].text == "execute"
    for board in pair:
        board.close()


def test_a_thread_that_no_slot_is_of_leaves_none(pair: tuple[Board, Board]) -> None:
    writer, reader = pair
    writer.enter(0, Place.DRIVER, "execute")
    other = threading.Thread(target=writer.leave)
    other.start()
    other.join()
    writer.enter(0, Place.IDLE, "goes on")
    assert reader.read(0).text == "goes on"
    for board in pair:
        board.close()
