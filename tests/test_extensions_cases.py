"""Drivers that are wrong about vendor extensions, each seen by the scenario that is there for it, and by what words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conformance.behaviour import batches
from conformance.extensions import SAMPLE, SCENARIOS
from harness.case import EXTENSION
from harness.case_file import load, save, seal
from nnhal.buffers import read_inputs, write_outputs
from nnhal.device import DEFAULT_COMPILATION, CompilationConfig, Extension, OperandTypeInformation, PreparedModel
from nnhal.errors import invalid
from nnhal.memory import BytesMemory
from nnhal.model import DataLocation, Model, Operand, Request, RequestArgument, Subgraph
from nnhal.types import OperandLifeTime, is_extension
from nnhal.validate import validate_model
from reference_driver import ReferenceDevice, sample_extension
from reference_driver.sample_extension import element_types
from tests.scenario_runs import caught


def _has_extension(model: Model) -> bool:
    return any(is_extension(operation.type) for operation in model.main.operations)


class Refuses(ReferenceDevice):
    """Takes what it does not know for invalid."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        if _has_extension(model):
            raise invalid("an operation of an extension")
        return super().get_supported_operations(model)


class Claims(ReferenceDevice):
    """Claims to support every extension."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        known = super().get_supported_operations(model)
        return [k or is_extension(o.type) for k, o in zip(known, model.main.operations, strict=True)]


class Prepares(ReferenceDevice):
    """Does not support a model, and prepares it all the same."""

    def prepare_model(self, model: Model, config: CompilationConfig = DEFAULT_COMPILATION) -> PreparedModel:
        validate_model(model, self.feature_level)
        return self._ready(model)

    def _ready(self, model: Model) -> PreparedModel:
        from reference_driver.execution import ReferencePreparedModel

        return ReferencePreparedModel(model, self.arithmetic, self.feature_level, self._buffers)


class AllOrNothing(ReferenceDevice):
    """Supports no operation beside one that it does not know."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        known = super().get_supported_operations(model)
        return known if all(known) else [False] * len(known)


class NoTables(ReferenceDevice):
    """Supports no model that names an extension."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        known = super().get_supported_operations(model)
        return [False] * len(known) if model.extension_name_to_prefix else known


class OnePrefix(ReferenceDevice):
    """Knows its extension by one prefix only."""

    def get_supported_operations(self, model: Model) -> list[bool]:
        known = super().get_supported_operations(model)
        mine = [row.prefix == 1 for row in model.extension_name_to_prefix if row.name == SAMPLE]
        return known if all(mine) else [False] * len(known)


class IllNamed(ReferenceDevice):
    """Lists an extension whose name no model may use."""

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return (Extension("Sample"),)


class Typeless(ReferenceDevice):
    """Lists an operand type of no bytes."""

    def get_supported_extensions(self) -> tuple[Extension, ...]:
        return (Extension(SAMPLE, (OperandTypeInformation(0, True, 0),)),)


@pytest.mark.parametrize(
    ("driver", "scenario", "words"),
    [
        (Refuses, "unknown.operation", "STATUS: query of a valid model answered INVALID_ARGUMENT"),
        (Refuses, "unknown.ends", "STATUS: query of a valid model"),
        (Claims, "unknown.operation", "SUPPORT: operation 0 is claimed to be supported: no driver knows"),
        (Claims, "sample.unknown.operation", "SUPPORT: operation 0 is claimed"),
        (Claims, "sample.bad.operands", "SUPPORT: operation 0 is claimed"),
        (Prepares, "extra.params", "ACCEPTED: prepare accepted what breaks EXTENSION"),
        (AllOrNothing, "beside", "SUPPORT: operation 0 is not supported any more, and was as operation 0"),
        (NoTables, "unused.table", "SUPPORT: operation 0 is not supported any more"),
        (OnePrefix, "sample.prefixes", "SUPPORT: the first model is supported, the second is not: the prefix"),
        (IllNamed, "listed", "MALFORMED: the extension name 'Sample' is not"),
        (Typeless, "listed", "MALFORMED: extension org.nncts.sample has type 0 of 0 bytes"),
    ],
)
def test_is_caught(driver: Callable[[], ReferenceDevice], scenario: str, words: str) -> None:
    assert words in caught(SCENARIOS, scenario, driver)
    assert not caught(SCENARIOS, scenario, ReferenceDevice)


def test_arithmetic_of_32_bits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    short = sample_extension._Sample((0, 0), 0, lambda a, b: (a.astype(np.int32) * b.astype(np.int32)).astype(np.int64))
    monkeypatch.setitem(sample_extension.OPERATIONS, 1, short)
    for scenario in ("sample.inside.sync", "sample.ends", "sample.constants"):
        assert caught(SCENARIOS, scenario, ReferenceDevice).startswith("VALUE:")


def test_only_drivers_that_list_an_extension_are_asked_for_it() -> None:
    for batch in batches(SCENARIOS, "ci", 0):
        asked = any("inside" in n or n in ("ends", "constants", "prefixes", "beside") for n in _parts(batch.id))
        case = batch.make(0)
        assert (EXTENSION + SAMPLE in case.needs) == (asked and "sample" in batch.id)


def _parts(name: str) -> list[str]:
    return name.split("-")[1].split(".")


def test_cases_with_types_of_an_extension_can_be_saved(tmp_path: Path) -> None:
    for name in ("sample.ends", "beside", "sample.prefixes", "unknown.operation"):
        batch = next(b for b in batches(SCENARIOS, "quick", 0) if b.origin.signature == name)
        case = batch.make(0)
        save(case, tmp_path / "x.case")
        again = load(tmp_path / "x.case")
        assert seal(again).digest == case.digest
        assert [step.expect.__class__ for step in again.steps] == [step.expect.__class__ for step in case.steps]


def test_elements_of_an_extension_are_read_and_written_by_their_size() -> None:
    code = 9 << 16
    taken = Operand(code, (2,), lifetime=OperandLifeTime.SUBGRAPH_INPUT)
    given = Operand(code, (2,), lifetime=OperandLifeTime.SUBGRAPH_OUTPUT)
    model = Model(Subgraph((taken, given), (), (0,), (1,)))
    values = np.array([2**40, -3], np.int64)
    memory = BytesMemory(values.tobytes() + bytes(16))
    request = Request(
        (RequestArgument(DataLocation(0, 0, 16)),), (RequestArgument(DataLocation(0, 16, 16)),), (memory,)
    )
    kinds = {code: np.dtype(np.int64)}
    [read] = read_inputs(model, request, kinds)
    assert read is not None
    assert read.tolist() == values.tolist()
    write_outputs(model, request, [read], element_types=kinds)
    assert bytes(memory.view()[16:]) == values.tobytes()
    assert element_types(model) == {}
