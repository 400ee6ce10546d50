"""Activities about memory that several executions or several clients have to do with."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from harness.answers import output_lengths
from harness.case import TestCase
from harness.expectations import Returns
from harness.guards import ALIGNMENT, CANARY_BYTE, UNWRITTEN_BYTE, aligned
from harness.judge_output import judge_output
from harness.verdict import BAD, Cause, Verdict
from nnhal.device import BufferDesc, BufferRole, Device, PreparedModel
from nnhal.errors import DriverError
from nnhal.memory import SharedMemory
from nnhal.model import DataLocation, Request, RequestArgument
from nnhal.types import Array, info
from stress.board import Count
from stress.work import Worker

SECRET = np.frombuffer(b"\xa7\x5e\xc3\x42", np.float32)  # about 97.9; no other value of the runs has these bytes
TOLD = 64  # bytes of the secret in a row, from which on it is no accident


# ---- several executions in one pool


@dataclass
class _Placed:
    """An execution's arguments in a pool that others use, too."""

    case: TestCase
    prepared: PreparedModel
    inputs: list[tuple[int, Array]]
    outputs: list[tuple[int, int]]

    def request(self, pool: SharedMemory) -> Request:
        """The request."""
        inputs = [RequestArgument(DataLocation(0, at, value.nbytes), value.shape) for at, value in self.inputs]
        outputs = [RequestArgument(DataLocation(0, at, length)) for at, length in self.outputs]
        return Request(tuple(inputs), tuple(outputs), (pool,))


def interleaved(worker: Worker) -> None:
    """Executes several models at the same time whose arguments lie in turn in one pool; canaries stand between.

    Parameters:
        copies: executions of each model.
    """
    placed, size = _place(worker)
    if not placed:
        return
    pool = SharedMemory.create(size)
    try:
        while worker.goes_on():
            _round(worker, placed, pool)
    finally:
        pool.close()


def _place(worker: Worker) -> tuple[list[_Placed], int]:
    """Prepares the models and gives each argument a place, one of each execution in turn."""
    found: list[_Placed] = []
    for case in worker.cases:
        values = [value for value in case.steps[-1].inputs if value is not None]
        if len(values) != len(case.steps[-1].inputs) or any(value.ndim == 0 for value in values):
            continue  # omitted inputs and scalars have no place of their own
        if worker.run(case).verdict != Verdict.PASS:
            continue
        with worker.call("prepare", case.models[0]):
            prepared = worker.device.prepare_model(case.models[0])
        copies = range(int(worker.parameters["copies"]))
        found += [_Placed(case, prepared, [(0, value) for value in values], []) for _ in copies]
    at = ALIGNMENT
    rows = max((len(one.inputs) for one in found), default=0)
    for number in range(rows):
        for one in found:
            if number < len(one.inputs):
                value = one.inputs[number][1]
                one.inputs[number] = (at, value)
                at = aligned(at + value.nbytes) + ALIGNMENT
    lengths = [output_lengths(one.case.models[0], one.case.steps[-1]) for one in found]
    for number in range(max((len(row) for row in lengths), default=0)):
        for one, row in zip(found, lengths, strict=True):
            if number < len(row):
                one.outputs.append((at, max(row[number], 1)))
                at = aligned(at + max(row[number], 1)) + ALIGNMENT
    return found, at


