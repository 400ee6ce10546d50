"""Named mixes: how large graphs are, and of what operations, types and versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from nnhal.errors import UsageError
from nnhal.operations import Signature
from nnhal.types import FL8, FeatureLevel, OperandType, OperationType
from nnhal.types import OperationType as Op
from opset import FAMILIES, OPSET
from opset.definition import OperationDef
from opset.quantization import QUANTIZED

TENSORS = frozenset(kind for kind in OperandType if kind.name.startswith("TENSOR_"))
# What turns one type into another, so that types meet in a graph.
BRIDGES = frozenset({Op.QUANTIZE, Op.DEQUANTIZE, Op.CAST})
# What holds the operations of a family together that seldom take each other's results.
PART_OF = {
    "norms": "normalization",
    "rearrangement": "reshaping",
    "rearrangement_batch": "reshaping",
    "slicing_copies": "slicing",
    "lookup_hash": "lookup",
}
GLUE = BRIDGES | {Op.ADD, Op.RESHAPE, Op.LOGISTIC}
# Types that can be wholly in a graph of their own; int32 comes along as indexes and biases.
PURE = {
    "float32": OperandType.TENSOR_FLOAT32,
    "float16": OperandType.TENSOR_FLOAT16,
    "int32": OperandType.TENSOR_INT32,
    "bool8": OperandType.TENSOR_BOOL8,
    "quant8_asymm": OperandType.TENSOR_QUANT8_ASYMM,
    "quant8_asymm_signed": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "quant8_symm": OperandType.TENSOR_QUANT8_SYMM,
    "quant16_symm": OperandType.TENSOR_QUANT16_SYMM,
    "quant16_asymm": OperandType.TENSOR_QUANT16_ASYMM,
}


@dataclass(frozen=True)
class Choice:
    """An operation with those of its signatures that a mix has."""

    definition: OperationDef
    signatures: tuple[Signature, ...]

    @cached_property
    def takes(self) -> tuple[frozenset[OperandType], ...]:
        """For each signature the types of tensors that another operation may give it."""
        return tuple(_takes(signature) for signature in self.signatures)

    @cached_property
    def _fitting(self) -> dict[frozenset[OperandType], tuple[Signature, ...]]:
        return {}

    def fitting(self, kinds: frozenset[OperandType]) -> tuple[Signature, ...]:
        """The signatures that take a tensor of one of these types."""
        known = self._fitting.get(kinds)
        if known is None:
            known = tuple(s for s, takes in zip(self.signatures, self.takes, strict=True) if takes & kinds)
            self._fitting[kinds] = known
        return known


@dataclass(frozen=True)
class Mix:
    """What graphs are drawn.

    Attributes:
        name: in `--mix` and in case ids.
        sizes: fewest and most operations.
        pure: the only type of tensors that flow between operations; all types when None.
        operations: the only ones; all when empty.
        closed: what makes operands fit is one of them, too.
        level: the highest level whose operations and types are drawn.
        stretch: by how much drawn dimensions are larger or smaller than usual.
        largest: most elements of a drawn tensor.
        constants: how often, in percent, a new tensor is a constant and no input of the model.
        shown: how often, in percent, a result that others read is an output of the model as well; a graph takes one of
            these. What nobody sees can be fused, what everybody sees shows where a fault is.
        bridges: how often, in percent, the next operation turns one type into another.
        unknown: how often, in percent, a graph leaves sizes of its results open.
        relaxed: how often, in percent, float32 may be computed with the range and precision of float16.
        count: graphs by profile in the pytest suite.
    """

    name: str
    sizes: tuple[int, int]
    pure: OperandType | None = None
    operations: frozenset[OperationType] = field(default_factory=frozenset)
    closed: bool = False
    level: FeatureLevel = FL8
    stretch: float = 1.0
    largest: int = 4096
    constants: int = 30
    shown: tuple[int, ...] = (0, 35, 70, 100)
    bridges: int = 12
    unknown: int = 6
    relaxed: int = 8
    count: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The operations and signatures that graphs are made of."""
        found = []
        for definition in OPSET.values():
            if self.operations and definition.code not in self.operations:
                continue
            signatures = tuple(s for s in definition.signatures if s.since <= self.level and self._suits(s))
            if signatures:
                found.append(Choice(definition, signatures))
        return tuple(found)

    @cached_property
    def bridging(self) -> tuple[Choice, ...]:
        """The choices that turn one type into another."""
        return tuple(choice for choice in self.choices if choice.definition.code in BRIDGES)

    def _suits(self, signature: Signature) -> bool:
        if self.pure is None:
            return True
        kinds = set(signature.row.types.values()) & TENSORS
        if not kinds:  # IF and WHILE take any
            return False
        if self.pure in QUANTIZED:
            # Weights and biases of quantised operations have types of their own.
            beside = {OperandType.TENSOR_INT32, OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL}
            return self.pure in kinds and kinds <= {self.pure, *beside}
        return kinds == {self.pure}


