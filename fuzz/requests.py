"""Requests out of bytes: memory laid out in any way, and requests some of whose numbers are changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fuzz.attempt import Attempt
from fuzz.fields import number_near
from fuzz.graphs import origin_of
from fuzz.known import Known
from fuzz.vehicles import Vehicle
from harness.case import Step, TestCase
from harness.expectations import Expectation, Rejects, Returns, Short, Unspecified
from harness.layouts import arrange
from harness.make import INVALID
from harness.requests import CHANGES, edited
from harness.steps import KINDS, Action, Edit, Layout, Running
from nnhal.types import FL3, FL5, ErrorStatus, ExecutionMode, info
from nnhal.validate import request_violations
from opset.source import Source, choice

MOST_EDITS = 3
HARDWARE = ("hardware_buffer", "opaque")
# What needs a place of an argument that has one; the others take any.
NUMBERED = ("offset", "length", "padding", "pool_index")
SIGNED_FROM = FL5  # below, numbers of requests have no sign


def request(source: Source, known: Known) -> Attempt | None:
    """An execution with a request of the bytes' making, and a good one before and after it."""
    vehicles = known.vehicles
    if not vehicles:
        return None
    whole = choice(source, vehicles)
    mode = choice(source, known.modes)
    chosen = _opened(source, whole, known, mode) or whole
    layout = _layout(source, whole, known)
    inputs, returns = chosen.runs[source.integer(0, 1)]
    edits = tuple(_edit(source, chosen, known) for _ in range(source.integer(0, MOST_EDITS)))
    lengths = _lengths(returns)
    if chosen is not whole and not layout.output_bytes:  # where a request is refused nothing else says their room
        layout = replace(layout, output_bytes=tuple(lengths))
    try:
        before = arrange(chosen.model, inputs, lengths, layout, {}).request
        after = edited(before, edits)
        wrong = request_violations(after, chosen.model, known.level, fenced=mode == ExecutionMode.FENCED)
    except (IndexError, ValueError, OverflowError, TypeError):  # an edit has nothing to change any more
        return None
    words = "; ".join(_words(edit) for edit in edits) or "none"
    if layout.kind in HARDWARE:  # a driver need not know the buffers of a device
        returns = replace(returns, declines=(ErrorStatus.GENERAL_FAILURE,))
    due: Expectation = returns
    if wrong:
        if not known.validates:
            return None
        due = Rejects(INVALID, wrong[0].label, f"{wrong[0].text} (changed: {words})")
    elif after.outputs != before.outputs or after.pools != before.pools:
        return None  # valid, and results lie where nothing guards them
    elif edits:
        due = Unspecified()
    elif layout.output_bytes:
        due = _short(chosen, whole, layout, lengths, returns) if chosen is not whole else Unspecified()
    bad = Step(Action.EXECUTE, 0, due, mode, inputs, how=Running(layout=layout, edits=edits))
    good = chosen.execute(0)
    steps = (Step(Action.QUERY), Step(Action.PREPARE), good, bad, good)
    rule = wrong[0].label if wrong else ""
    detail = f"{chosen.seed}: {layout.kind} memory, changed: {words}"
    highest = None if known.level == max(type(known.level)) else known.level
    needs = ("dynamic_shapes",) if chosen is not whole else ()
    origin = origin_of("requests", detail, rule)
    return Attempt(TestCase(origin, (chosen.model,), steps, known.level, highest=highest, needs=needs))


def _opened(source: Source, whole: Vehicle, known: Known, mode: ExecutionMode) -> Vehicle | None:
    """At times the vehicle with outputs of open sizes, where the driver and the mode take those."""
    takes = known.dynamic_shapes and known.level >= FL3 and mode != ExecutionMode.FENCED
    return whole.opened if takes and not source.integer(0, 2) else None


def _short(chosen: Vehicle, whole: Vehicle, layout: Layout, lengths: Sequence[int], enough: Returns) -> Returns | Short:
    """What is due where outputs of open sizes have other room than they need: those with too little are marked."""
    few = tuple(n for n, (room, size) in enumerate(zip(layout.output_bytes, lengths, strict=True)) if room < size)
    if not few:
        return enough
    shapes = tuple(whole.shapes(output=True))
    said = layout.output_dimensions or tuple(chosen.shapes(output=True))
    return Short(few, shapes, said, declines=enough.declines)


def _lengths(returns: Returns) -> list[int]:
    """Bytes of the outputs."""
    return [math.prod(due.shape) * np.dtype(info(due.type).dtype).itemsize for due in returns.outputs]


def _layout(source: Source, chosen: Vehicle, known: Known) -> Layout:
    kind = choice(source, KINDS)
    layout = Layout(kind)
    if kind == "opaque":
        return layout
    if source.integer(0, 1):
        layout = replace(layout, separate=bool(source.integer(0, 1)), tight=bool(source.integer(0, 1)))
    if not source.integer(0, 3):
        layout = replace(layout, overlap=True)
    if not source.integer(0, 3) and known.level >= FL5:
        layout = replace(layout, padding=source.integer(0, 64))
    if not source.integer(0, 3):
        layout = replace(layout, output_dimensions=tuple(chosen.shapes(output=True)))
    if not source.integer(0, 5):
        shapes = _lengths(chosen.runs[0][1])
        layout = replace(layout, output_bytes=tuple(max(size + choice(source, (0, -1, 1, 64)), 1) for size in shapes))
    if not source.integer(0, 3):
        layout = replace(layout, input_dimensions=False)
    return layout


def _edit(source: Source, chosen: Vehicle, known: Known) -> Edit:
    change = choice(source, tuple(CHANGES))
    output = bool(source.integer(0, 1))
    main = chosen.model.main
    count = len(main.output_indexes if output else main.input_indexes)
    place = source.integer(0, max(count - 1, 0))
    value: tuple[int, ...] = ()
    if change in NUMBERED:
        value = (_number(source, known),)
    elif change == "dimensions":
        value = tuple(_number(source, known) for _ in range(source.integer(0, 5)))
    elif change == "longer":
        value = (choice(source, (1, 4, 64, -1, -4)),)
    elif change in ("without_value", "token"):
        value = (source.integer(0, 1) if change == "without_value" else choice(source, (0, 1, 7, 1 << 30)),)
    return Edit(change, place, value, output)


def _number(source: Source, known: Known) -> int:
    number = number_near(source, source.integer(0, 64))
    return number if known.level >= SIGNED_FROM else number % (1 << 32)


def _words(edit: Edit) -> str:
    """An edit for a person."""
    end = "output" if edit.output else "input"
    return f"{edit.change.replace('_', ' ')} of {end} {edit.place}" + (f" to {list(edit.value)}" if edit.value else "")
