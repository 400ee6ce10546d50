"""Ways to get a kernel, or the rounding of its results, wrong: what `tests/kernel_faults.py` puts into operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from nnhal.operations import Signature
from nnhal.types import Array, OperandType, info
from opset.call import Argument, Call, scalar
from opset.evaluate import Result, store
from opset.quantization import QUANTIZED, limits
from opset.shapes import Window, normal_axis
from opset.values import Values

Outputs = Mapping[str, Array]
Kernel = Callable[[Values], Outputs]
Wrong = Callable[[Kernel], Kernel]
Store = Callable[[Array, Argument], Result]


@dataclass(frozen=True)
class Fault:
    """One thing done wrong.

    Attributes:
        text: what, for the table.
        operation: in which.
        wrong: makes the wrong kernel out of the right one.
        store: rounds and saturates wrongly.
        where: signatures in which the fault can show.
        verdict: the worst verdict due in each of them.
        share: smallest share of a signature's cases that must notice it.
        everywhere: each signature must notice it, not only all of them together.
    """

    text: str
    operation: str
    wrong: Wrong | None = None
    store: Store = store
    where: Callable[[Signature], bool] = lambda signature: True
    verdict: str = "FAIL"
    share: float = 0.1
    everywhere: bool = True

    @property
    def id(self) -> str:
        """Name of the test."""
        return f"{self.operation}: {self.text}"


# --- where a fault shows ----------------------------------------------------------------------------------------------


def quantized(signature: Signature) -> bool:
    """The input, or the first of several, is quantised."""
    return any(kind in QUANTIZED for kind in signature.row.types.values())


def row(*names: str) -> Callable[[Signature], bool]:
    """Only these rows of the table of types."""
    return lambda signature: signature.row.id in names


def full(signature: Signature) -> bool:
    """The longest input list of a form: layout and dilations are there."""
    return signature.count == max(count for count, _ in signature.form.counts)


def both(*conditions: Callable[[Signature], bool]) -> Callable[[Signature], bool]:
    """All of the conditions."""
    return lambda signature: all(condition(signature) for condition in conditions)


def implicit(signature: Signature) -> bool:
    """Padding by a scheme."""
    return signature.form.name == "implicit"


def per_channel(signature: Signature) -> bool:
    """The filter has a scale for each channel."""
    return signature.row.id.endswith("per_channel")


def without(*names: str) -> Callable[[Signature], bool]:
    """All rows but these."""
    return lambda signature: signature.row.id not in names


# --- wrong calls ------------------------------------------------------------------------------------------------------


def changed(change: Callable[[Call], Call]) -> Wrong:
    """The right kernel on a wrong call."""
    return lambda kernel: lambda v: kernel(replace(v, call=change(v.call)))


def swapped(first: str, second: str) -> Wrong:
    """Two inputs are taken for each other."""
    return changed(lambda call: call.with_input(first, call[second]).with_input(second, call[first]))


def fixed(name: str, value: float | bool) -> Wrong:
    """A scalar input is ignored."""
    return changed(lambda call: call.with_input(name, scalar(call[name].type, value)))


def given(name: str, value: Callable[[Call, Array], Array]) -> Wrong:
    """An input's stored value is read wrongly."""

    def change(call: Call) -> Call:
        old = call[name]
        assert old.value is not None
        new = value(call, old.value)
        return call.with_input(name, replace(old, value=new, shape=new.shape))

    return changed(change)


def shifted(name: str, zero_point: Callable[[Argument], int]) -> Wrong:
    """An input's zero point is wrong."""
    return changed(lambda call: call.with_input(name, replace(call[name], zero_point=zero_point(call[name]))))


def activation_as(codes: Mapping[int, int]) -> Wrong:
    """Fused activations are taken for others."""

    def change(call: Call) -> Call:
        code = call.integer("activation")
        return call.with_input("activation", scalar(OperandType.INT32, codes.get(code, code)))

    return changed(change)


NO_ACTIVATION = activation_as({1: 0, 2: 0, 3: 0})


def reread(name: str = "input") -> Wrong:
    """Data with the channels first are read, and results written, as if the channels came last."""

    def wrong(kernel: Kernel) -> Kernel:
        def compute(v: Values) -> Outputs:
            if not v.flag("nchw"):
                return kernel(v)
            old = v.call[name]
            assert old.value is not None
            batch, channels, height, width = old.shape
            value = old.value.reshape(batch, height, width, channels)
            call = v.call.with_input(name, replace(old, value=value, shape=value.shape))
            output = kernel(replace(v, call=call.with_input("nchw", scalar(OperandType.BOOL, False))))["output"]
            return {"output": output.reshape(-1)}

        return compute

    return wrong


