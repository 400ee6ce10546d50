"""A right driver that starts quickly: ADD of float32 tensors with its activation, validated by nnhal alone."""

import numpy as np

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
from nnhal.model import Model, Request, constant_value
from nnhal.types import OperandType, OperationType
from nnhal.validate import validate_model

RANGES = ((-np.inf, np.inf), (0, np.inf), (-1, 1), (0, 6))


class LightDriver(Device):
    def get_supported_operations(self, model: Model) -> list[bool]:
        validate_model(model, self.feature_level)
        operands = model.main.operands
        return [
            operation.type == OperationType.ADD and operands[operation.inputs[0]].type == OperandType.TENSOR_FLOAT32
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
        main = self.model.main
        given = dict(zip(main.input_indexes, read_inputs(self.model, request), strict=True))
        a, b, activation = (
            given[index] if index in given else constant_value(self.model, main.operands[index])
            for index in main.operations[0].inputs
        )
        assert a is not None
        assert b is not None
        assert activation is not None
        total = np.clip(a + b, *RANGES[int(activation)]).astype(np.float32)
        return write_outputs(self.model, request, [total])


DRIVER = LightDriver
