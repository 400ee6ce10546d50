"""Small .tflite files built operator by operator, and what LiteRT's own interpreter makes of a file."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from drivers.litert_translate.flatbuffer import FlatGraph, FlatModel, Quantization
from importers.imported import to_operand
from importers.tflite_file import import_tflite
from nnhal.types import OperandType
from nnhal.validate import violations
from nnhal.versions import needed_level
from opset.graph import evaluate

TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "float16": schema.TensorType.FLOAT16,
    "int8": schema.TensorType.INT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
    "uint8": schema.TensorType.UINT8,
    "bool": schema.TensorType.BOOL,
}


def steps(scale, zero_point=0):
    return Quantization((scale,), (zero_point,))


def per_channel(scales, dimension=0):
    return Quantization(tuple(scales), (0,) * len(scales), dimension)


@dataclass
class File:
    """A file under way, with one graph unless more are asked for."""

    model: FlatModel = field(default_factory=FlatModel)

    def __post_init__(self):
        self.graph: FlatGraph = self.model.graph()

    def input(self, shape, kind="float32", known=None):
        index = self.graph.tensor(shape, TYPES[kind], None, known)
        self.graph.inputs = (*self.graph.inputs, index)
        return index

    def constant(self, value, kind=None, known=None):
        array = np.asarray(value, kind or np.asarray(value).dtype)
        return self.graph.tensor(array.shape, TYPES[array.dtype.name], array.tobytes(), known)

    def variable(self, shape, kind="float32", known=None):
        index = self.graph.tensor(shape, TYPES[kind], None, known)
        self.graph.make_variable(index)
        return index

    def tensor(self, shape, kind="float32", known=None):
        return self.graph.tensor(shape, TYPES[kind], None, known)

    def add(self, name, inputs, shape, kind="float32", known=None, options=None, **fields):
        """An operator with one result, which it gives."""
        result = self.tensor(shape, kind, known)
        self.graph.operator(name, inputs, [result], options, **fields)
        return result

    def finish(self, *outputs):
        self.graph.outputs = tuple(outputs)
        return self.model.finish()


def values_for(details, rng, low=-2.0, high=2.0) -> list:
    """A value for each input of an interpreter: reals in a range, steps of all sizes, small whole numbers."""
    found = []
    for detail in details:
        shape, kind = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if kind.kind == "f":
            value = rng.uniform(low, high, shape)
        elif kind == np.bool_:
            value = rng.integers(0, 2, shape)
        elif detail["quantization"][0] or kind.itemsize == 1:
            value = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape)
        else:
            value = rng.integers(max(int(low), -3), 3, shape)
        found.append(np.asarray(value, kind))
    return found


def interpreter(data: bytes, keep_all: bool = False) -> Interpreter:
    """LiteRT, ready to run: with its plain kernels, or the others where these lack an operator."""
    kernels = OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    for resolver in kernels:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = Interpreter(
                    model_content=data,
                    experimental_op_resolver_type=resolver,
                    experimental_preserve_all_tensors=keep_all,
                )
            break
        except ValueError:
            if resolver == kernels[-1]:
                raise
    made.allocate_tensors()
    return made


def run(made: Interpreter, values: Sequence) -> list:
    """What LiteRT gives for its inputs, in the order of the file's outputs."""
    for detail, value in zip(made.get_input_details(), values, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]


# --- comparing --------------------------------------------------------------------------------------------------------


def ours(imported, values, states):
    """What the imported model gives: the file's outputs, then its states."""
    model = imported.require()
    operands = model.main.operands
    given = [
        to_operand(value, operands[port.operand].type).reshape(operands[port.operand].dimensions)
        for value, port in zip(values, imported.inputs, strict=False)
    ]
    results = [result.stored for result in evaluate(model, [*given, *states])]
    own = len(results) - imported.states
    return results[:own], results[own:]


def zero_states(imported):
    operands = imported.require().main.operands
    ports = imported.inputs[len(imported.inputs) - imported.states :]
    kinds = {OperandType.TENSOR_FLOAT32: np.float32, OperandType.TENSOR_QUANT16_SYMM: np.int16}
    return [
        np.full(
            operands[port.operand].dimensions,
            port.zero_point,
            kinds.get(operands[port.operand].type, np.int8),
        )
        for port in ports
    ]


def agree(found, due, tolerance, steps_off):
    __tracebackhide__ = True
    assert found.size == due.size
    found = found.reshape(due.shape)
    if due.dtype.kind == "f":
        np.testing.assert_allclose(found, due, rtol=tolerance, atol=tolerance)
    elif due.dtype == np.bool_ or due.dtype.itemsize > 2:
        np.testing.assert_array_equal(found.astype(due.dtype), due)
    else:
        assert np.abs(found.astype(int) - due.astype(int)).max() <= steps_off


def check(data, name, tolerance=1e-5, low=-2.0, high=2.0, steps_off=1, runs=1):
    """Compares the imported model with LiteRT on a few inputs, run after run where there are states."""
    __tracebackhide__ = True
    imported = import_tflite(data, f"{name}.tflite")
    model = imported.require()
    assert violations(model) == []
    assert imported.level == needed_level(model)
    assert len(imported.origins) == len(model.main.operations)
    assert [port.operand for port in imported.inputs] == list(model.main.input_indexes)
    assert [port.operand for port in imported.outputs] == list(model.main.output_indexes)
    made, rng = interpreter(data), np.random.default_rng(len(name))
    states = zero_states(imported)
    for _ in range(runs):
        values = values_for(made.get_input_details(), rng, low, high)
        due = run(made, values)
        found, states = ours(imported, values, states)
        assert len(found) == len(due)
        for one, other in zip(found, due, strict=True):
            agree(one, other, tolerance, steps_off)
    return imported
