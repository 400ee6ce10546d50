"""The conformance cases of the ONNX standard itself, as far as they can be expressed."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from nnhal.errors import UsageError
from tests.onnx_models import import_onnx, run

NEWEST = 23
pytestmark = pytest.mark.thorough


def standard_cases():
    """Name, model, inputs and outputs of each case of one operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their own results, with what overflows
        from onnx.backend.test.case.node import collect_testcases

        for case in collect_testcases(None):
            if case.data_sets:
                yield case.name, case.model, *case.data_sets[0]


def are_arrays(values):
    """Whether values are tensors that NumPy has."""
    return all(isinstance(v, (np.ndarray, np.generic)) and np.asarray(v).dtype.kind in "fiub" for v in values)


def with_constants(model, inputs):
    """The model with all inputs but the first one as constants, or None where these are no tensors."""
    if len(inputs) < 2 or len(inputs) != len(model.graph.input) or not are_arrays(inputs):
        return None
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    first, *rest = changed.graph.input
    pairs = zip(rest, inputs[1:], strict=True)
    values = [numpy_helper.from_array(np.asarray(value), info.name) for info, value in pairs if info.name]
    kept = onnx.ValueInfoProto.FromString(first.SerializeToString())
    del changed.graph.input[:]
    changed.graph.input.append(kept)
    changed.graph.initializer.extend(values)
    return changed


def is_alike(got, due):
    due = np.asarray(due)
    if got.shape != due.shape or got.dtype != due.dtype:
        return False
    if due.dtype.kind == "f":
        tolerance = 2e-3 if due.dtype == np.float16 else 1e-4
        return np.allclose(got, due, rtol=tolerance, atol=tolerance, equal_nan=True)
    steps = 1 if due.dtype in (np.int8, np.uint8) else 0
    return np.abs(got.astype(np.int64) - due.astype(np.int64)).max(initial=0) <= steps


def outcome(name, model, inputs, outputs):
    """True or False for a result that is right or wrong; None where there is none."""
    for entry in model.opset_import:  # cases are written for the newest opset, which seldom says anything else
        if not entry.domain:
            entry.version = min(entry.version, NEWEST)
    try:
        found = import_onnx(model.SerializeToString(), name)
    except UsageError:
        return None
    if found.model is None or not are_arrays(inputs):
        return None
    feeds = {port.name: np.asarray(value) for port, value in zip(found.inputs, inputs, strict=True)}
    with np.errstate(all="ignore"):
        results = run(found, feeds)
    return all(is_alike(got, due) for got, due in zip(results, outputs, strict=True))


def test_the_cases_of_the_standard():
    found = {}
    for name, model, inputs, outputs in standard_cases():
        found[name] = outcome(name, model, inputs, outputs)
        changed = with_constants(model, inputs)
        if changed is not None:
            found[f"{name}, constant"] = outcome(name, changed, inputs[:1], outputs)
    assert [name for name, good in found.items() if good is False] == []
    assert sum(good is True for good in found.values()) > 900
