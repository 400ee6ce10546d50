"""Quantised tensors: what their integers stand for, and operators between conversions as one quantised operation.

A file says scale and zero point where it converts: at DequantizeLinear, QuantizeLinear and the QLinear operators. The
contract says them with the tensor. `scan` therefore looks through the nodes before any is translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from importers.assembling import Kind
from importers.onnx_file.activations import CLIPS, FUSIONS, clip_bounds
from importers.onnx_file.elementwise import Translate
from importers.onnx_file.graph import Graph, Node, Refusal
from importers.onnx_file.work import BYTES, PLAIN, Quantization, Tensor, Work
from nnhal.types import Array, FusedActivation, OperationType

MICROSOFT = "com.microsoft"
# Operators that hand the numbers of their first input on: what is known of one side holds for the other.
KEEPING = frozenset({
    "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "MaxPool", "Identity", "Slice", "Split", "Concat",
    "Gather", "Pad", "DepthToSpace", "SpaceToDepth", "Resize", "Expand", "Tile"})  # fmt: skip
# Operators that exist on quantised tensors; whether scales and types allow it the operation says.
QUANTISABLE = KEEPING | {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "Softmax", "Sigmoid", "Tanh", "Relu", "Clip", "ReduceMean", "ReduceMax", "ReduceMin", "HardSwish", "Max", "Min",
    "Where", "PRelu"}  # fmt: skip
# Those whose operation takes a fused activation.
ACTIVATED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "MaxPool", "AveragePool"})
# QLinear operators: the operator of real numbers, the places of (tensor, scale, zero point), those of the result's
# scale and zero point, and the places of what else is taken over.
QLINEAR: Mapping[tuple[str, str], tuple[str, tuple[int, ...], int, tuple[int, ...]]] = {
    ("", "QLinearConv"): ("Conv", (0, 3), 6, (8,)),
    ("", "QLinearMatMul"): ("MatMul", (0, 3), 6, ()),
    (MICROSOFT, "QLinearAdd"): ("Add", (0, 3), 6, ()),
    (MICROSOFT, "QLinearMul"): ("Mul", (0, 3), 6, ()),
    (MICROSOFT, "QLinearSigmoid"): ("Sigmoid", (0,), 3, ()),
    (MICROSOFT, "QLinearLeakyRelu"): ("LeakyRelu", (0,), 3, ()),
    (MICROSOFT, "QLinearSoftmax"): ("Softmax", (0,), 3, ()),
    (MICROSOFT, "QLinearAveragePool"): ("AveragePool", (0,), 3, ()),
    (MICROSOFT, "QLinearGlobalAveragePool"): ("GlobalAveragePool", (0,), 3, ()),
    (MICROSOFT, "QLinearConcat"): ("Concat", (), 0, ()),
}
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")
FLOAT = np.dtype(np.float32)
STANDARD = 13  # opset whose meaning the operators of real numbers have in QLinear ones


def places_of(node: Node) -> tuple[tuple[int, ...], int]:
    """Places of a QLinear operator's tensors, each before its scale and zero point, and of the result's scale."""
    if node.operator == "QLinearConcat":
        return tuple(range(2, len(node.inputs) - 2, 3)), 0
    _, tensors, result, _ = QLINEAR[node.domain, node.operator]
    return tensors, result


def quantization_of(scale: Array | None, zero: Array | None, axis: int, rank: int | None) -> Quantization:
    """Scale and zero point of a file.

    Raises:
        Refusal: they are not known, or are none.
    """
    if scale is None or scale.dtype.kind != "f" or scale.ndim > 1 or not scale.size:
        raise Refusal("a scale that is not known before the model runs, or one for each block")
    if not (np.isfinite(scale).all() and (scale > 0).all()) or (zero is not None and zero.size != scale.size):
        raise Refusal("a scale that is no positive number, or not as many zero points")
    scales = tuple(float(one) for one in scale.reshape(-1).astype(np.float32))
    zeros = (0,) * len(scales) if zero is None else tuple(int(one) for one in zero.reshape(-1))
    if scale.ndim == 0 or scale.size == 1:
        return Quantization(scales, zeros)
    return Quantization(scales, zeros, axis % rank if rank else axis)


# --- before translation -----------------------------------------------------------------------------------------------


def scan(graph: Graph) -> dict[str, Quantization]:
    """What the integers of tensors stand for, as far as nodes say it; of two answers the first counts."""
    values = {name: value for name, value in graph.constants.items() if isinstance(value, np.ndarray)}
    for node in graph.nodes:
        value = node.attributes.get("value")
        if node.operator == "Constant" and isinstance(value, np.ndarray) and node.outputs:
            values[node.outputs[0]] = value
    found: dict[str, Quantization] = {}

    def say(name: str, node: Node, place: int, axis: int) -> None:
        if name and place < len(node.inputs) and name not in found:
            zero = node.inputs[place + 1] if node.has_input(place + 1) else ""
            rank = values[name].ndim if name in values else None
            try:
                found[name] = quantization_of(values.get(node.inputs[place]), values.get(zero), axis, rank)
            except Refusal:
                return  # said when the node is translated

    for node in graph.nodes:
        if node.operator in CONVERSIONS and node.inputs and node.outputs:
            name = node.inputs[0] if node.operator == "DequantizeLinear" else node.outputs[0]
            axis = node.attributes.get("axis", 1)
            say(name, node, 1, axis if isinstance(axis, int) else 1)
        elif (node.domain, node.operator) in QLINEAR and node.outputs:
            tensors, result = places_of(node)
            for place in tensors:
                if place < len(node.inputs):
                    say(node.inputs[place], node, place + 1, 0 if node.operator == "QLinearConv" else 1)
            say(node.outputs[0], node, result, 1)
    for nodes in (graph.nodes, graph.nodes[::-1], graph.nodes):
        for node in nodes:
            if node.operator in KEEPING:
                _hand_on(node, found)
    return found


def _hand_on(node: Node, found: dict[str, Quantization]) -> None:
    sources = node.inputs if node.operator == "Concat" else node.inputs[:1]
    names = [name for name in (*sources, *node.outputs) if name]
    known = next((found[name] for name in names if name in found and found[name].axis is None), None)
    if known is not None:
        for name in names:
            found.setdefault(name, known)


# --- conversions ------------------------------------------------------------------------------------------------------


def _own(work: Work, node: Node, rank: int) -> Quantization:
    """Scale and zero point of a conversion.

    Raises:
        Refusal: they are not known, or there is one for each block of elements.
    """
    if node.whole("block_size", 0):
        raise Refusal("a scale for each block of elements")
    zero = work.known(node, 2, "the zero point") if node.has_input(2) else None
    return quantization_of(work.known(node, 1, "the scale"), zero, node.whole("axis", 1), rank)


def _spread(numbers: Sequence[float], quantization: Quantization, rank: int) -> Array:
    """Numbers for each channel in a shape that broadcasts to a tensor."""
    array = np.array(numbers, np.float64)
    if quantization.axis is None:
        return array.reshape(())
    if not quantization.axis < rank:
        raise Refusal(f"scales along axis {quantization.axis} of {rank} dimensions")
    return array.reshape([-1 if n == quantization.axis else 1 for n in range(rank)])


def _real(work: Work, tensor: Tensor, quantization: Quantization, dtype: np.dtype[np.generic]) -> Array | None:
    """What a known tensor stands for; None where it is not known."""
    if tensor.value is None:
        return None
    rank = tensor.value.ndim
    work.budget.spend(tensor.value.size)
    scales, zeros = (_spread(n, quantization, rank) for n in (quantization.scales, quantization.zero_points))
    if quantization.axis is not None and scales.size != tensor.shape[quantization.axis]:
        raise Refusal(f"{scales.size} scales for {tensor.shape[quantization.axis]} channels")
    return np.asarray((tensor.value.astype(np.float64) - zeros) * scales).astype(dtype)


def _dequantize(work: Work, node: Node) -> None:
    """Nothing yet: the result is remembered as the real value of its input, until somebody needs it as a tensor."""
    tensor = work.input(node, 0)
    own = _own(work, node, len(tensor.shape))
    dtype = work.input(node, 1).dtype
    if dtype.name not in PLAIN:
        raise Refusal(f"to {dtype}")
    name = node.outputs[0]
    value = _real(work, tensor, own, dtype)
    said = work.quantization.setdefault(tensor.name, own)
    if said == own and (tensor.dtype.name in BYTES or value is not None):
        work.write(name, Tensor(name, dtype, tensor.shape, value, source=tensor))
    elif value is not None:
        work.computed(name, value)
    elif tensor.dtype == np.int32 and own.axis is None:
        real = work.emit(OperationType.CAST, (work.operand_as_is(tensor),), Kind(PLAIN[dtype.name]))
        scaled = work.emit(OperationType.MUL, (real, work.reals(real, own.scales[0]), work.activation()))
        work.give(node, scaled, tensor.shape, dtype)
    else:
        raise Refusal(f"{tensor.name!r} of type {tensor.dtype} has several scales, or another one elsewhere")


def _quantize(work: Work, node: Node) -> None:
    tensor = work.input(node, 0)
    own = _own(work, node, len(tensor.shape))
    coded = {2: "uint8", 3: "int8"}.get(node.whole("output_dtype", 0), "uint8")
    dtype = work.input(node, 2).dtype if node.has_input(2) else np.dtype(coded)
    name = node.outputs[0]
    if dtype.name not in BYTES:
        raise Refusal(f"to {dtype}")
    if work.quantization.setdefault(name, own) != own:
        raise Refusal(f"{name!r} has another scale or zero point elsewhere")
    if tensor.source is not None and tensor.source.dtype == dtype and (
        work.quantization.get(tensor.source.name) == own
    ):  # fmt: skip
        work.same(node, tensor.source)
    elif tensor.value is not None:
        work.budget.spend(tensor.value.size)
        scales, zeros = (_spread(numbers, own, tensor.value.ndim) for numbers in (own.scales, own.zero_points))
        limits = np.iinfo(dtype)
        stored = np.clip(np.rint(tensor.value / scales.astype(np.float32)) + zeros, limits.min, limits.max)
        work.computed(name, stored.astype(dtype))
    else:
        target = work.kind(Tensor(name, dtype, tensor.shape))
        work.give(node, work.emit(OperationType.QUANTIZE, (work.operand_as_is(tensor),), target), tensor.shape, dtype)


# --- operators between conversions ------------------------------------------------------------------------------------


def rewired(work: Work, node: Node, readers: Mapping[str, Sequence[Node]], kept: frozenset[str]) -> tuple[
    Node, list[str]
] | None:  # fmt: skip
    """A node between conversions as one on quantised tensors, and the tensors that then exist no more.

    Args:
        work: the graph.
        node: of real numbers.
        readers: nodes that read each tensor.
        kept: tensors that somebody else needs: outputs of the graph.

    Returns:
        None where it is not between conversions.
    """
    if node.domain or node.operator not in QUANTISABLE or not node.inputs:
        return None
    inputs, sources = [], 0
    for name in node.inputs:
        tensor = work.tensors.get(name) if name else None
        if tensor is not None and tensor.source is not None:
            inputs.append(tensor.source.name)
            sources += 1
            continue
        if tensor is not None and tensor.value is None and tensor.dtype.kind == "f":
            return None
        inputs.append(name)
    if not sources:
        return None
    outputs: list[str] = []
    gone: list[str] = []
    activation = FusedActivation.NONE
    for name in node.outputs:
        found = _conversion(work, node, name, readers, kept, gone) if name else ("", FusedActivation.NONE)
        if found is None:
            return None
        outputs.append(found[0])
        activation = found[1]
    changed = replace(node, inputs=tuple(inputs), outputs=tuple(outputs), activation=activation, rewired=True)
    return changed, gone


def _conversion(work: Work, node: Node, name: str, readers: Mapping[str, Sequence[Node]], kept: frozenset[str],
                gone: list[str]) -> tuple[str, FusedActivation] | None:  # fmt: skip
    """The quantised tensor that a result becomes, after an activation perhaps."""
    activation = FusedActivation.NONE
    for _ in range(2):
        users = readers.get(name, ())
        if len(users) != 1 or name in kept or not users[0].outputs or users[0].inputs[0] != name:
            return None
        user = users[0]
        gone.append(name)
        if user.operator == "QuantizeLinear":
            quantization = work.quantization.get(user.outputs[0])
            return (user.outputs[0], activation) if quantization and quantization.axis is None else None
        if activation or node.operator not in ACTIVATED or user.domain or user.operator not in ("Relu", "Clip"):
            return None
        try:
            bounds = (0.0, np.inf) if user.operator == "Relu" else clip_bounds(work, user)
        except Refusal:
            return None
        if bounds not in CLIPS:
            return None
        activation = FUSIONS[CLIPS[bounds]]
        name = user.outputs[0]
    return None


# --- QLinear operators ------------------------------------------------------------------------------------------------


def plain_of(work: Work, node: Node) -> Node:
    """The operator of real numbers that a QLinear one is on quantised tensors.

    Raises:
        Refusal: its channels are last, or a scale is not known or another one elsewhere.
    """
    if node.whole("channels_last", 0):
        raise Refusal("channels_last")
    operator, _, _, others = QLINEAR[node.domain, node.operator]
    tensors, result = places_of(node)
    axis = 0 if operator == "Conv" else 1
    for name, place in (*((node.inputs[n], n + 1) for n in tensors if n < len(node.inputs)), (node.outputs[0], result)):
        zero = work.known(node, place + 1, "the zero point") if node.has_input(place + 1) else None
        rank = len(work.tensor(name).shape) if name != node.outputs[0] else None
        own = quantization_of(work.known(node, place, "the scale"), zero, axis, rank)
        if name != node.outputs[0] and work.tensor(name).dtype.name not in BYTES:
            raise Refusal(f"{name!r} is of type {work.tensor(name).dtype}")
        if work.quantization.get(name) != own:
            raise Refusal(f"{name!r} has another scale or zero point elsewhere")
    inputs = [node.inputs[place] for place in (*tensors, *others) if place < len(node.inputs)]
    version = STANDARD if node.domain else node.version
    return replace(node, operator=operator, domain="", inputs=tuple(inputs), version=version, rewired=True)


def by_real_numbers(work: Work, node: Node, translate: Translate) -> None:
    """A QLinear operator that no quantised operation is: conversions around the operator of real numbers."""
    names = []
    for place, name in enumerate(node.inputs):
        tensor = work.tensor(name)
        real = f"{name}, real"
        if tensor.dtype.name in BYTES:
            value = _real(work, tensor, work.quantization[name], FLOAT) if name in work.quantization else None
            work.write(real, Tensor(real, FLOAT, tensor.shape, value, source=tensor))
        elif place and tensor.value is not None:
            unit = [work.quantization[one] for one in node.inputs[:2]]  # of the image and the filter
            scales = np.float64(unit[0].scales[0]) * np.array(unit[1].scales, np.float64)
            work.computed(real, (tensor.value.astype(np.float64) * scales).astype(np.float32))
        names.append(real)
    result = f"{node.outputs[0]}, real"
    translate(work, replace(node, inputs=tuple(names), outputs=(result,), rewired=False))
    tensor = work.tensor(result)
    dtype = work.tensor(node.inputs[0]).dtype
    target = work.kind(Tensor(node.outputs[0], dtype, tensor.shape))
    stored = work.emit(OperationType.QUANTIZE, (work.operand_as_is(tensor),), target)
    work.give(node, stored, tensor.shape, dtype)


QUANTIZED_OPERATORS: Mapping[str, Translate] = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