def _takes(signature: Signature) -> frozenset[OperandType]:
    """Types of the inputs that are no parameters; all where an operand may have any."""
    kinds: set[OperandType] = set()
    for operand in signature.form.operands:
        if operand.any_type:
            return TENSORS
        kind = operand.type if operand.type is not None else signature.row.types.get(operand.name)
        if kind in TENSORS and not operand.parameter:
            kinds.add(kind)
    return frozenset(kinds)


def _graphs(ci: int, quick: int) -> dict[str, int]:
    """Numbers of graphs by profile."""
    return {"ci": ci, "quick": quick, "full": quick * 6, "nightly": quick * 40}


def _families() -> dict[str, frozenset[OperationType]]:
    """Operations by family."""
    found: dict[str, set[OperationType]] = {}
    for module in FAMILIES:
        own = module.__name__.removeprefix("opset.")
        name = PART_OF.get(own, own)
        for value in vars(module).values():
            if isinstance(value, OperationDef) and not any(value.code in codes for codes in found.values()):
                found.setdefault(name, set()).add(value.code)
    return {name: frozenset(codes) for name, codes in found.items()}


def _named() -> dict[str, Mix]:
    mixes = [
        Mix("single", (1, 1), bridges=0, unknown=0, count=_graphs(10, 40)),
        Mix("small", (5, 5), count=_graphs(60, 250)),
        Mix("ten", (10, 10), stretch=4.0, largest=20_000, count=_graphs(1, 4)),
        Mix("large", (40, 40), count=_graphs(6, 30)),
        Mix("huge", (600, 600), stretch=0.5, largest=128, unknown=0, count=_graphs(0, 1)),
        Mix("wide", (3, 6), stretch=4.0, largest=60_000, count=_graphs(2, 8)),
    ]
    mixes += [Mix(name, (8, 8), pure=kind, bridges=0, count=_graphs(4, 16)) for name, kind in PURE.items()]
    mixes += [Mix(f"level{level.value}", (8, 8), level=level, count=_graphs(2, 8)) for level in FeatureLevel]
    mixes += [Mix(name, (5, 5), operations=codes | GLUE, count=_graphs(1, 5)) for name, codes in _families().items()]
    return {mix.name: mix for mix in mixes}


MIXES = _named()


@lru_cache(maxsize=64)
def mix(name: str) -> Mix:
    """The mix of a name, or `NAME:OPERATION+OPERATION...` for graphs of nothing but those operations.

    Raises:
        UsageError: there is none.
    """
    base, colon, listed = name.partition(":")
    if base not in MIXES:
        raise UsageError(f"--mix={name} is unknown; there are {', '.join(MIXES)}")
    if not colon:
        return MIXES[base]
    codes = set()
    for word in listed.split("+"):
        if word not in Op.__members__ or Op[word] not in OPSET:
            raise UsageError(f"--mix={name}: there is no operation {word!r}; write names like {base}:ADD+MUL")
        codes.add(Op[word])
    found = replace(MIXES[base], name=name, operations=frozenset(codes), closed=True)
    if not found.choices:
        raise UsageError(f"--mix={name}: mix {base} has none of these operations; name others, or another mix")
    return found
