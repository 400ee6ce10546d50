"""Times the reference driver on MobileNet v1 1.0 224 beside LiteRT's reference kernels and ONNX's reference evaluator.

Run as `python -m benchmarks.mobilenet [--turns=5]`. All run one thread, in one process, in turns; the driver through
its interface, a prepared model executed with memory in and out. Weights are drawn, so nothing is downloaded. Aims, of
processor time: in float32 half of that of LiteRT's kernels and less than that of ONNX's evaluator, in 8 bits less than
that of LiteRT's kernels. The exit status is 1 when one is missed.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from onnx.reference import ReferenceEvaluator

from mlts.interpreting import tflite_of
from mlts.nets import mobilenet_v1
from mlts.nets.seeding import seeded
from mlts.pictures import smooth
from mlts.quantizing import quantize
from nnhal.memory import BytesMemory
from nnhal.model import DataLocation, Model, Request, RequestArgument
from nnhal.types import Array, OperationType, PaddingScheme, info
from opset.call import Call
from opset.graph import call_of
from reference_driver.device import ReferenceDevice

SEED = 7
SIZE = 224  # edge of the picture
OURS, LITERT, ONNX = "reference driver", "LiteRT BUILTIN_REF", "ONNX evaluator"
FLOAT_OFF = 1e-4  # by which probabilities in float32 may differ
STEPS_OFF = 8  # 28 layers of 8 bits: what each may be off by a step adds up

Run = Callable[[], Array]


@dataclass(frozen=True)
class Aim:
    """The largest share that our time may have of a peer's."""

    type: str
    peer: str
    share: float


AIMS = (Aim("float32", LITERT, 0.5), Aim("float32", ONNX, 1.0), Aim("quant8", LITERT, 1.0))


def ours(model: Model, value: Array) -> Run:
    """The reference driver with a prepared model; its output as stored."""
    prepared = ReferenceDevice().prepare_model(model)
    result = model.main.operands[model.main.output_indexes[0]]
    dtype: np.dtype[Any] = info(result.type).dtype
    size = int(np.prod(result.dimensions)) * dtype.itemsize
    source, target = BytesMemory(value.tobytes()), BytesMemory(size)
    request = Request(
        (RequestArgument(DataLocation(0, 0, value.nbytes)),),
        (RequestArgument(DataLocation(1, 0, size)),),
        (source, target),
    )

    def run() -> Array:
        prepared.execute_synchronously(request)
        return np.array(np.frombuffer(target.view(), dtype).reshape(result.dimensions))

    return run


def litert(model: Model, value: Array) -> Run:
    """LiteRT with its reference kernels."""
    resolver = OpResolverType.BUILTIN_REF
    runtime = Interpreter(model_content=tflite_of(model), num_threads=1, experimental_op_resolver_type=resolver)
    runtime.allocate_tensors()
    source, target = runtime.get_input_details()[0]["index"], runtime.get_output_details()[0]["index"]

    def run() -> Array:
        runtime.set_tensor(source, value)
        runtime.invoke()
        return np.asarray(runtime.get_tensor(target))

    return run


def onnx_evaluator(model: Model, value: Array) -> Run:
    """ONNX's reference evaluator on the same net, in the channels-first layout of its operations."""
    graph = model.main
    constants: dict[str, Array] = {"lowest": np.array(0, np.float32), "highest": np.array(6, np.float32)}
    nodes: list[Any] = []
    for one in graph.operations:
        nodes += _nodes(call_of(model, graph, one, {}), str(one.inputs[0]), str(one.outputs[0]), constants)
    names = str(graph.input_indexes[0]), str(graph.output_indexes[0])
    known, result = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names)
    initial = [onnx.numpy_helper.from_array(np.array(v, order="C"), n) for n, v in constants.items()]
    net = onnx.helper.make_graph(nodes, "net", [known], [result], initial)
    evaluator = ReferenceEvaluator(onnx.helper.make_model(net))
    feeds = {names[0]: np.ascontiguousarray(value.transpose(0, 3, 1, 2))}
    return lambda: np.asarray(evaluator.run(None, feeds)[0])


