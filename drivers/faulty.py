"""A driver that wraps another and does one thing wrong: shows that the suite notices.

`faulty,inner=NAME,fault=NAME[,after=N][,operation=CODE][,seconds=S][,inner.KEY=VALUE...]`
"""

from __future__ import annotations

import difflib

from drivers._faults import State, Trigger
from drivers._faults_all import FAULTS
from drivers._faults_wrapping import INNER, FaultyAdapter, FaultyDevice, inner_spec
from nnhal import loading
from nnhal.device import Adapter
from nnhal.errors import UsageError
from nnhal.types import OperationType

__all__ = ["DRIVER", "FAULTS", "FaultyAdapter", "FaultyDevice", "make"]


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"faulty: {name}={text!r} is no number") from None


def make(**options: str) -> FaultyDevice:
    """The faulty driver that the options describe.

    Raises:
        UsageError: an option is unknown or wrong.
    """
    known = {"inner", "fault", "after", "operation", "seconds"}
    unknown = [key for key in options if key not in known and not key.startswith(INNER)]
    if unknown:
        raise UsageError(f"faulty: option {unknown[0]!r} is unknown; choose {', '.join(sorted(known))}")
    name = options.get("fault", "")
    if name not in FAULTS:
        near = difflib.get_close_matches(name, FAULTS, 5) or list(FAULTS)[:5]
        raise UsageError(
            f"faulty: fault={name!r} is unknown; such as {', '.join(near)}: docs/faults.md has all {len(FAULTS)}"
        )
    code = options.get("operation")
    operation: int | None = None
    if code is not None:
        names = OperationType.__members__
        operation = int(names[code]) if code in names else int(_number("operation", code))
    after = int(_number("after", options.get("after", "0")))
    seconds = _number("seconds", options.get("seconds", "1"))
    inner = loading.load(inner_spec(options))
    state = State(inner, Trigger(after, operation), seconds)
    kind = FaultyAdapter if isinstance(inner, Adapter) else FaultyDevice
    return kind(state, name, FAULTS[name])


DRIVER = make
