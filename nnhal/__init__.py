"""The driver interface: what a driver imports, and all that it needs. Its main names are here, the rest in its modules.

`validate_model(model, level)` and `validate_request(request, model, level)` are for drivers to call; they and their
kin live in `nnhal.validate`.
"""

from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import (
    Adapter,
    Buffer,
    Burst,
    Capabilities,
    CompilationConfig,
    Device,
    Execution,
    ExecutionCallback,
    ExecutionConfig,
    ExecutionResult,
    Fence,
    PreparedModel,
    Traits,
)
from nnhal.errors import DriverError, UsageError, invalid
from nnhal.memory import BytesMemory, HardwareBuffer, MappedFile, Memory, SharedMemory
from nnhal.model import Model, Operand, Operation, Request, Subgraph
from nnhal.types import ErrorStatus, FeatureLevel, OperandLifeTime, OperandType, OperationType
from nnhal.validate import (
    Violation,
    request_violations,
    validate_compilation,
    validate_execution,
    validate_model,
    validate_preference,
    validate_priority,
    validate_request,
    validate_tokens,
    violations,
)

__all__ = [
    "Adapter",
    "Buffer",
    "Burst",
    "BytesMemory",
    "Capabilities",
    "CompilationConfig",
    "Device",
    "DriverError",
    "ErrorStatus",
    "Execution",
    "ExecutionCallback",
    "ExecutionConfig",
    "ExecutionResult",
    "FeatureLevel",
    "Fence",
    "HardwareBuffer",
    "MappedFile",
    "Memory",
    "Model",
    "Operand",
    "OperandLifeTime",
    "OperandType",
    "Operation",
    "OperationType",
    "PreparedModel",
    "Request",
    "SharedMemory",
    "Subgraph",
    "Traits",
    "UsageError",
    "Violation",
    "invalid",
    "read_inputs",
    "request_violations",
    "validate_compilation",
    "validate_execution",
    "validate_model",
    "validate_preference",
    "validate_priority",
    "validate_request",
    "validate_tokens",
    "violations",
    "write_outputs",
]
