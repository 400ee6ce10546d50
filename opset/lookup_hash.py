"""Projection of items to bits by a hash: LSH_PROJECTION, with the 64-bit fingerprint that it is defined by."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nnhal.operations import TypeRow
from nnhal.types import FL1, FL3, Array, OperationType
from opset.call import Call, with_shape, with_value
from opset.definition import (
    F16,
    F32,
    I32,
    Q8,
    ROW_NAMES,
    Example,
    ExecutionRule,
    LeftOpen,
    OperationDef,
    Shapes,
    exact,
    form,
    int32,
    tensor,
)
from opset.drawing import Draft
from opset.reshaping import any_tensor
from opset.values import Values
from opset.windows import execution_rank_rule

Words = NDArray[np.uint64]
Seeds = tuple[Words, Words]

# Constants of the published 64-bit hash (FarmHash, fingerprint variant).
K0, K1, K2 = np.uint64(0xC3A5C85C97CB3127), np.uint64(0xB492B66FBE98F273), np.uint64(0x9AE16A3B2F90404F)
START = 81
NEAR_ZERO = 2.0**-20  # of the summed magnitudes: a sum that float32 could put on either side of 0
LARGEST_BITS = 32


class Projection(IntEnum):
    """What comes out: one number by hash function, or one by bit."""

    SPARSE_DEPRECATED = 1
    DENSE = 2
    SPARSE = 3


# --- the fingerprint --------------------------------------------------------------------------------------------------


def _word(keys: Array, place: int, size: int = 8) -> Words:
    """A little-endian number of each key, from a byte on."""
    return np.ascontiguousarray(keys[:, place : place + size]).view(f"<u{size}")[:, 0].astype(np.uint64)


def _rotated(x: Words, bits: int) -> Words:
    return np.asarray((x >> np.uint64(bits)) | (x << np.uint64(64 - bits)))


def _shifted(x: Words) -> Words:
    return np.asarray(x ^ (x >> np.uint64(47)))


def _mixed(u: Words, v: Words, factor: Words | np.uint64) -> Words:
    a = _shifted((u ^ v) * factor)
    return _shifted((v ^ a) * factor) * factor


def _medium(keys: Array, length: int) -> tuple[Words, Words, Words, Words]:
    """For 17 to 64 bytes: what both ends give, before the last mixing, with its factor and the first product."""
    factor = K2 + np.uint64(2 * length)
    a = _word(keys, 0) * (K1 if length <= 32 else K2)
    b, c, d = _word(keys, 8), _word(keys, length - 8) * factor, _word(keys, length - 16) * K2
    return _rotated(a + b, 43) + _rotated(c, 30) + d, a + _rotated(b + K2, 18) + c, np.full_like(a, factor), a


def _up_to_64(keys: Array, length: int) -> Words:
    factor = K2 + np.uint64(2 * length)
    if length < 8:
        first, last = _word(keys, 0, 4), _word(keys, length - 4, 4)
        return _mixed(np.uint64(length) + (first << np.uint64(3)), last, factor)
    if length <= 16:
        a, b = _word(keys, 0) + K2, _word(keys, length - 8)
        return _mixed(_rotated(b, 37) * factor + a, (_rotated(a, 25) + b) * factor, factor)
    y, other, factors, a = _medium(keys, length)
    z = _mixed(y, other, factors)
    if length <= 32:
        return z
    e, f = _word(keys, 16) * factor, _word(keys, 24)
    g, h = (y + _word(keys, length - 32)) * factor, (z + _word(keys, length - 24)) * factor
    return _mixed(_rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g, factor)


def _weak(keys: Array, place: int, a: Words, b: Words) -> Seeds:
    """Stirs 32 bytes into two seeds."""
    first, second, third, fourth = (_word(keys, place + 8 * i) for i in range(4))
    a = a + first
    b = _rotated(b + a + fourth, 21)
    total = a + second + third
    return total + fourth, b + _rotated(total, 44) + a


def _round(keys: Array, place: int, state: tuple[Words, Words, Words, Seeds, Seeds], factor: Words | np.uint64,
           last: bool) -> tuple[Words, Words, Words, Seeds, Seeds]:  # fmt: skip
    """Stirs 64 bytes into the state; the last round weighs some of it by 9."""
    x, y, z, v, w = state
    weight = np.uint64(9 if last else 1)
    x = _rotated(x + y + v[0] + _word(keys, place + 8), 37) * factor
    y = _rotated(y + v[1] + _word(keys, place + 48), 42) * factor
    x = x ^ (w[1] * weight)
    y = y + v[0] * weight + _word(keys, place + 40)
    z = _rotated(z + w[0], 33) * factor
    v = _weak(keys, place, v[1] * factor, x + w[0])
    w = _weak(keys, place + 32, z + w[1], y + _word(keys, place + 16))
    return z, y, x, v, w


def _over_64(keys: Array, length: int) -> Words:
    none = np.zeros(len(keys), np.uint64)
    y = none + np.uint64(START) * K1 + np.uint64(113)
    z = _shifted(y * K2 + np.uint64(113)) * K2
    state = (none + np.uint64(START) * K2 + _word(keys, 0), y, z, (none, none), (none, none))
    end = (length - 1) // 64 * 64
    for place in range(0, end, 64):
        state = _round(keys, place, state, K1, last=False)
    x, y, z, v, w = state
    factor = K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    rest = (length - 1) & 63
    first = w[0] + np.uint64(rest)
    v = (v[0] + first, v[1])
    w = (first + v[0], w[1])
    x, y, z, v, w = _round(keys, end + rest - 63, (x, y, z, v, w), factor, last=True)
    return _mixed(
        _mixed(v[0], w[0], factor) + _shifted(y) * K0 + z,
        _mixed(v[1], w[1], factor) + x,
        factor,
    )


def fingerprint(keys: Array) -> Words:
    """The 64-bit fingerprint of each row of bytes; rows have one length, which is at least 4."""
    length = keys.shape[1]
    with np.errstate(over="ignore"):
        return _up_to_64(keys, length) if length <= 64 else _over_64(keys, length)


# --- kernel -----------------------------------------------------------------------------------------------------------


def _signatures(v: Values) -> Array:
    """Fingerprints as signed numbers: [hash functions, bits, items]."""
    seeds = np.ascontiguousarray(v.stored("hash").astype("<f4")).view(np.uint8).reshape(-1, 4)
    items = np.ascontiguousarray(v.stored("input"))
    items = items.reshape(len(items), -1).astype(items.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    shape = (len(seeds), len(items))
    keys = np.concatenate(
        [
            np.broadcast_to(seeds[:, None], (*shape, 4)),
            np.broadcast_to(items[None], (*shape, items.shape[1])),
        ],
        axis=2,
    )
    found = fingerprint(keys.reshape(shape[0] * shape[1], -1)).view(np.int64)
    return found.reshape(*v.call["hash"].shape, len(items))


def _terms(v: Values) -> Array:
    dtype = v.arithmetic.dtype
    terms = _signatures(v).astype(dtype)
    return np.asarray(terms * v["weight"].astype(dtype)) if v.has("weight") else terms


def _project(v: Values) -> Mapping[str, Array]:
    bits = (v.sum(_terms(v), 2) > 0).astype(np.int64)
    kind = v.integer("type")
    if kind == Projection.DENSE:
        return {"output": bits.reshape(-1)}
    functions, count = bits.shape
    packed = (bits << np.arange(count)[::-1]).sum(axis=1)
    if kind == Projection.SPARSE:
        packed = packed + (np.arange(functions) << count)
    return {"output": packed}


def _open_near_zero(v: Values, results: Mapping[str, Array]) -> Mapping[str, Array]:
    del results
    terms = _terms(v)
    close = np.abs(terms.sum(axis=2)) < NEAR_ZERO * np.abs(terms).sum(axis=2)
    return {"output": close.reshape(-1) if v.integer("type") == Projection.DENSE else close.any(axis=1)}


def _infer(call: Call) -> Shapes:
    functions, bits = call["hash"].shape
    return {"output": (functions * bits,) if call.integer("type") == Projection.DENSE else (functions,)}


# --- draw and definition ----------------------------------------------------------------------------------------------


def _draw(draft: Draft) -> None:
    """Dense with weights, sparse without; keys of every length class of the fingerprint."""
    early = draft.scope.level < FL3
    kind = draft.choose((2, 2, 1) if early else (2, 2, 2, 1, 3, 3))
    functions = draft.integer(1, 5)
    draft.tensor("hash", (functions, draft.choose((32, 31)) if kind == 1 and draft.chance(15) else draft.integer(1, 9)))
    x = any_tensor(draft, (1, 4), largest=draft.choose((4, 6)), odd=False)
    if kind == Projection.DENSE:
        draft.tensor("weight", (x.shape[0],), low=draft.choose((-2.0, 0.1)), high=2.0)
    else:
        draft.omit("weight")
    draft.scalar("type", kind)


def _grown_weight(call: Call) -> Call | None:
    return with_shape(call, "weight", (call["weight"].shape[0] + 1,)) if call.has("weight") else None


def _as_float(text: bytes) -> float:
    """The float32 of four bytes."""
    return float(np.frombuffer(text, "<f4")[0])


HASHES = ((F32, FL1, (F32, I32, Q8)), (F32, FL3, (F16,)), (F16, FL3, (F32, I32, Q8, F16)))

LSH_PROJECTION = OperationDef(
    code=OperationType.LSH_PROJECTION,
    doc="A bit for each hash value: whether the sum over items of weight * fingerprint is above 0, where the "
    "64-bit FarmHash fingerprint, as a signed number, is that of the hash value's four float32 bytes followed by the "
    "item's bytes as stored. Dense: each bit is a number; sparse: the bits of a hash function make one, the first "
    "highest, and type 3 (from 1.2) adds i * 2^bits for function i. The documents let the weight be omitted always; "
    "public code wants it for dense and refuses it for sparse, and so it is drawn. Its validator dates float16 input "
    "beside a float32 hash 1.0, though the type came with 1.2.",
    forms=(
        form(
            tensor("hash", "[functions, bits]: hash values; bits is at most 32.", 2, 2),
            tensor("input", "[items, ...]: hashed by their bytes."),
            tensor("weight", "[items]; each counts 1 when omitted.", 1, 1, omittable=True),
            int32("type", "1 sparse without offsets, 2 dense, 3 sparse."),
        ),
    ),
    results=(tensor("output", "[functions] where sparse, [functions * bits] where dense.", 1, 1),),
    rows=tuple(
        TypeRow(
            f"{ROW_NAMES[seed]}_hash_{'quant8' if kind == Q8 else ROW_NAMES[kind]}",
            since,
            {"hash": seed, "input": kind, "weight": seed, "output": I32},
        )
        for seed, since, kinds in HASHES
        for kind in kinds
    ),
    rules=(
        execution_rank_rule("RANK_HASH", "hash", 2),
        ExecutionRule(
            "BITS",
            f"hash has at most {LARGEST_BITS} bits for each function",
            lambda call: call["hash"].shape[1] <= LARGEST_BITS,
            lambda call: with_shape(call, "hash", (1, LARGEST_BITS + 1)),
        ),
        ExecutionRule(
            "WEIGHT",
            "weight has one value for each item",
            lambda call: not call.has("weight") or call["weight"].shape == call["input"].shape[:1],
            _grown_weight,
        ),
        ExecutionRule(
            "TYPE",
            "type is 1, 2 or 3",
            lambda call: call.integer("type") in (1, 2, 3),
            lambda call: with_value(call, "type", 4),
        ),
        ExecutionRule(
            "OFFSETS", "type is not 3", lambda call: call.integer("type") != Projection.SPARSE, lambda call: None, FL3
        ),
    ),
    infer=_infer,
    kernel=_project,
    judging=exact(
        "bits of sums",
        LeftOpen("bits whose sum is zero but for rounding, and the numbers that hold one", _open_near_zero),
        hashed=("hash", "input"),
    ),
    draw=_draw,
    # Fingerprints published for "3true" (below 0) and "2applefalse" (above): four bytes of hash value, then the item.
    examples=(
        Example(
            "float32_hash_quant8",
            {"hash": [[_as_float(b"3tru")]], "input": [list(b"e")], "weight": [-1.5], "type": 2},
            {"output": [1]},
            {"input": (0.5, 3)},
        ),
        Example(
            "float32_hash_quant8",
            {"hash": [[_as_float(b"3tru")]], "input": [list(b"e")], "weight": None, "type": 1},
            {"output": [0]},
            {"input": (0.5, 3)},
        ),
        Example(
            "float32_hash_quant8",
            {"hash": [[_as_float(b"2app")]], "input": [list(b"lefalse")], "weight": None, "type": 3},
            {"output": [1]},
            {"input": (0.5, 3)},
        ),
    ),
    second_opinion="a fingerprint in Python's integers, checked against published values; LiteRT's kernel",
)
