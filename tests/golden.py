"""Golden documents of a public suite as models and requests, and its own criteria to judge by.

The documents come from a folder outside the repository; nothing of them is stored or known here.
"""

from __future__ import annotations

import base64
import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.device import Device, ExecutionConfig
from nnhal.memory import BytesMemory, Memory, SharedMemory
from nnhal.model import (
    ChannelQuant,
    DataLocation,
    Model,
    Operand,
    Operation,
    Request,
    RequestArgument,
    Subgraph,
    count_consumers,
    is_known,
    is_tensor,
)
from nnhal.types import Array, OperandLifeTime, OperandType, OperationType, info

DTYPES = {"bool8": "u1"}  # the other names are NumPy's
CONSTANT_ALIGNMENT = 4
POOL_ALIGNMENT = 64
UNKNOWN_OUTPUT_BYTES = 1 << 16  # room for an output whose size nobody says
LOOP_TIMEOUT_NS = 200_000_000  # some documents loop for ever and must be stopped

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Golden:
    """One document: a model, its inputs, and what the suite expects of it.

    Attributes:
        operations: names of the operations in all graphs; the first is that of the main graph's first operation.
        expected: one for each output; None where any result will do.
        frequency_tolerance: above 0 when an output is judged by the frequency of its values.
    """

    name: str
    version: str
    operations: tuple[str, ...]
    model: Model
    inputs: tuple[Array | None, ...]
    expected: tuple[Array | None, ...]
    must_fail: bool
    frequency_tolerance: float = 0.0

    @property
    def coarse(self) -> bool:
        """Whether float32 is judged as float16: the model is relaxed or has a float16 tensor anywhere."""
        graphs = (self.model.main, *self.model.referenced)
        half = any(o.type == OperandType.TENSOR_FLOAT16 for graph in graphs for o in graph.operands)
        return half or self.model.relax_computation_float32_to_float16


def read_documents(folder: Path) -> Iterator[tuple[str, Json]]:
    """Each document with the version its file is named after."""
    for path in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield path.name.partition(".")[0], json.loads(line)


def operations_of(document: Json) -> tuple[str, ...]:
    """Names of the operations of all graphs, the main graph's first."""
    graphs = [document, *document["referenced"]]
    return tuple(operation["op"] for graph in graphs for operation in graph["operations"])


def parse(version: str, document: Json) -> Golden:
    """A document as a model with its inputs and expectations."""
    values, pool = bytearray(), bytearray()
    main = _subgraph(document, values, pool)
    referenced = tuple(_subgraph(graph, values, pool) for graph in document["referenced"])
    pools = (BytesMemory(pool),) if pool else ()
    model = Model(main, referenced, bytes(values), pools, document["is_relaxed"])
    example = document["examples"][0]
    return Golden(
        document["name"],
        version,
        operations_of(document),
        model,
        tuple(_array(tensor) for tensor in example["inputs"]),
        tuple(_array(tensor) for tensor in example["outputs"]),
        document["expect_failure"],
        document["expected_multinomial_distribution_tolerance"],
    )


def _array(tensor: Json | None) -> Array | None:
    if tensor is None:
        return None
    dtype = np.dtype(DTYPES.get(tensor["dtype"], tensor["dtype"]))
    array: Array = np.frombuffer(base64.b64decode(tensor["b64"]), dtype).reshape(tensor["shape"])
    return array


def _subgraph(graph: Json, values: bytearray, pool: bytearray) -> Subgraph:
    operands = tuple(_operand(row, values, pool) for row in graph["operands"])
    operations = tuple(
        Operation(int(OperationType[row["op"]]), tuple(row["inputs"]), tuple(row["outputs"]))
        for row in graph["operations"]
    )
    inputs, outputs = tuple(graph["input_indexes"]), tuple(graph["output_indexes"])
    return count_consumers(Subgraph(operands, operations, inputs, outputs))


def _operand(row: Json, values: bytearray, pool: bytearray) -> Operand:
    lifetime = OperandLifeTime[row["lifetime"]]
    location = DataLocation()
    data = _array(row["data"])
    if data is not None:
        store = values if lifetime == OperandLifeTime.CONSTANT_COPY else pool
        store += bytes(-len(store) % CONSTANT_ALIGNMENT)
        location = DataLocation(0, len(store), data.nbytes)
        store += data.tobytes()
    elif lifetime == OperandLifeTime.SUBGRAPH:
        location = DataLocation(0, row["subgraph"], 0)
    channel = row.get("channel_quant")
    return Operand(
        OperandType[row["type"]],
        tuple(row["dimensions"]),
        row["scale"],
        row["zero_point"],
        lifetime,
        location,
        ChannelQuant(channel["channel_dim"], tuple(channel["scales"])) if channel else None,
    )


# --- running on a device ----------------------------------------------------------------------------------------------


