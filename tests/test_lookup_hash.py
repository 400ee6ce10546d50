from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, Array, OperandType
from opset.call import Call, scalar
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.lookup_hash import LSH_PROJECTION, fingerprint
from opset.source import SeededSource
from opset.validation import needed_level, violations
from opset.values import Values
from tests.judging import complaints_on_variants, detection, draws

SIGNATURES = LSH_PROJECTION.signatures
IDS = [s.id for s in SIGNATURES]
MASK = 2**64 - 1


# --- the fingerprint, once more, in Python's integers -----------------------------------------------------------------


def turned(x: int, bits: int) -> int:
    x &= MASK
    return (x >> bits | x << 64 - bits) & MASK


def half_mixed(x: int) -> int:
    x &= MASK
    return x ^ x >> 47


def sixteen(u: int, v: int, factor: int) -> int:
    a = half_mixed((u ^ v) * factor)
    return half_mixed((v ^ a) * factor) * factor & MASK


def by_integers(key: bytes) -> int:
    """The 64-bit fingerprint of a key of 4 or more bytes, one at a time."""
    k0, k1, k2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
    size = len(key)

    def word(place: int, width: int = 8) -> int:
        place += size if place < 0 else 0
        return int.from_bytes(key[place : place + width], "little")

    factor = k2 + 2 * size
    if size < 8:
        return sixteen(size + (word(0, 4) << 3), word(-4, 4), factor)
    if size <= 16:
        a, b = word(0) + k2, word(-8)
        return sixteen((turned(b, 37) * factor + a) & MASK, (turned(a, 25) + b) * factor & MASK, factor)
    if size <= 32:
        a, b, c, d = word(0) * k1, word(8), word(-8) * factor, word(-16) * k2
        left = turned(a + b, 43) + turned(c, 30) + d
        return sixteen(left & MASK, (a + turned(b + k2, 18) + c) & MASK, factor)
    if size <= 64:
        a, b, c, d = word(0) * k2, word(8), word(-8) * factor, word(-16) * k2
        y = (turned(a + b, 43) + turned(c, 30) + d) & MASK
        z = sixteen(y, (a + turned(b + k2, 18) + c) & MASK, factor)
        e, f = word(16) * factor, word(24)
        g, h = (y + word(-32)) * factor, (z + word(-24)) * factor
        left = turned(e + f, 43) + turned(g, 30) + h
        return sixteen(left & MASK, (e + turned(f + a, 18) + g) & MASK, factor)

    def weak(place: int, a: int, b: int) -> tuple[int, int]:
        a += word(place)
        b = turned(b + a + word(place + 24), 21)
        c, a = a, a + word(place + 8) + word(place + 16)
        return (a + word(place + 24)) & MASK, (b + turned(a, 44) + c) & MASK

    x, y = (81 * k2 + word(0)) & MASK, (81 * k1 + 113) & MASK
    z = half_mixed(y * k2 + 113) * k2 & MASK
    v = w = (0, 0)
    end = (size - 1) // 64 * 64
    for place in range(0, end, 64):
        x = turned(x + y + v[0] + word(place + 8), 37) * k1 & MASK
        y = turned(y + v[1] + word(place + 48), 42) * k1 & MASK
        x, y, z = x ^ w[1], (y + v[0] + word(place + 40)) & MASK, turned(z + w[0], 33) * k1 & MASK
        v = weak(place, v[1] * k1, x + w[0])
        w = weak(place + 32, z + w[1], y + word(place + 16))
        x, z = z, x
    factor = k1 + (z & 255) * 2
    place = size - 64
    w = ((w[0] + (size - 1 & 63)) & MASK, w[1])
    v = ((v[0] + w[0]) & MASK, v[1])
    w = ((w[0] + v[0]) & MASK, w[1])
    x = turned(x + y + v[0] + word(place + 8), 37) * factor & MASK
    y = turned(y + v[1] + word(place + 48), 42) * factor & MASK
    x, y, z = x ^ w[1] * 9 & MASK, (y + v[0] * 9 + word(place + 40)) & MASK, turned(z + w[0], 33) * factor & MASK
    v = weak(place, v[1] * factor, x + w[0])
    w = weak(place + 32, z + w[1], y + word(place + 16))
    x, z = z, x
    left = sixteen(v[0], w[0], factor) + half_mixed(y) * k0 + z
    return sixteen(left & MASK, (sixteen(v[1], w[1], factor) + x) & MASK, factor)


