"""What a service does with one client's requests: calls the driver, keeps the objects it gave out, says how it went."""

# mypy: disable-error-code="type-abstract"
# An abstract class is a good argument for isinstance, which is all that these are used for.

from __future__ import annotations

import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from nnhal.device import (
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
)
from nnhal.errors import DriverError, UsageError
from nnhal.fences import SharedFence
from nnhal.memory import Memory
from nnhal.model import Model, Request, Translation
from nnhal.parts import Json, Parts
from nnhal.types import DeviceStatus, DeviceType, ErrorStatus
from nnhal.wire import decode, encode

T = TypeVar("T")
MODELS_KEPT = 16
LONGEST_TRACE = 16384

Answer = tuple[Json, Parts]
Method = Callable[[list[Json], Parts, Parts], Json]


class _Again(Exception):
    """The client named a model that is not kept any more."""


class _Released(Exception):
    """The client uses what it has released, as may happen to one of several threads."""


class _Misused(Exception):
    """The request itself is malformed: the client's fault, not the driver's."""


class _Foreign(PreparedModel):
    """Stands for a prepared model that is not this driver's."""

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        raise DriverError(ErrorStatus.INVALID_ARGUMENT, "this prepared model is another driver's")


class _Callback(ExecutionCallback):
    """Passes every notification of a driver on to the client, also the second one."""

    def __init__(self, send: Callable[[Json, Parts], None], number: int) -> None:
        super().__init__()
        self._send = send
        self._number = number

    def notify(self, status: ErrorStatus, result: ExecutionResult) -> None:
        parts = Parts()
        try:
            body: Json = [int(ErrorStatus(status)), encode(ExecutionResult, result, parts)]
        except (TypeError, ValueError, AttributeError) as error:
            text = f"the callback was notified wrongly: {error}"
            self._send([0, "unclean", self._number, type(error).__name__, text], Parts())
        else:
            self._send([0, "notify", self._number, body], parts)
        super().notify(status, result)


