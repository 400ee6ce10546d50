"""Tensors without elements behind BOX_WITH_NMS_LIMIT, whose scores all stay below the threshold: chains of operations.

No request can hold such a tensor, and only an operation can make one. Features with a batch of 0 come from ROI_ALIGN
behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from harness.case import Origin, Step, TestCase
from harness.case_file import seal
from harness.expectations import Returns
from harness.make import describe, expected_outputs
from harness.steps import Action
from nnhal.model import Operation, is_tensor
from nnhal.operations import Signature
from nnhal.types import Array, FeatureLevel, OperandLifeTime, OperandType, OperationType
from opset import OPSET
from opset.building import GraphBuilder
from opset.call import Argument, Call, int32_tensor, scalar, with_shape
from opset.definition import F16, F32, I32, Q8, Q8S, ROW_NAMES, OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import run_call
from opset.quantization import QUANTIZED
from opset.source import SeededSource
from opset.validation import needed_level, violations

DRAWS = 20  # calls that are drawn in search of one that can take the place
Op = OperationType


@dataclass(frozen=True)
class Link:
    """An operation of a chain.

    Attributes:
        call: with the values and results that it has in the chain.
        sources: by input, which link and which of its results it takes.
    """

    call: Call
    sources: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def _inferred(call: Call) -> Call:
    """The call with results of the shapes that its operands give, without values."""
    shapes = call.definition.infer(call)
    results = {
        name: replace(a, shape=tuple(shapes[name]), value=None, key=None, declared=None)
        for name, a in call.results.items()
    }
    return replace(call, results=results)


def _settled(call: Call, quantization: Mapping[str, tuple[float, int]] | None = None) -> Call:
    """The call with results of the shapes and values that its operands give."""
    call = _inferred(call)
    for name, (scale, zero_point) in (quantization or {}).items():
        call = call.with_result(name, replace(call.results[name], scale=scale, zero_point=zero_point))
    for name, result in run_call(call).items():
        call = call.with_result(name, replace(call.results[name], value=result.stored, shape=result.stored.shape))
    return call


def _nothing_kept(row: str, words: str, scores: tuple[float, int] | None = None) -> Call:
    """BOX_WITH_NMS_LIMIT with a threshold above every score."""
    definition = OPSET[Op.BOX_WITH_NMS_LIMIT]
    call = draw_call(definition, definition.signature(row), Scope(SeededSource(words)))
    given = call["scores"]
    if scores is not None:
        given = replace(given, scale=scores[0], zero_point=scores[1])
        call = call.with_input("scores", given)
    assert given.value is not None
    steps = given.value.astype(np.float64)
    real = (steps - given.zero_point) * given.scale if given.type in QUANTIZED else steps
    high = scalar(call["score_threshold"].type, 1 + 2 * float(np.abs(real).max()))
    call = call.with_input("score_threshold", high)
    return _settled(call, definition.quantization(call))


def _no_regions(row: str, words: str, like: Argument, nchw: bool, boxes: Call) -> Call | None:
    """ROI_ALIGN without regions, whose result has the dimensions of an image but for the batch; None for none such."""
    definition = OPSET[Op.ROI_ALIGN]
    height, width, depth = (like.shape[i] for i in ((2, 3, 1) if nchw else (1, 2, 3)))
    call = draw_call(definition, definition.signature(row), Scope(SeededSource(words)))
    feature = call["feature"]
    shape = list(feature.shape)
    shape[3] = depth
    if call["nchw"].item():
        shape = [feature.shape[0], feature.shape[2], feature.shape[3], depth]
    call = with_shape(call, "feature", (shape[0], depth, shape[1], shape[2]) if nchw else tuple(shape))
    call = call.with_input("nchw", scalar(OperandType.BOOL, nchw))
    for name, size in (("out_height", height), ("out_width", width)):
        call = call.with_input(name, scalar(OperandType.INT32, size))
    call = call.with_input("rois", boxes["rois_out"]).with_input("batches", boxes["batches_out"])
    call = _settled(call, {"output": (like.scale, like.zero_point)})
    return None if violations(call) else call


# --- what an operation needs beside an input without elements ---------------------------------------------------------

Fit = Callable[[Call, Argument], Call]


def _alone(call: Call, nothing: Argument) -> Call:
    first = next(iter(call.inputs))
    return call.with_input(first, nothing)


def _pair(call: Call, nothing: Argument) -> Call:
    """The other operand is broadcast: it has one element, or one for each column."""
    call = with_shape(call, "b", (1,) if nothing.rank == 1 else nothing.shape[-1:])
    return call.with_input("a", nothing)


def _joined(call: Call, nothing: Argument) -> Call:
    """The others have elements: what comes out has those alone."""
    for number, name in enumerate(n for n in call.inputs if n not in ("axis", "inputs0")):
        call = with_shape(call, name, (number % 3 + 1, *nothing.shape[1:]))
    return call.with_input("inputs0", nothing).with_input("axis", scalar(OperandType.INT32, 0))


def _turned(call: Call, nothing: Argument) -> Call:
    if call.has("perm"):
        call = call.with_input("perm", int32_tensor(range(nothing.rank)[::-1]))
    return call.with_input("input", nothing)


def _cut(call: Call, nothing: Argument) -> Call:
    """All of the dimension that is 0, and all but the first element of the others."""
    begin = [0] + [min(1, size - 1) for size in nothing.shape[1:]]
    call = call.with_input("begin", int32_tensor(begin)).with_input("size", int32_tensor([-1] * nothing.rank))
    return call.with_input("input", nothing)


def _last_axis(call: Call, nothing: Argument) -> Call:
    if call.has("axis"):
        call = call.with_input("axis", scalar(OperandType.INT32, -1))
    return call.with_input("input", nothing)


def _connected(call: Call, nothing: Argument) -> Call:
    columns = int(np.prod(nothing.shape[1:]))
    call = with_shape(call, "weights", (call["weights"].shape[0], columns))
    return call.with_input("input", nothing)


# Which input is without elements, and whether it is an image whose batch alone may be 0.
ANY_RANK: dict[OperationType, Fit] = {
    **dict.fromkeys((Op.RELU, Op.RELU1, Op.RELU6, Op.TANH, Op.LOGISTIC, Op.HARD_SWISH), _alone),
    **dict.fromkeys((Op.DEQUANTIZE, Op.QUANTIZE), _alone),
    **dict.fromkeys((Op.ADD, Op.SUB, Op.MUL, Op.DIV), _pair),
    Op.CONCATENATION: _joined,
    Op.TRANSPOSE: _turned,
    Op.SLICE: _cut,
    Op.SOFTMAX: _last_axis,
    Op.FULLY_CONNECTED: _connected,
}
IMAGES: frozenset[OperationType] = frozenset(
    {
        Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D, Op.L2_POOL_2D, Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.TRANSPOSE_CONV_2D,
        Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR,
    }
)  # fmt: skip
REGIONS = frozenset({Op.ROI_ALIGN, Op.AXIS_ALIGNED_BBOX_TRANSFORM})
# Documents or public code say of these alone that they take tensors without elements.
ACCEPTING = frozenset(ANY_RANK) | IMAGES | REGIONS
SOURCES = {kind: ROW_NAMES[kind] for kind in (F32, F16, Q8, Q8S)}  # rows of the operations in front, by type


def _fitted(call: Call, fit: Fit, nothing: Argument) -> Call | None:
    """The call with an input without elements, where that is valid."""
    changed = fit(call, nothing)
    return None if violations(_inferred(changed)) else _settled(changed)


def _first(call: Call) -> tuple[str, Argument]:
    return next((n, a) for n, a in call.inputs.items() if is_tensor(a.type) and not a.omitted)


def _straight(call: Call, words: str) -> list[Link] | None:
    """BOX_WITH_NMS_LIMIT, then the operation."""
    name, taken = _first(call)
    fit = ANY_RANK[call.definition.code]
    if taken.type == I32:
        boxes, result = _nothing_kept("float32", words), "classes"
    elif taken.type in (F32, F16):
        boxes, result = _nothing_kept(SOURCES[taken.type], words), "rois_out"
    elif taken.type not in SOURCES:
        return None
    else:
        boxes, result = _nothing_kept(SOURCES[taken.type], words, (taken.scale, taken.zero_point)), "scores_out"
    last = _fitted(call, fit, boxes[result])
    return None if last is None else [Link(boxes), Link(last, {name: (0, result)})]


def _over_regions(call: Call, words: str) -> list[Link] | None:
    """BOX_WITH_NMS_LIMIT, ROI_ALIGN, then the operation."""
    name, taken = _first(call)
    if taken.type not in SOURCES:
        return None
    image = call.definition.code in IMAGES
    nchw = image and "nchw" in call.inputs and bool(call["nchw"].item())
    like = taken if image else replace(taken, shape=(0, 2, 3, 2))
    boxes = _nothing_kept(SOURCES[taken.type], words)
    regions = _no_regions(SOURCES[taken.type], words, like, nchw, boxes)
    if regions is None:
        return None
    last = _fitted(call, _alone if image else ANY_RANK[call.definition.code], regions["output"])
    sources = {"rois": (0, "rois_out"), "batches": (0, "batches_out")}
    return None if last is None else [Link(boxes), Link(regions, sources), Link(last, {name: (1, "output")})]


def _regions(call: Call, words: str) -> list[Link] | None:
    """An operation on regions behind BOX_WITH_NMS_LIMIT, which gives it none."""
    scores = call["deltas" if call.definition.code == Op.AXIS_ALIGNED_BBOX_TRANSFORM else "feature"].type
    boxes = _nothing_kept(SOURCES[scores], words)
    results = {"rois": "rois_out", "batches": "batches_out"}
    if "deltas" in call.inputs:
        if scores not in (F32, F16):
            return None  # no operation turns 8-bit scores into deltas of no boxes
        results["deltas"] = "rois_out"
    for name, result in results.items():
        call = call.with_input(name, boxes[result])
    call = _settled(call)
    return None if violations(call) else [Link(boxes), Link(call, {n: (0, r) for n, r in results.items()})]


def _chain(definition: OperationDef, signature: Signature, number: int, words: str) -> list[Link] | None:
    """A chain that ends in the operation; straight and over ROI_ALIGN in turn, where both are possible."""
    for attempt in range(DRAWS):
        seed = f"{words}/{attempt}"
        call = draw_call(definition, signature, Scope(SeededSource(seed)))
        ways = [_regions] if definition.code in REGIONS else [_over_regions]
        if definition.code in ANY_RANK:
            ways = [_straight, _over_regions] if number % 2 == 0 else [_over_regions, _straight]
        for way in ways:
            links = way(call, seed)
            if links is not None:
                return links
    return None


# --- models and cases -------------------------------------------------------------------------------------------------


def _lifetime(name: str, argument: Argument, constants: Collection[str]) -> OperandLifeTime:
    if argument.omitted:
        return OperandLifeTime.NO_VALUE
    constant = name in constants or not is_tensor(argument.type)
    return OperandLifeTime.CONSTANT_COPY if constant else OperandLifeTime.SUBGRAPH_INPUT


def _case(links: list[Link], named: Origin, constant: bool) -> TestCase:
    """The chain as a model, with what each result that nothing takes should be."""
    graph, values, outputs = GraphBuilder(), list[Array](), []
    places: dict[tuple[int, str], int] = {}
    taken = {source for link in links for source in link.sources.values()}
    for number, link in enumerate(links):
        call = link.call
        fixed = [n for n in call.inputs if (constant and number) or call.signature.form.operand(n).parameter]
        inputs = []
        for name, argument in call.inputs.items():
            if name in link.sources:
                inputs.append(places[link.sources[name]])
                continue
            lifetime = _lifetime(name, argument, fixed)
            inputs.append(graph.operand(argument, lifetime))
            if lifetime == OperandLifeTime.SUBGRAPH_INPUT:
                assert argument.value is not None
                values.append(argument.value)
        for name, argument in call.results.items():
            inner = (number, name) in taken
            lifetime = OperandLifeTime.TEMPORARY_VARIABLE if inner else OperandLifeTime.SUBGRAPH_OUTPUT
            places[number, name] = graph.operand(_undeclared(argument, call), lifetime)
        graph.operations.append(
            Operation(int(call.definition.code), tuple(inputs), tuple(places[number, n] for n in call.results))
        )
        due = {d.name: d for d in expected_outputs(call)}
        outputs += [due[name] for name in call.results if (number, name) not in taken]
    steps = (
        Step(Action.QUERY),
        Step(Action.PREPARE),
        Step(Action.EXECUTE, 0, Returns(tuple(outputs)), inputs=tuple(values)),
    )
    detail = " -> ".join(f"{link.call.definition.name}({describe(link.call)})" for link in links)
    level = FeatureLevel(max(needed_level(link.call) for link in links))
    return seal(TestCase(replace(named, detail=detail), (graph.model(),), steps, level))


def _undeclared(argument: Argument, call: Call) -> Argument:
    """A result whose first dimension is left open where the values decide it: it may have elements all the same."""
    open_ = call.definition.code == Op.CONCATENATION and 0 not in argument.shape
    return replace(argument, declared=(0, *argument.shape[1:])) if open_ else argument


def zero_sized_cases(profile_count: int, seed: int) -> Iterator[TestCase]:
    """Chains for each operation and signature that takes tensors without elements and that they can reach.

    Args:
        profile_count: chains of each signature.
        seed: of the draws.
    """
    for definition in OPSET.values():
        if definition.code not in ACCEPTING:
            continue
        for signature in definition.signatures:
            named = Origin(definition.name, signature.id.replace("/", "."), "zero_sized", 0)
            for number in range(profile_count):
                words = f"{seed}/{named.batch}/{number}"
                links = _chain(definition, signature, number, words)
                if links is None:
                    break  # its types do not come from BOX_WITH_NMS_LIMIT
                yield _case(links, replace(named, number=number, seed=words), constant=number % 4 < 2)
