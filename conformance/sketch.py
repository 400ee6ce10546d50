"""Small models of several operations, put together by hand, with their inputs and what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.case import Step
from harness.expectations import Expectation, Expected, Returns
from harness.steps import Action, How
from nnhal.memory import BytesMemory
from nnhal.model import DataLocation, Model, Operand, Operation, is_tensor
from nnhal.types import FL1, Array, ExecutionMode, FeatureLevel, OperandLifeTime, OperandType, OperationType
from nnhal.validate import violations
from opset import OPSET
from opset.branch import Branch
from opset.building import GraphBuilder
from opset.call import Argument, Call
from opset.tracking import certain, track_graph

INPUT, OUTPUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT
TEMPORARY, CONSTANT = OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.CONSTANT_COPY
FLOAT = OperandType.TENSOR_FLOAT32
MOST_NAMED = 4  # operations of a model that are named in messages


@dataclass(frozen=True)
class Sketched:
    """A valid model, inputs for it, and what comes of them."""

    model: Model
    inputs: tuple[Array | None, ...]
    returns: Returns

    @property
    def level(self) -> FeatureLevel:
        """The lowest level that takes the model."""
        return lowest_level(self.model)

    @property
    def outputs(self) -> tuple[Expected, ...]:
        """What is due."""
        return self.returns.outputs

    def execute(
        self,
        model: int = 0,
        *,
        how: How | None = None,
        expect: Expectation | None = None,
        mode: ExecutionMode = ExecutionMode.SYNCHRONOUS,
        without: Sequence[int] = (),
        slot: int | None = None,
        thread: int = 0,
        action: Action = Action.EXECUTE,
    ) -> Step:
        """An execution; right results are due where nothing else is said.

        Args:
            without: numbers of the inputs whose values are in driver-managed buffers.
        """
        given = tuple(None if n in without else value for n, value in enumerate(self.inputs))
        due = self.returns if expect is None else expect
        return Step(action, model, due, mode, given, slot=slot, how=how, thread=thread)

    def opened(self, operand: int, dimensions: tuple[int, ...]) -> Sketched:
        """The same with other dimensions in the description of an operand."""
        return replace(self, model=with_dimensions(self.model, {operand: dimensions}))


def lowest_level(model: Model, least: FeatureLevel = FL1) -> FeatureLevel:
    """The lowest level from one on that takes a model.

    Raises:
        ValueError: none does.
    """
    for level in FeatureLevel:
        if level >= least and not violations(model, level):
            return level
    raise ValueError(f"the model is not valid: {violations(model)}")


def with_dimensions(model: Model, dimensions: dict[int, tuple[int, ...]]) -> Model:
    """The model with other dimensions of some operands, by index."""
    operands = tuple(
        replace(operand, dimensions=dimensions.get(index, operand.dimensions))
        for index, operand in enumerate(model.main.operands)
    )
    return replace(model, main=replace(model.main, operands=operands))


def tensor(values: object, scale: float = 0.0, zero_point: int = 0) -> Argument:
    """A float tensor with values, or with a scale one of TENSOR_QUANT8_ASYMM, stored as given."""
    if not scale:
        data = np.asarray(values, np.float32)
        return Argument(FLOAT, data.shape, value=data)
    data = np.asarray(values, np.uint8)
    return Argument(OperandType.TENSOR_QUANT8_ASYMM, data.shape, scale, zero_point, value=data)


def quarters(shape: Sequence[int], first: int = 0) -> Argument:
    """A float tensor of multiples of 1/4 between -4 and 4, each sum of two of which float16 holds, too."""
    count = int(np.prod(shape))
    return tensor(((np.arange(first, first + count) * 7) % 33 - 16).reshape(shape) / 4)


@dataclass
class Sketch:
    """A graph under way: operands by index, each with the argument that it is."""

    graph: GraphBuilder = field(default_factory=GraphBuilder)
    arguments: dict[int, Argument] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)

    def input(self, argument: Argument) -> int:
        """A new input of the model."""
        index = self._operand(argument, INPUT)
        self.inputs.append(index)
        return index

    def constant(self, argument: Argument) -> int:
        """A new constant."""
        return self._operand(argument, CONSTANT)

    def apply(self, code: OperationType, *operands: int | Argument, out: bool = False, like: int | None = None) -> int:
        """A new operation with one result, of the type and quantisation of its first operand.

        Args:
            operands: indexes, and constants of its own.
            out: the result is an output of the model.
            like: the operand whose type and quantisation the result has, where not the first.
        """
        indexes = [o if isinstance(o, int) else self.constant(o) for o in operands]
        definition = OPSET[code]
        given = [self.arguments[i] for i in indexes]
        model = self.arguments[indexes[0] if like is None else like]
        signature = definition.info.match([a.type for a in given], [model.type])
        if signature is None:
            raise ValueError(f"no signature of {definition.name} takes these operands")
        names = signature.form.names(len(given))
        call = Call(definition, signature, dict(zip(names, given, strict=True)))
        ((_, shape),) = definition.infer(call).items()
        result = Argument(model.type, tuple(shape), model.scale, model.zero_point)
        index = self._operand(result, OUTPUT if out else TEMPORARY)
        self.graph.operations.append(Operation(int(code), tuple(indexes), (index,)))
        return index

    def finish(self) -> Sketched:
        """The model with its inputs and what is due."""
        model = self.graph.model()
        given = [self.arguments[i] for i in self.inputs]
        return Sketched(model, tuple(a.value for a in given), due_of(model, given))

    def _operand(self, argument: Argument, lifetime: OperandLifeTime) -> int:
        index = self.graph.operand(argument, lifetime)
        self.arguments[index] = argument
        return index


def due_of(model: Model, inputs: Sequence[Argument]) -> Returns:
    """What a model whose dimensions are all known must return."""
    tracked = track_graph(Branch(model), [certain(argument) for argument in inputs], relaxed=False)
    kinds = [OperandType(model.main.operands[i].type) for i in model.main.output_indexes]
    return Returns(
        tuple(
            Expected(f"output {n}", kind, t.result.stored.shape, t.result.exact, t.error)
            for n, (kind, t) in enumerate(zip(kinds, tracked, strict=True))
        )
    )


def operands_of(model: Model, lifetime: OperandLifeTime) -> list[int]:
    """Indexes of the tensors of a lifetime."""
    return [i for i, o in enumerate(model.main.operands) if o.lifetime == lifetime and is_tensor(o.type)]


def words_of(*models: Model) -> str:
    """Models in words: their operations in order, and what goes in and comes out."""
    return "; ".join(dict.fromkeys(_words(model) for model in models))


def _words(model: Model) -> str:
    main = model.main
    names = [OperationType(operation.type).name for operation in main.operations]
    if len(names) > MOST_NAMED:
        names = [names[0], f"{len(names) - 2} more", names[-1]]
    inputs, outputs = (
        ", ".join(_describe(main.operands[i]) for i in indexes) for indexes in (main.input_indexes, main.output_indexes)
    )
    return f"{', '.join(names)}: {inputs} to {outputs}"


def _describe(operand: Operand) -> str:
    return f"{OperandType(operand.type).name}{list(operand.dimensions)}".replace(" ", "")


def with_constants_in_pools(model: Model, pools: int = 1) -> Model:
    """The model with its constants in pools, by turns, in place of its own values."""
    content = [bytearray() for _ in range(pools)]
    operands: list[Operand] = []
    for operand in model.main.operands:
        if operand.lifetime != CONSTANT:
            operands.append(operand)
            continue
        place, number = operand.location, len(operands) % pools
        data = model.operand_values[place.offset : place.offset + place.length]
        content[number] += bytes(-len(content[number]) % 4)
        location = DataLocation(number, len(content[number]), len(data))
        content[number] += data
        lifetime = OperandLifeTime.CONSTANT_REFERENCE
        operands.append(replace(operand, lifetime=lifetime, location=location))
    memories = tuple(BytesMemory(data or b"\0") for data in content)
    main = replace(model.main, operands=tuple(operands))
    return replace(model, main=main, operand_values=b"", pools=memories)