def unclean(error: BaseException) -> list[Json]:
    """The answer for an exception that no driver may raise."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return ["unclean", type(error).__name__, str(error)[:4096], trace[-LONGEST_TRACE:]]


def _is(kind: type[T], value: object, method: str) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{method} answered {type(value).__name__}, {kind.__name__} is due")
    return value


class Session:
    """One client's view of the driver.

    Args:
        device: the driver; None in a process that only translates.
        translate: whose `translate` to offer.
        options: for `translate`.
    """

    def __init__(self, device: Device | None, translate: type[Adapter] | None, options: Mapping[str, str]) -> None:
        self._device = device
        self._adapter = translate
        self._options = options
        self._objects: dict[int, object] = {}
        self._models: OrderedDict[int, Model] = OrderedDict()
        self._number = 0
        self._lock = threading.Lock()
        self.send: Callable[[Json, Parts], None] = lambda body, parts: None
        names = [name for name in dir(self) if name.startswith("do_")]
        self._methods: dict[str, Method] = {name[3:]: getattr(self, name) for name in names}

    def answer(self, body: Json, beside: Parts) -> Answer | None:
        """Does what a request asks and gives the answer to send; None where none is due."""
        number: Json = None
        parts = Parts()
        try:
            if not isinstance(body, list) or len(body) != 4 or not isinstance(body[2], list):
                raise _Misused("a request has the wrong form")
            number, name, released = body[0], body[1], body[3]
            arguments: list[Json] = body[2]
            for handle in released if isinstance(released, list) else []:
                self._release(handle)
            method = self._methods.get(name) if isinstance(name, str) else None
            if method is None:
                raise _Misused(f"unknown method {name!r}")
            return [number, "ok", method(arguments, beside, parts)], parts
        except _Again:
            return [number, "again"], Parts()
        except _Released as error:
            return [number, "released", str(error)], Parts()
        except _Misused as error:
            return [number, "misused", str(error)], Parts()
        except UsageError as error:
            return [number, "usage", str(error)], Parts()
        except DriverError as error:
            return self._driver_error(number, error)
        except BaseException as error:  # everything else a driver raises is its unclean error
            return [number, *unclean(error)], Parts()
        finally:
            beside.close()

    def _driver_error(self, number: Json, error: DriverError) -> Answer:
        parts = Parts()
        try:
            shapes = encode(tuple[OutputShape, ...], error.output_shapes, parts)
            return [number, "error", int(error.status), str(error.message), shapes], parts
        except Exception as problem:  # a driver may have put anything into its error
            return [number, *unclean(problem)], Parts()

    def end(self) -> None:
        """Lets go of everything that the client held."""
        with self._lock:
            handles = sorted(self._objects, reverse=True)
        for handle in handles:
            try:
                self._release(handle)
            except BaseException:  # nobody is left to be told: into the log  # noqa: PERF203
                traceback.print_exc()
        self._models.clear()

    def _keep(self, value: object) -> int:
        with self._lock:
            self._number += 1
            self._objects[self._number] = value
            return self._number

    def _release(self, handle: Json) -> None:
        with self._lock:
            kept = self._objects.pop(handle, None) if isinstance(handle, int) else None
        if isinstance(kept, (PreparedModel, Buffer, Burst)):
            kept.close()

    def _object(self, kind: type[T], handle: Json) -> T:
        found = self._objects.get(handle) if isinstance(handle, int) else None
        if found is None and isinstance(handle, int) and 0 < handle <= self._number:
            raise _Released(f"{kind.__name__} {handle} was released")
        if not isinstance(found, kind):
            raise _Misused(f"{handle!r} names no {kind.__name__}")
        return found

    def _read(self, kind: type[T], data: Json, parts: Parts) -> T:
        try:
            return decode(kind, data, parts)
        except ValueError as error:
            raise _Misused(str(error)) from None

    def _deadline(self, data: Json) -> int | None:
        if data is not None and type(data) is not int:
            raise _Misused(f"{data!r} is no deadline")
        return data

    def _model(self, data: Json, parts: Parts) -> Model:
        if not isinstance(data, list) or not data or not isinstance(data[0], int):
            raise _Misused("a model has the wrong form")
        key = data[0]
        found = self._read(Model, data[1], parts) if len(data) == 2 else None
        with self._lock:
            if found is None:
                found = self._models.get(key)
            if found is None:
                raise _Again
            self._models[key] = found
            self._models.move_to_end(key)
            while len(self._models) > MODELS_KEPT:
                self._models.popitem(last=False)
        return found

    @property
    def _driver(self) -> Device:
        if self._device is None:
            raise _Misused("this process only translates")
        return self._device

    # ---- Device

    def do_get_status(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        return encode(DeviceStatus, self._driver.get_status(), out)

    def do_get_capabilities(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        return encode(Capabilities, self._driver.get_capabilities(), out)

    def do_get_type(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        return encode(DeviceType, self._driver.get_type(), out)

    def do_get_version_string(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        return encode(str, self._driver.get_version_string(), out)

    def do_get_supported_extensions(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        extensions = self._driver.get_supported_extensions()
        return encode(tuple[Extension, ...], extensions, out)

    def do_get_number_of_cache_files_needed(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        return encode(CacheFilesNeeded, self._driver.get_number_of_cache_files_needed(), out)

    def do_get_supported_operations(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        supported = self._driver.get_supported_operations(self._model(a[0], beside))
        return encode(list[bool], supported, out)

    def do_explain_unsupported(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        reasons = self._driver.explain_unsupported(self._model(a[0], beside))
        return encode(list[str | None], reasons, out)

    def do_translate(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        if self._adapter is None:
            raise _Misused("this process does not translate")
        made = self._adapter.translate(self._model(a[0], beside), self._options)
        return encode(Translation, made, out)

    def do_prepare_model(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        model = self._model(a[0], beside)
        config = self._read(CompilationConfig, a[1], beside)
        prepared = self._driver.prepare_model(model, config)
        return self._keep(_is(PreparedModel, prepared, "prepare_model"))

    def do_prepare_model_from_cache(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        files = self._read(CompilationConfig, a[0], beside)
        prepared = self._driver.prepare_model_from_cache(
            files.model_cache, files.data_cache, files.cache_token, files.deadline
        )
        return self._keep(_is(PreparedModel, prepared, "prepare_model_from_cache"))

    def do_allocate(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        desc = self._read(BufferDesc, a[0], beside)
        models = [
            _Foreign() if handle is None else self._object(PreparedModel, handle)
            for handle in self._read(list[int | None], a[1], beside)
        ]
        inputs = self._read(list[BufferRole], a[2], beside)
        outputs = self._read(list[BufferRole], a[3], beside)
        buffer = _is(Buffer, self._driver.allocate(desc, models, inputs, outputs), "allocate")
        return [self._keep(buffer), encode(int, buffer.token, out)]

    # ---- Buffer

    def do_copy_to(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        self._object(Buffer, a[0]).copy_to(self._read(Memory, a[1], beside))
        return None

    def do_copy_from(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        source = self._read(Memory, a[1], beside)
        dimensions = self._read(tuple[int, ...], a[2], beside)
        self._object(Buffer, a[0]).copy_from(source, dimensions)
        return None

    # ---- PreparedModel

    def do_execute_synchronously(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        prepared = self._object(PreparedModel, a[0])
        request = self._read(Request, a[1], beside)
        config = self._read(ExecutionConfig, a[2], beside)
        result = prepared.execute_synchronously(request, config, self._deadline(a[3]))
        return encode(ExecutionResult, result, out)

    def do_execute(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        prepared = self._object(PreparedModel, a[0])
        request = self._read(Request, a[1], beside)
        config = self._read(ExecutionConfig, a[2], beside)
        callback = _Callback(self.send, self._read(int, a[4], beside))
        prepared.execute(request, callback, config, self._deadline(a[3]))
        return None

    def do_execute_fenced(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        prepared = self._object(PreparedModel, a[0])
        request = self._read(Request, a[1], beside)
        config = self._read(ExecutionConfig, a[2], beside)
        fences = self._read(list[SharedFence], a[4], beside)
        answer = prepared.execute_fenced(request, fences, config, self._deadline(a[3]), self._deadline(a[5]))
        return self._fenced(answer, out)

    def do_configure_execution_burst(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        burst = self._object(PreparedModel, a[0]).configure_execution_burst()
        return self._keep(_is(Burst, burst, "configure_execution_burst"))

    def do_create_reusable_execution(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        prepared = self._object(PreparedModel, a[0])
        request = self._read(Request, a[1], beside)
        config = self._read(ExecutionConfig, a[2], beside)
        execution = prepared.create_reusable_execution(request, config)
        return self._keep(_is(Execution, execution, "create_reusable_execution"))

    # ---- Execution, Burst, fences

    def do_run(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        execution = self._object(Execution, a[0])
        result = execution.execute_synchronously(self._deadline(a[1]))
        return encode(ExecutionResult, result, out)

    def do_run_fenced(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        execution = self._object(Execution, a[0])
        fences = self._read(list[SharedFence], a[1], beside)
        answer = execution.execute_fenced(fences, self._deadline(a[2]), self._deadline(a[3]))
        return self._fenced(answer, out)

    def do_burst_execute(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        burst = self._object(Burst, a[0])
        request = self._read(Request, a[1], beside)
        tokens = self._read(list[int], a[2], beside)
        config = self._read(ExecutionConfig, a[3], beside)
        result = burst.execute_synchronously(request, tokens, config, self._deadline(a[4]))
        return encode(ExecutionResult, result, out)

    def do_release_memory_resource(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        token = self._read(int, a[1], beside)
        self._object(Burst, a[0]).release_memory_resource(token)
        return None

    def do_fenced_info(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        information = self._object(_Information, a[0])
        return encode(FencedResult, information.ask(), out)

    def do_release(self, a: list[Json], beside: Parts, out: Parts) -> Json:
        self._release(a[0])
        return None

    def _fenced(self, answer: tuple[Fence | None, Callable[[], FencedResult]], out: Parts) -> Json:
        if not isinstance(answer, tuple) or len(answer) != 2 or not callable(answer[1]):
            raise TypeError("execute_fenced answered something else than a fence and a callable")
        fence, ask = answer
        if fence is None:
            return [self._keep(_Information(ask, None)), None]
        _is(Fence, fence, "execute_fenced")
        shared = fence if isinstance(fence, SharedFence) else _share(fence)
        return [self._keep(_Information(ask, shared)), encode(SharedFence, shared, out)]


class _Information:
    """What a fenced execution can be asked afterwards; keeps the fence alive meanwhile."""

    def __init__(self, ask: Callable[[], FencedResult], fence: SharedFence | None) -> None:
        self.ask = ask
        self.fence = fence


def _share(fence: Fence) -> SharedFence:
    """A fence that crosses processes and ends as the driver's own does."""
    shared = SharedFence.create()

    def follow() -> None:
        status = ErrorStatus.NONE
        try:
            if not fence.wait(None):
                status = ErrorStatus.GENERAL_FAILURE
        except DriverError as error:
            status = error.status
        except BaseException:  # the driver's fault, told by the fence's status and the log
            traceback.print_exc(file=sys.stderr)
            status = ErrorStatus.GENERAL_FAILURE
        shared.signal(status)

    threading.Thread(target=follow, daemon=True).start()
    return shared
