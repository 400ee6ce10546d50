"""Faults of driver-managed buffers: allocations, roles, copies, and what a buffer holds when."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from drivers._faults import Allocating, CopyingBuffer, Fault, Faults, Run, State
from drivers._faults_running import FaultyPreparedModel
from drivers._faults_wrapping import NoBuffer, buffers_of
from nnhal.device import Buffer, BufferRole, ExecutionResult
from nnhal.errors import DriverError, invalid
from nnhal.model import BufferToken, Operand, combine_dimensions, is_tensor
from nnhal.types import ErrorStatus

MEMORY = "Device memory"
ALLOCATED = "a bad allocation is answered with INVALID_ARGUMENT or GENERAL_FAILURE"
FULL = "a buffer in which nothing is cannot be an input, nor be copied from: GENERAL_FAILURE"
EMPTY = "a failed output or copy leaves a buffer uninitialised"
ROLE = "a buffer is used only by the prepared model, as the input or output, for which it was made"
SIZE = "the size of a copy matches exactly"
KEEPS = "a buffer keeps what was put into it"
IA, GF = ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
Made = Callable[[], Buffer]
Go = Callable[[], ExecutionResult]


# ---- allocations


def _allocates(wrong: Callable[[Allocating], bool]) -> Callable[[Allocating, Made], Buffer]:
    """Takes what is wrong in a certain way."""

    def hook(occasion: Allocating, go: Made) -> Buffer:
        try:
            return go()
        except DriverError:
            if not wrong(occasion):
                raise
            return NoBuffer()

    return hook


def _roles(occasion: Allocating) -> list[tuple[BufferRole, bool]]:
    return [*((role, False) for role in occasion.inputs), *((role, True) for role in occasion.outputs)]


def _operands(occasion: Allocating) -> list[Operand]:
    """The operands of the roles that there are."""
    found = []
    for role, output in _roles(occasion):
        if not 0 <= role.model_index < len(occasion.models):
            continue
        prepared = occasion.models[role.model_index]
        model = prepared.model if isinstance(prepared, FaultyPreparedModel) else None
        if model is None:
            continue
        indexes = model.main.output_indexes if output else model.main.input_indexes
        if 0 <= role.io_index < len(indexes):
            found.append(model.main.operands[indexes[role.io_index]])
    return found


def _foreign(occasion: Allocating) -> bool:
    return any(not isinstance(prepared, FaultyPreparedModel) for prepared in occasion.models)


def _no_such_model(occasion: Allocating) -> bool:
    return any(not 0 <= role.model_index < len(occasion.models) for role, _ in _roles(occasion))


def _no_such_place(occasion: Allocating) -> bool:
    return not _no_such_model(occasion) and len(_operands(occasion)) < len(_roles(occasion))


def _improbable(occasion: Allocating) -> bool:
    return any(not 0 < role.probability <= 1 or math.isnan(role.probability) for role, _ in _roles(occasion))


def _twice(occasion: Allocating) -> bool:
    keys = [(role.model_index, role.io_index, output) for role, output in _roles(occasion)]
    return len(set(keys)) < len(keys)


def _by_two_entries(occasion: Allocating) -> bool:
    if _no_such_model(occasion):
        return False
    keys = [(id(occasion.models[role.model_index]), role.io_index, output) for role, output in _roles(occasion)]
    return len(set(keys)) < len(keys)


def _differ(of: Callable[[Operand], object]) -> Callable[[Allocating], bool]:
    return lambda occasion: len({of(operand) for operand in _operands(occasion)}) > 1


def _misshapen(occasion: Allocating) -> bool:
    shape: tuple[int, ...] | None = occasion.desc.dimensions
    for operand in _operands(occasion):
        shape = None if shape is None else combine_dimensions(shape, operand.dimensions)
    return shape is None


def _scalar(occasion: Allocating) -> bool:
    return bool(occasion.desc.dimensions) and any(not is_tensor(operand.type) for operand in _operands(occasion))


def _accepts(name: str, text: str, wrong: Callable[[Allocating], bool], rule: str) -> Fault:
    catch = f"MEMORY-allocate.{name}-*"
    return Fault(text, "FAIL", "ACCEPTED", MEMORY, rule, catch, allocate=_allocates(wrong))


def _without_token(occasion: Allocating, go: Made) -> Buffer:
    made = go()
    made.token = 0
    return made


def _null(occasion: Allocating, go: Made) -> Buffer:
    go()
    return cast(Buffer, None)


def _other_status(occasion: Allocating, go: Made) -> Buffer:
    try:
        return go()
    except DriverError as error:
        raise DriverError(ErrorStatus.DEVICE_UNAVAILABLE, error.message) from None


# ---- uses


def _runs(when: Callable[[Run], bool], status: ErrorStatus) -> Callable[[Run, Go], ExecutionResult]:
    """Takes for good what is refused with a status."""

    def hook(run: Run, go: Go) -> ExecutionResult:
        try:
            return go()
        except DriverError as error:
            if error.status != status or not when(run):
                raise
            return ExecutionResult()

    return hook


def _has_buffers(run: Run) -> bool:
    return any(isinstance(pool, BufferToken) for pool in run.request.pools)


def _unknown_token(run: Run) -> bool:
    tokens = [pool.token for pool in run.request.pools if isinstance(pool, BufferToken)]
    return any(token not in run.state.buffers for token in tokens)


def _others(run: Run) -> bool:
    """A buffer of another prepared model."""
    return any(all(prepared is not run.prepared for prepared in b.asked.models) for b in buffers_of(run))


def _empty_is_invalid(run: Run, go: Go) -> ExecutionResult:
    try:
        return go()
    except DriverError as error:
        if error.status == GF and _has_buffers(run):
            raise invalid(error.message) from None
        raise


def _not_shared(run: Run, go: Go) -> ExecutionResult:
    places = [argument.location.pool_index for argument in run.request.inputs if not argument.has_no_value]
    pools = run.request.pools
    buffers = [p for p in places if 0 <= p < len(pools) and isinstance(pools[p], BufferToken)]
    if len(set(buffers)) < len(buffers):
        raise invalid("a buffer is two inputs")
    return go()


def _spends(run: Run, go: Go) -> ExecutionResult:
    """Works in the buffers that are its inputs."""
    result = go()
    read = {argument.location.pool_index for argument in run.request.inputs if not argument.has_no_value}
    for place in read:
        pool = run.request.pools[place]
        if isinstance(pool, BufferToken):
            run.state.kept["spent", pool.token] = True
    return result


def _notes_failure(run: Run, go: Go) -> ExecutionResult:
    try:
        return go()
    except DriverError:
        for buffer in buffers_of(run):
            run.state.kept["failed", buffer.token] = True
        raise


# ---- copies


def _copies_any(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    """Copies as much as fits."""
    try:
        go()
    except DriverError as error:
        if error.status != IA:
            raise


def _copies_empty(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    """Copies out of a buffer in which nothing is."""
    try:
        go()
    except DriverError as error:
        if error.status != GF:
            raise


def _copies_after_failure(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    """Copies out what was in a buffer before a failure."""
    try:
        go()
    except DriverError as error:
        if error.status != GF or not copying.state.kept.get(("failed", copying.buffer.token)):
            raise


def _fails_noted(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    try:
        go()
    except DriverError:
        copying.state.kept["failed", copying.buffer.token] = True
        raise


def _spent(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    go()
    if copying.state.kept.get(("spent", copying.buffer.token)):
        view = copying.memory.view()
        view[:] = bytes(byte ^ 0x55 for byte in view)


def _one_place(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    go()
    copying.state.kept["content"] = bytes(copying.memory.view())


def _of_one_place(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    """All buffers have one place."""
    go()
    content, view = copying.state.kept.get("content", b""), copying.memory.view()
    size = min(len(content), len(view))
    view[:size] = content[:size]


def _no_files(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    if copying.memory.kind != "ashmem":
        raise invalid("only shared memory is copied")
    go()


def _one_shape(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    if copying.dimensions:
        first = copying.state.kept.setdefault(("shape", copying.buffer.token), copying.dimensions)
        if first != copying.dimensions:
            raise invalid("the buffer has another shape")
    go()


def _ends(state: State, go: Callable[[], None]) -> None:
    state.kept["released"] = True
    go()


def _ended(copying: CopyingBuffer, go: Callable[[], None]) -> None:
    """Buffers end with the models that they were made for."""
    if copying.state.kept.get("released"):
        raise DriverError(GF, "the buffer is gone")
    go()


def _buffer(text: str, rule: str, catch: str, when: Callable[[Run], bool], status: ErrorStatus = IA) -> Fault:
    return Fault(text, "FAIL", "ACCEPTED", MEMORY, rule, f"MEMORY-buffer.{catch}", run=_runs(when, status))


ROLES = "roles that do not agree are refused"
FAULTS: Faults = {
    "allocate.no_roles": _accepts(
        "no.roles", "allocates for no roles", lambda o: not _roles(o), "an allocation has a role",
    ),
    "allocate.no_models": _accepts(
        "no.models", "allocates without prepared models", lambda o: not o.models, "an allocation has prepared models",
    ),
    "allocate.foreign": _accepts(
        "foreign.model", "allocates for another driver's prepared models", _foreign,
        "prepared models of other drivers are refused",
    ),
    "allocate.model": _accepts(
        "model.index", "does not check the numbers of prepared models", _no_such_model,
        "roles name prepared models that are there",
    ),
    "allocate.place": _accepts(
        "io.index", "does not check the numbers of inputs and outputs", _no_such_place,
        "roles name inputs and outputs that are there",
    ),
    "allocate.frequency": _accepts(
        "frequency", "takes any frequency", _improbable, "a frequency is above 0 and at most 1",
    ),
    "allocate.twice": _accepts("role.twice", "takes a role twice", _twice, "no role is given twice"),
    "allocate.two_entries": _accepts(
        "role.twice.by.two.entries", "takes a role twice through two entries of one prepared model", _by_two_entries,
        "no role is given twice, through two entries of one prepared model neither",
    ),
    "allocate.type": _accepts(
        "differing.type", "takes roles of several types", _differ(lambda operand: operand.type), ROLES,
    ),
    "allocate.scale": _accepts(
        "differing.scale", "takes roles of several scales", _differ(lambda operand: operand.scale), ROLES,
    ),
    "allocate.zero_point": _accepts(
        "differing.zero.point", "takes roles of several zero points", _differ(lambda operand: operand.zero_point),
        ROLES,
    ),
    "allocate.channels": _accepts(
        "differing.channels", "takes roles of several scales by channel",
        _differ(lambda operand: operand.extra_params), ROLES,
    ),
    "allocate.shapes": _accepts(
        "differing.dimensions", "takes roles of several shapes", _misshapen,
        "the dimensions of roles and description can be combined",
    ),
    "allocate.dimensions": _accepts(
        "dimensions", "takes any dimensions", _misshapen, "the dimensions of roles and description can be combined",
    ),
    "allocate.scalar": _accepts(
        "dimensions.of.scalar", "takes dimensions for a scalar", _scalar, "a scalar has no dimensions",
    ),
    "allocate.token": Fault(
        "gives a buffer the token 0", "FAIL", "MALFORMED", MEMORY, "the token of a buffer is above 0",
        "MEMORY-allocate.good-*", allocate=_without_token,
    ),
    "allocate.null": Fault(
        "gives no buffer with NONE", "FAIL", "UNCLEAN_ERROR", MEMORY, "NONE comes with a buffer",
        "MEMORY-allocate.good-*", allocate=_null,
    ),
    "allocate.status": Fault(
        "answers DEVICE_UNAVAILABLE to a bad allocation", "FAIL", "STATUS", MEMORY, ALLOCATED,
        "MEMORY-allocate.*.*", allocate=_other_status,
    ),
    "buffer.empty": _buffer(
        "takes a buffer in which nothing is as an input", FULL, "uninitialised.*", _has_buffers, GF
    ),
    "buffer.empty.invalid": Fault(
        "answers INVALID_ARGUMENT to a buffer in which nothing is", "FAIL", "STATUS", MEMORY, FULL,
        "MEMORY-buffer.uninitialised.*", run=_empty_is_invalid,
    ),
    "buffer.empty.copied": Fault(
        "copies out of a buffer in which nothing is", "FAIL", "ACCEPTED", MEMORY, FULL,
        "MEMORY-buffer.uninitialised.*", copy_to=_copies_empty,
    ),
    "buffer.role": _buffer("uses a buffer for anything", ROLE, "wrong.role.*", _has_buffers),
    "buffer.model": _buffer("uses a buffer for any prepared model", ROLE, "prepared.again-*", _others),
    "buffer.token": _buffer(
        "takes unknown tokens", "an unknown token is refused", "unknown.token.*", _unknown_token
    ),
    "buffer.released": _buffer(
        "uses buffers that were released", "a token of a buffer that is gone names nothing", "released-*",
        _unknown_token,
    ),
    "buffer.twice": _buffer(
        "writes two outputs into one buffer", "one buffer is not two outputs", "output.twice-*", _has_buffers
    ),
    "buffer.parts": _buffer(
        "does not look at offset and length in a buffer", "offset, length and padding in a buffer are 0",
        "in.parts-*", _has_buffers,
    ),
    "buffer.dimensions": _buffer(
        "does not hold dimensions of the request against the buffer's",
        "dimensions of the request agree with the buffer's", "wrong.dimensions-*", _has_buffers,
    ),
    "buffer.shared": Fault(
        "refuses one buffer for two inputs", "FAIL", "STATUS", MEMORY, "several inputs may share one buffer",
        "MEMORY-buffer.as.input-*", run=_not_shared,
    ),
    "buffer.spent": Fault(
        "works in buffers that are inputs", "FAIL", "VALUE", MEMORY, "inputs are never changed by the driver",
        "MEMORY-buffer.as.input-*", run=_spends, copy_to=_spent,
    ),
    "buffer.failed_output": Fault(
        "keeps a buffer's content when an output fails", "FAIL", "ACCEPTED", MEMORY, EMPTY,
        "MEMORY-buffer.failed.output-*", run=_notes_failure, copy_to=_copies_after_failure,
    ),
    "buffer.failed_output.invalid": Fault(
        "answers INVALID_ARGUMENT to an output that does not fit its buffer", "FAIL", "STATUS", MEMORY,
        "an output whose shape does not fit its buffer is GENERAL_FAILURE", "MEMORY-buffer.failed.output-*",
        run=_empty_is_invalid,
    ),
    "buffer.failed_copy": Fault(
        "keeps a buffer's content when a copy fails", "FAIL", "ACCEPTED", MEMORY, EMPTY,
        "MEMORY-buffer.failed.copy-*", copy_from=_fails_noted, copy_to=_copies_after_failure,
    ),
    "buffer.copy_in": Fault(
        "copies in whatever fits", "FAIL", "ACCEPTED", MEMORY, SIZE, "MEMORY-buffer.failed.copy-*",
        copy_from=_copies_any,
    ),
    "buffer.copy_out": Fault(
        "copies out as much as fits", "FAIL", "ACCEPTED", MEMORY, SIZE, "MEMORY-buffer.failed.copy.out-*",
        copy_to=_copies_any,
    ),
    "buffer.files": Fault(
        "copies to and from shared memory alone", "FAIL", "STATUS", MEMORY, "each kind of memory can be copied",
        "MEMORY-buffer.copies-*", copy_from=_no_files,
    ),
    "buffer.one_shape": Fault(
        "does not change the shape of a buffer", "FAIL", "STATUS", MEMORY,
        "the shape of a buffer is that of what was put into it", "MEMORY-buffer.open.dimensions-*",
        copy_from=_one_shape,
    ),
    "buffer.one_place": Fault(
        "has one place for all buffers", "FAIL", "VALUE", MEMORY, KEEPS, "MEMORY-buffer.many-*",
        copy_from=_one_place, copy_to=_of_one_place,
    ),
    "buffer.model_released": Fault(
        "lets buffers go with their models", "FAIL", "STATUS", MEMORY, KEEPS, "MEMORY-buffer.model.released-*",
        close=_ends, copy_to=_ended,
    ),
}  # fmt: skip
