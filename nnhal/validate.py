"""Says whether models and requests keep the rules of the driver interface. For drivers to call, and for suites.

`validate_model(model, level)` and `validate_request(request, model, level)` raise INVALID_ARGUMENT, `violations` and
`request_violations` list what is wrong. The sentences behind the labels are MODEL_RULES and REQUEST_RULES, and the
rules of `operations.json`. No input makes them raise anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnhal.device import DEFAULT_EXECUTION, CompilationConfig, ExecutionConfig
from nnhal.errors import invalid
from nnhal.model import Model, Request
from nnhal.types import CACHE_TOKEN_BYTES, FL2, FL4, FL8, ExecutionPreference, FeatureLevel, Priority
from nnhal.validation_graph import LIMITS, GraphCheck, check_whole_model
from nnhal.validation_request import RequestCheck, execution_violations, token_violations
from nnhal.validation_rules import MODEL_RULES, REQUEST_RULES, Violation
from nnhal.wellformed import misfit

__all__ = [
    "MODEL_RULES",
    "REQUEST_RULES",
    "Violation",
    "execution_violations",
    "request_violations",
    "token_violations",
    "validate_compilation",
    "validate_execution",
    "validate_model",
    "validate_preference",
    "validate_priority",
    "validate_request",
    "validate_token",
    "validate_tokens",
    "violations",
]

_GARBAGE = (TypeError, AttributeError, ValueError, OverflowError)  # what fields of a wrong type lead to


def violations(model: Model, level: FeatureLevel = FL8, *, consumers: bool = True) -> list[Violation]:
    """Everything that is wrong with a model at a level, in order; empty for a valid model.

    Of several rules of one operation only the first that is broken is named: the later ones assume it.

    Args:
        model: anything at all.
        level: of the device that the model is meant for.
        consumers: False leaves out the numbers of consumers, which only levels 1 to 4 know.
    """
    return _guarded(lambda: _model_violations(model, level, consumers), "G0", Model, model)


def _model_violations(model: Model, level: FeatureLevel, consumers: bool) -> list[Violation]:
    limits = LIMITS[level]
    found: list[Violation] = []
    GraphCheck(model, model.main, None, limits, found, consumers).run()
    for number, graph in enumerate(model.referenced):
        GraphCheck(model, graph, number, limits, found, consumers).run()
    if model.pools or model.extension_name_to_prefix or model.referenced:
        check_whole_model(model, limits, found)
    return found


def validate_model(model: Model, level: FeatureLevel = FL8) -> None:
    """Refuses an invalid model. Validity comes before support: call it first.

    Raises:
        DriverError: INVALID_ARGUMENT with the first violation.
    """
    _refuse(violations(model, level))


def request_violations(
    request: Request, model: Model, level: FeatureLevel = FL8, *, fenced: bool = False
) -> list[Violation]:
    """Everything that is wrong with a request, in order; empty for a valid one.

    Whether a token names a buffer that was prepared for its role only the driver knows.

    Args:
        request: anything at all.
        model: the valid model that was prepared.
        level: of the device.
        fenced: the request is for fenced execution, where the shapes of outputs must be known.
    """
    return _guarded(lambda: RequestCheck(request, model, level, fenced=fenced).run(), "R0", Request, request)


def validate_request(request: Request, model: Model, level: FeatureLevel = FL8, *, fenced: bool = False) -> None:
    """Refuses an invalid request.

    Raises:
        DriverError: INVALID_ARGUMENT with the first violation.
    """
    _refuse(request_violations(request, model, level, fenced=fenced))


def validate_preference(preference: int, level: FeatureLevel = FL8) -> None:
    """Refuses an execution preference that there is none of. Level 1 has none at all, so nothing is wrong there.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    if level >= FL2 and preference not in ExecutionPreference.__members__.values():
        raise invalid(f"there is no execution preference {preference!r}")


def validate_priority(priority: int, level: FeatureLevel = FL8) -> None:
    """Refuses a priority that there is none of; levels below 4 have none at all.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    if level >= FL4 and priority not in Priority.__members__.values():
        raise invalid(f"there is no priority {priority!r}")


def validate_compilation(config: CompilationConfig, level: FeatureLevel = FL8) -> None:
    """Refuses a bad preference, priority, deadline or length of the cache token.

    A wrong number or kind of cache files is no reason to refuse: only the saving fails.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    validate_preference(config.preference, level)
    validate_priority(config.priority, level)
    if config.deadline is not None and config.deadline < 0:
        raise invalid(f"the deadline of {config.deadline} ns is negative")
    if (config.model_cache or config.data_cache) and len(config.cache_token) != CACHE_TOKEN_BYTES:
        raise invalid(f"the cache token has {len(config.cache_token)} bytes, {CACHE_TOKEN_BYTES} are due")


def validate_execution(
    config: ExecutionConfig = DEFAULT_EXECUTION, deadline: int | None = None, duration: int | None = None
) -> None:
    """Refuses negative deadlines and durations, and a loop timeout above the largest.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    _refuse(execution_violations(config, deadline, duration))


def validate_tokens(request: Request, memory_tokens: Sequence[int]) -> None:
    """Refuses a wrong number of memory tokens, or one below -1.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    _refuse(token_violations(request, memory_tokens))


def validate_token(memory_token: int) -> None:
    """Refuses a memory token that none can be let go by.

    Raises:
        DriverError: INVALID_ARGUMENT.
    """
    if memory_token < 0:
        raise invalid(f"memory token {memory_token} is negative")


def _refuse(found: list[Violation]) -> None:
    if found:
        raise invalid(str(found[0]))


def _guarded(check: Callable[[], list[Violation]], label: str, kind: type, value: object) -> list[Violation]:
    """Runs a check; when it stumbles over a field of a wrong type, says which. A stumble of its own is passed on."""
    try:
        return check()
    except _GARBAGE:
        problem = misfit(kind, value, kind.__name__)
        if not problem:
            raise
        return [Violation(label, problem)]
