"""Graphs made by hand for the worked examples of IF and WHILE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnhal.model import Operation
from nnhal.types import OperandLifeTime, OperandType, OperationType
from opset.branch import Branch
from opset.building import GraphBuilder
from opset.call import Argument, int32_tensor, scalar
from opset.definition import B8, F32, I32

LIFE = OperandLifeTime
NO_ACTIVATION = scalar(OperandType.INT32, 0)
PAIR = Argument(F32, (2,))
COUNT = Argument(I32, (1,))
FLAG = Argument(B8, (1,))

Step = tuple[OperationType, Sequence[int | Argument], Argument, bool]


def graph_of(inputs: Sequence[Argument], steps: Sequence[Step]) -> Branch:
    """A graph of operations in order.

    Args:
        inputs: what it takes; they are operands 0, 1, and so on.
        steps: operation, inputs (indexes, or constants), result, and whether that is an output of the graph. Results
            are the operands behind the inputs, in order.
    """
    graph = GraphBuilder()
    places = [graph.operand(argument, LIFE.SUBGRAPH_INPUT) for argument in inputs]
    for code, operands, result, last in steps:
        taken = tuple(places[o] if isinstance(o, int) else graph.operand(o, LIFE.CONSTANT_COPY) for o in operands)
        places.append(graph.operand(result, LIFE.SUBGRAPH_OUTPUT if last else LIFE.TEMPORARY_VARIABLE))
        graph.operations.append(Operation(int(code), taken, (places[-1],)))
    return Branch(graph.model())


def pair(*values: float) -> Argument:
    """Two float32 values."""
    return Argument(F32, (2,), value=np.array(values, np.float32))


SUM = graph_of((PAIR, PAIR), [(OperationType.ADD, (0, 1, NO_ACTIVATION), PAIR, True)])
PRODUCT = graph_of((PAIR, PAIR), [(OperationType.MUL, (0, 1, NO_ACTIVATION), PAIR, True)])
BELOW_FOUR = graph_of((COUNT, COUNT), [(OperationType.LESS, (1, int32_tensor([4])), FLAG, True)])
DOUBLE_AND_COUNT = graph_of(
    (COUNT, COUNT),
    [
        (OperationType.MUL, (0, int32_tensor([2]), NO_ACTIVATION), COUNT, True),
        (OperationType.ADD, (1, int32_tensor([1]), NO_ACTIVATION), COUNT, True),
    ],
)