@pytest.mark.parametrize(
    ("key", "due"),
    [
        (b"3true", -4880158226897771312),
        (b"1footrue", -1541654101129638711),
        (b"2applefalse", 2794438866806483259),
    ],
)
def test_published_fingerprints(key: bytes, due: int) -> None:
    assert by_integers(key) == due % 2**64
    assert int(fingerprint(np.frombuffer(key, np.uint8)[None]).view(np.int64)[0]) == due


def test_fingerprints_of_every_length() -> None:
    rng = np.random.default_rng(5)
    for size in range(4, 300):
        keys = rng.integers(0, 256, (3, size), np.uint8)
        assert fingerprint(keys).tolist() == [by_integers(key.tobytes()) for key in keys], size


# --- second opinions --------------------------------------------------------------------------------------------------


def sums(call: Call) -> list[list[float]]:
    """The sum behind each bit."""
    items = call["input"].value
    weights = call["weight"].value.tolist() if call.has("weight") else [1.0] * len(items)
    found = []
    for seeds in call["hash"].value.astype(np.float32):
        row = []
        for seed in seeds:
            total = 0.0
            for item, weight in zip(items, weights, strict=True):
                number = by_integers(seed.tobytes() + item.tobytes())
                total += float(number - 2**64 if number >= 2**63 else number) * weight
            row.append(total)
        found.append(row)
    return found


def by_loops(call: Call) -> list[int]:
    bits = [[int(total > 0) for total in row] for row in sums(call)]
    if call.integer("type") == 2:
        return [bit for row in bits for bit in row]
    packed = []
    for number, row in enumerate(bits):
        value = int("".join(map(str, row)), 2) + (number << len(row) if call.integer("type") == 3 else 0)
        packed.append(value - 2**32 if value >= 2**31 else value)
    return packed


@pytest.mark.parametrize("signature", SIGNATURES, ids=IDS)
def test_second_opinion(signature: Signature) -> None:
    for call in draws(LSH_PROJECTION, signature, 60, "opinion"):
        assert run_call(call)["output"].stored.tolist() == by_loops(call)


def test_the_kernel_of_litert_agrees() -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    from drivers.litert_translate.flatbuffer import FlatModel, Quantization

    types = {"float32": schema.TensorType.FLOAT32, "int32": schema.TensorType.INT32, "uint8": schema.TensorType.UINT8}
    for signature in SIGNATURES[:3]:
        for call in draws(LSH_PROJECTION, signature, 40, "litert"):
            kind = call.integer("type")
            if kind == 1:  # the runtime's sparse projection has offsets
                continue
            model = FlatModel()
            flat = model.graph()
            given = [call[name] for name in ("hash", "input", "weight") if call.has(name)]
            known = [Quantization((a.scale,), (a.zero_point,)) if a.scale else None for a in given]
            inputs = [
                flat.tensor(a.shape, types[a.value.dtype.name], None, q) for a, q in zip(given, known, strict=True)
            ]
            output = flat.tensor(call["output"].shape, schema.TensorType.INT32)
            code = 2 if kind == 2 else 1
            flat.operator("LSH_PROJECTION", inputs, [output], "LSHProjectionOptions", Type=code)
            flat.inputs, flat.outputs = tuple(inputs), (output,)
            runner = interpreter.Interpreter(model_content=model.finish())
            runner.allocate_tensors()
            for index, argument in zip(inputs, given, strict=True):
                runner.set_tensor(index, argument.value)
            runner.invoke()
            assert np.array_equal(runner.get_tensor(output), run_call(call)["output"].stored)


