"""Cases as files: what is saved is loaded, the digest follows the content, and damage is told in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.cases import drawn
from harness.case import Origin, Step, TestCase
from harness.case_file import FORMAT, load, save, seal
from harness.expectations import (
    Agreement,
    Agrees,
    Describes,
    Expected,
    MayReject,
    Rejects,
    Repeats,
    Returns,
    Short,
    Unspecified,
)
from harness.make import positive_case
from harness.steps import (
    Action,
    Allocation,
    Copying,
    Edit,
    Layout,
    Preparation,
    Releasing,
    Role,
    Running,
    Signalling,
    Tampering,
    Thing,
)
from nnhal.errors import UsageError
from nnhal.types import FL3, FL4, FL6, ErrorStatus, ExecutionMode, OperandType, OperationType
from opset import OPSET
from tests.add_model import add_model

GF = ErrorStatus.GENERAL_FAILURE
NUMBERS = np.array([[1.5, np.inf], [-0.0, np.nan]])
EXPECTED = Expected(
    "output",
    OperandType.TENSOR_FLOAT32,
    (2, 2),
    NUMBERS,
    np.array([[1e-5, np.inf], [0.0, 1.0]]),
    np.full((2, 2), 2.0**-24),
    3.5,
    exact=True,
    sums=False,
)
WHOLE = Expected("more", OperandType.TENSOR_INT32, (0, 3), np.zeros((0, 3)), np.zeros((0, 3)))
STEPS = (
    Step(Action.DESCRIBE, expect=Describes(3)),
    Step(Action.QUERY, 0, Repeats(2)),
    Step(
        Action.LOAD,
        1,
        Returns(unless=(GF,), declines=(GF,)),
        slot=4,
        how=Preparation(0, 2, -5, 1, bytes(range(32)), "moved"),
    ),
    Step(Action.TAMPER, how=Tampering(1, "flip", data=True, file=2, place=0.25, other=3)),
    Step(Action.ALLOCATE, slot=2, how=Allocation((0, -1), (Role(1, 2, True, 0.5), Role()), (2, 0))),
    Step(Action.COPY_IN, inputs=(np.arange(3),), how=Copying((3,), 7)),
    Step(Action.SIGNAL, slot=9, how=Signalling(GF)),
    Step(Action.RELEASE, how=Releasing(Thing.BUFFER, 5)),
    Step(
        Action.LAUNCH,
        1,
        Short((1,), ((2, 3), (4,)), ((2, 0), ()), (GF,)),
        ExecutionMode.FENCED,
        (None, np.array([1, 2], np.int32)),
        how=Running(
            False,
            1,
            2,
            3,
            True,
            (9, 8),
            4,
            (-1, 7),
            edits=(Edit("length", 1, (2**33, -1), True), Edit("remove")),
            layout=Layout("mmap_fd", True, 1, 2, True, (5,), ((0, 2), ()), False, ((True, 0, 1),)),
        ),
    ),
    Step(Action.WAIT, 0, Agrees(4, (Agreement(1, np.array([0.5, np.inf]), (1, 0), -128, 2),), "they are the same")),
    Step(Action.QUERY, 1, Unspecified()),
    Step(Action.PREPARE, 0, MayReject("RULE", "a rule; broken")),
    Step(Action.QUERY, 0, Rejects((ErrorStatus.INVALID_ARGUMENT,), "RANK_A", "rank 1 to 4: 5 given")),
    Step(Action.EXECUTE, 0, Rejects((), "OTHER", ""), client=2, thread=3),
    Step(
        Action.EXECUTE,
        1,
        Returns((EXPECTED, WHOLE)),
        ExecutionMode.BURST,
        (np.array([[1, 2]], np.int32).T, None),
    ),
    Step(Action.EXECUTE, 0, Returns(), inputs=(np.zeros((0, 2), np.float16), np.array(True))),
)
ORIGIN = Origin("ADD", "float32.default.in3", "drawn", 7, "burst", "RULE", "a: [2]; ü", "0/ADD/7")
MODELS = (add_model(), add_model((3,)))
CASE = seal(TestCase(ORIGIN, MODELS, STEPS, FL3, FL6, highest=FL4, needs=("caching",), observe=("bits",)))


def same(one: object, other: object) -> bool:
    """Whether two values are equal, arrays to the bit and the type."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        names = one.__dataclass_fields__
        return type(one) is type(other) and all(same(getattr(one, n), getattr(other, n)) for n in names)
    return one == other


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "a.case"
    save(CASE, path)
    return path


def test_every_kind_of_expectation_comes_back(tmp_path: Path) -> None:
    assert same(load(saved(tmp_path)), CASE)


def test_a_loaded_case_has_the_same_digest_and_id(tmp_path: Path) -> None:
    found = load(saved(tmp_path))
    assert seal(found).digest == found.digest == CASE.digest
    assert found.id == f"ADD-float32.default.in3-burst-drawn-7-{CASE.digest}"
    assert found.origin.batch == "ADD-float32.default.in3-burst-drawn"


def test_a_drawn_case_comes_back(tmp_path: Path) -> None:
    definition = OPSET[OperationType.ADD]
    signature = definition.signature("quant8_asymm")
    case = positive_case(drawn(definition, signature, "seed"), ORIGIN)
    save(case, tmp_path / "a.case")
    assert same(load(tmp_path / "a.case"), case)


def test_what_is_broken_makes_a_case_negative() -> None:
    assert CASE.negative
    assert not replace(CASE, steps=(STEPS[0], STEPS[1], STEPS[4])).negative