def _nodes(call: Call, source: str, target: str, constants: dict[str, Array]) -> Iterator[Any]:
    """An operation of the net as nodes; its filter and bias join the constants."""
    make = onnx.helper.make_node
    code = call.definition.code
    if code == OperationType.AVERAGE_POOL_2D:
        yield make("GlobalAveragePool", [source], [target])  # its window is the whole image
    elif code == OperationType.RESHAPE:
        yield make("Flatten", [source], [target])
    elif code == OperationType.SOFTMAX:
        yield make("Softmax", [source], [target])
    else:
        depthwise = code == OperationType.DEPTHWISE_CONV_2D
        weights = np.asarray(call["filter"].value)
        names = [f"{target}.{name}" for name in ("sum", "filter", "bias")]
        constants[names[1]] = weights.transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
        constants[names[2]] = np.asarray(call["bias"].value)
        clipped = call.integer("activation") != 0  # RELU6 throughout
        yield make(
            "Conv",
            [source, *names[1:]],
            [names[0] if clipped else target],
            auto_pad="SAME_UPPER" if call.integer("padding_scheme") == PaddingScheme.SAME else "VALID",
            strides=[call.integer("stride_h"), call.integer("stride_w")],
            kernel_shape=list(weights.shape[1:3]),
            group=weights.shape[3] if depthwise else 1,
        )
        if clipped:
            yield make("Clip", [names[0], "lowest", "highest"], [target])


def runs() -> dict[tuple[str, str], Run]:
    """What is timed, by type and name; all of a type have computed the same.

    Raises:
        AssertionError: they have not.
    """
    model = mobilenet_v1(seeded("mobilenet_v1", 1.0, SEED), 1.0, SIZE)
    picture = next(iter(smooth(SIZE, SIZE, 1, SEED)))[None].astype(np.float32) / 128 - 1
    small = quantize(model, [[picture]])
    kind = small.main.operands[small.main.input_indexes[0]]
    stored = np.clip(np.round(picture / kind.scale) + kind.zero_point, 0, 255).astype(np.uint8)
    made = {
        ("float32", OURS): ours(model, picture),
        ("float32", LITERT): litert(model, picture),
        ("float32", ONNX): onnx_evaluator(model, picture),
        ("quant8", OURS): ours(small, stored),
        ("quant8", LITERT): litert(small, stored),
    }
    for (type_, name), run in made.items():
        due, got = (result.astype(np.float64) for result in (made[type_, OURS](), run()))
        if np.abs(due - got).max() > (FLOAT_OFF if type_ == "float32" else STEPS_OFF):
            raise AssertionError(f"{name} in {type_} computes something else than the reference driver")
    return made


def medians(timed: dict[tuple[str, str], Run], turns: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Milliseconds of each: of the processor, which other load hardly touches, and of the clock."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in timed}
    for _ in range(turns):
        for key, run in timed.items():
            run()  # memory of the other side's sizes goes back first
            start = time.process_time(), time.perf_counter()
            run()
            end = time.process_time(), time.perf_counter()
            times[key].append(((end[0] - start[0]) * 1e3, (end[1] - start[1]) * 1e3))
    return {
        key: (statistics.median(cpu for cpu, _ in both), statistics.median(clock for _, clock in both))
        for key, both in times.items()
    }


def main() -> int:
    """Prints the times, then each aim with what was reached; 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5, help="timed runs of each (default 5)")
    turns = parser.parse_args().turns
    took = medians(runs(), turns)
    print(f"MobileNet v1 1.0 224, one thread, median of {turns} turns, milliseconds of processor and clock")
    for (type_, name), (cpu, clock) in took.items():
        print(f"{type_:8} {name:20} {cpu:8.1f} {clock:8.1f}")
    missed = 0
    for aim in AIMS:
        share = took[aim.type, OURS][0] / took[aim.type, aim.peer][0]
        missed += share > aim.share
        print(f"{aim.type:8} driver / {aim.peer:20} {share:6.2f}, aim at most {aim.share}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