@pytest.mark.thorough
@pytest.mark.parametrize("signature", SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(signature: Signature) -> None:
    assert complaints_on_variants(LSH_PROJECTION, signature, 60) == []


def test_little_is_left_open() -> None:
    masked = total = 0
    for signature in SIGNATURES:
        for call in draws(LSH_PROJECTION, signature, 60, "open"):
            required = allowance(call, run_call(call))["output"].required
            masked += int(np.isinf(required).sum())
            total += required.size
    assert masked <= total / 1000


def test_a_sum_next_to_zero_is_left_open() -> None:
    call = next(c for c in draws(LSH_PROJECTION, SIGNATURES[0], 50, "zero") if c.integer("type") == 2)
    item = call["input"].value[:1]
    twins = replace(call["input"], shape=(2, *item.shape[1:]), value=np.concatenate([item, item]))
    weight = replace(call["weight"], shape=(2,), value=np.array([1.0, np.nextafter(np.float32(-1), 0)], np.float32))
    other = call.with_input("input", twins).with_input("weight", weight)
    assert np.isinf(allowance(other, run_call(other))["output"].required).all()


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_every_way_is_drawn() -> None:
    calls = [c for s in SIGNATURES for c in draws(LSH_PROJECTION, s, 60, "ways")]
    assert {c.integer("type") for c in calls} == {1, 2, 3}
    assert all(c.has("weight") == (c.integer("type") == 2) for c in calls)
    sizes = {4 + c["input"].value[0].nbytes for c in calls}
    classes = ((5, 7), (8, 16), (17, 32), (33, 64), (65, 128), (129, 4096))
    assert all(any(low <= size <= high for size in sizes) for low, high in classes)
    assert any(c["output"].value.min() < 0 for c in calls)  # 32 bits, the first one set
    bits = np.concatenate([c["output"].value for c in calls if c.integer("type") == 2])
    assert 0.4 < bits.mean() < 0.6


def test_offsets_need_level_3() -> None:
    signature = LSH_PROJECTION.signature("float32_hash_float32")
    for call in draws(LSH_PROJECTION, signature, 60, "levels"):
        assert needed_level(call) == (FL3 if call.integer("type") == 3 else FL1)
    for number in range(60):
        call = draw_call(LSH_PROJECTION, signature, Scope(SeededSource(f"levels/{number}"), level=FL1))
        assert violations(call) == []


# --- faults -----------------------------------------------------------------------------------------------------------


def packed(call: Call, bits: Array, *, offset: bool = True, highest_first: bool = True) -> dict[str, Array]:
    if call.integer("type") == 2:
        return {"output": bits.astype(np.int32).reshape(-1)}
    functions, count = bits.shape
    places = np.arange(count)[::-1] if highest_first else np.arange(count)
    numbers = (bits.astype(np.int64) << places).sum(axis=1)
    if offset and call.integer("type") == 3:
        numbers = numbers + (np.arange(functions) << count)
    return {"output": numbers.astype(np.int32)}


def positive(call: Call) -> Array:
    return np.array(sums(call)) > 0


def lowest_first(call: Call) -> Mapping[str, Array] | None:
    return None if call.integer("type") == 2 else packed(call, positive(call), highest_first=False)


def no_offset(call: Call) -> Mapping[str, Array] | None:
    return packed(call, positive(call), offset=False) if call.integer("type") == 3 else None


def offset_always(call: Call) -> Mapping[str, Array] | None:
    if call.integer("type") != 1:
        return None
    return {n: r.stored for n, r in run_call(call.with_input("type", scalar(OperandType.INT32, 3))).items()}


def no_weight(call: Call) -> Mapping[str, Array] | None:
    if not call.has("weight"):
        return None
    ones = replace(call["weight"], value=np.ones_like(call["weight"].value))
    return {n: r.stored for n, r in run_call(call.with_input("weight", ones)).items()}


def first_item_alone(call: Call) -> Mapping[str, Array]:
    item = call["input"].value[:1]
    other = call.with_input("input", replace(call["input"], shape=item.shape, value=item))
    if call.has("weight"):
        other = other.with_input("weight", replace(call["weight"], shape=(1,), value=call["weight"].value[:1]))
    return {n: r.stored for n, r in run_call(other).items()}


def real_items(call: Call) -> Mapping[str, Array] | None:
    """Quantised or half items hashed as float32."""
    if call["input"].type in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32):
        return None
    real = Values(call)["input"].astype(np.float32)
    other = call.with_input("input", replace(call["input"], type=OperandType.TENSOR_FLOAT32, value=real))
    return {n: r.stored for n, r in run_call(other).items()}


FAULTS: list[tuple[Callable[[Call], Mapping[str, Array] | None], float]] = [
    (lowest_first, 0.99),
    (no_offset, 0.99),
    (offset_always, 0.99),
    (no_weight, 0.99),
    (first_item_alone, 0.99),
    (real_items, 0.99),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(fault, least: float) -> None:
    counts = [detection(LSH_PROJECTION, signature, fault, 40) for signature in SIGNATURES]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 10
    assert seen >= least * changed, f"{seen} of {changed}"
