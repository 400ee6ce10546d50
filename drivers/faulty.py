"""A driver that wraps another and does one thing wrong: shows that the suite notices.

`faulty,inner=NAME,fault=NAME[,after=N][,operation=CODE][,seconds=S][,inner.KEY=VALUE...]`
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from drivers._faults import BEFORE, FAULTS, FLAKY
from nnhal import loading
from nnhal.buffers import argument_bytes, argument_shape
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Adapter,
    Buffer,
    BufferDesc,
    BufferRole,
    Burst,
    CacheFilesNeeded,
    Capabilities,
    CompilationConfig,
    Device,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Extension,
    Fence,
    FencedResult,
    OutputShape,
    PreparedModel,
    Timing,
)
from nnhal.errors import DriverError, UsageError, invalid
from nnhal.loading import DriverSpec
from nnhal.model import Model, Request, RequestArgument, Translation
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus, OperandType, OperationType, info

INNER = "inner."
BYTES_OUTSIDE = 8


_ANSWERS = {"refuse_all", "refuse_prepare", "accept_all", "wrong_count"}


class _Trigger:
    """Says whether the fault is due: from the (after + 1)-th occasion on, for models with the operation."""

    def __init__(self, fault: str, after: int, operation: int | None, seconds: float) -> None:
        self.fault = fault
        self.seconds = seconds
        self._after = after
        self._operation = operation
        self._count = 0
        self._lock = threading.Lock()

    def concerns(self, model: Model) -> bool:
        """Whether the model holds the operation that the fault is limited to."""
        graphs = (model.main, *model.referenced)
        types = {operation.type for graph in graphs for operation in graph.operations}
        return self._operation is None or self._operation in types

    def is_due(self, model: Model) -> bool:
        """Counts an occasion."""
        if not self.concerns(model):
            return False
        with self._lock:
            self._count += 1
            if self.fault == "flaky":  # by chance, so that another process or order does not repeat it
                return self._count > self._after and os.urandom(1)[0] < 256 / FLAKY
            return self._count > self._after


def _poke(view: memoryview, offset: int, count: int) -> None:
    """Writes bytes at an offset from a view's start, wherever that is, as native code would."""
    address = np.frombuffer(view, np.uint8).ctypes.data
    ctypes.memset(address + offset, 0x3C, count)


def _present(arguments: tuple[RequestArgument, ...]) -> list[tuple[int, RequestArgument]]:
    return [(i, a) for i, a in enumerate(arguments) if not a.has_no_value and a.location.length]


def _damage(view: memoryview, kind: int) -> None:
    """Changes the middle element by more than any rounding."""
    dtype = info(kind).dtype
    values = np.frombuffer(view, dtype)
    place = len(values) // 2
    if dtype.kind == "f":
        value = float(values[place])
        values[place] = 1 if not np.isfinite(value) else value / 2 if abs(value) >= 4 else value + 1
    elif kind in (OperandType.BOOL, OperandType.TENSOR_BOOL8):
        values[place] = not values[place]
    else:
        values[place] ^= 1 << (dtype.itemsize * 8 - 2)


