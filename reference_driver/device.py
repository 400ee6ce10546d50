"""Device and PreparedModel on `opset`: capabilities, support, preparation, synchronous execution.

Options: `arithmetic=float64|float32`, `order=natural|reversed|blocked`. The float32 variants are correct but different:
they show whether the suite raises false alarms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from nnhal.capabilities import uniform
from nnhal.device import (
    DEFAULT_COMPILATION,
    Buffer,
    BufferDesc,
    BufferRole,
    CacheFilesNeeded,
    Capabilities,
    CompilationConfig,
    Device,
    Extension,
    PerformanceInfo,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, UsageError, invalid
from nnhal.model import Model, Operation, Subgraph
from nnhal.types import FL3, DeviceType, ErrorStatus, ExecutionMode, FeatureLevel, OperandLifeTime
from nnhal.validate import validate_compilation, validate_model
from opset import OPSET
from opset.values import Arithmetic
from reference_driver import caching, sample_extension
from reference_driver.buffers import Buffers
from reference_driver.execution import ReferencePreparedModel

VERSION = "0.1.0"
DTYPES: dict[str, type[np.float64] | type[np.float32]] = {"float64": np.float64, "float32": np.float32}
ORDERS = ("natural", "reversed", "blocked")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"driver option {name}={value} of reference is unknown; give one of {', '.join(allowed)}")
    return value


def _undefined_graphs(model: Model) -> set[int]:
    """Numbers of the referenced graphs in which an operation, at any depth, has no definition."""
    users: dict[int, list[int]] = {}
    for number, graph in enumerate(model.referenced):
        for operand in graph.operands:
            if operand.lifetime == OperandLifeTime.SUBGRAPH:
                users.setdefault(operand.location.offset, []).append(number)
    found = {n for n, graph in enumerate(model.referenced) if any(step.type not in OPSET for step in graph.operations)}
    left = list(found)
    while left:
        for user in users.get(left.pop(), ()):
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def _defined(graph: Subgraph, operation: Operation, undefined: set[int]) -> bool:
    """Whether an operation has a definition, and those of the graphs that it runs."""
    if operation.type not in OPSET:
        return False
    operands = [graph.operands[i] for i in operation.inputs] if undefined else []
    return not any(o.lifetime == OperandLifeTime.SUBGRAPH and o.location.offset in undefined for o in operands)


class ReferenceDevice(Device):
    """Computes by the specification, in NumPy."""

    traits = Traits(execution_modes=frozenset(ExecutionMode), caching=True, buffers=True)

    def __init__(self, arithmetic: str = "float64", order: str = "natural", level: str = "8") -> None:
        dtype = DTYPES[_one_of("arithmetic", arithmetic, tuple(DTYPES))]
        self.arithmetic = Arithmetic(dtype, _one_of("order", order, ORDERS))
        self._buffers = Buffers()
        self.feature_level = FeatureLevel(int(_one_of("level", level, tuple(str(int(v)) for v in FeatureLevel))))

    def get_type(self) -> DeviceType:
        return DeviceType.CPU

    def get_version_string(self) -> str:
        return f"nncts-reference-{VERSION}-{self.arithmetic.dtype.__name__}-{self.arithmetic.order}"

    def get_capabilities(self) -> Capabilities:
        return uniform(PerformanceInfo(1.0, 1.0), self.feature_level)

    def get_number_of_cache_files_needed(self) -> CacheFilesNeeded:
        return caching.FILES

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return (sample_extension.EXTENSION,) if self.feature_level >= FL3 else ()

    def get_supported_operations(self, model: Model) -> list[bool]:
        validate_model(model, self.feature_level)
        undefined = _undefined_graphs(model)
        return [
            sample_extension.knows(model, operation)
            or (_defined(model.main, operation, undefined) and not sample_extension.touches(model.main, operation))
            for operation in model.main.operations
        ]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        supported = self.get_supported_operations(model)
        return [None if known else "the specification here does not define it yet" for known in supported]

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        validate_model(model, self.feature_level)
        validate_compilation(config, self.feature_level)
        prepared = self._prepare(model, config.deadline)
        if config.model_cache or config.data_cache:
            caching.save(prepared.model, config.cache_token, config.model_cache, config.data_cache)
        return prepared

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[int],
        data_cache: Sequence[int],
        token: bytes,
        deadline: int | None = None,
    ) -> PreparedModel:
        model = caching.load(model_cache, data_cache, token)
        try:
            validate_model(model, self.feature_level)
        except DriverError as error:
            text = f"the model in the cache is none for this level: {error.message}"
            raise DriverError(ErrorStatus.GENERAL_FAILURE, text) from None
        return self._prepare(model, deadline)

    def _prepare(self, model: Model, deadline: int | None) -> ReferencePreparedModel:
        if deadline is not None and time.monotonic_ns() >= deadline:
            raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "the deadline for preparing is past")
        if not all(self.get_supported_operations(model)):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "the model has operations that are not supported")
        return ReferencePreparedModel(model, self.arithmetic, self.feature_level, self._buffers)

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[PreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> Buffer:
        mine = [m for m in prepared_models if isinstance(m, ReferencePreparedModel) and m.buffers is self._buffers]
        if len(mine) != len(prepared_models):
            raise invalid("a prepared model that is not this device's")
        return self._buffers.allocate(desc, mine, input_roles, output_roles)
