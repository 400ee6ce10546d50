"""The reference driver, but for a little memory of each execution that it keeps: so many MiB an hour."""

from __future__ import annotations

import os
import time

from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
)
from nnhal.model import Model, Request
from reference_driver import ReferenceDevice

PIECE = 4096  # bytes


class LeakingDriver(ReferenceDevice):
    """Keeps memory at a rate, whatever the number of executions."""

    def __init__(self, rate: str = "10") -> None:
        super().__init__()
        self.rate = float(rate) * (1 << 20) / 3600
        self.begun = time.monotonic()
        self.kept: list[bytes] = []

    def leak(self) -> None:
        while len(self.kept) * PIECE < (time.monotonic() - self.begun) * self.rate:
            self.kept.append(os.urandom(PIECE))

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return LeakingModel(super().prepare_model(model, config), self)


class LeakingModel(PreparedModel):
    def __init__(self, inner: PreparedModel, driver: LeakingDriver) -> None:
        self._inner, self._driver = inner, driver

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        self._driver.leak()
        return self._inner.execute_synchronously(request, config, deadline)

    def close(self) -> None:
        self._inner.close()


DRIVER = LeakingDriver
