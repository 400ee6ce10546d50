"""Draws valid calls: a scope of operands that exist, and a draft in which a definition puts a call together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from nnhal.model import ChannelQuant
from nnhal.operations import Signature
from nnhal.types import FL8, Array, FeatureLevel, OperandType, OperationType, info
from opset.call import Argument, int32_tensor, omitted, scalar
from opset.pending import Pending, later
from opset.quantization import FLOATS, QUANTIZED, float32, limits
from opset.source import Source, choice

T = TypeVar("T")

COMMON = (-2.0, 2.0)  # where new real values lie, unless the definition asks for another range
WIDE = 12.0  # where those of an operand of the scope may lie then
COMMON_RANK = 4  # most operations take no more dimensions
SMALL = 6  # a drawn dimension's largest size, unless the definition asks for another
LARGEST_SEED = 2**62
LARGEST_TENSOR = 4096  # elements; keeps a case cheap
ODD = 5  # one draw in so many holds numbers that arithmetic would spoil, where values are only moved
# Stored bits by bytes of the type: -0; the smallest and largest subnormals; the largest numbers; infinities; quiet NaN
# of both signs with and without payload.
ODD_BITS: dict[int, dict[str, tuple[int, ...]]] = {
    2: {
        "zero": (0x8000,),
        "subnormal": (0x0001, 0x8001, 0x03FF, 0x83FF),
        "large": (0x7BFF, 0xFBFF),
        "infinite": (0x7C00, 0xFC00),
        "nan": (0x7E00, 0xFE00, 0x7E35, 0xFFFF),
    },
    4: {
        "zero": (0x80000000,),
        "subnormal": (0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF),
        "large": (0x7F7FFFFF, 0xFF7FFFFF),
        "infinite": (0x7F800000, 0xFF800000),
        "nan": (0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF),
    },
}
FINITE_KINDS = 3  # of those of ODD_BITS, from the first on


class UnsatisfiableError(Exception):
    """A draw ran dry: nothing fits. Try the next one."""


@dataclass
class Scope:
    """The operands of a graph under way. Empty for a single operation.

    Attributes:
        reuse: how often, in percent, an operand that fits is taken instead of a new one.
        level: the level that calls are drawn for.
        stretch: by how much drawn dimensions are larger or smaller than usual.
        largest: most elements of a drawn tensor.
        lazy: values are made when somebody asks for them, so that a graph can be drawn without being evaluated.
        only: the operations that there may be; all when empty.
    """

    source: Source
    level: FeatureLevel = FL8
    reuse: int = 0
    stretch: float = 1.0
    largest: int = LARGEST_TENSOR
    lazy: bool = False
    only: frozenset[OperationType] = frozenset()
    operands: list[Argument] = field(default_factory=list)

    def add(self, argument: Argument) -> Argument:
        """Takes an operand in; it can be handed out from now on."""
        known = argument.keyed(len(self.operands))
        self.operands.append(known)
        return known

    def adopt(self, argument: Argument) -> Argument:
        """Takes in an operand that nobody else holds yet, as it is."""
        argument.__dict__["key"] = len(self.operands)
        self.operands.append(argument)
        return argument

    def take(self, argument: Argument) -> None:
        """Called when an operand of the scope becomes an input of a call."""

    def settle(self, inputs: Mapping[str, Argument]) -> None:
        """Called when a call has its inputs, before anything is computed.

        Args:
            inputs: of the call, by name.

        Raises:
            UnsatisfiableError: they will not do.
        """

    def find(self, fits: Callable[[Argument], bool], empty: bool = False,
             kind: OperandType | None = None) -> Argument | None:  # fmt: skip
        """An operand that fits, or None when there is none or the choice falls on a new one.

        Args:
            fits: the demand.
            empty: operands without elements, which some operations give, will do too.
            kind: only operands of this type are asked whether they fit.
        """
        if not self.operands or self.source.integer(0, 99) >= self.reuse:
            return None
        found = [
            argument
            for argument in self.operands
            if (kind is None or argument.type == kind) and (empty or 0 not in argument.shape) and fits(argument)
        ]
        return choice(self.source, found) if found else None

    def supply(self, kind: OperandType, shape: tuple[int, ...], fits: Callable[[Argument], bool],
               scale: float | None, zero_point: int | None) -> Argument | None:  # fmt: skip
        """An operand that is made to fit out of those of the graph, or None where a new one is to be made.

        Args:
            kind: its type.
            shape: its dimensions.
            fits: the demand on it.
            scale: the one that it must have, if any.
            zero_point: the same.
        """
        del kind, shape, fits, scale, zero_point
        return None


@dataclass
class Draft:
    """A call being drawn: a definition's `draw` fills in inputs by name, in any order.

    Names that the form or the number of inputs does not have are dropped, so that one `draw` serves every form.

    Attributes:
        wanted: scale and zero point by result, for a free result that should not be fitted.
        results: all results with types, shapes and quantisation, where no rule on the inputs gives them.
    """

    scope: Scope
    signature: Signature
    count: int
    inputs: dict[str, Argument] = field(default_factory=dict)
    wanted: dict[str, tuple[float, int]] = field(default_factory=dict)
    results: dict[str, Argument] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """Where choices come from."""
        return self.scope.source

    @property
    def alone(self) -> bool:
        """Whether nothing follows: only then may results be infinite."""
        return not self.scope.reuse

    @property
    def form(self) -> str:
        """Name of the form that is drawn."""
        return self.signature.form.name

    def __getitem__(self, name: str) -> Argument:
        return self.inputs[name]

    def has(self, name: str) -> bool:
        """Whether the call will have an input of that name."""
        return name in self.signature.form.names(self.count)

    def type(self, name: str) -> OperandType:
        """The type of an input or result in this signature."""
        signature = self.signature
        operand_type = signature.row.types.get(name)
        if operand_type is not None:
            return operand_type
        fixed = signature.form.operand(name)
        return fixed.type if fixed.type is not None else signature.row.types[fixed.name]

    # --- choices ---

    def integer(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return self.scope.source.integer(low, high)

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.scope.source.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True that often."""
        return self.scope.source.integer(0, 99) < percent

    def real(self, low: float, high: float) -> float:
        """A real number with an awkward fraction, as float32."""
        return float32(low + (high - low) * self.scope.source.integer(0, 1_000_003) / 1_000_003)

    def shape(self, ranks: tuple[int, int], largest: int = SMALL) -> tuple[int, ...]:
        """Dimensions of a rank in the range, at least 1 each, not too many elements in all."""
        scope = self.scope
        integer = scope.source.integer
        rank = integer(*ranks)
        if scope.reuse and rank > COMMON_RANK and ranks[0] < rank and self.chance(90):
            rank = max(ranks[0], integer(1, COMMON_RANK))  # few operations would go on from it
        sizes, left = [], scope.largest
        if scope.stretch != 1.0:
            largest = max(1, round(largest * scope.stretch))
        for _ in range(rank):
            size = integer(1, min(largest, max(left, 1)))
            left //= size
            sizes.append(size)
        return tuple(sizes)

    # --- operands ---

    def seed_odd(self, *names: str) -> None:
        """Now and then puts numbers that arithmetic would spoil among the new values of inputs that are only moved.

        NaN, infinities, both zeros, subnormals and the largest numbers. Not in a graph: others may compute with them.
        """
        for name in names:
            argument = self.inputs[name]
            if self.alone and argument.type in FLOATS and argument.value is not None and self.integer(1, ODD) == ODD:
                value = with_odd(self.source.generator(), argument.value, self.chance(25))
                self.put(name, self.scope.add(replace(argument, value=value)))

    def tensor(self, name: str, shape: tuple[int, ...] | None = None, *, ranks: tuple[int, int] = (1, 4),
               low: float = COMMON[0], high: float = COMMON[1], largest: int = SMALL, scale: float | None = None,
               zero_point: int | None = None, channel_dim: int | None = None,
               fits: Callable[[Argument], bool] | None = None,
               adjust: Callable[[Array], Array] | None = None,
               accept: tuple[float, float] | None = None) -> Argument:  # fmt: skip
        """Draws a tensor input, or takes one of the scope that fits.

        Args:
            name: which input; the type comes from the signature.
            shape: exact dimensions; drawn within `ranks` and up to `largest` a dimension when None.
            ranks: see shape.
            low: lower end of the real values (stored values for plain integers).
            high: upper end.
            largest: see shape.
            scale: fixed scale; drawn to cover the range when None.
            zero_point: fixed zero point; drawn when None.
            channel_dim: dimension of the scales, for per-channel types.
            fits: a further demand on an operand of the scope.
            adjust: changes the stored values of a new operand: to plant ties, zeros, ends of the range.
            accept: range for an operand of the scope, where it may be wider than for a new one.
        """
        scope, kind = self.scope, self.type(name)
        if accept is None:  # a wider range where none was asked for
            accept = (-WIDE, WIDE) if (low, high) == COMMON else (low, high)
        lowest, highest = accept
        plain = kind == OperandType.TENSOR_INT32

        def suits(a: Argument) -> bool:  # of the type
            if a.shape != shape and (shape is not None or not ranks[0] <= len(a.shape) <= ranks[1]):
                return False
            if a.scale != scale if scale is not None else plain and a.scale:
                return False
            if channel_dim is not None or (zero_point is not None and a.zero_point != zero_point):
                return False
            reach = a.reach
            return reach is not None and lowest <= reach[0] and reach[1] <= highest and (fits is None or fits(a))

        argument = scope.find(suits, kind=kind)
        if argument is not None:
            return self.put(name, argument)
        dimensions = self.shape(ranks, largest) if shape is None else shape
        if adjust is None or fits is not None:
            argument = scope.supply(kind, dimensions, suits, scale, zero_point)
        if argument is None:
            argument = self._fresh(kind, dimensions, (low, high), scale, zero_point, channel_dim)
            if adjust is not None:
                argument = _adjusted(argument, adjust)
            argument = scope.adopt(argument)
        return self.put(name, argument)

    def operand(self, kind: OperandType, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> Argument:
        """A tensor of a type that no row says: one of the scope within the range, or a new one; for `put`."""
        accept = (low, high)
        if accept == COMMON:
            accept = (-100, 100) if kind == OperandType.TENSOR_INT32 else (-WIDE, WIDE)
        # Not one whose size a model leaves open: graphs that are run by an operation may demand known sizes.
        found = self.scope.find(lambda a: a.shape == shape and a.declared is None and within(a, *accept), kind=kind)
        return found or self.scope.add(self.fresh(kind, shape, low, high))

    def fresh(self, kind: OperandType, shape: tuple[int, ...], low: float, high: float) -> Argument:
        """A new tensor of a type that no row says, with scale and zero point if it has them."""
        return self._fresh(kind, shape, (low, high), None, None, None)

    def common(self, name: str, percent: int = 55) -> tuple[float | None, int | None]:
        """Scale and zero point of an input, for its neighbours and the result; None where they are to differ.

        Models often keep one scale through an operation that only moves values.
        """
        argument = self.inputs[name]
        if argument.type not in QUANTIZED or not argument.scale or not self.chance(percent):
            return None, None
        self.wanted["output"] = (argument.scale, argument.zero_point)
        return argument.scale, argument.zero_point

    def put(self, name: str, argument: Argument) -> Argument:
        """Makes an argument the input of that name."""
        if argument.key is not None:
            self.scope.take(argument)
        self.inputs[name] = argument
        return argument

    def scalar(self, name: str, value: float | bool) -> Argument:
        """Makes a constant scalar the input of that name; a name that is not in the form is ignored."""
        if not self.has(name):
            return scalar(OperandType.INT32, 0)
        return self.put(name, scalar(self.type(name), value))

    def ints(self, name: str, values: object) -> Argument:
        """Makes a constant TENSOR_INT32 of rank 1 the input of that name."""
        return self.put(name, int32_tensor(values))

    def omit(self, name: str) -> None:
        """Leaves an omittable input without a value."""
        self.put(name, omitted(self.type(name)))

    def activation(self, name: str = "activation") -> int:
        """Draws the fused activation (NONE for plain integers) and returns it."""
        plain = self.signature.row.types.get("output") == OperandType.TENSOR_INT32
        code = 0 if plain else self.choose((0, 1, 2, 3))
        self.scalar(name, code)
        return code

    def _fresh(self, kind: OperandType, shape: tuple[int, ...], span: tuple[float, float],
               scale: float | None, zero_point: int | None, channel_dim: int | None) -> Argument:  # fmt: skip
        rng = self.source.generator() if not self.scope.lazy else None
        if kind == OperandType.TENSOR_BOOL8:
            return self._valued(
                Argument(kind, shape), rng,
                lambda r: r.integers(0, 2, math.prod(shape)).astype(np.uint8).reshape(shape), (0.0, 1.0),
            )  # fmt: skip
        if kind in FLOATS:
            return self._valued(Argument(kind, shape), rng, lambda r: float_values(r, shape, span, kind), span)
        if kind == OperandType.TENSOR_INT32:
            whole = whole_span(span)
            return self._valued(
                Argument(kind, shape, scale or 0.0, 0), rng, lambda r: integer_values(r, shape, span), whole
            )
        low, high = limits(kind)
        if kind == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            rng = self.source.generator() if rng is None else rng
            axis = 0 if channel_dim is None else channel_dim
            reach = max(abs(span[0]), abs(span[1]))
            scales = tuple(float32(s) for s in reach / 127 * rng.uniform(0.3, 1.0, shape[axis]))
            value = rng.integers(low, high + 1, shape).astype(np.int8)
            return Argument(kind, shape, channel=ChannelQuant(axis, scales), value=value)
        if info(kind).zero_points is None:  # symmetric
            scale = float32(max(abs(span[0]), abs(span[1])) / high) if scale is None else scale
            zero_point = 0
        elif scale is None or zero_point is None:
            scale, zero_point = self._parameters(kind, span)
        dtype, ends = info(kind).dtype, ((low - zero_point) * scale, (high - zero_point) * scale)
        return self._valued(
            Argument(kind, shape, scale, zero_point), rng,
            lambda r: r.integers(low, high + 1, math.prod(shape)).astype(dtype).reshape(shape), ends,
        )  # fmt: skip

    def _valued(self, argument: Argument, rng: np.random.Generator | None,
                make: Callable[[np.random.Generator], Array], reach: tuple[float, float]) -> Argument:  # fmt: skip
        """An operand with its value, or with one that is made from a generator of its own when it is needed."""
        if rng is not None:
            return argument.holding(make(rng))
        seed = self.source.integer(0, LARGEST_SEED)
        return later(argument, lambda: make(np.random.Generator(np.random.PCG64(seed))), reach)

    def _parameters(self, kind: OperandType, span: tuple[float, float]) -> tuple[float, int]:
        """Scale and zero point whose range is about the span; awkward numbers, at times an end on zero exactly."""
        low, high = limits(kind)
        bottom, top = min(span[0], 0.0), max(span[1], 0.0)
        bottom *= self.real(0.55, 1.0)
        top *= self.real(0.55, 1.0)
        scale = float32(max(top - bottom, 1e-4) / (high - low))
        return scale, min(max(round(low - bottom / scale), low), high)


def with_odd(rng: np.random.Generator, value: Array, finite: bool) -> Array:
    """Floats with about a third of them exchanged for odd ones, all of them finite if so wanted."""
    width = value.dtype.itemsize
    bits = np.ascontiguousarray(value).view(f"u{width}").copy()
    kinds = list(ODD_BITS[width].values())[: FINITE_KINDS if finite else None]
    places = rng.integers(0, value.size, 1 + value.size // 3)
    odd = [rng.choice(kinds[kind]) for kind in rng.integers(0, len(kinds), len(places))]
    bits.reshape(-1)[places] = np.array(odd, bits.dtype)
    return np.asarray(bits.view(value.dtype))


def _adjusted(argument: Argument, adjust: Callable[[Array], Array]) -> Argument:
    """A new operand with its stored values changed."""

    def changed() -> Array:
        assert argument.value is not None
        return adjust(argument.value).astype(argument.value.dtype)

    if isinstance(argument, Pending):
        return later(Argument(argument.type, argument.shape, argument.scale, argument.zero_point), changed)
    return argument.holding(changed())


def within(argument: Argument, low: float, high: float) -> bool:
    """Whether the values of an operand lie in a real range."""
    reach = argument.reach
    return reach is not None and low <= reach[0] and reach[1] <= high


def float_values(
    rng: np.random.Generator, shape: tuple[int, ...], span: tuple[float, float], kind: OperandType
) -> Array:
    """Uniform values with, now and then, the ends of the range and round numbers among them."""
    low, high = span
    # One dimension first: NumPy takes longer to find out how many numbers a shape asks for than to draw them.
    value = rng.random(math.prod(shape)).reshape(shape) * (high - low) + low
    if value.size >= 4 and rng.random() < 0.3:
        special = [x for x in (0.0, 1.0, -1.0, 0.5, low, high, 6.0) if low <= x <= high]
        places = rng.integers(0, value.size, 1 + value.size // 8)
        value.reshape(-1)[places] = rng.choice(special, len(places))
    stored = value.astype(info(kind).dtype)
    # Rounding to the stored type must not leave the range: a domain's edge may be forbidden (LOG of 0).
    ends = np.asarray(low, stored.dtype), np.asarray(high, stored.dtype)
    return np.asarray(np.minimum(np.maximum(stored, ends[0]), ends[1]))


def whole_span(span: tuple[float, float]) -> tuple[int, int]:
    """The span of whole numbers that a span of reals stands for."""
    return (-100, 100) if span == (-2.0, 2.0) else (int(span[0]), int(span[1]))


def integer_values(rng: np.random.Generator, shape: tuple[int, ...], span: tuple[float, float]) -> Array:
    """Uniform int32 values; the default span of reals becomes -100 to 100."""
    low, high = whole_span(span)
    return rng.integers(low, high + 1, math.prod(shape)).astype(np.int32).reshape(shape)