def turned_filter(call: Call, value: Array) -> Array:
    """Height and width taken for each other."""
    return np.ascontiguousarray(value.swapaxes(1, 2))


def first_scale(kernel: Kernel) -> Kernel:
    """The first channel's scale stands for all."""

    def change(call: Call) -> Call:
        channel = call["filter"].channel
        assert channel is not None
        scales = (channel.scales[0],) * len(channel.scales)
        return call.with_input("filter", replace(call["filter"], channel=replace(channel, scales=scales)))

    return changed(change)(kernel)


def other_channel(kernel: Kernel) -> Kernel:
    """Per-channel scales stand along the last dimension, whatever was said."""

    def change(call: Call) -> Call:
        source = call["input"]
        channel = source.channel
        assert channel is not None
        last = source.rank - 1
        scales = tuple(np.resize(channel.scales, source.shape[last]))
        return call.with_input("input", replace(source, channel=replace(channel, channel_dim=last, scales=scales)))

    return changed(change)(kernel)


def early_surplus(kernel: Kernel) -> Kernel:
    """The odd element of SAME padding goes to the head."""
    from opset import windows

    def compute(v: Values) -> Outputs:
        right = windows.implicit_window

        def wrong(scheme: int, length: int, size: int, stride: int, dilation: int = 1) -> Window:
            window = right(scheme, length, size, stride, dilation)
            return replace(window, head=window.tail, tail=window.head)

        windows.implicit_window = wrong
        try:
            return kernel(v)
        finally:
            windows.implicit_window = right

    return compute


def filled(value: Callable[[Values], float]) -> Wrong:
    """Padding of an image holds a value other than the due one."""
    from opset import convolution, pooling, windows

    def wrong(kernel: Kernel) -> Kernel:
        def compute(v: Values) -> Outputs:
            def covered(image: Array, windows_: windows.Windows, fill: float = 0) -> Array:
                return windows.covered(image, windows_, value(v))

            modules = (convolution, pooling)
            kept = [module.covered for module in modules]
            try:
                for module in modules:
                    module.covered = covered
                return kernel(v)
            finally:
                for module, right in zip(modules, kept, strict=True):
                    module.covered = right

        return compute

    return wrong


def whole_window(kernel: Kernel) -> Kernel:
    """An average divides by the size of the window, padding and all."""
    from opset import pooling

    def compute(v: Values) -> Outputs:
        right = pooling.tap_counts
        size = v.integer("filter_h") * v.integer("filter_w")
        pooling.tap_counts = lambda windows, height, width: np.full_like(right(windows, height, width), size)
        try:
            return kernel(v)
        finally:
            pooling.tap_counts = right

    return compute


# --- wrong computations -----------------------------------------------------------------------------------------------


def after(change: Callable[[Values, Array], Array]) -> Wrong:
    """Results are changed once more."""
    return lambda kernel: lambda v: {name: change(v, np.asarray(x)) for name, x in kernel(v).items()}


def instead(compute: Callable[[Values], Array]) -> Wrong:
    """Another formula."""
    return lambda kernel: lambda v: {"output": np.asarray(compute(v))}


def half(v: Values, x: Array) -> Array:
    """Computed at float16 precision."""
    return x.astype(np.float16).astype(np.float64)


def down(v: Values, x: Array) -> Array:
    """Rounded to float32 toward minus infinity."""
    near = x.astype(np.float32)
    return np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near).astype(np.float64)


def reversed_channels(kernel: Kernel) -> Kernel:
    """Output channels of a depthwise convolution in the order filter, input channel."""

    def change(call: Call) -> Call:
        multiplier = call.integer("multiplier")

        def reorder(argument: Argument) -> Argument:
            assert argument.value is not None
            lead = argument.shape[:-1]
            value = argument.value.reshape(*lead, multiplier, -1).swapaxes(-1, -2).reshape(argument.shape)
            return replace(argument, value=np.ascontiguousarray(value))

        return call.with_input("filter", reorder(call["filter"]))

    return changed(change)(kernel)


def stored_compare(compare: Callable[[Array, Array], Array]) -> Wrong:
    """Stored values are compared, whatever their scales."""
    return instead(lambda v: compare(v.stored("a").astype(np.int64), v.stored("b").astype(np.int64)))


def next_axis(call: Call) -> Call:
    """The axis behind the due one, or the one before it."""
    first = next(iter(call.inputs.values()))
    axis = normal_axis(call.integer("axis"), first.rank)
    other = axis + 1 if axis + 1 < first.rank else axis - 1
    return call.with_input("axis", scalar(OperandType.INT32, max(other, 0)))


