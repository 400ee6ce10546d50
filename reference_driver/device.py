"""Device and PreparedModel on `opset`: capabilities, support, preparation, synchronous execution.

Options: `arithmetic=float64|float32`, `order=natural|reversed|blocked`. The float32 variants are correct but different:
they show whether the suite raises false alarms.
"""

from __future__ import annotations

import time

import numpy as np

from nnhal.device import (
    DEFAULT_COMPILATION,
    Capabilities,
    CompilationConfig,
    Device,
    OperandPerformance,
    PerformanceInfo,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, UsageError
from nnhal.model import Model, Operation, Subgraph
from nnhal.types import DeviceType, ErrorStatus, ExecutionMode, FeatureLevel, OperandLifeTime, OperandType
from nnhal.validate import validate_compilation, validate_model
from opset import OPSET
from opset.values import Arithmetic
from reference_driver.execution import ReferencePreparedModel

VERSION = "0.1.0"
DTYPES: dict[str, type[np.float64] | type[np.float32]] = {"float64": np.float64, "float32": np.float32}
ORDERS = ("natural", "reversed", "blocked")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"driver option {name}={value} of reference is unknown; give one of {', '.join(allowed)}")
    return value


def _defined(model: Model, graph: Subgraph, operation: Operation) -> bool:
    """Whether an operation has a definition, and those of the graphs that it runs."""
    if operation.type not in OPSET:
        return False
    operands = [graph.operands[i] for i in operation.inputs]
    run = [model.referenced[o.location.offset] for o in operands if o.lifetime == OperandLifeTime.SUBGRAPH]
    return all(_defined(model, inner, step) for inner in run for step in inner.operations)


class ReferenceDevice(Device):
    """Computes by the specification. Slow, and right."""

    traits = Traits(execution_modes=frozenset(ExecutionMode))

    def __init__(self, arithmetic: str = "float64", order: str = "natural", level: str = "8") -> None:
        dtype = DTYPES[_one_of("arithmetic", arithmetic, tuple(DTYPES))]
        self.arithmetic = Arithmetic(dtype, _one_of("order", order, ORDERS))
        self.feature_level = FeatureLevel(int(_one_of("level", level, tuple(str(int(v)) for v in FeatureLevel))))

    def get_type(self) -> DeviceType:
        return DeviceType.CPU

    def get_version_string(self) -> str:
        return f"nncts-reference-{VERSION}-{self.arithmetic.dtype.__name__}-{self.arithmetic.order}"

    def get_capabilities(self) -> Capabilities:
        one = PerformanceInfo(1.0, 1.0)
        listed = tuple(
            OperandPerformance(t, one) for t in sorted(OperandType) if t not in (OperandType.SUBGRAPH,) and t < 10000
        )
        return Capabilities(listed, one, one, one, one)

    def get_supported_operations(self, model: Model) -> list[bool]:
        validate_model(model, self.feature_level)
        return [_defined(model, model.main, operation) for operation in model.main.operations]

    def explain_unsupported(self, model: Model) -> list[str | None]:
        supported = self.get_supported_operations(model)
        return [None if known else "the specification here does not define it yet" for known in supported]

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        validate_model(model, self.feature_level)
        validate_compilation(config, self.feature_level)
        if config.deadline is not None and time.monotonic_ns() >= config.deadline:
            raise DriverError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "the deadline for preparing is past")
        if not all(self.get_supported_operations(model)):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "the model has operations that are not supported")
        return ReferencePreparedModel(model, self.arithmetic, self.feature_level)
