"""LiteRT (the former TensorFlow Lite) as a driver: `translate` makes .tflite files, the rest runs them.

The runner needs NumPy and `ai_edge_litert` or `tflite_runtime`; the translation lives in `litert_translate`. What is
translated and what is refused stands in docs/litert.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from nnhal.buffers import read_inputs, write_outputs
from nnhal.capabilities import uniform
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    Adapter,
    Capabilities,
    CompilationConfig,
    ExecutionConfig,
    ExecutionResult,
    PerformanceInfo,
    PreparedModel,
    Timing,
    Traits,
)
from nnhal.errors import DriverError, UsageError
from nnhal.model import Model, Request, Translation
from nnhal.types import Array, DeviceType, ErrorStatus, OperationType

RUNTIMES = ("ai_edge_litert", "tflite_runtime")  # the first one that is there is taken
RESOLVERS = {
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",  # optimised kernels
    "reference": "BUILTIN_REF",  # plain kernels
    "xnnpack": "BUILTIN",  # XNNPACK where it takes an operator, optimised kernels where not
    "auto": "AUTO",  # whatever the runtime takes by itself
}
INTERPRETERS_KEPT = 8
# Against the reference driver, which is the CPU that a framework of ours falls back on: measured on convolutions,
# pools, ADD, SOFTMAX, FULLY_CONNECTED and TRANSPOSE of drawn sizes, mostly 0.02 to 0.1 of its time.
PERFORMANCE = PerformanceInfo(0.1, 0.1)
INSTALL = 'pip install -e ".[litert]"'
INSTALL_RUNTIME = "pip install ai-edge-litert"


class LiteRT(Adapter):
    """A LiteRT interpreter on the CPU.

    Args:
        resolver: which kernels; a key of RESOLVERS.
        threads: number of threads of an interpreter.
    """

    traits = Traits(dynamic_shapes=False, validates=False)

    def __init__(self, resolver: str = "builtin", threads: str = "1") -> None:
        if resolver not in RESOLVERS:
            raise UsageError(f"litert: resolver {resolver!r} is unknown; choose {', '.join(RESOLVERS)}")
        if not threads.isdecimal() or int(threads) < 1:
            raise UsageError(f"litert: threads={threads!r} is no number of threads; write threads=1 or more")
        self._runtime = _Runtime(resolver, int(threads))
        self._lock = threading.Lock()
        self._tried: OrderedDict[bytes, _Interpreter | str] = OrderedDict()

    @staticmethod
    def translate(model: Model, options: Mapping[str, str]) -> Translation:
        """The .tflite file of a model; the options decide nothing about it."""
        try:
            from drivers.litert_translate import translate
        except ModuleNotFoundError as error:
            if str(error.name).startswith(__package__ or "drivers"):
                raise
            raise UsageError(f"litert: module {error.name!r} is missing; run {INSTALL}") from None
        return translate(model)

    def get_type(self) -> DeviceType:
        return DeviceType.CPU

    def get_capabilities(self) -> Capabilities:
        return uniform(PERFORMANCE)

    def get_version_string(self) -> str:
        return f"{self._runtime.name} {self._runtime.version}"

    def get_supported_operations(self, model: Model) -> list[bool]:
        return [reason is None for reason in self.explain_unsupported(model)]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        translation = _translation(model)
        if translation.artifact is None:
            return list(translation.unsupported)
        tried = self._try(model, translation.artifact)
        reason = tried if isinstance(tried, str) else None
        return [reason] * len(model.main.operations)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        _check_deadline(config.deadline)
        translation = _translation(model)
        if translation.artifact is None:
            reason = next(reason for reason in translation.unsupported if reason is not None)
            raise DriverError(ErrorStatus.GENERAL_FAILURE, reason)
        tried = self._try(model, translation.artifact, take=True)
        if isinstance(tried, str):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, tried)
        return _Prepared(model, translation.artifact, self._runtime, tried)

    def _try(self, model: Model, artifact: bytes, *, take: bool = False) -> _Interpreter | str:
        """An interpreter that has been tried out, or what the runtime said instead.

        Args:
            model: what the file is the translation of.
            artifact: the file.
            take: the interpreter is the caller's alone; else it is kept, with the last few, for the next who asks.
        """
        with self._lock:
            tried = self._tried.pop(artifact, None)
        if tried is None:
            tried = self._runtime.attempt(model, artifact)
        if isinstance(tried, str) or not take:
            with self._lock:
                self._tried[artifact] = tried
                while len(self._tried) > INTERPRETERS_KEPT:
                    self._tried.popitem(last=False)
        return tried


def _translation(model: Model) -> Translation:
    if model.translation is None:
        raise DriverError(ErrorStatus.GENERAL_FAILURE, "this adapter runs translated models only")
    return model.translation


def _has(model: Model, code: OperationType) -> bool:
    graphs = (model.main, *model.referenced)
    return any(operation.type == code for graph in graphs for operation in graph.operations)


def _check_deadline(deadline: int | None) -> None:
    if deadline is not None and time.monotonic_ns() >= deadline:
        raise DriverError(ErrorStatus.MISSED_DEADLINE_TRANSIENT, "the deadline had passed at the start")


class _Runtime:
    """The installed interpreter package, with a choice of kernels and threads."""

    def __init__(self, resolver: str, threads: int) -> None:
        module = _import_runtime()
        self.name = module.__name__.split(".", maxsplit=1)[0]
        self.version = _version(self.name.replace("_", "-"))
        self._interpreter: Any = module.Interpreter
        self._resolver: Any = module.OpResolverType[RESOLVERS[resolver]]
        self._threads = threads

    def load(self, artifact: bytes) -> _Interpreter:
        """An interpreter that is ready to run.

        Raises:
            RuntimeError: the runtime refuses the file.
            ValueError: the same.
        """
        return _Interpreter(self._open(artifact))

    def _open(self, artifact: bytes) -> Any:
        return self._interpreter(
            model_content=artifact, num_threads=self._threads, experimental_op_resolver_type=self._resolver
        )

    def attempt(self, model: Model, artifact: bytes) -> _Interpreter | str:
        """The same, tried out on made-up values; or what the runtime said.

        Many kernels look at their types when they run and not before, so that only a run tells what is supported.
        A loop might not end on such values: where there is one, only what is beside it is run, and the graphs inside.

        Args:
            model: what the file is the translation of.
            artifact: the file.
        """
        try:
            interpreter = self._load_checked(artifact) if _has(model, OperationType.DEQUANTIZE) else self.load(artifact)
            self._try_graphs(artifact)
            return interpreter if _has(model, OperationType.WHILE) else self._try_out(interpreter, artifact)
        except (RuntimeError, ValueError) as error:
            return f"{self.name} {self.version}: {_message(error)}"

    def _load_checked(self, artifact: bytes) -> _Interpreter:
        """An interpreter of a file in which no operator gives its result another type than the file says.

        DEQUANTIZE does so. Who reads the result may take it for the type of the file, and read or write behind its end.

        Raises:
            RuntimeError: there is such an operator, or the runtime refuses the file.
        """
        interpreter = self._open(artifact)
        before = _types(interpreter)
        ready = _Interpreter(interpreter)
        after = _types(interpreter)
        for place, said in before.items():
            if after[place] != said:
                raise RuntimeError(f"an operator gives {after[place].name} where its result is {said.name}")
        return ready

    def _try_out(self, interpreter: _Interpreter, artifact: bytes) -> _Interpreter:
        """An interpreter that has run: on ones, over which no kernel should stumble; an index may have to be 0.

        Raises:
            RuntimeError: it does not run on either.
        """
        try:
            interpreter.try_out(1)
        except RuntimeError:
            interpreter = self.load(artifact)  # one that has failed may run, with results that it has not computed
            interpreter.try_out(0)
        return interpreter

    def _try_graphs(self, artifact: bytes) -> None:
        """Runs the graphs that operators run, whether these would run them or not, and what is beside a loop.

        Raises:
            RuntimeError: one does not run.
        """
        for name in self._open(artifact).get_signature_list():
            self._try_graph(artifact, name)

    def _try_graph(self, artifact: bytes, name: str) -> None:
        try:
            self._run_graph(artifact, name, 1)
        except RuntimeError:
            self._run_graph(artifact, name, 0)

    def _run_graph(self, artifact: bytes, name: str, number: int) -> None:
        graph = self._open(artifact).get_signature_runner(name)  # alone: graphs that hold it release its memory
        graph(**{key: _made_up(details, number) for key, details in graph.get_input_details().items()})


def _types(interpreter: Any) -> dict[tuple[int, int], np.dtype[Any]]:
    """Types of tensors by graph and index; those of the first graph alone where the runtime does not tell of others."""
    if hasattr(interpreter, "num_subgraphs"):
        graphs = [interpreter.get_tensor_details(number) for number in range(interpreter.num_subgraphs())]
    else:
        graphs = [interpreter.get_tensor_details()]
    return {(n, details["index"]): np.dtype(details["dtype"]) for n, graph in enumerate(graphs) for details in graph}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a nightly has another name
        return "of unknown version"


def _message(error: Exception) -> str:
    """What the runtime says, in one line and without node numbers, so that equal reasons read alike."""
    text = re.sub(r"\s*Node number \d+ \((\w+)\) (failed to \w+)\.?", r" (\1 \2)", str(error))
    return " ".join(text.split())


def _import_runtime() -> ModuleType:
    for name in RUNTIMES:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(f"{name}.interpreter")
    raise UsageError(f"litert: neither {' nor '.join(RUNTIMES)} is installed; run {INSTALL_RUNTIME}")


class _Interpreter:
    """An interpreter with its tensors allocated. Used by one thread at a time."""

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        interpreter.allocate_tensors()
        self._inputs = interpreter.get_input_details()
        self._outputs = [details["index"] for details in interpreter.get_output_details()]

    def run(self, values: Sequence[Array | None]) -> list[Array]:
        """Runs stored values through the model. Booleans, which may be any byte, become the runtime's own."""
        for details, value in zip(self._inputs, values, strict=True):
            if value is None:
                raise ValueError("an input is left out")
            stored = value != 0 if details["dtype"] is np.bool_ else value
            self._interpreter.set_tensor(details["index"], stored)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]

    def try_out(self, number: int) -> None:
        """A run on made-up values: that number everywhere.

        Raises:
            RuntimeError: it does not run.
        """
        self.run([_made_up(details, number) for details in self._inputs])