def joined_raw(v: Values) -> Array:
    """CONCATENATION that moves stored values, whatever their scales."""
    output = v.call["output"]
    parts = [np.asarray(a.value, np.int64) for a in v.call.all("inputs")]
    moved = np.concatenate(parts, axis=v.integer("axis")) - output.zero_point
    return moved.astype(np.float64) * output.scale


def joined_elsewhere(kernel: Kernel) -> Kernel:
    """CONCATENATION along another axis, as far as the shapes allow."""

    def compute(v: Values) -> Outputs:
        parts = [v.real(argument) for argument in v.call.all("inputs")]
        axis = v.integer("axis")
        other = axis + 1 if axis + 1 < parts[0].ndim else axis - 1
        if other < 0 or len({part.shape for part in parts}) > 1:
            return kernel(v)
        return {"output": np.concatenate(parts, axis=other).reshape(-1)}

    return compute


def reversed_parts(kernel: Kernel) -> Kernel:
    """SPLIT that gives the parts in reverse order."""

    def compute(v: Values) -> Outputs:
        parts = kernel(v)
        return dict(zip(parts, reversed(list(parts.values())), strict=True))

    return compute


def inverse_permutation(call: Call) -> Call:
    """TRANSPOSE by the inverse permutation."""
    permutation = call["perm"]
    if permutation.value is None or not permutation.value.size:
        return call
    return call.with_input("perm", replace(permutation, value=np.argsort(permutation.value).astype(np.int32)))


def softmax_of_all(v: Values) -> Array:
    """SOFTMAX over the flattened input."""
    x = v["input"] * v["beta"]
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def cast(round_: Callable[[Array], Array]) -> Wrong:
    """CAST of a float to an integer that rounds in another way."""

    def compute(v: Values) -> Array:
        low, high = (0, 255) if v.call["output"].type == OperandType.TENSOR_QUANT8_ASYMM else (-(2**31), 2**31 - 1)
        return np.clip(round_(v.stored("input").astype(np.float64)), low, high).astype(np.int64)

    return instead(compute)


def cast_wrapped(v: Values) -> Array:
    """CAST to 8 bits that drops the upper bits."""
    return np.trunc(v.stored("input").astype(np.float64)).astype(np.int64) & 0xFF


def interleaved(call: Call, value: Array) -> Array:
    """Channel k of group g taken for channel g of group k."""
    axis = 1 if call["nchw"].item() else 3
    groups = call.integer("num_groups")
    moved = np.moveaxis(value, axis, -1)
    turned = moved.reshape(*moved.shape[:-1], groups, -1).swapaxes(-1, -2).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(turned, -1, axis))


def not_adjoint(call: Call, value: Array) -> Array:
    """Data that are read without the transposition asked for."""
    if not call["adj_rhs"].item():
        return value
    shape = (*value.shape[:-2], value.shape[-1], value.shape[-2])
    return np.ascontiguousarray(value.reshape(shape).swapaxes(-1, -2))


# --- wrong rounding and saturation ------------------------------------------------------------------------------------


def rounding(round_: Callable[[Array, int], Array]) -> Store:
    """Quantised results are rounded in another way; the function gets x / scale and the zero point."""

    def wrong(computed: Array, argument: Argument) -> Result:
        right = store(computed, argument)
        if argument.type not in QUANTIZED or computed.dtype.kind != "f":
            return right
        steps = round_(np.asarray(computed, np.float64) / argument.scale, argument.zero_point)
        low, high = limits(argument.type)
        stored = np.clip(np.where(np.isnan(steps), high, steps), low, high)
        return right.storing(stored.astype(info(argument.type).dtype))

    return wrong


FLOORED = rounding(lambda x, zero_point: np.floor(x) + zero_point)
TRUNCATED = rounding(lambda x, zero_point: np.trunc(x) + zero_point)
HALF_TO_EVEN = rounding(lambda x, zero_point: np.rint(x) + zero_point)
HALF_UP = rounding(lambda x, zero_point: np.floor(x + 0.5) + zero_point)
LEFT_OUT = rounding(lambda x, zero_point: np.trunc(x + np.copysign(0.5, x)))


def wrapped(computed: Array, argument: Argument) -> Result:
    """Quantised results keep their low bits in place of saturating."""
    right = store(computed, argument)
    if argument.type not in QUANTIZED or computed.dtype.kind != "f":
        return right
    real = np.asarray(computed, np.float64) / argument.scale
    steps = np.trunc(real + np.copysign(0.5, real)) + argument.zero_point
    whole = np.nan_to_num(steps, posinf=2.0**40, neginf=-(2.0**40)).astype(np.int64)
    return right.storing(whole.astype(info(argument.type).dtype))
