"""What is due at a step: results, a refusal, agreement with another step, or survival alone."""

from __future__ import annotations

from dataclasses import dataclass

from nnhal.types import Array, ErrorStatus, OperandType


@dataclass(frozen=True)
class Expected:
    """What one output should be, and how far off it may be.

    Attributes:
        value: before rounding, in float64: real numbers for floats; for quantised types steps, saturated but not
            rounded; whole numbers for integers and booleans.
        required: largest legal difference per element; infinite where the specification leaves it open.
        unit: size of one rounding unit per element for the quality limits, or None.
        terms: number of roundings behind an element.
        exact: any difference at all is worth a report, though `required` may allow it.
        sums: the sum of errors is judged; not in relaxed models, where one rounded weight moves many results alike.
        distribution: probability of each class, [rows, classes]: the output is [rows, samples], drawn at random and
            judged by how often each class comes. `value` says nothing then.
        differs_from: the output must not equal that of the step so many steps earlier; 0 for none.
        stored: how an element is stored, in NumPy's letters, where `type` says only how it is judged: the types of
            extensions have no place among the operand types.
        quality: what `required` allows is judged for truncation and coarse arithmetic; not behind operations that hand
            on errors of their own.
    """

    name: str
    type: OperandType
    shape: tuple[int, ...]
    value: Array
    required: Array
    unit: Array | None = None
    terms: float = 0.0
    exact: bool = False
    sums: bool = True
    distribution: Array | None = None
    differs_from: int = 0
    stored: str = ""
    quality: bool = True


@dataclass(frozen=True)
class Returns:
    """The step must succeed; an execution must return these outputs.

    Attributes:
        groups: by row along the first dimension of every output: rows of one group may come in any order, the same in
            all outputs. Empty where the order is due.
        unless: answers that are as good; what stands on the step is then left out.
        declines: answers by which a driver says that it does not do this: NOT_SUPPORTED.
    """

    outputs: tuple[Expected, ...] = ()
    groups: tuple[int, ...] = ()
    unless: tuple[ErrorStatus, ...] = ()
    declines: tuple[ErrorStatus, ...] = ()


@dataclass(frozen=True)
class Rejects:
    """The step must be refused.

    Attributes:
        statuses: which answers count; empty means any but NONE.
        rule: label of the rule that the model breaks.
        text: the rule as a sentence, and how it is broken.
        valid: what is sent is valid, and yet nothing that can be done: due of drivers that do not validate, too.
    """

    statuses: tuple[ErrorStatus, ...]
    rule: str
    text: str
    valid: bool = False


@dataclass(frozen=True)
class MayReject:
    """The step may be refused, which ends the case well, or succeed, which leaves it to a later step to refuse."""

    rule: str
    text: str


@dataclass(frozen=True)
class Unspecified:
    """The step may end in any way, but must neither die nor hang."""


@dataclass(frozen=True)
class Short:
    """OUTPUT_INSUFFICIENT_SIZE is due, with a shape for each output.

    Attributes:
        outputs: numbers of the outputs whose room is too small: these and no others are marked.
        shapes: of all outputs as they would be; a driver may leave a size 0 where model and request do not know it.
        known: of all outputs as model and request say them, the least that must be reported.
        unless: answers that are as good.
        declines: as with `Returns`.
    """

    outputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    known: tuple[tuple[int, ...], ...]
    unless: tuple[ErrorStatus, ...] = ()
    declines: tuple[ErrorStatus, ...] = ()


@dataclass(frozen=True)
class Agreement:
    """How one output relates to one of another step: this = transpose(other, axes)[first : first + rows] + shift.

    Attributes:
        position: of the other step's output.
        allowed: largest difference per element, in units of what is stored.
        axes: permutation of the other's dimensions; empty leaves them.
        shift: in stored units.
        first: row of the other along its first dimension at which this one begins; None where they are of one size.
        bits: both are the same bits, whatever values these are.
    """

    position: int
    allowed: Array
    axes: tuple[int, ...] = ()
    shift: int = 0
    first: int | None = None
    bits: bool = False


@dataclass(frozen=True)
class Agrees:
    """The step must succeed, and its outputs agree with those of an earlier step.

    Attributes:
        step: number of the earlier step.
        outputs: one for each output of this step.
        text: why they must agree, as a sentence.
    """

    step: int
    outputs: tuple[Agreement, ...]
    text: str


@dataclass(frozen=True)
class Describes:
    """What a device says of itself must be complete and sane, and the same as at an earlier step.

    Attributes:
        same_as: number of that step, or None.
    """

    same_as: int | None = None


@dataclass(frozen=True)
class Repeats:
    """The answer to a support query must be that of an earlier step."""

    step: int


@dataclass(frozen=True)
class Supports:
    """What a support query must say of a valid model. The case goes on whatever it says, unless `alike` is asked for.

    Attributes:
        operations: by operation what is due; None where the driver is free. Empty leaves all free.
        step: number of an earlier query that this one is held against.
        kept: (operation here, operation there): what was supported there must be supported here.
        alike: both models as a whole must be supported, or neither; where neither is, that is the case's verdict.
        unless: answers that are as good.
        text: why, as a sentence.
    """

    operations: tuple[bool | None, ...] = ()
    step: int | None = None
    kept: tuple[tuple[int, int], ...] = ()
    alike: bool = False
    unless: tuple[ErrorStatus, ...] = ()
    text: str = ""


Expectation = Returns | Rejects | MayReject | Unspecified | Short | Agrees | Describes | Repeats | Supports
EXPECTATIONS: dict[str, type[Expectation]] = {
    c.__name__: c for c in (Returns, Rejects, MayReject, Unspecified, Short, Agrees, Describes, Repeats, Supports)
}
