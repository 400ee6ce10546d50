"""Small ONNX models for tests, and what the reference evaluator of the onnx package makes of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from importers.imported import Imported
from importers.onnx_file.reading import import_onnx
from nnhal.errors import UsageError
from nnhal.types import OperationType
from nnhal.validate import violations
from opset.graph import evaluate

MICROSOFT = "com.microsoft"


def random(*shape, seed=0, low=-2.0, high=2.0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(dtype)


def model_of(nodes, feeds, constants=None, outputs=("y",), opset=17, declared=()):
    """A model of nodes (or of one, as its operator and attributes) with inputs like `feeds`."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "graph", inputs, results, values, value_info=list(declared))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports)


def node(operator, inputs, outputs="y", **attributes):
    """A node whose tensors are given as words in a text; `_` is one that is left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), **attributes)


def imported(model, **options):
    """A model after import, valid."""
    found = import_onnx(model.SerializeToString(), "model.onnx", **options)
    assert violations(found.require()) == []
    assert len(found.origins) == len(found.model.main.operations)
    assert found.level >= 1
    return found


def run(found, feeds):
    """The outputs of an imported model in the file's types and shapes."""
    by_name = {port.name: port for port in found.inputs}
    order = [next(n for n, p in by_name.items() if p.operand == index) for index in found.model.main.input_indexes]
    stored = []
    for name, index in zip(order, found.model.main.input_indexes, strict=True):
        value = np.asarray(feeds[name])
        dtype = np.uint8 if value.dtype == np.bool_ else np.int32 if value.dtype == np.int64 else value.dtype
        stored.append(value.astype(dtype).reshape(found.model.main.operands[index].dimensions))
    results = evaluate(found.model, stored)
    return [r.stored.astype(p.dtype).reshape(p.dimensions) for r, p in zip(results, found.outputs, strict=True)]


def reference(model, feeds):
    return ReferenceEvaluator(model).run(None, feeds)


def agree(nodes, feeds, constants=None, outputs=("y",), opset=17, expected=None, steps=0, rtol=2e-5, atol=2e-5):
    """Imports a model, runs it, and compares with the reference evaluator or with given values."""
    model = model_of(nodes, feeds, constants, outputs, opset)
    found = imported(model)
    expected = reference(model, feeds) if expected is None else expected
    for got, due in zip(run(found, feeds), expected, strict=True):
        due = np.asarray(due)
        assert got.shape == due.shape
        assert got.dtype == due.dtype
        if due.dtype.kind == "f":
            np.testing.assert_allclose(got, due, rtol=rtol, atol=atol)
        else:
            assert np.abs(got.astype(np.int64) - due.astype(np.int64)).max(initial=0) <= steps
    return found


def codes(found):
    """The names of a model's operations."""
    return [OperationType(operation.type).name for operation in found.model.main.operations]


def attempt(data):
    """An import, or None for one sentence; anything else is an error of the test."""
    try:
        found = import_onnx(data, "damaged.onnx")
    except UsageError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert len(sentence) < 2000
        assert "\n" not in sentence
        return None
    assert isinstance(found, Imported)
    assert (found.model is None) == bool(found.missing)
    return found
