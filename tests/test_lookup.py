from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnhal.operations import Signature
from nnhal.types import FL1, FL3, FL8, Array, OperandType
from opset.call import Call, scalar
from opset.definition import OperationDef
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.evaluate import allowance, run_call
from opset.lookup import EMBEDDING_LOOKUP, GATHER, HASHTABLE_LOOKUP, TOPK_V2
from opset.source import SeededSource
from opset.validation import violations
from tests.judging import complaints_on_variants, detection, draws, noticed
from tests.naive import onnx_result

DEFINITIONS = (GATHER, EMBEDDING_LOOKUP, HASHTABLE_LOOKUP, TOPK_V2)
SIGNATURES = [(d, s) for d in DEFINITIONS for s in d.signatures]
IDS = [f"{d.name}-{s.id}" for d, s in SIGNATURES]


def values(call: Call, name: str) -> list[int]:
    return call[name].value.reshape(-1).tolist()


# --- second opinions --------------------------------------------------------------------------------------------------


def nested(x: object, axis: int, pick: Callable[[list], list]) -> object:
    """A function of lists at a depth of nested lists."""
    return pick(x) if axis == 0 else [nested(part, axis - 1, pick) for part in x]


def at(x: list, places: object) -> object:
    return [at(x, place) for place in places] if isinstance(places, list) else x[places]


def by_lists(call: Call) -> dict[str, object]:
    if call.definition is GATHER:
        axis = call.integer("axis") % call["input"].rank
        places = call["indices"].value.tolist()
        return {"output": nested(call["input"].value.tolist(), axis, lambda part: at(part, places))}
    if call.definition is EMBEDDING_LOOKUP:
        table = call["values"].value.tolist()
        return {"output": [table[place] for place in values(call, "lookups")]}
    if call.definition is HASHTABLE_LOOKUP:
        known = dict(zip(values(call, "keys"), call["values"].value.tolist(), strict=True))
        zeros = np.zeros(call["values"].shape[1:], call["values"].value.dtype).tolist()
        wanted = values(call, "lookups")
        return {"output": [known.get(key, zeros) for key in wanted], "hits": [int(key in known) for key in wanted]}
    rows = call["input"].value.reshape(-1, call["input"].shape[-1]).tolist()
    chosen = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], -i))[: call.integer("k")] for row in rows]
    shape = call["values"].shape
    picked = [[row[i] for i in places] for row, places in zip(rows, chosen, strict=True)]
    return {"values": np.reshape(picked, shape).tolist(), "indices": np.reshape(chosen, shape).tolist()}


@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_second_opinion(definition: OperationDef, signature: Signature) -> None:
    for call in draws(definition, signature, 200, "opinion"):
        due = by_lists(call)
        for name, result in run_call(call).items():
            assert np.array_equal(result.stored, due[name], equal_nan=True), name


def test_onnx_agrees_on_gather() -> None:
    for call in draws(GATHER, GATHER.signature("float32"), 100, "onnx"):
        got = onnx_result("Gather", call["input"].value, call["indices"].value, axis=call.integer("axis"))
        assert np.array_equal(run_call(call)["output"].stored, got, equal_nan=True)


def test_onnx_agrees_on_the_largest_values() -> None:
    """Its order of equal values is another, so indices are compared where nothing is tied."""
    for call in draws(TOPK_V2, TOPK_V2.signature("float32"), 60, "onnx"):
        due = np.sort(call["input"].value, axis=-1)[..., ::-1][..., : call.integer("k")]
        results = run_call(call)
        assert np.array_equal(results["values"].stored, due)
        again = np.take_along_axis(call["input"].value, results["indices"].stored.astype(np.int64), -1)
        assert np.array_equal(again, due)


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "signature"), SIGNATURES, ids=IDS)
def test_correct_arithmetic_of_another_kind_passes(definition: OperationDef, signature: Signature) -> None:
    assert complaints_on_variants(definition, signature, 40) == []


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_every_way_is_drawn() -> None:
    gathers = list(draws(GATHER, GATHER.signature("float32"), 400, "ways"))
    assert {c.integer("axis") for c in gathers} == set(range(-5, 5))
    assert {c["indices"].rank for c in gathers} == {1, 2, 3}
    assert any(len(set(values(c, "indices"))) < len(values(c, "indices")) for c in gathers)
    tables = list(draws(HASHTABLE_LOOKUP, HASHTABLE_LOOKUP.signature("quant8_asymm"), 200, "ways"))
    hits = list(itertools.chain.from_iterable(values(c, "hits") for c in tables))
    assert 0.3 < np.mean(hits) < 0.9
    assert sum(c["values"].zero_point == 0 for c in tables) > 50
    assert all(np.all(np.diff(c["keys"].value.astype(np.int64)) > 0) for c in tables)


