"""The smallest working driver: ADD of float32 tensors of one shape, on nnhal alone."""

from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import (
    DEFAULT_COMPILATION,
    DEFAULT_EXECUTION,
    CompilationConfig,
    Device,
    ExecutionConfig,
    ExecutionResult,
    PreparedModel,
)
from nnhal.errors import invalid
from nnhal.model import Model, Request
from nnhal.types import OperandType, OperationType


class MinimalDriver(Device):
    def get_supported_operations(self, model: Model) -> list[bool]:
        if not model.main.operations:
            raise invalid("a model needs at least one operation")
        return [
            operation.type == OperationType.ADD
            and model.main.operands[operation.inputs[0]].type == OperandType.TENSOR_FLOAT32
            for operation in model.main.operations
        ]

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        if not all(self.get_supported_operations(model)):
            raise invalid("only ADD of float32 is supported")
        return PreparedAdd(model)


class PreparedAdd(PreparedModel):
    def __init__(self, model: Model) -> None:
        self.model = model

    def execute_synchronously(
        self,
        request: Request,
        config: ExecutionConfig = DEFAULT_EXECUTION,
        deadline: int | None = None,
    ) -> ExecutionResult:
        first, second = read_inputs(self.model, request)[:2]
        assert first is not None
        assert second is not None
        return write_outputs(self.model, request, [first + second])


DRIVER = MinimalDriver
