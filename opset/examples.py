"""Turns a definition's worked example into a call with the outputs that it states."""

from __future__ import annotations

import numpy as np

from nnhal.model import ChannelQuant
from nnhal.types import Array, OperandType, info
from opset.branch import Branch
from opset.call import Argument, Call, omitted
from opset.definition import Example, OperationDef
from opset.quantization import float32


def from_example(definition: OperationDef, example: Example) -> tuple[Call, dict[str, Array]]:
    """The call that an example describes, and its outputs in the stored form.

    A scale that is a tuple gives per-channel scales along dimension `zero_point`. An input that is None is omitted.
    Graphs, and operands of any type, are there as they are.
    """
    signature = definition.signature(example.signature)
    inputs: dict[str, Argument] = {}
    for name in signature.form.names(len(example.inputs)):
        value = example.inputs[name]
        if isinstance(value, (Argument, Branch)):
            inputs[name] = value if isinstance(value, Argument) else Argument(OperandType.SUBGRAPH, branch=value)
            continue
        kind = definition.info.type_of(signature, signature.form.operand(name))
        inputs[name] = _argument(kind, value, example.quantization.get(name))
    results: dict[str, Argument] = {}
    outputs: dict[str, Array] = {}
    for name in definition.info.result_names(len(example.outputs)):
        operand = next(r for r in definition.results if name == r.name or (r.variadic and name.startswith(r.name)))
        due = example.outputs[name]
        if isinstance(due, Argument):
            argument = due
        else:
            kind = definition.info.type_of(signature, operand)
            argument = _argument(kind, due, example.quantization.get(name))
        results[name] = argument
        if argument.value is not None:
            outputs[name] = argument.value
    return Call(definition, signature, inputs, results), outputs


def _argument(kind: OperandType, value: object, quantization: tuple[object, int] | None) -> Argument:
    if value is None:
        return omitted(kind)
    stored = np.asarray(value).astype(info(kind).dtype)
    scale, zero_point = quantization or (0.0, 0)
    if isinstance(scale, tuple):
        channel = ChannelQuant(zero_point, tuple(float32(s) for s in scale))
        return Argument(kind, stored.shape, channel=channel, value=stored)
    return Argument(kind, stored.shape, float32(float(scale)), zero_point, value=stored)  # type: ignore[arg-type]
