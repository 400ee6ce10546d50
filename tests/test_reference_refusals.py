"""What the reference driver refuses while it executes: valid models of which nobody says what they give."""

from __future__ import annotations

import numpy as np
import pytest

from nnhal.errors import DriverError
from nnhal.memory import BytesMemory
from nnhal.model import DataLocation, Model, Operand, Operation, Request, RequestArgument, Subgraph
from nnhal.types import FL8, ErrorStatus, OperandLifeTime, OperandType, OperationType
from nnhal.validate import violations
from reference_driver import ReferenceDevice

LIFE = OperandLifeTime
F32, INTS, I32, BOOL = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.INT32, OperandType.BOOL


def reduced(code: OperationType) -> Model:
    """The largest or least of what a window leaves that is higher than its image: of nothing."""
    numbers = np.array([2, 1, 1, 1, 3, 0, 1, 2], np.int32)  # VALID, strides, width, height; no activation; two axes
    scalar = [Operand(I32, (), lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 4 * n, 4)) for n in range(6)]
    axes = Operand(INTS, (2,), lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 24, 8))
    keep = Operand(BOOL, (), lifetime=LIFE.CONSTANT_COPY, location=DataLocation(0, 32, 1))
    image = Operand(F32, (1, 1, 3, 2), lifetime=LIFE.SUBGRAPH_INPUT)
    between = Operand(F32, (0, 0, 0, 0), lifetime=LIFE.TEMPORARY_VARIABLE)
    result = Operand(F32, (0, 0), lifetime=LIFE.SUBGRAPH_OUTPUT)
    operations = (
        Operation(OperationType.MAX_POOL_2D, tuple(range(7)), (9,)),
        Operation(code, (9, 7, 8), (10,)),
    )
    main = Subgraph((image, *scalar, axes, keep, between, result), operations, (0,), (10,))
    return Model(main, operand_values=numbers.tobytes() + bytes(4))


@pytest.mark.parametrize("code", [OperationType.REDUCE_MIN, OperationType.REDUCE_MAX])
def test_nothing_has_no_least_element(code: OperationType) -> None:
    """Found by fuzzing: a driver answers with a result or a status, whatever its arithmetic makes of no elements."""
    model = reduced(code)
    assert not violations(model, FL8)
    request = Request(
        (RequestArgument(DataLocation(0, 0, 24)),),
        (RequestArgument(DataLocation(1, 0, 64)),),
        (BytesMemory(np.ones(6, np.float32).tobytes()), BytesMemory(bytes(64))),
    )
    with pytest.raises(DriverError) as caught:
        ReferenceDevice().prepare_model(model).execute_synchronously(request)
    assert caught.value.status == ErrorStatus.GENERAL_FAILURE
    assert f"{code.name} has no result for an operand without elements" in str(caught.value)
