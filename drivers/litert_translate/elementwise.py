"""Operations on one element at a time: functions, activations, arithmetic, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drivers.litert_translate.node import TENSOR_TYPES, Node, UntranslatableError
from nnhal.types import OperandType, OperationType

Translator = Callable[[Node], None]


def _plain(operator: str, options: str | None = None) -> Translator:
    """An operator that takes the tensors as they are and has no options that matter."""

    def write(node: Node) -> None:
        node.add(operator, node.all_inputs(), node.all_results(), options)

    return write


def _moving(operator: str, options: str | None = None) -> Translator:
    """An operator that compares or moves stored values and has no eye for scales."""

    def write(node: Node) -> None:
        if len(node.quantizations()) > 1:
            raise UntranslatableError(
                f"LiteRT's {operator} moves stored values unchanged, NNAPI rescales each side to the output's scale"
            )
        node.add(operator, node.all_inputs(), node.all_results(), options)

    return write


def _arithmetic(operator: str) -> Translator:
    """Two tensors with broadcasting and a fused activation."""

    def write(node: Node) -> None:
        activation = node.fused()
        options = f"{operator.capitalize()}Options"
        node.add(operator, node.tensors("a", "b"), node.all_results(), options, FusedActivationFunction=activation)

    return write


def _divide(node: Node) -> None:
    """DIV; of integers NNAPI rounds down, which is FLOOR_DIV."""
    if node["a"].type == OperandType.TENSOR_INT32:
        node.add("FLOOR_DIV", node.tensors("a", "b"), node.all_results())
    else:
        _arithmetic("DIV")(node)


def _elu(node: Node) -> None:
    """ELU."""
    if node.real("alpha") != 1.0:
        raise UntranslatableError("LiteRT's ELU has no alpha other than 1")
    node.add("ELU", node.tensors("input"), node.all_results())


def _cast(node: Node) -> None:
    """CAST: of stored values, scales play no part."""
    if (node["input"].type, node["output"].type) == (OperandType.TENSOR_INT32, OperandType.TENSOR_QUANT8_ASYMM):
        raise UntranslatableError("LiteRT's CAST of int32 to uint8 drops the high bits, NNAPI clamps to 0..255")
    kinds = [TENSOR_TYPES[node[name].type] for name in ("input", "output")]
    node.add(
        "CAST", node.tensors("input"), node.all_results(), "CastOptions", InDataType=kinds[0], OutDataType=kinds[1]
    )


TRANSLATORS: Mapping[int, Translator] = {
    OperationType.ABS: _plain("ABS"),
    OperationType.EXP: _plain("EXP"),
    OperationType.FLOOR: _plain("FLOOR"),
    OperationType.LOG: _plain("LOG"),
    OperationType.NEG: _plain("NEG"),
    OperationType.RSQRT: _plain("RSQRT"),
    OperationType.SIN: _plain("SIN"),
    OperationType.SQRT: _plain("SQRT"),
    OperationType.LOGICAL_NOT: _plain("LOGICAL_NOT"),
    OperationType.RELU: _plain("RELU"),
    OperationType.RELU1: _plain("RELU_N1_TO_1"),
    OperationType.RELU6: _plain("RELU6"),
    OperationType.TANH: _plain("TANH"),
    OperationType.LOGISTIC: _plain("LOGISTIC"),
    OperationType.ELU: _elu,
    OperationType.HARD_SWISH: _plain("HARD_SWISH"),
    OperationType.PRELU: _plain("PRELU"),
    OperationType.ADD: _arithmetic("ADD"),
    OperationType.SUB: _arithmetic("SUB"),
    OperationType.MUL: _arithmetic("MUL"),
    OperationType.DIV: _divide,
    OperationType.MAXIMUM: _moving("MAXIMUM"),
    OperationType.MINIMUM: _moving("MINIMUM"),
    OperationType.POW: _plain("POW"),
    OperationType.EQUAL: _plain("EQUAL"),
    OperationType.NOT_EQUAL: _plain("NOT_EQUAL"),
    OperationType.GREATER: _plain("GREATER"),
    OperationType.GREATER_EQUAL: _plain("GREATER_EQUAL"),
    OperationType.LESS: _plain("LESS"),
    OperationType.LESS_EQUAL: _plain("LESS_EQUAL"),
    OperationType.LOGICAL_AND: _plain("LOGICAL_AND"),
    OperationType.LOGICAL_OR: _plain("LOGICAL_OR"),
    OperationType.SELECT: _moving("SELECT"),
    OperationType.QUANTIZE: _plain("QUANTIZE"),
    OperationType.DEQUANTIZE: _plain("DEQUANTIZE"),
    OperationType.CAST: _cast,
}