class _Outputs:
    """The outputs of one request, in place."""

    def __init__(self, model: Model, request: Request) -> None:
        self.views = [argument_bytes(request, a) for _, a in _present(request.outputs)]
        operands = [model.main.operands[i] for i in model.main.output_indexes]
        kinds = [operands[i] for i, _ in _present(request.outputs)]
        self.kinds = [operand.type for operand in kinds]

    def copy(self) -> list[bytes]:
        """What they hold now."""
        return [bytes(view) for view in self.views]

    def write(self, content: list[bytes]) -> None:
        """Puts such a copy back, as far as it fits."""
        for view, data in zip(self.views, content, strict=False):
            size = min(len(view), len(data))
            view[:size] = data[:size]

    def damage(self) -> None:
        """Gets one element of the first output wrong."""
        if self.views:
            _damage(self.views[0], self.kinds[0])

    def put_nan(self) -> None:
        """Makes one element of the first float output NaN."""
        for view, kind in zip(self.views, self.kinds, strict=True):
            dtype = info(kind).dtype
            if dtype.kind == "f":
                values = np.frombuffer(view, dtype)
                values[len(values) // 2] = np.nan
                return


def _wrong_shapes(model: Model, request: Request, result: ExecutionResult) -> ExecutionResult:
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    shapes = result.output_shapes or tuple(
        OutputShape(argument_shape(operand, argument))
        for operand, argument in zip(operands, request.outputs, strict=True)
    )
    first = shapes[0].dimensions
    wrong = OutputShape((*first[:-1], first[-1] + 1) if first else (1,))
    return dataclasses.replace(result, output_shapes=(wrong, *shapes[1:]))


class FaultyPreparedModel(PreparedModel):
    """A prepared model that does the fault around an execution of the inner one.

    Synchronous and asynchronous executions are concerned; burst, fenced and reusable ones are the inner driver's own.
    """

    def __init__(self, inner: PreparedModel | None, model: Model, device: FaultyDevice) -> None:
        self.inner = inner
        self._model = model
        self._device = device

    def _around(self, request: Request, run: Callable[[], ExecutionResult]) -> ExecutionResult:
        trigger = self._device.trigger
        fault = trigger.fault
        if fault == "stale":
            return self._stale(request, run)
        if not trigger.is_due(self._model):
            return run()
        if fault == "slow":
            time.sleep(trigger.seconds)
        if fault in BEFORE:
            BEFORE[fault]()
        if fault == "no_output":
            outputs = _Outputs(self._model, request)
            before = outputs.copy()
            result = run()
            outputs.write(before)
            return result
        return self._after(fault, request, run())

    def _after(self, fault: str, request: Request, result: ExecutionResult) -> ExecutionResult:
        if fault in ("wrong_value", "flaky"):
            _Outputs(self._model, request).damage()
        elif fault == "nan":
            _Outputs(self._model, request).put_nan()
        elif fault == "wrong_shape":
            return _wrong_shapes(self._model, request, result)
        elif fault == "lie_timing":
            return dataclasses.replace(result, timing=Timing(2_000_000, 1_000_000))
        elif fault in ("write_outside", "write_before"):
            views = _Outputs(self._model, request).views
            outside = -BYTES_OUTSIDE if fault == "write_before" else len(views[-1])
            _poke(views[-1], outside, BYTES_OUTSIDE)
        elif fault == "write_input":
            for _, argument in _present(request.inputs)[:1]:
                view = argument_bytes(request, argument)
                view[0] ^= 0xFF
        return result

    def _stale(self, request: Request, run: Callable[[], ExecutionResult]) -> ExecutionResult:
        result = run()
        outputs = _Outputs(self._model, request)
        mine = outputs.copy()
        if self._device.trigger.is_due(self._model):
            outputs.write(self._device.last_outputs)
        self._device.last_outputs = mine
        return result

    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        inner = self.inner
        if inner is None:
            return ExecutionResult()

        def run() -> ExecutionResult:
            try:
                return inner.execute_synchronously(request, config, deadline)
            except DriverError:
                if self._device.trigger.fault == "accept_all":
                    return ExecutionResult()
                raise

        return self._around(request, run)

    def execute(
        self,
        request: Request,
        callback: ExecutionCallback,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> None:
        def work() -> None:
            try:
                callback.notify(ErrorStatus.NONE, self.execute_synchronously(request, config, deadline))
            except DriverError as error:
                callback.notify(error.status, ExecutionResult(error.output_shapes))

        threading.Thread(target=work, daemon=True).start()

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Fence],
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
        duration: int | None = None,
    ) -> tuple[Fence | None, Callable[[], FencedResult]]:
        if self.inner is None:
            return super().execute_fenced(request, wait_for, config, deadline, duration)
        return self.inner.execute_fenced(request, wait_for, config, deadline, duration)

    def configure_execution_burst(self) -> Burst:
        if self.inner is None:
            return super().configure_execution_burst()
        return self.inner.configure_execution_burst()

    def create_reusable_execution(self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION) -> Execution:
        if self.inner is None:
            return super().create_reusable_execution(request, config)
        return self.inner.create_reusable_execution(request, config)

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()


