"""Changes of inputs that are choices one behind the other: what lies in front of a change keeps its meaning."""

from __future__ import annotations

import random
from collections.abc import Callable

MOST_PLACES = 3
MOST_MOVED = 12  # bytes that are put in, or exchanged for others
TAIL = 160  # bytes that follow where the rest is made anew

Default = Callable[[bytes, int], bytes]
Change = Callable[[random.Random, bytearray], None]


def _in_place(rng: random.Random, made: bytearray) -> None:
    """Other choices, where each decides nothing about how many follow."""
    for _ in range(rng.choice((1, 1, 1, 2, MOST_PLACES))):
        place = rng.randrange(len(made))
        kind = rng.randrange(4)
        if kind == 0:
            made[place] = rng.randrange(256)
        elif kind == 1:
            made[place] = rng.randrange(8)  # the small choices, of which there are most
        elif kind == 2:
            made[place] = (made[place] + rng.choice((-1, 1))) % 256
        else:
            made[place] = made[rng.randrange(len(made))]


def _put_in(rng: random.Random, made: bytearray) -> None:
    place = rng.randrange(len(made))
    made[place:place] = rng.randbytes(rng.randint(1, MOST_MOVED))


def _exchange(rng: random.Random, made: bytearray) -> None:
    """Some choices for others, about as many."""
    place, size = rng.randrange(len(made)), rng.randint(1, MOST_MOVED)
    made[place : place + size] = rng.randbytes(max(0, size + rng.randint(-3, 3)))


def _renew(rng: random.Random, made: bytearray) -> None:
    """All choices from one on: what came before is kept as it is."""
    made[rng.randrange(len(made)) :] = rng.randbytes(TAIL)


def _replace(rng: random.Random, made: bytearray) -> None:
    """All choices: inputs that are kept are changed into each other, and by and by grow alike."""
    made[:] = rng.randbytes(TAIL)


# To renew the rest leads on most often from an input that came far: a choice that opens a way asks for others.
CHANGES: tuple[tuple[Change, int], ...] = (
    (_in_place, 25),
    (_put_in, 15),
    (_exchange, 15),
    (_renew, 20),
    (_replace, 15),
)
REST = 10  # of a hundred changes are the fuzzer's own


def changed(data: bytes, most: int, rng: random.Random, default: Default) -> bytes:
    """A changed input of at most so many bytes.

    Args:
        data: the input.
        most: bytes that it may have.
        rng: decides the change.
        default: the fuzzer's own change, which also inserts, takes out and crosses over.
    """
    if not data:
        return rng.randbytes(TAIL)[:most]
    changes, weights = zip(*CHANGES, strict=True)
    (change,) = rng.choices((*changes, None), (*weights, REST))
    if change is None:
        return default(data, most)
    made = bytearray(data)
    change(rng, made)
    return bytes(made[:most])
