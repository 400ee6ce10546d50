"""What validation finds: the violation, and the sentences behind the labels of the rules on models and requests.

The rules of single operations are in `operations.json`; their labels are prefixed with the operation's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LARGEST_UNSIGNED = 2**32 - 1  # of offsets and lengths, and of every number of the HIDL levels
LARGEST_SIGNED = 2**31 - 1  # of every other number from level 5 on
MANY_BYTES = 2**64  # more than any pool has


def bounded_product(dimensions: Iterable[int]) -> int:
    """The product of dimensions above 0, or any number above MANY_BYTES: a client's list may be as long as it likes."""
    product = 1
    for size in dimensions:
        product *= size
        if product > MANY_BYTES:
            break
    return product


def number_of_bytes(count: int) -> str:
    """A number of bytes in words."""
    return str(count) if count <= MANY_BYTES else "far more"


MODEL_RULES: dict[str, str] = {
    "G0": "every field has a value of its type",
    "G1": "a graph has at least one operand and one operation",
    "G2": "an operand's type is known to the level; extension types from level 3 on, OEM types up to level 4",
    "G3": "scalars have no dimensions; those of a tensor are in range and, below level 3, at least one",
    "G4": "a constant tensor's dimensions are all known and above 0",
    "G5": "the scale is 0, at least 0 or above 0, as the type demands",
    "G6": "the zero point is in the range of the type",
    "G7": "extra parameters are there exactly where the type has them, and fit the dimensions",
    "G8": "the lifetime is known to the level, and SUBGRAPH exactly where the type is SUBGRAPH",
    "G9": "a constant lies in its pool and has exactly the bytes of its type and dimensions",
    "G10": "the location of an operand that is no constant is zero; a subgraph operand's offset names a graph",
    "G11": "an operand's location has no padding",
    "G12": "the number of consumers is the number of reads by the graph's operations (levels 1 to 4)",
    "G13": "the lists of inputs and outputs name operands of that lifetime, none of them twice",
    "G14": "every operand with the lifetime of an input or output is in its list",
    "G15": "an operation's code is known to the level; extension operations from level 3 on, OEM ones up to level 4",
    "G16": "an operation's operand indexes are in range",
    "G17": "an operation writes nothing but temporaries and outputs of the graph",
    "G18": "an operand is read only after it is written",
    "G19": "an operand is written only once",
    "G20": "every temporary and every output of the graph is written",
    "G21": "a pool is open, has at least one byte and is of a kind that the level knows",
    "G22": "the extension table (from level 3 on) has well-formed, unique names and unique prefixes in range",
    "G23": "referenced graphs exist from level 4 on",
    "G24": "referenced graphs do not refer to one another in a circle",
}

REQUEST_RULES: dict[str, str] = {
    "R0": "every field has a value of its type",
    "R1": "a request has as many inputs and outputs as the model",
    "R2": "an argument without a value has neither location nor dimensions",
    "R3": "an argument lies in its pool and has at least one byte",
    "R4": "driver-managed and opaque buffers are used whole: offset, length and padding 0",
    "R5": "dimensions have the model's rank where it is known, and its sizes where they are",
    "R6": "an input's dimensions are fully known from model and request, and none is 0",
    "R7": "an output's dimensions are fully known below level 3 and in fenced execution",
    "R8": "the length is exactly that of fully known dimensions",
    "R9": "a pool is open, has at least one byte and is of a kind that the level knows",
    "R10": "a driver-managed buffer is written by one output alone, and not read by the same request",
    "R11": "deadlines and durations are not negative, and a loop may take 15 s at most",
    "R12": "a burst has one memory token for each pool, none below -1",
}


@dataclass(frozen=True)
class Violation:
    """A breach of one rule.

    Attributes:
        label: the rule: `G7` of MODEL_RULES, `R3` of REQUEST_RULES, `CONV_2D.RANK_INPUT` of an operation.
        text: what is wrong where, as a sentence without a stop.
        graph: number of the referenced graph; None for the main graph and for the model as a whole.
        operand: index of the operand in that graph, where the rule is about one.
        operation: index of the operation in that graph, where the rule is about one.
    """

    label: str
    text: str
    graph: int | None = None
    operand: int | None = None
    operation: int | None = None

    def __str__(self) -> str:
        return f"{self.label} {self.text}"
