"""Changes of a valid request, by name: what the request and memory mutations of negative cases are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.steps import Edit
from nnhal.memory import Memory
from nnhal.model import BufferToken, DataLocation, Request, RequestArgument

Change = Callable[[Request, Edit], Request]
WORD = 1 << 32


def edited(request: Request, edits: Sequence[Edit]) -> Request:
    """The request with all changes, in order."""
    for edit in edits:
        request = CHANGES[edit.change](request, edit)
    return request


def _arguments(request: Request, edit: Edit) -> tuple[RequestArgument, ...]:
    return request.outputs if edit.output else request.inputs


def _with_arguments(request: Request, edit: Edit, arguments: Sequence[RequestArgument]) -> Request:
    if edit.output:
        return replace(request, outputs=tuple(arguments))
    return replace(request, inputs=tuple(arguments))


def _with_argument(request: Request, edit: Edit, argument: RequestArgument) -> Request:
    arguments = list(_arguments(request, edit))
    arguments[edit.place] = argument
    return _with_arguments(request, edit, arguments)


def _located(request: Request, edit: Edit, **fields: int) -> Request:
    argument = _arguments(request, edit)[edit.place]
    return _with_argument(request, edit, replace(argument, location=replace(argument.location, **fields)))


def _place(request: Request, edit: Edit) -> DataLocation:
    return _arguments(request, edit)[edit.place].location


def _pool_size(request: Request, edit: Edit) -> int:
    pool = request.pools[_place(request, edit).pool_index]
    return pool.size if isinstance(pool, Memory) else 0


def _remove(request: Request, edit: Edit) -> Request:
    arguments = list(_arguments(request, edit))
    del arguments[edit.place]
    return _with_arguments(request, edit, arguments)


def _add(request: Request, edit: Edit) -> Request:
    """One argument more: the one in place once again."""
    arguments = _arguments(request, edit)
    return _with_arguments(request, edit, (*arguments, arguments[edit.place]))


def _past_pool(request: Request, edit: Edit) -> Request:
    return _located(request, edit, offset=_pool_size(request, edit) - _place(request, edit).length + 1)


def _wrap(request: Request, edit: Edit) -> Request:
    """Offset and length whose sum is small in 32 bits."""
    return _located(request, edit, offset=WORD - _place(request, edit).length)


def _longer(request: Request, edit: Edit) -> Request:
    return _located(request, edit, length=_place(request, edit).length + edit.value[0])


def _value(name: str) -> Change:
    return lambda request, edit: _located(request, edit, **{name: edit.value[0]})


def _dimensions(request: Request, edit: Edit) -> Request:
    argument = _arguments(request, edit)[edit.place]
    return _with_argument(request, edit, replace(argument, dimensions=edit.value))


def _without_value(request: Request, edit: Edit) -> Request:
    """No value, and yet a location (value 0) or dimensions (value 1)."""
    argument = _arguments(request, edit)[edit.place]
    if edit.value[0]:
        bad = RequestArgument(dimensions=argument.dimensions or (1,), has_no_value=True)
    else:
        bad = RequestArgument(argument.location, has_no_value=True)
    return _with_argument(request, edit, bad)


def _foreign_pool(request: Request, edit: Edit) -> Request:
    beyond = edit.value[0] if edit.value else 0
    return _located(request, edit, pool_index=len(request.pools) + beyond)


def _token(request: Request, edit: Edit) -> Request:
    """The argument is in a driver-managed buffer of that token."""
    wider = replace(request, pools=(*request.pools, BufferToken(edit.value[0])))
    argument = _arguments(request, edit)[edit.place]
    whole = replace(argument, location=DataLocation(len(request.pools), 0, 0))
    return _with_argument(wider, edit, whole)


def _no_pools(request: Request, edit: Edit) -> Request:
    return replace(request, pools=())


CHANGES: dict[str, Change] = {
    "remove": _remove,
    "add": _add,
    "past_pool": _past_pool,
    "wrap": _wrap,
    "longer": _longer,
    "offset": _value("offset"),
    "length": _value("length"),
    "padding": _value("padding"),
    "pool_index": _value("pool_index"),
    "foreign_pool": _foreign_pool,
    "dimensions": _dimensions,
    "without_value": _without_value,
    "token": _token,
    "no_pools": _no_pools,
}