def _made_up(details: Mapping[str, Any], number: int) -> Array:
    """A value that is one number everywhere, a quantised one that many steps above the zero point."""
    dtype = np.dtype(details["dtype"])
    value = details["quantization"][1] + number
    if dtype.kind in "iu":
        value = min(value, np.iinfo(dtype).max)
    return np.full(details["shape"], value, dtype)


class _Prepared(PreparedModel):
    """A model with its interpreters: one, and another for each execution that would have to wait."""

    def __init__(self, model: Model, artifact: bytes, runtime: _Runtime, interpreter: _Interpreter) -> None:
        self._model = model
        self._artifact = artifact
        self._runtime = runtime
        self._idle = [interpreter]
        self._lock = threading.Lock()

    def execute_synchronously(
        self, request: Request, config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None
    ) -> ExecutionResult:
        start = time.monotonic_ns()
        _check_deadline(deadline)
        values = read_inputs(self._model, request)
        with self._lock:
            interpreter = self._idle.pop() if self._idle else None
        if interpreter is None:
            interpreter = self._runtime.load(self._artifact)
        began = time.monotonic_ns()
        try:
            results = interpreter.run(values)
        except (RuntimeError, ValueError) as error:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, _message(error)) from error
        finally:
            with self._lock:
                self._idle.append(interpreter)
        ended = time.monotonic_ns()
        timing = Timing(ended - began, ended - start) if config.measure_timing else Timing()
        return write_outputs(self._model, request, results, timing)

    def close(self) -> None:
        with self._lock:
            self._idle.clear()


DRIVER = LiteRT
