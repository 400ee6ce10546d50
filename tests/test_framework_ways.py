"""Every way of running a model through the framework: asynchronous, in bursts, fenced, reusable; and buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from nnhal.device import (
    BufferDesc,
    BufferRole,
    ExecutionCallback,
    ExecutionResult,
    PreparedModel,
)
from nnhal.errors import DriverError
from nnhal.fences import SharedFence
from nnhal.memory import SharedMemory
from nnhal.model import BufferToken, DataLocation, Request, RequestArgument
from nnhal.types import ErrorStatus, ExecutionMode
from nnhal.types import OperationType as Op
from tests.framework_devices import (
    BYTES,
    FAR,
    Some,
    Together,
    due,
    failure,
    network,
    output,
    prepared,
    ramp,
    request_for,
    two_parts,
)
from tests.thorough import one_in_three

A, B = Op.ABS, Op.FLOOR


# ---- ways of running


def synchronously(compiled: PreparedModel, request: Request) -> None:
    compiled.execute_synchronously(request)


def asynchronously(compiled: PreparedModel, request: Request) -> None:
    callback = ExecutionCallback()
    compiled.execute(request, callback)
    notified = callback.wait(20)
    assert notified is not None
    assert notified[0] == ErrorStatus.NONE
    assert callback.notifications == 1


def in_a_burst(compiled: PreparedModel, request: Request) -> None:
    burst = compiled.configure_execution_burst()
    burst.execute_synchronously(request, [7, -1])
    burst.release_memory_resource(7)
    burst.close()


def fenced(compiled: PreparedModel, request: Request) -> None:
    first = SharedFence.create()
    fence, report = compiled.execute_fenced(request, [first])
    assert report().status == ErrorStatus.GENERAL_FAILURE  # not done
    first.signal()
    if fence is not None:
        assert fence.wait(20_000_000_000)
    assert report().status == ErrorStatus.NONE


def fenced_without_waiting(compiled: PreparedModel, request: Request) -> None:
    fence, report = compiled.execute_fenced(request, [])
    assert fence is None or fence.wait(20_000_000_000)
    assert report().status == ErrorStatus.NONE


def reused(compiled: PreparedModel, request: Request) -> None:
    execution = compiled.create_reusable_execution(request)
    execution.execute_synchronously()
    execution.execute_synchronously(FAR)


def reused_fenced(compiled: PreparedModel, request: Request) -> None:
    fence, report = compiled.create_reusable_execution(request).execute_fenced([])
    assert fence is None or fence.wait(20_000_000_000)
    assert report().status == ErrorStatus.NONE


WAYS: Sequence[Callable[[PreparedModel, Request], None]] = (
    synchronously, asynchronously, in_a_burst, fenced, fenced_without_waiting, reused, reused_fenced,
)  # fmt: skip


@pytest.mark.parametrize(
    ("devices", "way"), one_in_three((name, way) for name in ("one", "two", "plain", "old", "failing") for way in WAYS)
)
def test_every_way_of_running_gives_the_result(way: Callable[[PreparedModel, Request], None], devices: str) -> None:
    plain = frozenset({ExecutionMode.SYNCHRONOUS})
    made = {
        "one": [Some((A, B))],
        "two": [Some((A,)), Some((B,))],
        "plain": [Some((A, B), modes=plain)],  # has nothing but the synchronous way
        "old": [Some((B,), at=1)],  # has nothing but callbacks
        "failing": [Some((A, B), raises={"execute": failure()})],
    }[devices]
    together = Together(*made)
    request = request_for([ramp()], [BYTES])
    way(prepared(together, two_parts()), request)
    np.testing.assert_array_equal(output(request, 0), due(ramp()))


def test_a_burst_is_one_of_each_part_and_our_memory_has_no_token() -> None:
    first, second, old = Some((A,)), Some((B,)), Some((Op.NEG,), modes=frozenset({ExecutionMode.SYNCHRONOUS}))
    compiled = prepared(Together(first, second, old), network(1, (A, (0,)), (B, (1,)), (Op.NEG, (2,))))
    request = request_for([ramp()], [BYTES])
    burst = compiled.configure_execution_burst()
    burst.execute_synchronously(request, [7, 8])
    assert first.tokens == [(7, -1)]  # the client's inputs, and what is between parts
    assert second.tokens == [(-1,)]
    assert old.tokens == []
    burst.release_memory_resource(7)
    assert first.released == second.released == [7]
    np.testing.assert_array_equal(output(request, 0), -due(ramp()))
    for tokens in ([7], [7, -2]):
        with pytest.raises(DriverError) as caught:
            burst.execute_synchronously(request, tokens)
        assert caught.value.status == ErrorStatus.INVALID_ARGUMENT


def test_a_reusable_execution_runs_once_at_a_time() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        go_on.wait(20)

    two = Together(Some((A,), during=during), Some((B,)))
    execution = prepared(two, two_parts()).create_reusable_execution(request_for([ramp()], [BYTES]))
    thread = threading.Thread(target=execution.execute_synchronously)
    thread.start()
    inside.wait(20)
    with pytest.raises(DriverError, match="once at a time"):
        execution.execute_synchronously()
    go_on.set()
    thread.join()


def test_a_refused_launch_notifies_its_callback_with_the_same_status() -> None:
    callback = ExecutionCallback()
    bad = replace(request_for([ramp()], [BYTES]), outputs=())
    with pytest.raises(DriverError):
        prepared(Together(Some((A,))), two_parts()).execute(bad, callback)
    assert callback.wait(0) == (ErrorStatus.INVALID_ARGUMENT, ExecutionResult())


def test_fenced_outputs_must_be_known() -> None:
    model = network(1, (A, (0,)), (B, (1,)), inside=(0, 3))
    with pytest.raises(DriverError) as caught:
        prepared(Together(Some((A,)), Some((B,))), model).execute_fenced(request_for([ramp()], [BYTES]), [])
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT


def test_a_fence_in_error_ends_the_execution() -> None:
    compiled = prepared(Together(Some((A,)), Some((B,))), two_parts())
    first = SharedFence.create()
    fence, report = compiled.execute_fenced(request_for([ramp()], [BYTES]), [first])
    first.signal(ErrorStatus.GENERAL_FAILURE)
    assert fence is not None
    with pytest.raises(DriverError):
        fence.wait(20_000_000_000)
    assert report().status == ErrorStatus.GENERAL_FAILURE


# ---- driver-managed buffers


def test_a_buffer_is_the_devices_that_runs_the_whole_model() -> None:
    together = Together(Some((A, B)))
    compiled = prepared(together, two_parts())
    roles = [BufferRole(0, 0)]
    buffers = [together.framework.allocate(BufferDesc(), [compiled], roles, []) for _ in range(2)]
    result = together.framework.allocate(BufferDesc(), [compiled], [], roles)
    assert len({buffer.token for buffer in (*buffers, result)}) == 3
    source = SharedMemory.create(BYTES)
    source.view()[:] = ramp().tobytes()
    buffers[1].copy_from(source)
    whole = DataLocation(0, 0, 0)
    request = Request(
        (RequestArgument(whole),),
        (RequestArgument(replace(whole, pool_index=1)),),
        (BufferToken(buffers[1].token), BufferToken(result.token)),
    )
    compiled.execute_synchronously(request)
    target = SharedMemory.create(BYTES)
    result.copy_to(target)
    assert bytes(target.view()) == due(ramp()).tobytes()
    buffers[1].close()
    with pytest.raises(DriverError, match="no buffer has the token") as caught:
        compiled.execute_synchronously(request)
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT


def test_models_in_parts_have_no_buffers() -> None:
    together = Together(Some((A,)), Some((B,)))
    framework, compiled = together.framework, prepared(together, two_parts())
    with pytest.raises(DriverError) as caught:
        framework.allocate(BufferDesc(), [compiled], [BufferRole(0, 0)], [])
    assert caught.value.status == ErrorStatus.GENERAL_FAILURE
    other = Together(Some((A, B))).framework.members[0].device.prepare_model(two_parts())
    for models in ([], [other]):
        with pytest.raises(DriverError) as caught:
            framework.allocate(BufferDesc(), models, [BufferRole(0, 0)], [])
        assert caught.value.status == ErrorStatus.INVALID_ARGUMENT
