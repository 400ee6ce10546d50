"""Drivers that mistake levels or lifetimes, each seen by the case that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from conformance import lifetimes, versions
from harness.expectations import Returns
from nnhal.device import DEFAULT_COMPILATION, CompilationConfig, PreparedModel
from nnhal.model import DataLocation, Model
from nnhal.types import FL1, FL2, FL3, FL4, FL5, FL8, Array, FeatureLevel, OperandLifeTime
from nnhal.validate import validate_model, violations
from opset.validation import needed_level
from reference_driver import ReferenceDevice
from reference_driver.execution import ReferencePreparedModel
from tests.batch_runs import caught
from tests.test_pairs_cases import Changed, Computed

VERSIONS = tuple(versions.batches("quick", 0))
LIFETIMES = tuple(lifetimes.batches("quick", 0))


class NewerToo(ReferenceDevice):
    """Looks at models with the eyes of a later level."""

    looks = FL8

    def get_supported_operations(self, model: Model) -> list[bool]:
        validate_model(model, self.looks)
        return [True] * len(model.main.operations)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        validate_model(model, self.looks)
        return ReferencePreparedModel(model, self.arithmetic, self.feature_level, self._buffers)


def of_level(kind: type[ReferenceDevice], level: FeatureLevel) -> Callable[[], ReferenceDevice]:
    return lambda: kind(level=str(int(level)))


@pytest.mark.parametrize(
    ("level", "glob"),
    [
        (FL1, "VERSIONS-refused.below.1.1-*"),
        (FL2, "VERSIONS-refused.below.1.2-*"),
        (FL3, "VERSIONS-refused.below.1.3-*"),
        (FL4, "VERSIONS-refused.below.FL6-*"),
        (FL5, "VERSIONS-refused.below.FL7-*"),
        (FL1, "VERSIONS-refused.operand.1.2-*"),
        (FL3, "VERSIONS-refused.operand.1.3-*"),
        (FL2, "VERSIONS-refused.rank-*"),
        (FL2, "VERSIONS-refused.pool-*"),
        (FL3, "VERSIONS-refused.graph-*"),
    ],
)
def test_a_driver_that_takes_later_models_is_caught(level: FeatureLevel, glob: str) -> None:
    assert caught(VERSIONS, glob, of_level(NewerToo, level), level).startswith("ACCEPTED:")
    assert not caught(VERSIONS, glob, of_level(ReferenceDevice, level), level)


def test_a_driver_that_still_takes_oem_codes_is_caught() -> None:
    class Old(NewerToo):
        looks = FL4

    assert caught(VERSIONS, "VERSIONS-refused.oem-*", Old).startswith("ACCEPTED:")


class Relaxes(Computed):
    """Computes every model with float16 precision, once one allowed it."""

    seen = False

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        self.seen = self.seen or model.relax_computation_float32_to_float16
        return super().prepare_model(model, config)

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        return [r.astype(np.float16).astype(r.dtype) if r.dtype == np.float32 and self.seen else r for r in results]


class AllowedToRelax(Computed):
    """Computes relaxed models, and no others, with float16 precision."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        if not model.relax_computation_float32_to_float16:
            return results
        return [r.astype(np.float16).astype(r.dtype) if r.dtype == np.float32 else r for r in results]


def test_a_relaxed_flag_that_is_carried_over_is_caught_and_one_that_is_used_is_not() -> None:
    assert caught(VERSIONS, "VERSIONS-relaxed.beside-*", Relaxes).startswith("VALUE:")
    assert not caught(VERSIONS, "VERSIONS-relaxed.beside-*", AllowedToRelax)


def test_what_a_level_adds_needs_it_and_nothing_less() -> None:
    for level in versions.LATER:
        for definition in versions.newcomers(level)[:6]:
            call = versions.needing(definition, level, "level")
            assert call is None or needed_level(call) == level
    assert not versions.newcomers(FL5)
    assert {d.name for d in versions.newcomers(FeatureLevel.FL7)} == {"RSQRT", "MIRROR_PAD", "REVERSE"}


