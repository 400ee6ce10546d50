"""The record that defines an operation, from which every suite draws. One definition lives in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nnhal.operations import (
    Form,
    OperandDef,
    OperationInfo,
    RuleKind,
    Signature,
    TypeRow,
    ValidationRule,
)
from nnhal.types import FL1, Array, FeatureLevel, OperandType, OperationType
from opset.call import Argument, Call, with_value
from opset.drawing import Draft
from opset.quantization import QUANTIZED
from opset.values import Arithmetic, Values

if TYPE_CHECKING:
    from opset.evaluate import Result
    from opset.tracking import Tracked

Shapes = Mapping[str, tuple[int, ...]]
Quantization = Mapping[str, tuple[float, int]]
Kernel = Callable[[Values], Mapping[str, Array]]


@dataclass(frozen=True)
class ExecutionRule:
    """A constraint that can only be checked with shapes or values: a driver may refuse it as late as at execution.

    Attributes:
        label: unique within the operation; cited by tests, messages and documents.
        text: the constraint as a sentence.
        holds: whether a call keeps it; may assume that the rules before it hold.
        broken: a valid call made to break this rule alone, or None where this call offers no way.
        until: the first level that knows such values. Below it nobody asks for them, and nothing is due of a driver
            that meets them, so there is no way to break the rule.
    """

    label: str
    text: str
    holds: Callable[[Call], bool]
    broken: Callable[[Call], Call | None]
    until: FeatureLevel | None = None


@dataclass(frozen=True)
class Bound:
    """How far a correct implementation in floating point may be off.

    The unit of an element is `magnitude` * 2^-(1 + mantissa bits) of the result's type: half a unit in the last place
    of what was summed. 2 * `terms` units are allowed; `terms` also scales the quality limits. 0 terms mean exact.

    Attributes:
        magnitude: sum of the absolute products behind each element, or the size of the result itself.
        terms: number of roundings behind an element.
    """

    magnitude: Array | float
    terms: float


EXACT = Bound(0.0, 0.0)
Bounder = Callable[[Values, Mapping[str, Array]], Bound]


@dataclass(frozen=True)
class LeftOpen:
    """What the specification leaves open: elements that are not compared.

    Attributes:
        words: which elements, as a phrase.
        masks: for each result that has such elements a mask of them.
    """

    words: str
    masks: Callable[[Values, Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Example:
    """A case worked by hand or quoted from the specification.

    Attributes:
        inputs: stored values by name; scalars as numbers, graphs and operands of any type as themselves.
        outputs: the same.
        quantization: scale and zero point by name, where the type has them.
    """

    signature: str
    inputs: Mapping[str, object]
    outputs: Mapping[str, object]
    quantization: Mapping[str, tuple[float | tuple[float, ...], int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """What is true of results that are drawn at random.

    Attributes:
        probabilities: for each result that of each class, [rows, classes]; the result is [rows, samples].
        reseeded: the same call with other seeds, which must give other results.
    """

    probabilities: Callable[[Values], Mapping[str, Array]]
    reseeded: Callable[[Call], Call]


@dataclass(frozen=True)
class Judging:
    """How results are judged.

    Attributes:
        bound: error allowed to a floating-point implementation, for each result (or one for all).
        words: the same as a phrase, which a callable cannot say; more about it is said once, above all operations.
        left_open: elements that are not compared.
        steps: stored steps that a quantised result may be off; 1 is NNAPI's rule. By name where results differ.
        sampling: for results drawn at random: what they are judged by.
        grouped_by: the result whose equal values mark rows that may come in any order, the same in all results.
        moves: whether results are stored values of all quantised inputs, wherever these have the result's scale and
            zero point and the bound says exact: nothing is rounded then, and a step off is worth a report though
            `steps` allows it. By name of the result that of the input, where not all of them count.
        hashed: operands of whose stored values the least change may give any other result.
    """

    bound: Bounder
    words: str
    left_open: LeftOpen | None = None
    steps: int | Mapping[str, int] = 1
    sampling: Sampling | None = None
    grouped_by: str = ""
    moves: bool | Mapping[str, str] = False
    hashed: tuple[str, ...] = ()

    def steps_of(self, result: str) -> int:
        """Stored steps that a quantised result may be off."""
        return self.steps if isinstance(self.steps, int) else self.steps.get(result, 1)

    def moved_from(self, result: str, call: Call) -> list[Argument]:
        """The quantised inputs whose stored values may be those of a result; none where it is computed."""
        if isinstance(self.moves, Mapping):
            return [call[self.moves[result]]] if result in self.moves else []
        return [a for a in call.inputs.values() if a.type in QUANTIZED] if self.moves else []


@dataclass(frozen=True)
class GraphRunner:
    """How an operation that runs graphs is computed and judged.

    Attributes:
        run: results in place of the kernel's, rounded inside.
        track: results with the error that what was run allows, from inputs with theirs; relaxed or not.
    """

    run: Callable[[Call, Arithmetic], Mapping[str, Result]]
    track: Callable[[Call, Mapping[str, Tracked], bool], Mapping[str, Tracked]]


@dataclass(frozen=True)
class OperationDef:
    """Everything that is true of an operation. Nothing about a driver, a device or a test may enter.

    Attributes:
        code: the operation.
        doc: one paragraph, with the formula and what documents and public code disagree about.
        forms: layouts of the inputs.
        results: what comes out.
        rows: the table of types.
        rules: constraints in order; a later one may assume the earlier. ValidationRule is data and checked when a
            model is validated, ExecutionRule is a pair of callables and checked when a call has values.
        infer: shapes of the results, from shapes and the values of parameters.
        kernel: results as real numbers (float64 in the baseline) or exact integers; rounding comes after.
        judging: the error allowed, what is left open, and how else results are compared.
        draw: puts a valid call together, from choices alone.
        quantization: scale and zero point that results must have; a result not named is free and gets fitted.
        examples: worked cases.
        second_opinion: what other computation the tests compare with.
        result_counts: numbers of results and the first level that allows each; all of them when empty.
        graphs: for operations that run graphs: what stands in for kernel and bound.
    """

    code: OperationType
    doc: str
    forms: tuple[Form, ...]
    results: tuple[OperandDef, ...]
    rows: tuple[TypeRow, ...]
    rules: tuple[ValidationRule | ExecutionRule, ...]
    infer: Callable[[Call], Shapes]
    kernel: Kernel
    judging: Judging
    draw: Callable[[Draft], None]
    quantization: Callable[[Call], Quantization] = lambda call: {}
    examples: tuple[Example, ...] = ()
    second_opinion: str = ""
    result_counts: tuple[tuple[int, FeatureLevel], ...] = ()
    graphs: GraphRunner | None = None

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.code.name

    @cached_property
    def info(self) -> OperationInfo:
        """The part that is data, as drivers see it."""
        rules = tuple(rule for rule in self.rules if isinstance(rule, ValidationRule))
        return OperationInfo(self.code, self.doc, self.forms, self.results, self.rows, rules, self.result_counts)

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Forms x counts x type rows."""
        return self.info.signatures

    def signature(self, signature_id: str) -> Signature:
        """The signature of that id.

        Raises:
            KeyError: there is none.
        """
        for signature in self.signatures:
            if signature.id == signature_id:
                return signature
        raise KeyError(f"{self.name} has no signature {signature_id}")


