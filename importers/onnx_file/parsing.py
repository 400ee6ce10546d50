"""Bytes of an ONNX file to a `Graph`: everything about protocol buffers is here and in `literals`.

Only the parser of the `onnx` package sees the bytes: neither its checker nor its shape inference is called, which are
native code that trusts what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from importers.imported import UnreadableFile
from importers.onnx_file.graph import Attribute, Declared, Graph, Node, Untold
from importers.onnx_file.literals import ExternalData, dtype_name, literal
from nnhal.errors import UsageError
from nnhal.types import Array

OLDEST, NEWEST = 7, 23  # opsets of the standard's own operators
OWN_DOMAINS = ("", "ai.onnx")
Scopes = tuple[set[str], ...]
DEEPEST = 8  # graphs in graphs
# Codes of AttributeProto.AttributeType.
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS = 1, 2, 3, 4, 5, 6, 7, 8


def parse(data: bytes, name: str, folder: Path | None) -> Graph:
    """The main graph of a file.

    Args:
        data: the file's content.
        name: of the file, for messages.
        folder: what external values are read from; None where none may be.

    Raises:
        UnreadableFile: the file is damaged, or of a version that is not read.
        UsageError: the package `onnx` is missing.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise UsageError('ONNX files are read with the package onnx: pip install -e ".[mlts]"') from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise UnreadableFile(f"{name} is no ONNX file, or is damaged") from None
    try:
        return _model(proto, folder)
    except UnreadableFile as error:
        raise UnreadableFile(f"{name}: {error}") from None
    except UnicodeDecodeError:
        raise UnreadableFile(f"{name}: a name is no UTF-8 text, so the file is damaged") from None


def _model(proto: Any, folder: Path | None) -> Graph:
    if not proto.HasField("graph"):
        raise UnreadableFile("there is no graph in it, so it is no ONNX model")
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain in OWN_DOMAINS else entry.domain
        versions[domain] = entry.version
    version = versions.setdefault("", 0)
    if not OLDEST <= version <= NEWEST:
        raise UnreadableFile(f"it is of opset {version}; {OLDEST} to {NEWEST} are read")
    graph = _Parsing(versions, ExternalData(folder)).graph(proto.graph, (), None, 0)
    if not graph.outputs:
        raise UnreadableFile("its graph has no outputs")
    return graph


class _Parsing:
    """One file under way."""

    def __init__(self, versions: Mapping[str, int], external: ExternalData) -> None:
        self._versions = versions
        self._external = external

    def graph(self, proto: Any, around: Scopes, number: int | None, depth: int) -> Graph:
        """A graph.

        Args:
            proto: the GraphProto.
            around: tensors written so far in the graphs that it is in.
            number: of the main graph's node that it belongs to; None for the main graph.
            depth: number of graphs that it is in.
        """
        if depth > DEEPEST:
            raise UnreadableFile(f"graphs are nested more than {DEEPEST} deep")
        constants: dict[str, Array | Untold] = {}
        for tensor in proto.initializer:
            constants[tensor.name] = literal(tensor, self._external)
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = Untold(f"{sparse.values.name!r} is a sparse tensor")
        inputs = tuple(_declared(info) for info in proto.input if info.name not in constants)
        written = set(constants)
        for info in inputs:
            _write(written, info.name)
        nodes = []
        for place, node in enumerate(proto.node):
            at = place if number is None else number
            nodes.append(self._node(node, written, around, at, depth))
            for output in node.output:
                if output:
                    _write(written, output)
        outputs = tuple(_declared(info) for info in proto.output)
        for info in outputs:
            if not _is_known(info.name, (written, *around)):
                raise UnreadableFile(f"nothing writes the output {info.name!r}")
        declared = {info.name: _declared(info) for info in (*proto.value_info, *proto.output)}
        return Graph(proto.name, tuple(nodes), constants, inputs, outputs, declared)

    def _node(self, proto: Any, written: set[str], around: Scopes, number: int, depth: int) -> Node:
        operator = proto.op_type
        for name in proto.input:
            if name and not _is_known(name, (written, *around)):
                raise UnreadableFile(f"node {number} {operator} reads {name!r}, which nothing before it writes")
        attributes = {one.name: self._attribute(one) for one in proto.attribute if one.type != GRAPH}
        graphs = {one.name: self.graph(one.g, (written, *around), number, depth + 1)
                  for one in proto.attribute if one.type == GRAPH}  # fmt: skip
        domain = "" if proto.domain in OWN_DOMAINS else proto.domain
        version = self._versions.get(domain, 1)
        return Node(number, operator, domain, tuple(proto.input), tuple(proto.output), attributes, graphs, version)

    def _attribute(self, proto: Any) -> Attribute:
        kind = proto.type
        if kind == FLOAT:
            return float(proto.f)
        if kind == INT:
            return int(proto.i)
        if kind == STRING:
            return _text(proto.s)
        if kind == FLOATS:
            return tuple(float(value) for value in proto.floats)
        if kind == INTS:
            return tuple(int(value) for value in proto.ints)
        if kind == STRINGS:
            return tuple(_text(value) for value in proto.strings)
        if kind == TENSOR:
            value = literal(proto.t, self._external)
            return value if isinstance(value, np.ndarray) else value.reason
        return f"attribute of kind {kind}"


def _is_known(name: str, scopes: Scopes) -> bool:
    return any(name in scope for scope in scopes)


def _write(written: set[str], name: str) -> None:
    if name in written:
        raise UnreadableFile(f"tensor {name!r} is written twice")
    written.add(name)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _declared(proto: Any) -> Declared:
    if not proto.type.HasField("tensor_type"):
        kind = proto.type.WhichOneof("value")
        return Declared(proto.name, (kind or "unknown").removesuffix("_type"), None)
    tensor = proto.type.tensor_type
    dimensions = _dimensions(tensor.shape.dim) if tensor.HasField("shape") else None
    return Declared(proto.name, dtype_name(tensor.elem_type), dimensions)


def _dimensions(dims: Iterable[Any]) -> tuple[int | str | None, ...]:
    """Sizes as they are said; exporters also write 0 and -1 for what they do not know."""
    found: list[int | str | None] = []
    for dim in dims:
        kind = dim.WhichOneof("value")
        if kind == "dim_value" and dim.dim_value > 0:
            found.append(int(dim.dim_value))
        else:
            found.append(str(dim.dim_param) if kind == "dim_param" and dim.dim_param else None)
    return tuple(found)
