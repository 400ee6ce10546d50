"""Makes an input smaller while what it becomes fails alike: fewer bytes, smaller ones. The same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

SMALLEST = 1  # bytes of a piece that is taken out


def reduced(data: bytes, fails: Callable[[bytes], bool], budget: int) -> tuple[bytes, int]:
    """The smallest input that was found, and how often it was asked.

    Args:
        data: fails.
        fails: whether an input fails alike.
        budget: how often that may be asked.
    """
    asked = 0
    seen = {data}
    progress = True
    while progress and asked < budget:
        progress = False
        for smaller in _smaller(data):
            if smaller in seen:
                continue
            if asked >= budget:
                break
            seen.add(smaller)
            asked += 1
            if fails(smaller):
                data, progress = smaller, True
                break
    return data, asked


def _smaller(data: bytes) -> Iterator[bytes]:
    """Inputs that are simpler, the boldest first. Bytes that are missing at the end read as zeros."""
    length = len(data)
    if not length:
        return
    yield data.rstrip(b"\0")
    size = length // 2
    while size >= SMALLEST:
        yield data[:-size]
        for start in range(0, length - size + 1, size):
            yield data[:start] + data[start + size :]
            if data[start : start + size].strip(b"\0"):
                yield data[:start] + bytes(size) + data[start + size :]
        size //= 2
    for place, byte in enumerate(data):
        for value in (byte // 2, byte - 1):
            if 0 < value < byte:
                yield data[:place] + bytes([value]) + data[place + 1 :]
