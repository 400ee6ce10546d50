"""Changes of inputs that are choices one behind the other: most bytes keep their place, and the rest its meaning."""

from __future__ import annotations

import random
from collections.abc import Callable

IN_PLACE = 0.75  # share of changes that move nothing
SHORT = 48  # bytes, below which an input often grows
GROWS = 0.3
MOST_PLACES = 3

Default = Callable[[bytes, int], bytes]


def changed(data: bytes, most: int, seed: int, default: Default) -> bytes:
    """A changed input of at most so many bytes.

    Args:
        data: the input.
        most: bytes that it may have.
        seed: decides the change.
        default: the fuzzer's own change, which also inserts, takes out and crosses over.
    """
    rng = random.Random(seed)
    if len(data) < SHORT and rng.random() < GROWS:
        return (data + rng.randbytes(rng.randint(1, SHORT)))[:most]
    if not data or rng.random() >= IN_PLACE:
        return default(data, most)
    made = bytearray(data)
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
    return bytes(made[:most])
