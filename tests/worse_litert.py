"""LiteRT made worse on purpose, as a driver: `tests/worse_litert.py,way=slow|drift|same`."""

from __future__ import annotations

import time
from typing import Any

from drivers.litert import LiteRT

SLOWER = 0.2  # of an execution's time, which each takes longer
MOST, EACH = 0.4, 0.001  # share by which executions come to take longer, and by how much each does more


class Worse(LiteRT):
    """Right results, late."""

    def __init__(self, way: str = "same", **options: str) -> None:
        super().__init__(**options)
        self._way = way

    def prepare_model(self, *arguments: Any, **more: Any) -> Any:
        prepared = super().prepare_model(*arguments, **more)
        execute, count = prepared.execute_synchronously, 0

        def late(*request: Any, **config: Any) -> Any:
            nonlocal count
            begun = time.perf_counter()
            result = execute(*request, **config)
            share = {"slow": SLOWER, "drift": min(MOST, EACH * count), "same": 0.0}[self._way]
            count += 1
            end = begun + (time.perf_counter() - begun) * (1 + share)
            while time.perf_counter() < end:
                pass
            return result

        prepared.execute_synchronously = late
        return prepared


DRIVER = Worse
