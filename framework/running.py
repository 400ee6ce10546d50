"""One execution: part after part, with memory between them, sizes found under way, times put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol

from framework.events import Event, EventKind, Report
from framework.levels import deadline_at, execution_at
from framework.members import lost
from framework.parts import Compilation, Compiled, Reserve, is_open, size_of
from nnhal.device import NO_TIMING, ExecutionConfig, ExecutionResult, OutputShape, Timing
from nnhal.errors import DriverError, UncleanError
from nnhal.memory import Memory, SharedMemory
from nnhal.model import BufferToken, DataLocation, Request, RequestArgument, combine_dimensions, is_known, is_tensor
from nnhal.types import ErrorStatus
from nnhal.vlog import is_on, vlog

FIRST_GUESS = 4096  # bytes for a value whose size nobody knows beforehand
GROWTH = 8
LARGEST = 1 << 30
ATTEMPTS = 8  # at one part, until its results have room
HANDED_ON = (
    ErrorStatus.INVALID_ARGUMENT,
    ErrorStatus.MISSED_DEADLINE_TRANSIENT,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT,
)
Pool = Memory | BufferToken


class Call(Protocol):
    """A way to run a part: plain, or in a burst."""

    def __call__(
        self, part: Compiled, request: Request, config: ExecutionConfig, deadline: int | None
    ) -> ExecutionResult:
        """Runs a request on a part's device and waits for the end."""


class DeviceFailedError(Exception):
    """A part failed in a way that the CPU may make good.

    Args:
        part: whose device it was.
        error: what the client gets where there is no CPU.
        answered: the error is the device's own answer, and not a limit of what goes between parts.
    """

    def __init__(self, part: Compiled, error: DriverError, *, answered: bool = True) -> None:
        super().__init__(str(error))
        self.part = part
        self.error = error
        name = part.member.name
        self.kind = EventKind.EXECUTION_FELL_BACK if answered else EventKind.BEYOND_PARTS
        self.text = f"{name} answered {error} to an execution" if answered else f"behind {name}, {error.message}"


@dataclass
class Held:
    """Where an operand's value is, and what is known of its dimensions."""

    pool: Pool | None
    argument: RequestArgument