# --- short forms for writing definitions ------------------------------------------------------------------------------

F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
Q8, Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
I32, B8 = OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
Q8CH = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
ROW_NAMES = {
    F32: "float32",
    F16: "float16",
    Q8: "quant8_asymm",
    Q8S: "quant8_asymm_signed",
    I32: "int32",
    B8: "bool8",
}


def tensor(name: str, doc: str, low: int = 1, high: int | None = None, *, parameter: bool = False,
           omittable: bool = False, variadic: bool = False) -> OperandDef:  # fmt: skip
    """A tensor operand whose type the rows say."""
    return OperandDef(name, doc, None, (low, high), None, omittable, variadic, parameter)


def int32(name: str, doc: str, default: int | None = None) -> OperandDef:
    """An INT32 scalar."""
    return OperandDef(name, doc, OperandType.INT32, default=default, parameter=True)


def boolean(name: str, doc: str, default: bool | None = None) -> OperandDef:
    """A BOOL scalar."""
    return OperandDef(name, doc, OperandType.BOOL, default=default, parameter=True)


def real_scalar(name: str, doc: str) -> OperandDef:
    """A FLOAT32 or FLOAT16 scalar; the type rows say which."""
    return OperandDef(name, doc, None, parameter=True)


def int32_list(name: str, doc: str, *, omittable: bool = False) -> OperandDef:
    """A TENSOR_INT32 of rank 1 that decides shapes: axes, sizes, a permutation."""
    return OperandDef(name, doc, OperandType.TENSOR_INT32, (1, 1), None, omittable, False, True)


ACTIVATION = int32("activation", "Fused activation: 0 none, 1 RELU, 2 RELU1, 3 RELU6.")


def form(*operands: OperandDef, since: FeatureLevel = FL1, name: str = "default") -> Form:
    """A form with one number of inputs (or an open one, with a variadic operand)."""
    counts = () if any(o.variadic for o in operands) else ((len(operands), since),)
    return Form(name, operands, counts)