def _round(worker: Worker, placed: list[_Placed], pool: SharedMemory) -> None:
    view = np.frombuffer(pool.view(), np.uint8)
    view[:] = CANARY_BYTE
    for one in placed:
        for at, value in one.inputs:
            view[at : at + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
        for at, length in one.outputs:
            view[at : at + length] = UNWRITTEN_BYTE
    errors: list[Exception] = []

    def execute(one: _Placed) -> None:
        try:
            one.prepared.execute_synchronously(one.request(pool))
        except Exception as error:
            errors.append(error)

    with worker.call("execute"):
        threads = [threading.Thread(target=execute, args=(one,), daemon=True) for one in placed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for error in errors:
        raise error
    worker.count(Count.EXECUTIONS, len(placed))
    for one in placed:
        _compare(worker, one, view)
    _look_between(worker, placed, view)


def _compare(worker: Worker, one: _Placed, view: Array) -> None:
    expect = one.case.steps[-1].expect
    assert isinstance(expect, Returns)
    if expect.groups:
        return
    for due, (at, length) in zip(expect.outputs, one.outputs, strict=True):
        got = np.frombuffer(view[at : at + length].tobytes(), info(due.type).dtype)[: due.value.size]
        judgement = judge_output(due, got.reshape(due.shape))
        if judgement.verdict in BAD:
            worker.report_failure(one.case, judgement)


def _look_between(worker: Worker, placed: list[_Placed], view: Array) -> None:
    free = np.ones(len(view), bool)
    for one in placed:
        for at, value in one.inputs:
            free[at : at + value.nbytes] = False
            if not np.array_equal(view[at : at + value.nbytes], np.frombuffer(value.tobytes(), np.uint8)):
                worker.fail(
                    one.case, Cause.INPUT_WRITTEN, "execute", "an input in a pool of several models was changed"
                )
        for at, length in one.outputs:
            free[at : at + length] = False
    hit = np.flatnonzero(free & (view != CANARY_BYTE))
    if len(hit):
        text = f"{len(hit)} bytes between the values of several models were written, the first at {hit[0]}"
        worker.fail(placed[0].case, Cause.OVERRUN, "execute", text)


# ---- what others left behind


def writes_secret(worker: Worker) -> None:
    """Executes with inputs and results full of a pattern, and fills a driver-managed buffer with it."""
    case = worker.cases[0]
    secret = np.full(case.steps[-1].inputs[0].shape, SECRET[0], np.float32)  # type: ignore[union-attr]
    with worker.call("prepare", case.models[0]):
        prepared = worker.device.prepare_model(case.models[0])
    pool, length = SharedMemory.create(2 * secret.nbytes), secret.nbytes
    request = Request(
        (RequestArgument(DataLocation(0, 0, length)),), (RequestArgument(DataLocation(0, length, length)),), (pool,)
    )
    pool.view()[:length] = secret.tobytes()
    while worker.goes_on():
        with worker.call("execute"):
            prepared.execute_synchronously(request)
        worker.count(Count.EXECUTIONS)
        if worker.device.traits.buffers:
            with worker.call("allocate"):
                buffer = worker.device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
                buffer.copy_from(pool_of(secret))
                buffer.close()


def pool_of(value: Array) -> SharedMemory:
    """A pool that holds a value."""
    pool = SharedMemory.create(value.nbytes)
    pool.view()[:] = value.tobytes()
    return pool


def looks_for_secret(worker: Worker) -> None:
    """Looks for the pattern in new buffers, and in outputs of executions that are refused."""
    case = worker.cases[0]
    with worker.call("prepare", case.models[0]):
        prepared = worker.device.prepare_model(case.models[0])
    while worker.goes_on():
        if worker.device.traits.buffers:
            _look_in_buffer(worker, worker.device, prepared, case)
        _look_in_outputs(worker, prepared, case)


def _look_in_buffer(worker: Worker, device: Device, prepared: PreparedModel, case: TestCase) -> None:
    value = case.steps[-1].inputs[0]
    assert value is not None
    with worker.call("allocate"):
        buffer = device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
    pool = SharedMemory.create(value.nbytes)
    try:
        with worker.call("copy_to"):
            buffer.copy_to(pool)
    except DriverError:
        pass  # nothing has been written to it: refused, as the contract says
    finally:
        _look(worker, case, "copy_to", "a new driver-managed buffer", pool)
        pool.close()
        buffer.close()


def _look_in_outputs(worker: Worker, prepared: PreparedModel, case: TestCase) -> None:
    value = case.steps[-1].inputs[0]
    assert value is not None
    length = value.nbytes
    pool = SharedMemory.create(2 * length)
    pool.view()[:length] = np.zeros_like(value).tobytes()
    # One byte too few is no request that can be served.
    inputs = (RequestArgument(DataLocation(0, 0, length)),)
    request = Request(inputs, (RequestArgument(DataLocation(0, length, length - 1)),), (pool,))
    try:
        with worker.call("execute"):
            prepared.execute_synchronously(request)
    except DriverError:
        pass
    finally:
        worker.count(Count.EXECUTIONS)
        _look(worker, case, "execute", "the output of an execution that was refused", pool)
        pool.close()


def _look(worker: Worker, case: TestCase, stage: str, where: str, pool: SharedMemory) -> None:
    seen = bytes(pool.view()).count(SECRET.tobytes())
    if seen * SECRET.nbytes >= TOLD:
        text = f"{seen * SECRET.nbytes} bytes of another client's input are in {where}"
        worker.fail(case, Cause.REMNANT, stage, text)
