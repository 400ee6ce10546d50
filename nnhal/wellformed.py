"""Says which field of a model or request is not of its type: asked only after validation stumbled over one."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from enum import IntEnum


def misfit(hint: object, value: object, place: str) -> str:
    """The first place, at any depth, where a value is not of its type; empty when there is none."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        problems = [misfit(argument, value, place) for argument in arguments]
        return "" if "" in problems else max(problems, key=len)
    if origin is tuple:
        return _sequence(arguments, value, place)
    if hint is float:
        return _real(value, place)
    if hint is int or (isinstance(hint, type) and issubclass(hint, IntEnum)):
        good = hasattr(value, "__index__")
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return _record(value, place)
        good = False
    elif hint is bytes:
        good = isinstance(value, (bytes, bytearray, memoryview))
    else:
        good = isinstance(hint, type) and isinstance(value, hint)
    return "" if good else f"{place} is {type(value).__name__}"


def _real(value: object, place: str) -> str:
    try:
        float(value)  # type: ignore[arg-type]  # the TypeError is what is wanted
    except (TypeError, ValueError):
        return f"{place} is {type(value).__name__}"
    except OverflowError:
        return f"{place} is too large a number"
    return f"{place} is str" if isinstance(value, str) else ""


def _sequence(arguments: Sequence[object], value: object, place: str) -> str:
    if not isinstance(value, (tuple, list)):
        return f"{place} is {type(value).__name__}"
    for number, element in enumerate(value):
        problem = misfit(arguments[0], element, f"{place}[{number}]")
        if problem:
            return problem
    return ""


def _record(value: object, place: str) -> str:
    for name, hint in _hints(value.__class__).items():
        problem = misfit(hint, getattr(value, name), f"{place}.{name}")
        if problem:
            return problem
    return ""


def _hints(record: type) -> dict[str, object]:
    return dict(typing.get_type_hints(record))
