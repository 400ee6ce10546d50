"""Judges what is due besides values: short outputs, agreement of steps, what a device says of itself, timing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

import numpy as np

from harness.case import Step, TestCase
from harness.expectations import Agreement, Agrees, Describes, Repeats, Short, Supports
from harness.outcome import Description, Outcome, StepOutcome
from harness.steps import Action, Running
from harness.verdict import Cause, Judgement, Verdict, Worst
from nnhal.capabilities import capability_problems, listed_types
from nnhal.device import CacheFilesNeeded, Capabilities, Extension, Timing
from nnhal.types import (
    MAX_CACHE_FILES,
    Array,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionMode,
    FeatureLevel,
    OperandType,
    info,
)
from nnhal.validation_graph import EXTENSION_NAME


def judge_timing(step: Step, done: StepOutcome) -> str:
    """What is wrong with the timing of an execution that succeeded; empty when nothing is."""
    for timing, words in ((done.timing, ""), (done.fenced, " after the fences")):
        if timing is None:
            continue
        device, driver = timing.time_on_device, timing.time_in_driver
        if not done.measured and (device is not None or driver is not None):
            return f"timing{words} came ({device}, {driver}), and nobody asked for it"
        if min(device or 0, driver or 0) < 0:
            return f"timing{words} is negative: {device} ns on the device, {driver} ns in the driver"
        if device is not None and driver is not None and device > driver:
            return f"time on the device{words} ({device} ns) exceeds time in the driver ({driver} ns)"
    return _order_of_timings(step, done)


def _order_of_timings(step: Step, done: StepOutcome) -> str:
    launched = done.timing.time_in_driver if done.timing else None
    fenced = done.fenced.time_in_driver if done.fenced else None
    if launched is not None and fenced is not None and fenced > launched:
        return f"time from the fences on ({fenced} ns) exceeds time from the call on ({launched} ns)"
    longest = int(done.seconds * 1e9)
    if launched is not None and step.action == Action.EXECUTE and done.seconds and launched > longest:
        return f"time in the driver ({launched} ns) exceeds what the call took ({longest} ns)"
    return ""


def judge_short(step: Step, expect: Short, done: StepOutcome) -> Judgement | None:
    """OUTPUT_INSUFFICIENT_SIZE with a shape for each output, the short ones marked and no others."""
    stage = step.action.value
    if done.status in expect.unless:
        return Judgement(Verdict.PASS, stage=stage)
    if done.status != ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        name = done.status.name if done.status is not None else "nothing"
        text = f"{stage} answered {name} {done.message}".rstrip()
        text += f" though output {_list(expect.outputs)} is too small; OUTPUT_INSUFFICIENT_SIZE is required"
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, text)
    if done.timing is not None and done.timing != Timing():
        return Judgement(Verdict.FAIL, Cause.TIMING, stage, "timing came with OUTPUT_INSUFFICIENT_SIZE, none is due")
    if len(done.reported) != len(expect.shapes):
        text = f"OUTPUT_INSUFFICIENT_SIZE came with {len(done.reported)} shapes for {len(expect.shapes)} outputs"
        return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
    marked = tuple(n for n, shape in enumerate(done.reported) if not shape.is_sufficient)
    if marked != expect.outputs:
        text = f"output {_list(marked)} is marked as insufficient where output {_list(expect.outputs)} is"
        return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
    for number, (shape, due, known) in enumerate(zip(done.reported, expect.shapes, expect.known, strict=True)):
        if not _may_be(tuple(shape.dimensions), due, known):
            text = f"output {number} is reported as {list(shape.dimensions)}, it would be {list(due)}"
            return Judgement(Verdict.FAIL, Cause.SHAPE, stage, f"{text}, and {list(known)} was known before")
    return Judgement(Verdict.PASS, stage=stage)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"


def _may_be(reported: tuple[int, ...], due: tuple[int, ...], known: tuple[int, ...]) -> bool:
    """Whether a reported shape is right as far as it goes, and says no less than was known."""
    if not reported:
        return not known  # not even the rank is told
    if len(reported) != len(due):
        return False
    least = known or (0,) * len(due)
    return all(r in (0, d) and not (r == 0 and k != 0) for r, d, k in zip(reported, due, least, strict=True))


def judge_agreement(case: TestCase, outcome: Outcome, step: Step, expect: Agrees, done: StepOutcome) -> Judgement:
    """Outputs against those of another step, within what both are allowed together."""
    stage = step.action.value
    if done.status != ErrorStatus.NONE:
        name = done.status.name if done.status is not None else "nothing"
        text = f"{stage} answered {name} {done.message}".rstrip() + "; NONE is required"
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, text)
    other = next((o for o in outcome.steps if o.step == expect.step and o.status == ErrorStatus.NONE), None)
    if other is None:
        return Judgement(Verdict.PASS, stage=stage)  # what it would be compared with is not there
    timing = judge_timing(step, done)
    if timing:
        return Judgement(Verdict.FAIL, Cause.TIMING, stage, timing)
    model = case.models[step.model]
    types = [OperandType(model.main.operands[i].type) for i in model.main.output_indexes]
    error = 0.0
    for number, due in enumerate(expect.outputs):
        mine, theirs = done.outputs[number], other.outputs[due.position]
        if mine is None or theirs is None:
            text = f"output {number} has dimensions {list(done.shapes[number])}, for which there is no room"
            return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
        found = _compare(number, due, mine, theirs, types[number], expect)
        if found.verdict != Verdict.PASS:
            return found
        error = max(error, found.error or 0.0)
    return Judgement(Verdict.PASS, stage=stage, error=error)


def _compare(number: int, due: Agreement, mine: Array, theirs: Array, kind: OperandType, expect: Agrees) -> Judgement:
    stage = Action.EXECUTE.value
    target = theirs.astype(np.float64)
    if due.axes:
        target = np.transpose(target, due.axes)
    if due.first is not None:
        target = target[due.first : due.first + mine.shape[0]]
    target = target + due.shift
    if target.shape != mine.shape or due.allowed.shape != mine.shape:
        wanted_shape = target.shape if target.shape != mine.shape else due.allowed.shape
        text = f"output {number} has dimensions {list(mine.shape)}, {list(wanted_shape)} are due: {expect.text}"
        return Judgement(Verdict.FAIL, Cause.SHAPE, stage, text)
    actual = mine.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.abs(actual - target)
        same = (actual == target) | (np.isnan(actual) & np.isnan(target)) | np.isinf(due.allowed)
        ratio = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off / np.maximum(due.allowed, 1e-300)))
    if due.bits:
        ratio = np.where(_bits_differ(mine, theirs), np.inf, 0.0)
    if not ratio.size or ratio.max() <= 1.0:
        return Judgement(Verdict.PASS, stage=stage, error=float(ratio.max(initial=0.0)))
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    got, wanted, allowed = (float(array[place]) for array in (actual, target, due.allowed))
    unit = " steps" if info(kind).scaled else ""
    text = (
        f"{expect.text}; output {number} differs in {int((ratio > 1).sum())} of {ratio.size} elements\n"
        f"  worst at {place}: {got:.9g} here, {wanted:.9g} there, {allowed:.6g}{unit} allowed"
    )
    most = float(min(ratio[place], np.finfo(np.float32).max))
    worst = Worst(f"output {number}", place, got, wanted, allowed, most)
    return Judgement(Verdict.FAIL, Cause.INCONSISTENT, stage, text, worst, most)


def _bits_differ(first: Array, second: Array) -> Array:
    """By element whether two arrays of one shape and type are stored differently."""
    a, b = (
        np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(first.size, first.itemsize) for x in (first, second)
    )
    return np.asarray((a != b).any(axis=1).reshape(first.shape))


def judge_repetition_of_query(outcome: Outcome, expect: Repeats, done: StepOutcome) -> Judgement | None:
    """The same answer to the same question."""
    earlier = next((o for o in outcome.steps if o.step == expect.step), None)
    if earlier is None or (earlier.status, earlier.supported) == (done.status, done.supported):
        return None
    words = [f"{o.status.name if o.status is not None else None} {list(o.supported)}" for o in (earlier, done)]
    text = f"the support query answered {words[0]} and later {words[1]} to the same model"
    return Judgement(Verdict.FAIL, Cause.INCONSISTENT, Action.QUERY.value, text)


def judge_support(outcome: Outcome, expect: Supports, done: StepOutcome) -> Judgement:
    """The answer to a support query against what is due of single operations, and against an earlier one."""
    stage = Action.QUERY.value
    if done.status in expect.unless:
        return Judgement(Verdict.PASS, stage=stage)
    if done.status != ErrorStatus.NONE:
        name = done.status.name if done.status is not None else "nothing"
        text = f"{stage} of a valid model answered {name} {done.message}".rstrip()
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, f"{text}; NONE is required: {expect.text}")
    for number, (due, said) in enumerate(zip(expect.operations, done.supported, strict=False)):
        if due is not None and said != due:
            words = "is claimed to be supported" if said else "is not supported"
            return Judgement(Verdict.FAIL, Cause.SUPPORT, stage, f"operation {number} {words}: {expect.text}")
    other = next((o for o in outcome.steps if o.step == expect.step and o.status == ErrorStatus.NONE), None)
    if other is None:
        return Judgement(Verdict.PASS, stage=stage)
    for here, there in expect.kept:
        if other.supported[there] and not done.supported[here]:
            text = f"operation {here} is not supported any more, and was as operation {there} of the model before"
            return Judgement(Verdict.FAIL, Cause.SUPPORT, stage, f"{text}: {expect.text}{_reasons(done)}")
    if not expect.alike:
        return Judgement(Verdict.PASS, stage=stage)
    if all(other.supported) != all(done.supported):
        first, second = ("is supported", "is not") if all(other.supported) else ("is not supported", "is")
        text = f"the first model {first}, the second {second}: {expect.text}"
        return Judgement(Verdict.FAIL, Cause.SUPPORT, stage, text + _reasons(other) + _reasons(done))
    if not all(done.supported):
        text = _reasons(done).strip("\n ") or "the driver gives no reason"
        return Judgement(Verdict.NOT_SUPPORTED, Cause.UNSUPPORTED, stage, text)
    return Judgement(Verdict.PASS, stage=stage)


def _reasons(done: StepOutcome) -> str:
    """What the driver says of operations that it does not support, as lines below a message."""
    return "".join(f"\n  {reason}" for reason in sorted({r for r in done.reasons if r}))


def judge_description(case: TestCase, outcome: Outcome, expect: Describes, done: StepOutcome) -> Judgement:
    """What a device says of itself: each answer sane, and the same as before."""
    stage, found = Action.DESCRIBE.value, done.description
    if found is None:
        name = done.status.name if done.status is not None else "nothing"
        text = f"a question about the device was answered with {name} {done.message}".rstrip()
        return Judgement(Verdict.FAIL, Cause.STATUS, stage, f"{text}; a healthy device answers with NONE")
    for problem in description_problems(found):
        return Judgement(Verdict.FAIL, Cause.MALFORMED, stage, problem)
    before = next((o.description for o in outcome.steps if o.step == expect.same_as), None)
    for name in ("level", "status", "capabilities", "type", "version", "extensions", "cache_files"):
        if before is not None and getattr(before, name) != getattr(found, name):
            restarted = any(case.steps[n].action == Action.RESTART for n in range((expect.same_as or 0) + 1, done.step))
            when = "after a restart" if restarted else "when it was asked again"
            where, *values = _first_difference(name, getattr(before, name), getattr(found, name))
            text = f"the device's {where.replace('_', ' ')} changed {when}: {values[0]}, then {values[1]}"
            return Judgement(Verdict.FAIL, Cause.INCONSISTENT, stage, text)
    return Judgement(Verdict.PASS, stage=stage)


def _first_difference(name: str, first: object, second: object) -> tuple[str, str, str]:
    """The innermost place where two values differ, and what stands there."""
    if is_dataclass(first) and is_dataclass(second) and type(first) is type(second):
        for field in fields(first):
            one, other = getattr(first, field.name), getattr(second, field.name)
            if one != other:
                return _first_difference(f"{name}, {field.name}", one, other)
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            if one != other:
                return _first_difference(f"{name}, number {number}", one, other)
    return name, repr(first), repr(second)


def description_problems(found: Description) -> Iterator[str]:
    """Everything that no device may say, each as a sentence."""
    if found.status is not None and found.status != DeviceStatus.AVAILABLE:
        yield f"get_status answered {found.status}, AVAILABLE is due of a device that is to be tested"
    yield from _capability_problems(found.capabilities, found.level)
    if found.type is not None and found.type not in list(DeviceType):
        yield f"get_type answered {found.type}, which is no type of device"
    if found.version is not None and not found.version:
        yield "the version string is empty"
    if found.extensions is not None:
        yield from _extension_problems(found.extensions)
    if found.cache_files is not None:
        yield from _cache_problems(found.cache_files)
        some = found.cache_files != CacheFilesNeeded()
        if some != found.caching:
            says = "declares caching" if found.caching else "does not declare caching"
            yield f"the driver {says}, and the number of cache files that it needs is {'not ' if some else ''}0"


def _capability_problems(capabilities: Capabilities, level: FeatureLevel) -> Iterator[str]:
    yield from (f"the capabilities are wrong: {problem}" for problem in capability_problems(capabilities))
    types = [int(row.type) for row in capabilities.operand_performance]
    unknown = [code for code in types if code not in listed_types(level)]
    if unknown:
        yield f"the capabilities list operand type {unknown[0]}, which the driver's level {level.version} does not know"


def _extension_problems(extensions: Sequence[Extension]) -> Iterator[str]:
    names = [extension.name for extension in extensions]
    if len(set(names)) != len(names):
        yield f"an extension is listed twice: {sorted(names)}"
    for extension in extensions:
        if not EXTENSION_NAME.fullmatch(extension.name):
            yield f"the extension name {extension.name!r} is not of lower case letters, digits, '_' and '.', with a '.'"
        numbers = [row.type for row in extension.operand_types]
        if len(set(numbers)) != len(numbers):
            yield f"extension {extension.name} lists an operand type twice: {sorted(numbers)}"
        for row in extension.operand_types:
            if row.byte_size <= 0 or not 0 <= row.type <= 0xFFFF:
                yield f"extension {extension.name} has type {row.type} of {row.byte_size} bytes"


def _cache_problems(needed: CacheFilesNeeded) -> Iterator[str]:
    for kind, count in (("model", needed.num_model_cache), ("data", needed.num_data_cache)):
        if not 0 <= count <= MAX_CACHE_FILES:
            yield f"the device needs {count} {kind} cache files; 0 to {MAX_CACHE_FILES} are allowed"


def observations(case: TestCase, outcome: Outcome) -> tuple[tuple[str, ...], dict[str, float]]:
    """What the record says beside the verdict: sentences, and numbers by name."""
    notes: list[str] = []
    numbers: dict[str, float] = {}
    runs = [o for o in outcome.steps if case.steps[o.step].action == Action.EXECUTE and o.status == ErrorStatus.NONE]
    if "first_run" in case.observe and len(runs) > 2:
        later = statistics.median(o.seconds for o in runs[1:])
        numbers |= {"first_run_seconds": runs[0].seconds, "later_run_seconds": later}
        notes.append(f"the first execution took {runs[0].seconds / later:.2f} times as long as later ones")
    if "bits" in case.observe:
        notes += _different_bits(case, runs)
    return tuple(notes), numbers


def _different_bits(case: TestCase, runs: Sequence[StepOutcome]) -> Iterator[str]:
    """Executions of one model on one input whose results are not the same bits: legal, and worth knowing."""
    first: dict[int, StepOutcome] = {}
    for done in runs:
        step = case.steps[done.step]
        before = first.setdefault(step.model, done)
        same_input = all(_same(a, b) for a, b in _pairs(case.steps[before.step].inputs, step.inputs))
        if before is done or not same_input:
            continue
        pairs = list(_pairs(before.outputs, done.outputs))
        if any(a is not None and b is not None and a.tobytes() != b.tobytes() for a, b in pairs):
            modes = {ExecutionMode(case.steps[o.step].mode).name.lower() for o in (before, done)}
            yield f"two executions of one request differ in bits ({' and '.join(sorted(modes))})"
            return


def _same(first: Array | None, second: Array | None) -> bool:
    return first is second or (first is not None and second is not None and first.tobytes() == second.tobytes())


def _pairs(
    first: Sequence[Array | None], second: Sequence[Array | None]
) -> Iterator[tuple[Array | None, Array | None]]:
    return zip(first, second, strict=False)


def buffered(step: Step) -> frozenset[int]:
    """Numbers of the outputs that are in driver-managed buffers, where the suite does not see them."""
    if not isinstance(step.how, Running) or step.how.layout is None:
        return frozenset()
    return frozenset(place for output, place, _ in step.how.layout.buffers if output)