@pytest.mark.parametrize("signature", TOPK_V2.signatures, ids=lambda s: s.id)
def test_ties_are_drawn_inside_and_at_the_edge(signature: Signature) -> None:
    inside = edge = 0
    for call in draws(TOPK_V2, signature, 200, "ties"):
        due = np.sort(call["input"].value.astype(np.float64), axis=-1)[..., ::-1]
        k = call.integer("k")
        inside += bool((due[..., 1:k] == due[..., : k - 1]).any())
        edge += k < due.shape[-1] and bool((due[..., k] == due[..., k - 1]).any())
    assert inside >= 60
    assert edge >= 25


@pytest.mark.parametrize("level", [FL1, FL3, FL8])
def test_draws_keep_to_their_level_and_serve_a_graph(level: int) -> None:
    for definition, signature in SIGNATURES:
        if signature.since > level:
            continue
        scope = Scope(SeededSource(f"level/{definition.name}/{signature.id}"), level=level, reuse=60)
        for _ in range(20):
            call = draw_call(definition, signature, scope)
            assert violations(call) == []
            assert max(a.value.size for a in call.results.values()) <= 5000


# --- what is left open ------------------------------------------------------------------------------------------------


def test_missed_slices_are_open_only_where_zero_has_two_readings() -> None:
    seen = set()
    for call in draws(HASHTABLE_LOOKUP, HASHTABLE_LOOKUP.signature("quant8_asymm"), 100, "open"):
        allowed = allowance(call, run_call(call))
        missed = np.array(values(call, "hits")) == 0
        open_ = np.isinf(allowed["output"].required).all(axis=tuple(range(1, call["output"].rank)))
        assert np.array_equal(open_, missed if call["values"].zero_point else np.zeros_like(missed))
        assert not allowed["hits"].required.any()
        seen |= {bool(o) for o in open_}
    assert seen == {True, False}


# --- faults -----------------------------------------------------------------------------------------------------------


def stored(call: Call) -> dict[str, Array]:
    return {name: result.stored for name, result in run_call(call).items()}


def other_axis(call: Call) -> Mapping[str, Array] | None:
    """A negative axis read as if -1 were the last but one."""
    if not -call["input"].rank < call.integer("axis") < 0:
        return None
    other = call.with_input("axis", scalar(OperandType.INT32, call.integer("axis") - 1))
    return stored(other) if violations(other) == [] else None


def one_off(call: Call) -> Mapping[str, Array]:
    """Each index one lower, the first one kept."""
    name = "indices" if call.definition is GATHER else "lookups"
    lower = np.maximum(call[name].value - 1, 0)
    return stored(call.with_input(name, replace(call[name], value=lower)))


def flat_indices(call: Call) -> Mapping[str, Array] | None:
    if call["indices"].rank == 1:
        return None
    flat = call["indices"].value.reshape(-1)
    return stored(call.with_input("indices", replace(call["indices"], shape=flat.shape, value=flat)))


def never_misses(call: Call) -> Mapping[str, Array]:
    """The next key is taken instead."""
    places = np.searchsorted(call["keys"].value, call["lookups"].value).clip(0, call["keys"].shape[0] - 1)
    return {"output": call["values"].value[places], "hits": np.ones(len(places), np.uint8)}


def no_hits(call: Call) -> Mapping[str, Array]:
    return {**stored(call), "hits": np.zeros(call["hits"].shape, np.uint8)}


def all_hits(call: Call) -> Mapping[str, Array]:
    return {**stored(call), "hits": np.ones(call["hits"].shape, np.uint8)}


