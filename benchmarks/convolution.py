"""Times our convolution kernels beside ONNX's reference evaluator, on layers of the size of MobileNet v1's.

Run as `python -m benchmarks.convolution`. Both sides run one thread, in one process, in turns.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from nnhal.types import Array, OperandType
from opset.call import Argument, Call, scalar
from opset.convolution import CONV_2D, DEPTHWISE_CONV_2D
from opset.values import BASELINE, Arithmetic, Values

SINGLE = Arithmetic(np.float32)
ROUNDS = 3  # turns that each side gets


@dataclass(frozen=True)
class Layer:
    """A convolution with SAME padding; `filters` is None for a depthwise one."""

    name: str
    size: int
    depth: int
    kernel: int
    stride: int
    filters: int | None


LAYERS = (
    Layer("3x3 stride 2, 3 to 32 at 224", 224, 3, 3, 2, 32),
    Layer("depthwise 3x3, 32 at 112", 112, 32, 3, 1, None),
    Layer("depthwise 3x3, 128 at 56", 56, 128, 3, 1, None),
    Layer("depthwise 3x3, 512 at 14", 14, 512, 3, 1, None),
    Layer("1x1, 32 to 64 at 112", 112, 32, 1, 1, 64),
    Layer("1x1, 512 to 512 at 14", 14, 512, 1, 1, 512),
)


def our_call(layer: Layer, rng: np.random.Generator) -> Call:
    """The layer as a call, with random values."""

    def drawn(*shape: int) -> Argument:
        return Argument(OperandType.TENSOR_FLOAT32, shape, value=rng.standard_normal(shape).astype(np.float32))

    depthwise = layer.filters is None
    outputs = layer.depth if layer.filters is None else layer.filters
    weights = (
        (1, layer.kernel, layer.kernel, outputs) if depthwise else (outputs, layer.kernel, layer.kernel, layer.depth)
    )
    numbers = {"padding_scheme": 1, "stride_w": layer.stride, "stride_h": layer.stride}
    numbers |= {"multiplier": 1, "activation": 0} if depthwise else {"activation": 0}
    definition = DEPTHWISE_CONV_2D if depthwise else CONV_2D
    inputs = {
        "input": drawn(1, layer.size, layer.size, layer.depth),
        "filter": drawn(*weights),
        "bias": drawn(outputs),
        **{name: scalar(OperandType.INT32, value) for name, value in numbers.items()},
    }
    signature = definition.signature(f"float32/implicit/in{len(inputs)}")
    return Call(definition, signature, inputs)


def onnx_run(layer: Layer, call: Call, dtype: type[np.float32] | type[np.float64]) -> Callable[[], Array]:
    """The same layer by ONNX's reference evaluator, in a type and its own layout."""
    kind = onnx.TensorProto.FLOAT if dtype is np.float32 else onnx.TensorProto.DOUBLE
    known = [onnx.helper.make_tensor_value_info(name, kind, None) for name in "xwb"]
    result = onnx.helper.make_tensor_value_info("y", kind, None)
    node = onnx.helper.make_node(
        "Conv",
        list("xwb"),
        ["y"],
        auto_pad="SAME_UPPER",
        strides=[layer.stride] * 2,
        kernel_shape=[layer.kernel] * 2,
        group=layer.depth if layer.filters is None else 1,
    )
    evaluator = ReferenceEvaluator(onnx.helper.make_model(onnx.helper.make_graph([node], "g", known, [result])))
    image, weights, bias = (np.asarray(call[name].value, dtype) for name in ("input", "filter", "bias"))
    turn = (3, 0, 1, 2) if layer.filters is None else (0, 3, 1, 2)
    feeds = {
        "x": np.ascontiguousarray(image.transpose(0, 3, 1, 2)),
        "w": np.ascontiguousarray(weights.transpose(turn)),
        "b": bias,
    }
    return lambda: np.asarray(evaluator.run(None, feeds)[0])


def ours(call: Call, arithmetic: Arithmetic) -> Callable[[], Array]:
    """Our kernel in an arithmetic."""
    return lambda: call.definition.kernel(Values(call, arithmetic))["output"]


def medians(runs: dict[str, Callable[[], Array]], count: int) -> dict[str, float]:
    """Milliseconds of each, in rounds by turns; processor time, which other load leaves alone."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            run()  # memory of the other side's sizes goes back first
            for _ in range(count):
                start = time.process_time()
                run()
                times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Prints one line a layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each in a round (default 9)")
    count = parser.parse_args().runs
    rng = np.random.default_rng(0)
    print(f"milliseconds of one thread, median of {ROUNDS * count} runs; then the evaluator's / ours in each type")
    print(f"{'layer':30} {'float64':>9} {'float32':>9} {'ONNX f64':>9} {'ONNX f32':>9}   {'float64':>8} {'float32':>8}")
    for layer in LAYERS:
        call = our_call(layer, rng)
        runs = {
            "float64": ours(call, BASELINE),
            "float32": ours(call, SINGLE),
            "onnx64": onnx_run(layer, call, np.float64),
            "onnx32": onnx_run(layer, call, np.float32),
        }
        truth = runs["float64"]().transpose(0, 3, 1, 2)
        if not np.allclose(truth, runs["onnx64"](), rtol=1e-9, atol=1e-9):
            raise AssertionError(f"{layer.name}: the two sides compute different things")
        took = medians(runs, count)
        times = " ".join(f"{took[name]:9.2f}" for name in ("float64", "float32", "onnx64", "onnx32"))
        ratios = f"{took['onnx64'] / took['float64']:8.2f} {took['onnx32'] / took['float32']:8.2f}"
        print(f"{layer.name:30} {times}   {ratios}")


if __name__ == "__main__":
    main()