def same(names: Sequence[str], *rows: tuple[OperandType, FeatureLevel]) -> tuple[TypeRow, ...]:
    """Type rows in which all the named operands have one type."""
    return tuple(TypeRow(ROW_NAMES[kind], since, dict.fromkeys(names, kind)) for kind, since in rows)


def rank_rule(label: str, operand: str, low: int, high: int, until: FeatureLevel | None = None,
              types: tuple[OperandType, ...] = ()) -> ValidationRule:  # fmt: skip
    """The rank of an operand, where it is known, is in a range."""
    words = f"{low}" if low == high else f"{low} to {high}"
    return ValidationRule(label, f"{operand} has rank {words}", RuleKind.RANK, (operand,), (low, high), until, types)


def quantization_rule(result: str, source: str) -> ValidationRule:
    """A quantised result has the scale and zero point of an input, or of all of a variadic one; validation compares."""
    text = f"{result} and {source} have one scale and zero point"
    return ValidationRule("SAME_QUANTIZATION", text, RuleKind.SAME_QUANTIZATION, (result, source), types=(Q8, Q8S))


def activation_rule(label: str = "ACTIVATION") -> ExecutionRule:
    """The fused activation is one of the four known; for plain integers it is NONE."""

    def legal(call: Call) -> tuple[int, ...]:
        return (0,) if next(iter(call.inputs.values())).type == I32 else (0, 1, 2, 3)

    return ExecutionRule(
        label,
        "activation is 0 to 3; 0 for TENSOR_INT32",
        lambda call: call.integer("activation") in legal(call),
        lambda call: with_value(call, "activation", len(legal(call))),
    )


# --- short forms for judging ------------------------------------------------------------------------------------------


def magnitude(kernel: Kernel, values: Values, result: str) -> Array:
    """What a result would be if nothing cancelled: the kernel on absolute values, without activation."""
    return kernel(replace(values, absolute=True))[result]


def half_units(roundings: object, of: str) -> str:
    """A bound in words: so many roundings, each counted twice, of a unit that some size has."""
    return f"2 x {roundings} half units in the last place of {of}"


def no_error(values: Values, results: Mapping[str, Array]) -> Bound:
    """The bound where nothing is computed, or where something else judges."""
    del values, results
    return EXACT


def exact(words: str, left_open: LeftOpen | None = None, steps: int | Mapping[str, int] = 1, *,
          moves: bool | Mapping[str, str] = True, hashed: tuple[str, ...] = ()) -> Judging:  # fmt: skip
    """No error at all, because of what the words say."""
    return Judging(no_error, f"exact: {words}", left_open, steps, moves=moves, hashed=hashed)


def moved(left_open: LeftOpen | None = None, steps: int | Mapping[str, int] = 1) -> Judging:
    """No error at all: values are moved, not computed."""
    return exact("values are only moved", left_open, steps)


def relative(terms: int, left_open: LeftOpen | None = None) -> Judging:
    """In units of the result itself: for functions of one or two values."""

    def bound(values: Values, results: Mapping[str, Array]) -> Bound:
        del values
        return Bound(np.abs(next(iter(results.values()))), terms)

    return Judging(bound, half_units(terms, "the result"), left_open)


def sums(
    kernel: Kernel,
    roundings: Callable[[Call], float],
    count: str,
    of: str = "the sum of absolute products",
    left_open: LeftOpen | None = None,
) -> Judging:
    """In units of what would be summed if nothing cancelled.

    Args:
        kernel: gives the result `output`.
        roundings: how many are behind each element.
        count: the same in words.
        of: what the kernel makes of absolute values.
        left_open: elements that are not compared.
    """

    def bound(values: Values, results: Mapping[str, Array]) -> Bound:
        del results
        return Bound(magnitude(kernel, values, "output"), roundings(values.call))

    return Judging(bound, half_units(count, of), left_open)


LABEL = re.compile(r"[A-Z][A-Z0-9_]*")


def check_definition(definition: OperationDef) -> None:
    """Refuses a definition that is wrong in itself.

    Raises:
        ValueError: a label is used twice or ill-formed, or words are missing.
    """
    labels = [rule.label for rule in definition.rules]
    if len(set(labels)) != len(labels) or not all(LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{definition.name}: rule labels must be unique capital words, got {labels}")
    texts = [definition.doc, *(o.doc for f in definition.forms for o in f.operands)]
    texts += [rule.text for rule in definition.rules]
    judging = definition.judging
    texts += [judging.words, *((judging.left_open.words,) if judging.left_open is not None else ())]
    if not all(texts):
        raise ValueError(f"{definition.name}: a definition, an operand, a rule or its judging has no words")