class FaultyDevice(Device):
    """A device that passes everything on to the inner one, but for the fault."""

    def __init__(self, inner: Device, trigger: _Trigger) -> None:
        self._inner = inner
        self.trigger = trigger
        self.last_outputs: list[bytes] = []
        self.feature_level = inner.feature_level
        self.traits = inner.traits

    def get_status(self) -> DeviceStatus:
        return self._inner.get_status()

    def get_capabilities(self) -> Capabilities:
        return self._inner.get_capabilities()

    def get_type(self) -> DeviceType:
        return self._inner.get_type()

    def get_version_string(self) -> str:
        return f"{self._inner.get_version_string()} with fault {self.trigger.fault}"

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return self._inner.get_supported_extensions()

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return self._inner.get_number_of_cache_files_needed()

    def get_supported_operations(self, model: Model) -> list[bool]:
        fault, count = self.trigger.fault, len(model.main.operations)
        if fault not in _ANSWERS or not self.trigger.concerns(model):
            return self._inner.get_supported_operations(model)
        if fault == "refuse_all" and self.trigger.is_due(model):
            raise invalid("everything is refused")
        try:
            supported = self._inner.get_supported_operations(model)
        except DriverError:
            if fault == "accept_all":
                return [True] * count
            raise
        if fault == "refuse_prepare":
            return [True] * count
        if fault == "wrong_count" and self.trigger.is_due(model):
            return [*supported, True]
        return supported

    def explain_unsupported(self, model: Model) -> list[str | None]:
        return self._inner.explain_unsupported(model)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        fault = self.trigger.fault
        if fault == "refuse_all" and self.trigger.is_due(model):
            raise invalid("everything is refused")
        if fault == "refuse_prepare" and self.trigger.is_due(model):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "nothing is prepared")
        try:
            prepared: PreparedModel | None = self._inner.prepare_model(model, config)
        except DriverError:
            if fault != "accept_all" or not self.trigger.concerns(model):
                raise
            prepared = None
        return FaultyPreparedModel(prepared, model, self)

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        return self._inner.prepare_model_from_cache(model_cache, data_cache, token, deadline)

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        inner = [m.inner if isinstance(m, FaultyPreparedModel) and m.inner else m for m in prepared_models]
        return self._inner.allocate(desc, inner, input_roles, output_roles)


class FaultyAdapter(FaultyDevice, Adapter):
    """The same around an adapter."""

    @staticmethod
    def translate(model: Model, options: Mapping[str, str]) -> Translation:
        """The inner adapter's translation."""
        spec = _inner_spec(options)
        return loading.adapter_of(spec).translate(model, spec.options)


def _inner_spec(options: Mapping[str, str]) -> DriverSpec:
    name = options.get("inner", loading.REFERENCE)
    inner = {k[len(INNER) :]: v for k, v in options.items() if k.startswith(INNER)}
    return DriverSpec(name, name, inner)


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
    fault = options.get("fault", "")
    if fault not in FAULTS:
        raise UsageError(f"faulty: fault={fault!r} is unknown; choose {', '.join(FAULTS)}")
    code = options.get("operation")
    operation: int | None = None
    if code is not None:
        names = OperationType.__members__
        operation = int(names[code]) if code in names else int(_number("operation", code))
    after = int(_number("after", options.get("after", "0")))
    trigger = _Trigger(fault, after, operation, _number("seconds", options.get("seconds", "1")))
    inner = loading.load(_inner_spec(options))
    kind = FaultyAdapter if isinstance(inner, Adapter) else FaultyDevice
    return kind(inner, trigger)


DRIVER = make
