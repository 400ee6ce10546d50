"""All operators that are translated, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from importers.onnx_file.activations import ACTIVATIONS
from importers.onnx_file.borders import BORDERS
from importers.onnx_file.convolutions import CONVOLUTIONS
from importers.onnx_file.elementwise import ELEMENTWISE, Translate
from importers.onnx_file.graph import Node, Refusal
from importers.onnx_file.moving import MOVING
from importers.onnx_file.norms import NORMS
from importers.onnx_file.pools import POOLS
from importers.onnx_file.products import PRODUCTS
from importers.onnx_file.quantized import MICROSOFT, QUANTIZED_OPERATORS
from importers.onnx_file.recurrent import RECURRENT
from importers.onnx_file.reductions import REDUCTIONS
from importers.onnx_file.resizing import RESIZING
from importers.onnx_file.work import Work
from nnhal.types import FusedActivation


def _fused_convolution(work: Work, node: Node) -> None:
    """A Conv with an activation that the operation fuses too."""
    name = node.text("activation", "")
    if name != "Relu" or node.has_input(3):
        raise Refusal(f"fused with {name or 'a sum'}; only Relu is")
    CONVOLUTIONS["Conv"](work, replace(node, activation=FusedActivation.RELU))


STANDARD = {**ELEMENTWISE, **ACTIVATIONS, **CONVOLUTIONS, **POOLS, **PRODUCTS, **NORMS, **MOVING, **BORDERS,
            **REDUCTIONS, **RESIZING, **RECURRENT, **QUANTIZED_OPERATORS}  # fmt: skip
TRANSLATORS: Mapping[tuple[str, str], Translate] = {
    **{("", operator): translate for operator, translate in STANDARD.items()},
    **{(MICROSOFT, operator): translate for operator, translate in QUANTIZED_OPERATORS.items()},
    (MICROSOFT, "FusedConv"): _fused_convolution,
    (MICROSOFT, "QuickGelu"): ACTIVATIONS["Swish"],
}
NO_ERF = "no operation computes the error function"
TO_EVEN = "no operation rounds halves to even"
UNKNOWN_SIZE = "the size of the result hangs on values"
INTEGERS = "no operation gives the 32-bit sums of 8-bit products"
REASONS: Mapping[str, str] = {
    "Erf": NO_ERF,
    "Round": TO_EVEN,
    "NonZero": UNKNOWN_SIZE,
    "NonMaxSuppression": f"{UNKNOWN_SIZE}, and no operation gives the indexes of boxes",
    "Compress": UNKNOWN_SIZE,
    "Unique": UNKNOWN_SIZE,
    "ConvInteger": INTEGERS,
    "MatMulInteger": INTEGERS,
    "DynamicQuantizeLinear": "scale and zero point would be known only when the model runs",
    "CumSum": "no operation sums along an axis step by step",
    "Scan": "only Loop is taken apart",
}
# Operators without a translator whose result has the shape and type of the first input.
SHAPE_KEEPING = frozenset({"Erf", "Round", "CumSum", "Gelu", "Tan", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh",
                           "Acosh", "Atanh", "Shrink", "Hardmax", "BitwiseNot", "Trilu", "ScatterElements", "ScatterND",
                           "ReverseSequence"})  # fmt: skip


def reason_for(node: Node) -> str:
    """Why an operator is not translated at all."""
    kind = f"{node.domain}.{node.operator}" if node.domain else node.operator
    return REASONS.get(node.operator, f"no operations express {kind}")
