"""Brings operands of a graph to the shape, type and quantisation that an operation asks for, by operations that move.

Some operations ask for so much that what a graph has seldom fits: an image of so many channels, a state of a fixed
scale, boxes with corners in order. What is there is then repeated, cut, reshaped, quantised or dequantised, which
keeps its range; or, where values themselves must be of a kind, woven in: joined to what the graph has and cut off
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from nnhal.operations import Signature
from nnhal.types import OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.call import Argument, Call, int32_tensor, scalar
from opset.drawing import Draft, Scope
from opset.drawn import complete
from opset.pending import later
from opset.quantization import FLOATS, QUANTIZED, quantize

MOST_DIMENSIONS = 4  # that the operations that move values take
F32 = OperandType.TENSOR_FLOAT32
Wanted = tuple[float, int]


class UnfitError(Exception):
    """No operation of the level does it, or none that there may be."""


@dataclass
class Adapter:
    """Applies operations in a scope, one by one.

    Attributes:
        scope: where operands are.
        calls: what was applied.
        cut: keys of operands of which nobody reads all: they are to be seen at the graph's outputs.
    """

    scope: Scope
    calls: list[Call] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)

    def apply(self, code: Op, wanted: Wanted | None = None, **inputs: Argument) -> Argument:
        """The first result of an operation.

        Args:
            code: the operation.
            wanted: scale and zero point of a free result.
            inputs: by name; those that the form has no place for are left out.

        Raises:
            UnfitError: it takes no such operands at the scope's level.
        """
        if self.scope.only and code not in self.scope.only:
            raise UnfitError
        definition = OPSET[code]
        signature = _signature(code, tuple(inputs), tuple([a.type for a in inputs.values()]), self.scope.level)
        if signature is None:
            raise UnfitError
        count = signature.count or len(inputs)
        draft = Draft(self.scope, signature, count)
        if wanted is not None:
            draft.wanted["output"] = wanted
        names = signature.form.names(count)
        call = Call(definition, signature, {n: inputs[n] for n in names}, level=self.scope.level)
        call = complete(draft, call)
        self.calls.append(call)
        return next(iter(call.results.values()))

    def reshaped(self, source: Argument, shape: tuple[int, ...]) -> Argument:
        """The elements of an operand in another shape."""
        if source.shape == shape:
            return source
        return self.apply(Op.RESHAPE, input=source, shape=int32_tensor(shape))

    def fitted(self, source: Argument, shape: tuple[int, ...]) -> Argument:
        """The elements of an operand in a shape, repeated or cut off where their numbers differ."""
        due, size = math.prod(shape), math.prod(source.shape)
        if due == size:
            return self.reshaped(source, shape)
        flat = self.reshaped(source, (size,))
        if size < due:
            flat = self.apply(Op.TILE, input=flat, multiples=int32_tensor([-(-due // size)]))
        if flat.shape != (due,):
            flat = self.cut_off(flat, (due,))
        return self.reshaped(flat, shape)

    def cut_off(self, source: Argument, shape: tuple[int, ...]) -> Argument:
        """The first elements of an operand in each dimension."""
        if source.key is not None:
            self.cut.add(source.key)
        return self.apply(Op.SLICE, input=source, begin=int32_tensor([0] * len(shape)), size=int32_tensor(shape))


_SIGNATURES: dict[tuple[object, ...], Signature | None] = {}


def _signature(code: Op, names: tuple[str, ...], kinds: tuple[OperandType, ...], level: int) -> Signature | None:
    """The signature that takes operands of these names and types at a level, or None."""
    key = (code, names, kinds, level)
    if key not in _SIGNATURES:
        due = dict(zip(names, kinds, strict=True))
        _SIGNATURES[key] = next((s for s in OPSET[code].signatures if s.since <= level and _takes(s, due)), None)
    return _SIGNATURES[key]


def _takes(signature: Signature, kinds: Mapping[str, OperandType]) -> bool:
    if signature.results is not None:
        return False
    names = signature.form.names(signature.count or len(kinds))
    if set(names) != set(kinds):
        return False
    for name in names:
        operand = signature.form.operand(name)
        due = operand.type if operand.type is not None else signature.row.types.get(operand.name)
        if due != kinds[name]:
            return False
    return True


def supply(scope: Scope, sources: Sequence[Argument], kind: OperandType, shape: tuple[int, ...],
           fits: Callable[[Argument], bool], wanted: Wanted | None) -> tuple[Argument, Adapter] | None:  # fmt: skip
    """An operand of a type and shape made out of one of the sources, with the operations that make it; None if none.

    Args:
        scope: where the operations' operands go.
        sources: operands of the graph, the best first.
        kind: type of what is made.
        shape: its dimensions.
        fits: a further demand on it.
        wanted: its scale and zero point, where they must be certain ones.
    """
    mark = len(scope.operands)
    if not 1 <= len(shape) <= MOST_DIMENSIONS:
        return None
    for source in (s for s in sources if 1 <= s.rank <= MOST_DIMENSIONS):
        converted = _outlook(source, kind, wanted)
        if converted is None or converted.value is None or not converted.value.size:
            continue
        outlook = later(converted, partial(np.resize, converted.value, shape))
        outlook.__dict__.update(shape=shape, declared=None)
        outlook.__dict__.pop("reach", None)
        if not fits(outlook):
            continue
        adapter = Adapter(scope)
        try:
            made = adapter.fitted(source, shape)
            if made.type != kind or (wanted is not None and (made.scale, made.zero_point) != wanted):
                quantised = kind in QUANTIZED
                made = adapter.apply(Op.QUANTIZE if quantised else Op.DEQUANTIZE, wanted or _own(converted), input=made)
        except UnfitError:
            del scope.operands[mark:]
            continue
        if made.type == kind and made.shape == shape and fits(made):
            return made, adapter
        del scope.operands[mark:]
    return None


def _own(argument: Argument) -> Wanted | None:
    return (argument.scale, argument.zero_point) if argument.type in QUANTIZED else None


def _outlook(source: Argument, kind: OperandType, wanted: Wanted | None) -> Argument | None:
    """What a source becomes as a type, still in its own shape; None where no operation does that."""
    if source.channel is not None or source.value is None:
        return None
    own = (source.scale, source.zero_point)
    if source.type == kind and (wanted is None or wanted == own):
        return source
    if source.type == F32 and kind in (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED):
        if wanted is None:
            return None
        value = quantize(source.value, kind, *wanted)
        return Argument(kind, source.shape, *wanted, value=value)
    if kind == F32 and source.type in (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED):
        real = (source.value.astype(np.float64) - source.zero_point) * source.scale
        return Argument(kind, source.shape, value=real.astype(np.float32))
    return None


WOVEN = FLOATS | {OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED}


def weave(scope: Scope, sources: Sequence[Argument], dues: Sequence[Argument]) -> Adapter | None:
    """Operations that give one of a call's new inputs, its values kept, out of an operand of the graph.

    A new operand with those values is joined to the graph's and cut off again, so that the call hangs on the graph.

    Args:
        scope: where the operations' operands go.
        sources: operands of the graph, the best first.
        dues: the inputs that are new, with values, the best first.

    Returns:
        What was applied; None where no input can be had so.
    """
    mark = len(scope.operands)
    for due in dues:
        if due.type not in WOVEN or due.value is None or not due.value.size or not 1 <= due.rank <= MOST_DIMENSIONS:
            continue
        fitting = [s for s in sources if s.type == due.type and 1 <= s.rank <= MOST_DIMENSIONS and 0 not in s.shape]
        for source in fitting:
            adapter = Adapter(scope)
            own = scope.add(replace(due, key=None))
            try:
                other = adapter.fitted(source, due.shape)
                both = adapter.apply(
                    Op.CONCATENATION, _own(due), inputs0=own, inputs1=other, axis=scalar(OperandType.INT32, 0)
                )
                cut = adapter.cut_off(both, due.shape)
            except UnfitError:
                del scope.operands[mark:]
                continue
            # What is cut off is the operand itself.
            last = adapter.calls[-1]
            if cut.value is None or not np.array_equal(cut.value, due.value) or _own(cut) != _own(due):
                del scope.operands[mark:]
                continue
            adapter.calls[-1] = last.with_result("output", replace(cut, key=due.key))
            return adapter
    return None
