"""`nnhal.validate` on requests and settings: each rule holds for a good one, and refuses a broken one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nnhal.device import CompilationConfig, ExecutionConfig
from nnhal.errors import DriverError
from nnhal.memory import HardwareBuffer
from nnhal.model import (
    BufferToken,
    Model,
    Request,
    RequestArgument,
)
from nnhal.types import (
    FL1,
    FL2,
    FL3,
    FL4,
    FL5,
    FL8,
    ErrorStatus,
    ExecutionPreference,
    FeatureLevel,
    Priority,
)
from nnhal.validate import (
    REQUEST_RULES,
    execution_violations,
    request_violations,
    token_violations,
    validate_compilation,
    validate_execution,
    validate_preference,
    validate_priority,
    validate_request,
    validate_tokens,
)
from tests.small_models import (
    addition,
    closed,
    request_for,
)

ADD = addition()


def request_labels(request: Request, model: Model = ADD, level: FeatureLevel = FL8, fenced: bool = False) -> list[str]:
    return [v.label for v in request_violations(request, model, level, fenced=fenced)]


GOOD = request_for()


def argument(request: Request, side: str, number: int, **changes: Any) -> Request:
    arguments = list(getattr(request, side))
    place = {k: changes.pop(k) for k in ("pool_index", "offset", "length", "padding") if k in changes}
    old = arguments[number]
    arguments[number] = replace(old, location=replace(old.location, **place), **changes)
    return replace(request, **{side: tuple(arguments)})


TOKENS = replace(GOOD, pools=(*GOOD.pools, BufferToken(7)))
IN_BUFFER = {"pool_index": 1, "offset": 0, "length": 0}
OPEN = addition((0, 3))
BAD_REQUESTS: list[tuple[str, str, Request, Model, FeatureLevel]] = [
    ("R0", "no request", None, ADD, FL8),  # type: ignore[list-item]
    ("R0", "text as an offset", argument(GOOD, "inputs", 0, offset="1"), ADD, FL8),
    ("R1", "an input fewer", replace(GOOD, inputs=GOOD.inputs[:1]), ADD, FL8),
    ("R1", "an output more", replace(GOOD, outputs=GOOD.outputs * 2), ADD, FL8),
    ("R2", "no value but a location", argument(GOOD, "inputs", 1, has_no_value=True), ADD, FL8),
    ("R2", "no value but dimensions", replace(GOOD, outputs=(RequestArgument(dimensions=(2, 3), has_no_value=True),)),
     ADD, FL8),
    ("R3", "pool 1 of 1", argument(GOOD, "inputs", 0, pool_index=1), ADD, FL8),
    ("R3", "negative pool", argument(GOOD, "inputs", 0, pool_index=-1), ADD, FL8),
    ("R3", "one byte past", argument(GOOD, "outputs", 0, offset=49), ADD, FL8),
    ("R3", "sum wraps", argument(GOOD, "outputs", 0, offset=2**32 - 24), ADD, FL8),
    ("R3", "no bytes", argument(GOOD, "inputs", 0, length=0), ADD, FL8),
    ("R3", "padding past the pool", argument(GOOD, "outputs", 0, padding=1), ADD, FL5),
    ("R4", "part of a managed buffer", argument(TOKENS, "inputs", 0, pool_index=1), ADD, FL8),
    ("R4", "part of an opaque buffer", replace(GOOD, pools=(HardwareBuffer.allocate(72, blob=False),)), ADD, FL8),
    ("R5", "another rank", argument(GOOD, "inputs", 0, dimensions=(6,)), ADD, FL8),
    ("R5", "another size", argument(GOOD, "outputs", 0, dimensions=(3, 2)), ADD, FL8),
    ("R5", "negative size", argument(GOOD, "outputs", 0, dimensions=(-2, 3)), ADD, FL8),
    ("R6", "0 in an input", argument(GOOD, "inputs", 0, dimensions=(0, 3)), OPEN, FL8),
    ("R6", "nothing for an open input", GOOD, OPEN, FL8),
    ("R7", "open output below 1.2", GOOD, OPEN, FL2),
    ("R8", "a byte fewer", argument(GOOD, "inputs", 0, length=23), ADD, FL8),
    ("R8", "a byte more", argument(GOOD, "outputs", 0, length=23), ADD, FL8),
    ("R9", "closed pool", replace(GOOD, pools=(closed(),)), ADD, FL8),
    ("R9", "token 0", replace(GOOD, pools=(*GOOD.pools, BufferToken(0))), ADD, FL8),
    ("R9", "token below 1.3", TOKENS, ADD, FL3),
    ("R9", "hardware buffer below 1.2", replace(GOOD, pools=(HardwareBuffer.allocate(72),)), ADD, FL2),
    ("R10", "buffer read and written",
     argument(argument(TOKENS, "inputs", 0, **IN_BUFFER), "outputs", 0, **IN_BUFFER), ADD, FL8),
]  # fmt: skip


@pytest.mark.parametrize(
    ("label", "request_", "model", "level"),
    [(r[0], *r[2:]) for r in BAD_REQUESTS],
    ids=[f"{r[0]}-{r[1]}" for r in BAD_REQUESTS],
)
def test_bad_requests_are_refused_by_their_rule(
    label: str, request_: Request, model: Model, level: FeatureLevel
) -> None:
    assert label in request_labels(request_, model, level)
    with pytest.raises(DriverError) as caught:
        validate_request(request_, model, level)
    assert caught.value.status == ErrorStatus.INVALID_ARGUMENT


def test_every_rule_on_requests_is_tested() -> None:
    assert {r[0] for r in BAD_REQUESTS} | {"R11", "R12"} == set(REQUEST_RULES)


def test_good_requests_pass() -> None:
    for level in FeatureLevel:
        assert request_labels(GOOD, ADD, level) == []
    assert request_labels(GOOD, fenced=True) == []
    assert request_labels(argument(GOOD, "inputs", 0, dimensions=(2, 3))) == []
    assert request_labels(argument(GOOD, "outputs", 0, dimensions=(0, 3))) == []
    assert request_labels(argument(GOOD, "inputs", 1, **IN_BUFFER) and argument(TOKENS, "inputs", 0, **IN_BUFFER)) == []
    both = argument(argument(TOKENS, "inputs", 0, **IN_BUFFER), "inputs", 1, **IN_BUFFER)
    assert request_labels(both) == []
    empty = replace(GOOD, inputs=(GOOD.inputs[0], RequestArgument(has_no_value=True)))
    assert request_labels(empty) == []


def test_open_outputs_may_have_any_room_from_level_3_on() -> None:
    given = argument(argument(GOOD, "inputs", 0, dimensions=(2, 3)), "inputs", 1, dimensions=(2, 3))
    short = argument(given, "outputs", 0, length=1)
    for level in list(FeatureLevel)[2:]:
        assert request_labels(given, OPEN, level) == []
        assert request_labels(short, OPEN, level) == []
    assert request_labels(given, OPEN, FL2) == ["R7"]
    assert request_labels(given, OPEN, FL8, fenced=True) == ["R7"]
    known = argument(given, "outputs", 0, dimensions=(2, 3))
    assert request_labels(known, OPEN, FL2) == []
    assert request_labels(known, OPEN, FL8, fenced=True) == []
    # A 0 of the request leaves a size to the model.
    assert request_labels(argument(short, "outputs", 0, dimensions=(2, 0)), OPEN, FL8, fenced=True) == ["R8"]


def test_durations_and_tokens() -> None:
    assert execution_violations(ExecutionConfig(loop_timeout_duration=15_000_000_000), 0, 0) == []
    for config, deadline, duration in (
        (ExecutionConfig(loop_timeout_duration=15_000_000_001), None, None),
        (ExecutionConfig(loop_timeout_duration=-2), None, None),
        (ExecutionConfig(), -2, None),
        (ExecutionConfig(), None, -2),
    ):
        assert [v.label for v in execution_violations(config, deadline, duration)] == ["R11"]
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_execution(config, deadline, duration)
    validate_tokens(GOOD, [-1])
    assert [v.label for v in token_violations(GOOD, [-2])] == ["R12"]
    for tokens in ([], [1, 2], [-2]):
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_tokens(GOOD, tokens)


def test_settings_of_preparation() -> None:
    for preference in (-1, 3):
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_preference(preference, FL2)
        validate_preference(preference, FL1)  # level 1 has none
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_priority(preference, FL4)
        validate_priority(preference, FL3)
    for known in ExecutionPreference:
        validate_preference(known)
    for priority in Priority:
        validate_priority(priority)
    validate_compilation(CompilationConfig(model_cache=(1,)))
    for config in (CompilationConfig(deadline=-2), CompilationConfig(model_cache=(1,), cache_token=b"short")):
        with pytest.raises(DriverError, match="INVALID_ARGUMENT"):
            validate_compilation(config)
