"""Draws whole calls: a definition's `draw`, then results with shapes, fixed or fitted quantisation, and values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nnhal.operations import Signature
from nnhal.types import Array, OperandType
from opset.call import Argument, Call
from opset.definition import OperationDef
from opset.drawing import Draft, Scope
from opset.evaluate import run_call
from opset.pending import Producer
from opset.quantization import QUANTIZED, float32, limits
from opset.reach import reach_of
from opset.validation import scale_floor
from opset.values import Values


def draw_call(definition: OperationDef, signature: Signature, scope: Scope) -> Call:
    """A valid call of a signature, with values throughout; its new operands join the scope.

    Raises:
        UnsatisfiableError: the scope has nothing that fits and nothing new may be made.
    """
    draft = Draft(scope, signature, signature.count or len(signature.form.operands))
    definition.draw(draft)
    inputs = {name: draft.inputs[name] for name in signature.form.names(draft.count)}
    scope.settle(inputs)
    return complete(draft, Call(definition, signature, inputs, level=scope.level))


def complete(draft: Draft, drawn: Call) -> Call:
    """Gives a drawn call its results: shapes, fixed or fitted quantisation, and values.

    A free output scale is fitted to the result before activation, so that an activation that is left out shows.
    """
    if draft.results:
        return _computed(draft, drawn.holding(drawn.inputs, dict(draft.results)))
    definition, signature = drawn.definition, drawn.signature
    about = definition.info
    shapes = definition.infer(drawn)
    fixed = {**draft.wanted, **definition.quantization(drawn)}
    results: dict[str, Argument] = {}
    free: list[str] = []
    if signature.results is not None:
        shapes = {name: shapes[name] for name in about.result_names(signature.results)}
    for name, shape in shapes.items():
        base, kind = about.result_type(signature, name)
        scale, zero = fixed.get(name) or fixed.get(base) or (0.0, 0)
        scale = float32(scale) if scale else 0.0
        results[name] = Argument(kind, tuple(shape), scale, zero)
        if not scale and kind in QUANTIZED:
            free.append(name)
    call = drawn.holding(drawn.inputs, results)
    if free:
        with np.errstate(all="ignore"):
            linear = definition.kernel(Values(call, linear=True))
        floor = scale_floor(call)
        for name in free:
            scale, zero = _fit(draft, results[name].type, linear[name], floor)
            due = results[name]
            call = call.with_result(name, Argument(due.type, due.shape, scale, zero))
    return _computed(draft, call)


def _computed(draft: Draft, call: Call) -> Call:
    """The call with the values of its results, which join the scope."""
    if draft.scope.lazy and not any(0 in result.shape for result in call.results.values()):
        return _promised(draft, call)
    computed = run_call(call)
    for name, result in computed.items():
        due, known = call.results[name], call.results[name].holding(result.stored)
        if due.shape != known.shape and 0 in due.shape:  # the values decide a size
            known = replace(known, declared=due.shape)
        # What is drawn at random is nothing that another operation's result could be foretold from.
        call = call.with_result(name, known if call.definition.judging.sampling else draft.scope.add(known))
    return call


def _stored(call: Call) -> dict[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def _promised(draft: Draft, call: Call) -> Call:
    """The call with results whose values are computed when somebody asks for them."""
    producer = Producer(call, len(draft.scope.operands), _stored)
    results = {name: producer.result(name, reach_of(call, name)) for name in call.results}
    if call.definition.judging.sampling is None:
        results = {name: draft.scope.adopt(result) for name, result in results.items()}
    return call.holding(call.inputs, results)


def _fit(draft: Draft, kind: OperandType, linear: Array, floor: float) -> tuple[float, int]:
    """Scale and zero point for a result: about its range, at times a little less so that both ends saturate."""
    low, high = limits(kind)
    bottom, top = float(linear.min(initial=0.0)), float(linear.max(initial=0.0))
    if not (math.isfinite(bottom) and math.isfinite(top)):
        finite = linear[np.isfinite(linear)]
        bottom, top = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    span = max(top - bottom, 1e-3)
    cover = draft.choose((0.8, 0.97, 1.1, 1.6)) * draft.real(0.93, 1.07)
    scale = float32(span * cover / (high - low))
    if scale <= floor:
        scale = float32(floor * draft.real(1.05, 1.9))
    middle = (top + bottom) / 2
    zero = round((low + high) / 2 - middle / scale)
    return scale, min(max(zero, low), high)