@dataclass
class Job:
    """One execution of a compilation. `run` may be called once.

    Attributes:
        report: told of writes outside of places.
    """

    compilation: Compilation
    reserve: Reserve
    request: Request
    config: ExecutionConfig
    deadline: int | None
    call: Call
    report: Report
    _held: dict[int, Held] = field(default_factory=dict)
    _shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _short: set[int] = field(default_factory=set)
    _timings: list[Timing] = field(default_factory=list)

    def run(self) -> ExecutionResult:
        """Runs all parts.

        Raises:
            DriverError: a status that is the client's to know.
            DeviceFailedError: a device failed.
        """
        if self.compilation.simple:
            part = self.compilation.parts[0]
            check_deadline(self.deadline, "executing")
            return self._ask(part, self.request)
        main = self.compilation.model.main
        for index, argument in zip(main.input_indexes, self.request.inputs, strict=True):
            self._hold(index, argument)
        for index, argument in zip(main.output_indexes, self.request.outputs, strict=True):
            self._hold(index, argument)
        pool = self.reserve.take()
        try:
            for number, part in enumerate(self.compilation.parts):
                check_deadline(self.deadline, f"executing part {number}", late=number > 0)
                self._run_part(part, pool)
                outside = self.reserve.overrun(pool)
                if outside:
                    self.report(Event(EventKind.OVERRUN, part.member.name, f"{part.member.name}: {outside}"))
        finally:
            self.reserve.give_back(pool)
        return self._result()

    def _hold(self, index: int, argument: RequestArgument) -> None:
        pools = self.request.pools
        pool = None if argument.has_no_value else pools[argument.location.pool_index]
        if isinstance(pool, BufferToken):
            text = "a driver-managed buffer is for models that one device runs whole; this model is in parts"
            raise DriverError(ErrorStatus.INVALID_ARGUMENT, text)
        self._held[index] = Held(pool, argument)

    def _run_part(self, part: Compiled, pool: SharedMemory | None) -> None:
        for index in part.cut.outputs:
            if self._held.get(index, Held(None, RequestArgument())).pool is None:
                self._held[index] = self._room(part, index, pool)
        for _ in range(ATTEMPTS):
            result = self._ask(part, self._part_request(part))
            if result.output_sufficient_size:
                self._note(part, result)
                return
            self._grow(part, result.output_shapes)
        text = f"the results had no room after {ATTEMPTS} attempts"
        raise _limit(part, text)

    def _room(self, part: Compiled, index: int, pool: SharedMemory | None) -> Held:
        """Memory of our own for a value: reserved beforehand, or made now."""
        place = self.compilation.places.get(index)
        if place is not None and pool is not None:
            return Held(pool, RequestArgument(place))
        length = self._size(index) or FIRST_GUESS
        return _own(length)

    def _part_request(self, part: Compiled) -> Request:
        pools: list[Pool] = []
        numbers: dict[int, int] = {}

        def argument(index: int) -> RequestArgument:
            held = self._held[index]
            if held.pool is None:
                return held.argument
            if id(held.pool) not in numbers:
                numbers[id(held.pool)] = len(pools)
                pools.append(held.pool)
            return replace(held.argument, location=replace(held.argument.location, pool_index=numbers[id(held.pool)]))

        inputs = tuple(argument(index) for index in part.cut.inputs)
        outputs = tuple(argument(index) for index in part.cut.outputs)
        return Request(inputs, outputs, tuple(pools))

    def _ask(self, part: Compiled, request: Request) -> ExecutionResult:
        """Runs a part's request; OUTPUT_INSUFFICIENT_SIZE is a result, however it came."""
        if is_on("execution"):
            vlog("execution", f"{part.member.name} runs {len(part.cut.model.main.operations)} operations")
        level = part.member.level
        try:
            config, deadline = execution_at(self.config, level), deadline_at(self.deadline, level)
            return self.call(part, request, config, deadline)
        except DriverError as error:
            if error.status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                return ExecutionResult(error.output_shapes, output_sufficient_size=False)
            if error.status in HANDED_ON or part.member.cpu:
                raise
            raise DeviceFailedError(part, error) from error
        except Exception as error:
            lost(part.member, error, self.report)

    def _note(self, part: Compiled, result: ExecutionResult) -> None:
        """Keeps the shapes and times of a part that has run."""
        for index, shape in zip(part.cut.outputs, self._reported(part, result.output_shapes), strict=True):
            self._shapes[index] = shape
            held = self._held[index]
            tensor = is_tensor(self.compilation.model.main.operands[index].type)
            if 0 in shape and index in self._read_later(part):
                text = f"operand {index} came out with dimensions {list(shape)}: no part can take it in"
                raise _limit(part, text)
            length = self._size(index, shape) or held.argument.location.length
            place = replace(held.argument.location, length=length, padding=0)
            self._held[index] = Held(held.pool, RequestArgument(place, shape if tensor else ()))
        self._timings.append(result.timing)

    def _read_later(self, part: Compiled) -> set[int]:
        return {index for other in self.compilation.parts if other is not part for index in other.cut.inputs}

    def _reported(self, part: Compiled, shapes: Sequence[OutputShape]) -> list[tuple[int, ...]]:
        """Dimensions of a part's results, as reported or as the model says where nothing was."""
        operands = [self.compilation.model.main.operands[index] for index in part.cut.outputs]
        given = [self._held[index].argument.dimensions for index in part.cut.outputs]
        known = [combine_dimensions(o.dimensions, g) or o.dimensions for o, g in zip(operands, given, strict=True)]
        found = [tuple(shape.dimensions) for shape in shapes] if shapes else known
        if len(found) != len(known):
            self._nonsense(part, f"{len(found)} output shapes for {len(known)} outputs")
        for number, (shape, before, operand) in enumerate(zip(found, known, operands, strict=True)):
            fits = (
                before == shape or (0 in shape and not is_known(before)) or combine_dimensions(shape, before) == shape
            )
            if not fits or (is_tensor(operand.type) and not shape):
                self._nonsense(part, f"output {number} of dimensions {list(shape)} where {list(before)} are known")
        return found

    def _nonsense(self, part: Compiled, text: str) -> NoReturn:
        error = UncleanError("ValueError", f"an execution of {part.member.name} answered with {text}")
        lost(part.member, error, self.report)

    def _grow(self, part: Compiled, shapes: Sequence[OutputShape]) -> None:
        """Makes room for results that had too little; what the client gave too little for goes to memory of our own.

        So the parts behind can run, and the client learns the size of every output at once.
        """
        if len(shapes) != len(part.cut.outputs):
            self._nonsense(
                part, f"OUTPUT_INSUFFICIENT_SIZE and {len(shapes)} shapes for {len(part.cut.outputs)} outputs"
            )
        grown = False
        for index, shape in zip(part.cut.outputs, shapes, strict=True):
            if shape.is_sufficient:
                continue
            grown = True
            if index in self.compilation.model.main.output_indexes:
                self._short.add(index)
            elif not is_open(self.compilation.model.main.operands[index]):
                self._nonsense(part, f"OUTPUT_INSUFFICIENT_SIZE for operand {index}, whose size is known")
            before = self._held[index].argument.location.length
            length = self._size(index, tuple(shape.dimensions)) or before * GROWTH
            if length <= before and length < FIRST_GUESS:
                length = FIRST_GUESS
            if length > LARGEST:
                text = f"operand {index} would need {length} bytes"
                raise _limit(part, text)
            self._held[index] = _own(length)
        if not grown:
            self._nonsense(part, "OUTPUT_INSUFFICIENT_SIZE and no output that is marked")

    def _size(self, index: int, shape: tuple[int, ...] | None = None) -> int:
        """Bytes of an operand, in other dimensions than the model's if they are given; 0 where that is open."""
        operand = self.compilation.model.main.operands[index]
        if shape is not None and is_tensor(operand.type):
            if not is_known(shape):
                return 0
            operand = replace(operand, dimensions=shape)
        return size_of(self.compilation.model, operand, self.compilation.parts)

    def _result(self) -> ExecutionResult:
        indexes = self.compilation.model.main.output_indexes
        shapes = tuple(OutputShape(self._shapes[index], index not in self._short) for index in indexes)
        if self._short:
            return ExecutionResult(shapes, NO_TIMING, output_sufficient_size=False)
        return ExecutionResult(shapes, added_up(self._timings))


def _limit(part: Compiled, text: str) -> DeviceFailedError:
    return DeviceFailedError(part, DriverError(ErrorStatus.GENERAL_FAILURE, text), answered=False)


def _own(length: int) -> Held:
    return Held(SharedMemory.create(length, "nncts-framework"), RequestArgument(DataLocation(0, 0, length)))


def added_up(timings: Sequence[Timing]) -> Timing:
    """The times of all parts together; not measured where one of them was not."""
    device = [timing.time_on_device for timing in timings]
    driver = [timing.time_in_driver for timing in timings]
    return Timing(
        None if None in device else sum(t for t in device if t is not None),
        None if None in driver else sum(t for t in driver if t is not None),
    )


def check_deadline(deadline: int | None, doing: str, *, late: bool = False) -> None:
    """Ends what cannot be done in time any more.

    Raises:
        DriverError: MISSED_DEADLINE_PERSISTENT, or _TRANSIENT when it passed after the start.
    """
    if deadline is not None and time.monotonic_ns() >= deadline:
        status = ErrorStatus.MISSED_DEADLINE_TRANSIENT if late else ErrorStatus.MISSED_DEADLINE_PERSISTENT
        raise DriverError(status, f"the deadline for {doing} is past")
