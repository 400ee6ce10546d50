"""The specification: one definition per operation, in one file per family."""

from __future__ import annotations

from opset import (
    activation,
    broadcast,
    casting,
    comparison,
    control_flow,
    convolution,
    detection,
    elementwise,
    lookup,
    lookup_hash,
    matmul,
    normalization,
    norms,
    padding,
    pooling,
    rearrangement,
    rearrangement_batch,
    recurrent,
    reduction,
    reshaping,
    resize,
    sampling,
    slicing,
    slicing_copies,
)
from opset.definition import OperationDef, check_definition

FAMILIES = (
    elementwise,
    activation,
    broadcast,
    comparison,
    convolution,
    pooling,
    matmul,
    normalization,
    norms,
    reduction,
    reshaping,
    rearrangement,
    rearrangement_batch,
    padding,
    slicing,
    slicing_copies,
    lookup,
    lookup_hash,
    resize,
    casting,
    recurrent,
    detection,
    control_flow,
    sampling,
)

OPSET: dict[int, OperationDef] = {}
for _family in FAMILIES:
    for _value in vars(_family).values():
        if isinstance(_value, OperationDef):
            check_definition(_value)
            if _value.code in OPSET and OPSET[_value.code] is not _value:
                raise ValueError(f"{_value.name} is defined twice")
            OPSET[_value.code] = _value

__all__ = ["OPSET"]