def test_what_is_accepted_must_give_all_its_results() -> None:
    """Rows in any order, as GENERATE_PROPOSALS has them, are no reason to expect nothing."""
    accepted = [b for b in versions.batches("full", 0) if "accepted.from.1.2" in b.id]
    for number in (*range(12), 13):
        case = accepted[0].make(number)
        returns = case.steps[-1].expect
        assert isinstance(returns, Returns)
        assert len(returns.outputs) == len(case.models[0].main.output_indexes)


def test_models_that_are_refused_are_invalid_at_every_earlier_level() -> None:
    for batch in VERSIONS:
        if "refused.below" in batch.id:
            case = batch.make(batch.numbers[-1])
            assert case.until is not None
            assert not violations(case.models[0], case.until)
            assert all(violations(case.models[0], lower) for lower in FeatureLevel if lower < case.until)
            assert not violations(case.models[1], FL1)


# ---- lifetimes


def _with_constants(model: Model, change: Callable[[DataLocation], DataLocation], lifetime: OperandLifeTime) -> Model:
    operands = tuple(
        replace(o, location=change(o.location)) if o.lifetime == lifetime else o for o in model.main.operands
    )
    return replace(model, main=replace(model.main, operands=operands))


class FromTheStart(Changed):
    """Reads every constant in a pool from the pool's start."""

    def changed(self, model: Model) -> Model:
        return _with_constants(model, lambda p: replace(p, offset=0), OperandLifeTime.CONSTANT_REFERENCE)


class ShortConstants(Changed):
    """Copies the first 128 bytes of a constant, and no more."""

    def changed(self, model: Model) -> Model:
        data = bytearray(model.operand_values)
        for operand in model.main.operands:
            place = operand.location
            if operand.lifetime == OperandLifeTime.CONSTANT_COPY and place.length > 128:
                data[place.offset + 128 : place.offset + place.length] = bytes(place.length - 128)
        return replace(model, operand_values=bytes(data))


class OutputsAreEnds(Computed):
    """Forgets what it has written to an output when another operation reads it."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        read = {i for operation in model.main.operations for i in operation.inputs}
        again = any(i in read for i in model.main.output_indexes)
        return [results[0], *(r * 0 + 1 for r in results[1:])] if again else results


class UnusedCount(Computed):
    """Mixes its inputs up where one is not read."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        read = {i for operation in model.main.operations for i in operation.inputs}
        return results if set(model.main.input_indexes) <= read else [r * 0 + 1 for r in results]


class BothAtOnce(NewerToo):
    """Does not compare the lists of inputs and outputs with the lifetimes."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        return [True] * len(model.main.operations)

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return ReferencePreparedModel(model, self.arithmetic, self.feature_level, self._buffers)


@pytest.mark.parametrize(
    ("driver", "glob", "words"),
    [
        (FromTheStart, "LIFETIMES-shared.bytes-*", "VALUE:"),
        (FromTheStart, "FULLY_CONNECTED-float32-sync-lifetime-*", "VALUE:"),
        (ShortConstants, "LIFETIMES-constant.132-*", "VALUE:"),
        (ShortConstants, "LIFETIMES-constant.200000-*", "VALUE:"),
        (OutputsAreEnds, "LIFETIMES-output.read-*", "VALUE:"),
        (UnusedCount, "LIFETIMES-unused.inputs-*", "VALUE:"),
        (BothAtOnce, "LIFETIMES-input.and.output-*", "ACCEPTED:"),
    ],
)
def test_a_mistaken_lifetime_is_caught(driver: Callable[[], ReferenceDevice], glob: str, words: str) -> None:
    assert caught(LIFETIMES, glob, driver, most=12).startswith(words)
    assert not caught(LIFETIMES, glob, ReferenceDevice)


def test_each_way_of_each_operand_is_tried_over_the_rows() -> None:
    from opset import OPSET

    definition = next(d for d in OPSET.values() if d.name == "FULLY_CONNECTED")
    seen = set()
    for number, row in enumerate(definition.rows):
        signature = next(s for s in definition.signatures if s.row is row)
        seen |= {(operand.name, way) for operand, way in lifetimes.picks(definition, number, signature, False)}
        everything = lifetimes.picks(definition, number, signature, True)
        assert {way for operand, way in everything if operand.name == "weights"} == set(lifetimes.WAYS)
    assert len({way for name, way in seen if name == "input"}) == len(definition.rows)