# ---- the digest


def test_the_digest_is_stable() -> None:
    model, values = add_model((2,)), (np.array([1, 2], np.float32), np.array([3, 4], np.float32))
    step = Step(Action.EXECUTE, 0, Returns(), inputs=values)
    case = seal(TestCase(Origin("ADD", "float32", "example", 0), (model,), (step,)))
    assert case.digest == seal(replace(case, digest="ffffff")).digest
    assert len(case.digest) == 6
    assert set(case.digest) <= set("0123456789abcdef")


def test_the_digest_is_that_of_the_content_written_another_way() -> None:
    other = replace(CASE, models=(add_model(), add_model((3,))), steps=tuple(replace(step) for step in STEPS))
    assert seal(other).digest == CASE.digest


@pytest.mark.parametrize(
    "change",
    [
        {"level": FL6},
        {"until": None},
        {"models": (add_model(), add_model((4,)))},
        {"steps": STEPS[:-1]},
        {"steps": (*STEPS[:-1], replace(STEPS[-1], inputs=(np.zeros((2, 0), np.float16), np.array(True))))},
        {"steps": (*STEPS[:-1], replace(STEPS[-1], mode=ExecutionMode.FENCED))},
        {"steps": (*STEPS[:-2], replace(STEPS[-2], expect=Returns((EXPECTED,))), STEPS[-1])},
        {"steps": (*STEPS[:-1], replace(STEPS[-1], expect=Unspecified()))},
        {"origin": replace(ORIGIN, number=8)},
    ],
)
def test_another_content_has_another_digest(change: dict[str, object]) -> None:
    assert seal(replace(CASE, **change)).digest != CASE.digest  # type: ignore[arg-type]


def digest_with(due: Expected) -> str:
    return seal(replace(CASE, steps=(Step(Action.EXECUTE, 0, Returns((due,))),))).digest


def test_the_digest_follows_expected_values_but_not_their_last_digits() -> None:
    value = np.array([0.0, 2.5, -0.5, 1.0, 1e6])
    due = Expected("output", OperandType.TENSOR_FLOAT32, (5,), value, 1e-5 + 6e-7 * np.abs(value))
    digest = digest_with(due)
    noise = np.array([1e-17, 4e-16, -1e-16, 2e-16, 1e-10])
    assert digest_with(replace(due, value=value + noise)) == digest
    assert digest_with(replace(due, value=value - noise)) == digest
    assert digest_with(replace(due, value=value + 2 * due.required)) != digest
    open_ = np.where(np.arange(5) == 2, np.inf, due.required)
    assert digest_with(replace(due, required=open_)) != digest
    exact = replace(due, required=np.zeros(5))
    assert digest_with(replace(exact, value=value + np.array([0, 0, 0, 0, 1.0]))) != digest_with(exact)


# ---- damage


def sentence(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def rewritten(path: Path, change: dict[str, object] | list[object], drop: str = "") -> Path:
    """The case file with another head, or without one of its arrays."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if name != drop}
    head = json.loads(arrays.pop("head").tobytes())
    head = {**head, **change} if isinstance(change, dict) else change
    with path.open("wb") as file:
        np.savez(file, head=np.frombuffer(json.dumps(head).encode(), np.uint8), **arrays)
    return path


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in sentence(tmp_path / "none.case")
    assert "cannot be read: Is a directory" in sentence(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b"PK\x03\x04" + bytes(40), b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_case(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.case"
    path.write_bytes(content)
    assert "is not a case file" in sentence(path)


def test_arrays_without_a_head_or_with_pickles(tmp_path: Path) -> None:
    path = tmp_path / "a.case"
    with path.open("wb") as file:
        np.savez(file, other=np.zeros(3))
    assert "is not a case file" in sentence(path)
    with path.open("wb") as file:
        np.savez(file, head=np.array([{"format": 1}], object))
    assert "is not a case file" in sentence(path)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        sentence(path)


def test_a_file_with_a_byte_changed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    messages = []
    for place in range(40, len(whole), 211):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            load(path)
        except UsageError as error:  # whatever else is raised fails the test
            messages.append(str(error))
    assert len(messages) > 5
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("change", [{"format": FORMAT + 1}, {"format": None}, []])
def test_a_foreign_format(tmp_path: Path, change: dict[str, object] | list[object]) -> None:
    assert f"{FORMAT} is understood: use the suite that wrote it" in sentence(rewritten(saved(tmp_path), change))


@pytest.mark.parametrize(
    "change",
    [
        {"models": 5},
        {"models": "two"},
        {"level": 99},
        {"origin": {"operation": "ADD"}},
        {"origin": 3},
        {"steps": [{"action": "dance"}]},
        {"steps": [{"action": "query"}]},
        {"steps": 4},
        {"digest": 7},
        {"until": "x"},
    ],
)
def test_a_damaged_head(tmp_path: Path, change: dict[str, object]) -> None:
    assert "is damaged (" in sentence(rewritten(saved(tmp_path), change))


def test_a_missing_array(tmp_path: Path) -> None:
    assert "is damaged (" in sentence(rewritten(saved(tmp_path), {}, drop="a2"))


def test_a_step_of_a_model_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.case"
    for number in (2, -1):
        save(replace(CASE, steps=(Step(Action.QUERY, number),)), path)
        assert f"is damaged (a step with model {number} of 2)" in sentence(path)
    save(replace(CASE, steps=(replace(STEPS[-1], inputs=(None,)),)), path)
    assert "is damaged (a step with 1 inputs for a model with 2)" in sentence(path)