def keys_in_float(call: Call) -> Mapping[str, Array]:
    """Keys compared in float32."""
    equal = call["lookups"].value.astype(np.float32)[:, None] == call["keys"].value.astype(np.float32)
    slices = np.where(
        equal.any(axis=1).reshape(-1, *[1] * (call["values"].rank - 1)),
        call["values"].value[equal.argmax(axis=1)],
        call["values"].value.dtype.type(0),
    )
    return {"output": slices, "hits": equal.any(axis=1).astype(np.uint8)}


def ordered(call: Call, x: Array, *, last: bool, rising: bool = False) -> dict[str, Array]:
    """The k first along a stable order of x."""
    size = x.shape[-1]
    if last:
        order = np.argsort(x, axis=-1, kind="stable")[..., ::-1]
    else:
        order = size - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    order = order[..., : call.integer("k")]
    order = order[..., ::-1] if rising else order
    taken = np.take_along_axis(call["input"].value, order, -1)
    return {"values": taken, "indices": order.astype(np.int32)}


def smaller_index_first(call: Call) -> Mapping[str, Array]:
    return ordered(call, call["input"].value, last=False)


def rising(call: Call) -> Mapping[str, Array]:
    return ordered(call, call["input"].value, last=True, rising=True)


def as_float(call: Call) -> Mapping[str, Array]:
    """INT32 compared in float32."""
    return ordered(call, call["input"].value.astype(np.float32), last=True)


def as_half(call: Call) -> Mapping[str, Array] | None:
    """Float32 compared in float16."""
    if call["input"].type != OperandType.TENSOR_FLOAT32:
        return None
    return ordered(call, call["input"].value.astype(np.float16), last=True)


FAULTS: list[tuple[OperationDef, Callable[[Call], Mapping[str, Array] | None], float]] = [
    (GATHER, other_axis, 0.95),
    (GATHER, one_off, 0.95),
    (GATHER, flat_indices, 0.99),
    (EMBEDDING_LOOKUP, one_off, 0.95),
    (HASHTABLE_LOOKUP, one_off, 0.95),
    (HASHTABLE_LOOKUP, never_misses, 0.95),
    (HASHTABLE_LOOKUP, no_hits, 0.99),
    (HASHTABLE_LOOKUP, all_hits, 0.99),
    (HASHTABLE_LOOKUP, keys_in_float, 0.95),
    (TOPK_V2, smaller_index_first, 0.99),
    (TOPK_V2, rising, 0.95),
    (TOPK_V2, as_float, 0.95),
    (TOPK_V2, as_half, 0.95),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("definition", "fault", "least"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_faults_are_noticed(definition: OperationDef, fault, least: float) -> None:
    counts = [detection(definition, signature, fault, 100) for signature in definition.signatures]
    seen, changed = (sum(column) for column in zip(*counts, strict=True))
    assert changed > 10
    assert seen >= least * changed, f"{seen} of {changed}"


def test_a_hit_that_is_not_1_is_noticed() -> None:
    for call in draws(HASHTABLE_LOOKUP, HASHTABLE_LOOKUP.signature("float32"), 20, "bytes"):
        if any(values(call, "hits")):
            assert noticed(call, {**stored(call), "hits": call["hits"].value * np.uint8(2)})


# --- rules ------------------------------------------------------------------------------------------------------------


def test_indices_out_of_range_are_seen_on_both_sides() -> None:
    for definition, name in ((GATHER, "indices"), (EMBEDDING_LOOKUP, "lookups")):
        call = next(draws(definition, definition.signature("float32"), 1, "rules"))
        bad = np.array(call[name].value)
        bad.reshape(-1)[0] = -1
        assert violations(call.with_input(name, replace(call[name], value=bad))) == ["INDEX"]


def test_k_is_seen_on_both_sides() -> None:
    call = next(draws(TOPK_V2, TOPK_V2.signature("float32"), 1, "rules"))
    for k in (0, call["input"].shape[-1] + 1):
        assert violations(call.with_input("k", scalar(OperandType.INT32, k))) == ["K"]


def test_signed_zeros_are_equal() -> None:
    call = next(draws(TOPK_V2, TOPK_V2.signature("float32"), 1, "zeros"))
    x = replace(call["input"], shape=(3,), value=np.array([0.0, -0.0, 0.0], np.float32))
    call = call.with_input("input", x).with_input("k", scalar(OperandType.INT32, 3))
    assert run_call(call)["indices"].stored.tolist() == [2, 1, 0]
