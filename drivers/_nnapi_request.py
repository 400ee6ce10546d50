"""One execution of the library: a request bound to it, run, and what it says afterwards."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import c_uint32, c_uint64
from typing import Any

from drivers._nnapi_library import CODES, PREFIX, Library, OperandTypeStruct, check
from drivers._nnapi_memory import BufferMemories, Pools, address_of, by_pointer
from nnhal.device import NO_TIMING, ExecutionConfig, ExecutionResult, OutputShape, Timing
from nnhal.model import BufferToken, Model, Operand, Request, RequestArgument, is_tensor

INSUFFICIENT = CODES.index("OUTPUT_INSUFFICIENT_SIZE")
NOT_MEASURED = 2**64 - 1
MOST_DIMENSIONS = 1024  # a larger rank is no answer
ON_HARDWARE, IN_DRIVER, FENCED_ON_HARDWARE, FENCED_IN_DRIVER = range(4)


def remaining(deadline: int) -> int:
    """Nanoseconds up to a deadline, one at least: 0 would mean that there is none."""
    return max(1, deadline - time.monotonic_ns())


class BoundExecution:
    """An execution of a compiled model with its inputs and outputs set. Freed with `close`.

    Args:
        library: whose execution.
        compilation: address of the compiled model.
        model: what was compiled.
        request: where inputs and outputs lie.
        config: measuring and loop timeout.
        pools: memory objects of the request's pools; closed by whoever made them.
        buffers: driver-managed memory.

    Raises:
        DriverError: the library refuses an argument.
    """

    def __init__(
        self,
        library: Library,
        compilation: int,
        model: Model,
        request: Request,
        config: ExecutionConfig,
        pools: Pools,
        buffers: BufferMemories,
    ) -> None:
        self.library = library
        self.address = 0
        self._model, self._request, self._config = model, request, config
        self._pools, self._buffers = pools, buffers
        self._kept: list[Any] = []  # what the library may point into while it runs
        self._taken: list[int] = []  # tokens of buffers in use
        self.address = library.make("Execution_create", compilation)
        try:
            self._configure()
            for number, argument in enumerate(request.inputs):
                self._bind("Input", number, argument, model.main.input_indexes)
            for number, argument in enumerate(request.outputs):
                self._bind("Output", number, argument, model.main.output_indexes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees it. A second call does nothing."""
        address, self.address = self.address, 0
        self.library.free("Execution_free", address)
        self._kept.clear()
        while self._taken:
            self._buffers.give_back(self._taken.pop())

    def set_deadline(self, deadline: int | None) -> None:
        """Says how long a run may take, where the library can be told."""
        if deadline is not None and self.library.has("Execution_setTimeout"):
            self.library.call("Execution_setTimeout", self.address, remaining(deadline))

    def clear_deadline(self) -> None:
        """Lets the next run take as long as it likes."""
        if self.library.has("Execution_setTimeout"):
            self.library.call("Execution_setTimeout", self.address, 0)

    def _configure(self) -> None:
        call, config = self.library.call, self._config
        if config.measure_timing and self.library.has("Execution_setMeasureTiming", "Execution_getDuration"):
            call("Execution_setMeasureTiming", self.address, True)
        if config.loop_timeout_duration is not None and self.library.has("Execution_setLoopTimeout"):
            call("Execution_setLoopTimeout", self.address, config.loop_timeout_duration)
        arguments = (*self._request.inputs, *self._request.outputs)
        self._pads = self.library.has("Execution_enableInputAndOutputPadding") and any(
            argument.location.padding for argument in arguments
        )
        if self._pads:
            call("Execution_enableInputAndOutputPadding", self.address, True)

    def _bind(self, kind: str, number: int, argument: RequestArgument, indexes: Sequence[int]) -> None:
        call, execution = self.library.call, self.address
        if argument.has_no_value:
            call(f"Execution_set{kind}", execution, number, None, None, 0)
            return
        operand = self._model.main.operands[indexes[number]] if number < len(indexes) else None
        described = self._described(operand, argument)
        place, pool = argument.location, self._request.pools[argument.location.pool_index]
        if isinstance(pool, BufferToken):
            memory = self._buffers.take(pool.token)
            self._taken.append(pool.token)
            name = f"Execution_set{kind}FromMemory"
            call(name, execution, number, described, memory, place.offset, place.length)
            return
        length = place.length + (place.padding if self._pads else 0)
        if by_pointer(pool) and place.offset + length <= pool.size:
            view = pool.view()[place.offset : place.offset + length]
            self._kept.append(view)
            call(f"Execution_set{kind}", execution, number, described, address_of(view) or None, length)
            return
        # Beyond the end of a memory the library has to look itself.
        memory = self._pools.memory(place.pool_index)
        call(f"Execution_set{kind}FromMemory", execution, number, described, memory, place.offset, length)

    def _described(self, operand: Operand | None, argument: RequestArgument) -> Any:
        """The type with the request's dimensions; none where it says none."""
        if operand is None or not argument.dimensions:
            return None
        dimensions = (c_uint32 * len(argument.dimensions))(*argument.dimensions)
        described = OperandTypeStruct(int(operand.type), len(dimensions), dimensions, operand.scale, operand.zero_point)
        self._kept.append(described)
        return ctypes.byref(described)

    # ---- afterwards

    def result(self, code: int, name: str) -> ExecutionResult:
        """What the library says of a run that ended with a result code of a function.

        Raises:
            DriverError: it failed otherwise than by lack of room.
        """
        if code not in (0, INSUFFICIENT):
            check(name, code)
        shapes = self._shapes()
        if code == INSUFFICIENT:
            return ExecutionResult(shapes, NO_TIMING, output_sufficient_size=False)
        return ExecutionResult(shapes, self.timing())

    def timing(self, hardware: int = ON_HARDWARE, driver: int = IN_DRIVER) -> Timing:
        """The durations of the last run, where they were asked for."""
        if not self._config.measure_timing or not self.library.has("Execution_getDuration"):
            return NO_TIMING
        return Timing(self._duration(hardware), self._duration(driver))

    def _duration(self, code: int) -> int | None:
        found = c_uint64()
        self.library.call("Execution_getDuration", self.address, code, ctypes.byref(found))
        return None if found.value == NOT_MEASURED else found.value

    def _shapes(self) -> tuple[OutputShape, ...]:
        if not self.library.has("Execution_getOutputOperandRank", "Execution_getOutputOperandDimensions"):
            return ()
        return tuple(self._shape(number) for number in range(len(self._model.main.output_indexes)))

    def _shape(self, number: int) -> OutputShape:
        rank = c_uint32()
        code = self.library.code("Execution_getOutputOperandRank", self.address, number, ctypes.byref(rank))
        if code not in (0, INSUFFICIENT):
            check("Execution_getOutputOperandRank", code)
        if rank.value > MOST_DIMENSIONS:
            raise RuntimeError(f"{PREFIX}Execution_getOutputOperandRank gave a rank of {rank.value}")
        operand = self._model.main.operands[self._model.main.output_indexes[number]]
        if not is_tensor(operand.type) or not rank.value:
            return OutputShape((), code == 0)
        sizes = (c_uint32 * rank.value)()
        name = "Execution_getOutputOperandDimensions"
        again = self.library.code(name, self.address, number, sizes)
        if again not in (0, INSUFFICIENT):
            check(name, again)
        return OutputShape(tuple(sizes), code == 0 and again == 0)
