"""Drivers that give two things for what means the same, each seen by pairs; and what pairs there are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from conformance import metamorphic, signed_quantization
from conformance.cases import drawn
from conformance.metamorphic import KINDS
from harness.expectations import Agrees
from harness.verdict import Verdict
from nnhal.device import DEFAULT_COMPILATION, CompilationConfig, PreparedModel
from nnhal.errors import DriverError
from nnhal.model import Model, constant_value
from nnhal.types import Array, ErrorStatus, OperandLifeTime, OperandType
from nnhal.types import OperationType as Op
from opset import OPSET
from opset.evaluate import Result
from reference_driver import ReferenceDevice
from reference_driver.execution import ReferencePreparedModel
from tests.batch_runs import caught, judgements

ALL = tuple(metamorphic.batches("quick", 0))
SIGNED = tuple(signed_quantization.batches("quick", 0))
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED


class Changed(ReferenceDevice):
    """Prepares another model than the one that came."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        return super().prepare_model(self.changed(model), config)

    def changed(self, model: Model) -> Model:
        return model


def _with_scalar(model: Model, operation: int, place: int, value: int) -> Model:
    """The model with another value of a constant INT32 or BOOL scalar."""
    index = model.main.operations[operation].inputs[place]
    where = model.main.operands[index].location
    data = bytearray(model.operand_values)
    data[where.offset : where.offset + where.length] = struct.pack("<i", value)[: where.length]
    return replace(model, operand_values=bytes(data))


class NoFusing(Changed):
    """Forgets the activation of an ADD."""

    def changed(self, model: Model) -> Model:
        first = model.main.operations[0]
        return _with_scalar(model, 0, 2, 0) if first.type == Op.ADD else model


class NoLayout(Changed):
    """Takes the channels of every pooling for the last dimension, where that gives the same sizes."""

    def changed(self, model: Model) -> Model:
        first = model.main.operations[0]
        at = {8: 7, 11: 10}.get(len(first.inputs))
        return _with_scalar(model, 0, at, 0) if first.type == Op.MAX_POOL_2D and at else model


class Computed(ReferenceDevice):
    """Gives other results than the specification's."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        super().prepare_model(model, config)
        prepared = Twisted(model, self.arithmetic, self.feature_level, self._buffers)
        prepared.twist = self.twist
        return prepared

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        return results


class Twisted(ReferencePreparedModel):
    twist: Callable[[Model, list[Array]], list[Array]]

    def _evaluate(self, *arguments: object) -> list[Result]:
        results = super()._evaluate(*arguments)  # type: ignore[arg-type]
        changed = self.twist(self.model, [result.stored for result in results])
        return [r.storing(np.asarray(c, r.stored.dtype)) for r, c in zip(results, changed, strict=True)]


def _of_float(array: Array) -> bool:
    return bool(array.dtype.kind == "f" and array.size)


class ConstantsCoarse(Computed):
    """Keeps constants in half precision, and inputs not."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        fixed = [
            constant_value(model, o)
            for o in model.main.operands
            if o.lifetime == OperandLifeTime.CONSTANT_COPY and o.type == OperandType.TENSOR_FLOAT32
        ]
        return [r * 1.01 if fixed and _of_float(r) else r for r in results]


class LastRowWrong(Computed):
    """Computes the last row of a batch anew with the numbers of the first."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        return [np.concatenate([r[:-1], r[:1]]) if r.ndim and len(r) > 1 else r for r in results]


class FirstOperandCounts(Computed):
    """Rounds by how operands are numbered."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        odd = model.main.operations[0].inputs[0] % 2
        return [r + 1 if odd and _of_float(r) else r for r in results]


class SecondCopyWrong(Computed):
    """Keeps one result of several operations of a kind."""

    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        return results if len(model.main.operations) == 1 else [results[0], *(r * 0 + 1 for r in results[1:])]


@pytest.mark.parametrize(
    ("driver", "glob"),
    [
        (NoFusing, "ADD-*.activation-*"),
        (NoLayout, "MAX_POOL_2D-*.layout-*"),
        (ConstantsCoarse, "MUL-float32.constant-*"),
        (LastRowWrong, "SQRT-*.batch-*"),
        (FirstOperandCounts, "TANH-*.numbering-*"),
        (SecondCopyWrong, "FLOOR-*.copies-*"),
    ],
)
def test_a_difference_is_caught(driver: Callable[[], ReferenceDevice], glob: str) -> None:
    found = caught(ALL, glob, driver)
    assert found.startswith(("INCONSISTENT:", "SHAPE:", "STATUS:")), found
    assert not caught(ALL, glob, ReferenceDevice)