def run(golden: Golden, device: Device, *, shared: bool) -> list[Array]:
    """Prepares and executes on a device, inputs and outputs in pools of their own.

    Raises:
        DriverError: the device refused.
        AssertionError: the device answered without error, but not as the contract says.
    """
    operands, graph = golden.model.main.operands, golden.model.main
    inputs, feed = _layout([None if value is None else value.nbytes for value in golden.inputs])
    outputs, room = _layout([_room(golden, i) for i in range(len(golden.expected))])
    pools: list[Memory] = [SharedMemory.create(size) if shared else BytesMemory(size) for size in (feed, room)]
    written = pools[0].view()
    arguments = []
    for index, place, value in zip(graph.input_indexes, inputs, golden.inputs, strict=True):
        if value is None or place is None:
            arguments.append(RequestArgument(has_no_value=True))
            continue
        written[place.offset : place.offset + place.length] = value.tobytes()
        known = is_known(operands[index].dimensions) or not is_tensor(operands[index].type)
        arguments.append(RequestArgument(place, () if known else value.shape))
    results = [RequestArgument(DataLocation(1, p.offset, p.length)) for p in outputs if p is not None]
    request = Request(tuple(arguments), tuple(results), tuple(pools))

    supported = device.get_supported_operations(golden.model)
    prepared = device.prepare_model(golden.model)
    answer = prepared.execute_synchronously(request, ExecutionConfig(loop_timeout_duration=LOOP_TIMEOUT_NS))
    assert supported == [True] * len(graph.operations), "prepared although the support query said no"
    assert answer.output_sufficient_size, "answered that outputs do not fit"
    view = pools[1].view()
    found = []
    for i, (index, argument) in enumerate(zip(graph.output_indexes, results, strict=True)):
        shape = answer.output_shapes[i].dimensions if answer.output_shapes else operands[index].dimensions
        kind = info(operands[index].type).dtype
        size = math.prod(shape) * kind.itemsize
        data = bytes(view[argument.location.offset : argument.location.offset + size])
        found.append(np.frombuffer(data, kind).reshape(shape))
    return found


def _room(golden: Golden, number: int) -> int:
    """Bytes to offer an output; at least one, since a zero-element result still needs a place."""
    expected = golden.expected[number]
    if expected is not None:
        return max(expected.nbytes, 1)
    operand = golden.model.main.operands[golden.model.main.output_indexes[number]]
    if is_tensor(operand.type) and not is_known(operand.dimensions):
        return UNKNOWN_OUTPUT_BYTES
    return info(operand.type).size * math.prod(operand.dimensions)


def _layout(sizes: Sequence[int | None]) -> tuple[list[DataLocation | None], int]:
    """Places of given sizes one behind the other in a pool, and the pool's size."""
    places: list[DataLocation | None] = []
    end = 0
    for size in sizes:
        if size is None:
            places.append(None)
            continue
        places.append(DataLocation(0, end, size))
        end += size + -size % POOL_ALIGNMENT
    return places, max(end, 1)


# --- judging ----------------------------------------------------------------------------------------------------------


def disagreement(golden: Golden, results: Sequence[Array]) -> str | None:
    """The first difference beyond the suite's own criteria, or None."""
    for number, (expected, actual) in enumerate(zip(golden.expected, results, strict=True)):
        if expected is None:
            continue
        found = _frequencies(golden, actual) if golden.frequency_tolerance else _difference(golden, number, actual)
        if found is not None:
            return f"output {number}: {found}"
    return None


def _difference(golden: Golden, number: int, actual: Array) -> str | None:
    expected = golden.expected[number]
    assert expected is not None
    if actual.shape != expected.shape:
        return f"shape {actual.shape} where {expected.shape} is expected"
    absolute, ratio = _criterion(golden, golden.model.main.operands[golden.model.main.output_indexes[number]].type)
    want, got = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(got - want) <= absolute + ratio * np.abs(want))
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} elements differ, first at {first}: {got[first]:g}, expected {want[first]:g}"


def _criterion(golden: Golden, kind: int) -> tuple[float, float]:
    """Absolute and relative tolerance of an output type."""
    if kind in (OperandType.TENSOR_FLOAT16, OperandType.FLOAT16):
        return 5 * 2.0**-10, 5 * 2.0**-10
    if kind in (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32):
        return (5 * 2.0**-10, 5 * 2.0**-10) if golden.coarse else (1e-5, 5 * 2.0**-23)
    if kind in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
        return 0.0, 0.0
    eight_bit = info(kind).dtype.itemsize == 1
    return (3.0, 0.0) if eight_bit and "mobilenet" in golden.name else (1.0, 0.0)


def _frequencies(golden: Golden, actual: Array) -> str | None:
    """Share of each class among the samples against softmax of the logits; the suite has one batch."""
    logits = golden.inputs[0]
    assert logits is not None
    weights = np.exp(logits.astype(np.float64).reshape(-1))
    shares = np.bincount(actual.reshape(-1), minlength=weights.size) / actual.size
    worst = float(np.abs(shares - weights / weights.sum()).max())
    return None if worst <= golden.frequency_tolerance else f"a class is off its probability by {worst:g}"
