"""Ways to run a part on its device: with a plain call, by a callback where the level has nothing else, in a burst."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from framework.parts import Compiled
from nnhal.device import Burst, Device, ExecutionCallback, ExecutionConfig, ExecutionResult
from nnhal.errors import DriverError, DriverTimedOut
from nnhal.model import Request
from nnhal.types import FL3, ErrorStatus, ExecutionMode

Notified: TypeAlias = "tuple[ErrorStatus, ExecutionResult]"
Await: TypeAlias = Callable[[Device, ExecutionCallback], Notified]

CALLBACK_SECONDS = 60.0


def await_callback(device: Device, callback: ExecutionCallback) -> Notified:
    """Waits for a notification of a device in this process.

    Raises:
        DriverTimedOut: none came.
    """
    started = time.monotonic()
    notified = callback.wait(CALLBACK_SECONDS)
    if notified is None:
        raise DriverTimedOut(round(time.monotonic() - started, 3), "no notification of an asynchronous execution")
    return notified


@dataclass(frozen=True)
class PlainCall:
    """Runs parts synchronously; levels 1 and 2 have only a callback for it.

    Attributes:
        wait: waits for a device's notification.
    """

    wait: Await

    def __call__(
        self, part: Compiled, request: Request, config: ExecutionConfig, deadline: int | None
    ) -> ExecutionResult:
        """Runs a request and waits for the end."""
        member = part.member
        if member.level >= FL3 or ExecutionMode.ASYNCHRONOUS not in member.device.traits.execution_modes:
            return part.prepared.execute_synchronously(request, config, deadline)
        callback = ExecutionCallback()
        part.prepared.execute(request, callback, config, deadline)
        status, result = self.wait(member.device, callback)
        if status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
            return replace(result, output_sufficient_size=False)
        if status != ErrorStatus.NONE:
            raise DriverError(status)
        return result


@dataclass
class BurstCall:
    """Runs parts in a burst each, where their devices have bursts.

    Attributes:
        bursts: by number of the part.
        tokens: what the client calls its pools, by their identity.
    """

    plain: PlainCall
    parts: Sequence[Compiled]
    bursts: Mapping[int, Burst]
    tokens: Mapping[int, int] = field(default_factory=dict)

    def __call__(
        self, part: Compiled, request: Request, config: ExecutionConfig, deadline: int | None
    ) -> ExecutionResult:
        """Runs a request and waits for the end."""
        burst = self.bursts.get(next(n for n, other in enumerate(self.parts) if other is part))
        if burst is None:
            return self.plain(part, request, config, deadline)
        tokens = [self.tokens.get(id(pool), -1) for pool in request.pools]
        return burst.execute_synchronously(request, tokens, config, deadline)