def test_a_pair_of_which_one_is_not_supported_says_so() -> None:
    class NoMaximum(ReferenceDevice):
        def get_supported_operations(self, model: Model) -> list[bool]:
            return [o.type != Op.MAXIMUM for o in model.main.operations]

    found = judgements(ALL, "RELU-*.equal-*", NoMaximum)
    assert {judgement.verdict for judgement in found.values()} == {Verdict.NOT_SUPPORTED}


def test_every_operation_has_pairs_but_those_that_say_nothing_twice() -> None:
    without = {d.name for d in OPSET.values()} - {batch.origin.operation for batch in ALL}
    assert without == {"IF", "WHILE", "RANDOM_MULTINOMIAL", "BOX_WITH_NMS_LIMIT", "GENERATE_PROPOSALS"} & without
    assert len(without) <= 5


def test_no_pair_compares_nothing_and_none_hides_a_difference() -> None:
    for batch in ALL[::9]:
        case = batch.make(batch.numbers[0])
        expect = case.steps[-1].expect
        assert isinstance(expect, Agrees)
        assert any(np.isfinite(output.allowed).any() for output in expect.outputs)


def test_kinds_have_their_own_names() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)


# ---- signed and unsigned


class NoSigned(ReferenceDevice):
    def get_supported_operations(self, model: Model) -> list[bool]:
        known = super().get_supported_operations(model)
        return [False] * len(known) if any(o.type == Q8S for o in model.main.operands) else known


class SignedOff(Computed):
    def twist(self, model: Model, results: list[Array]) -> list[Array]:
        return [np.clip(r.astype(int) + 3, -128, 127) if r.dtype == np.int8 else r for r in results]


class SignedFails(ReferenceDevice):
    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        if any(o.type == Q8S for o in model.main.operands):
            raise DriverError(ErrorStatus.GENERAL_FAILURE, "no signed values")
        return super().prepare_model(model, config)


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (NoSigned, "SUPPORT: the first model is supported, the second is not: an operation on unsigned 8-bit values"),
        (SignedOff, "INCONSISTENT: the signed twin's results are the unsigned ones, 128 lower"),
        (SignedFails, "STATUS: prepare of a valid model answered GENERAL_FAILURE"),
    ],
)
def test_signed_twins_that_differ_are_caught(driver: Callable[[], ReferenceDevice], words: str) -> None:
    for glob in ("ADD-quant8_asymm-sync-signed-*", "CONV_2D-quant8_asymm.implicit.in7-sync-signed-*"):
        assert words in caught(SIGNED, glob, driver)


def test_neither_supported_is_no_failure() -> None:
    class NoQuantized(ReferenceDevice):
        def get_supported_operations(self, model: Model) -> list[bool]:
            return [False] * len(model.main.operations)

    found = judgements(SIGNED, "ADD-quant8_asymm-*", NoQuantized)
    assert {judgement.verdict for judgement in found.values()} == {Verdict.NOT_SUPPORTED}


def test_the_exceptions_and_no_others_have_no_twin() -> None:
    having = {definition.name for definition, _, _ in signed_quantization.pairs()}
    unsigned = {d.name for d in OPSET.values() if any("quant8_asymm" in row.id for row in d.rows)
                if any(OperandType.TENSOR_QUANT8_ASYMM in row.types.values() for row in d.rows)}  # fmt: skip
    exceptions = {Op(code).name for code in signed_quantization.EXCEPTIONS}
    assert unsigned - having - exceptions == set()
    assert not having & exceptions


def test_a_twin_holds_the_same_numbers_128_lower() -> None:
    definition, signature, twin = next(signed_quantization.pairs())
    call = drawn(definition, signature, "twin")
    signed = signed_quantization.signed_call(call, twin)
    first, other = next(iter(call.inputs.values())), next(iter(signed.inputs.values()))
    assert first.value is not None
    assert other.value is not None
    assert (first.value.astype(int) - 128 == other.value).all()
    assert first.zero_point - 128 == other.zero_point
