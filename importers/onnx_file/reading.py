"""ONNX models as models of the contract.

Sources: the ONNX operator documents, opsets 7 to 23, and the contract's operations as `opset` defines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from importers.assembling import Shape
from importers.imported import Imported, Inexpressible, Port
from importers.onnx_file.emitting import LARGEST_SUM, Budget, held
from importers.onnx_file.graph import Declared, Graph, Refusal
from importers.onnx_file.literals import DTYPES
from importers.onnx_file.parsing import parse
from importers.onnx_file.quantized import scan
from importers.onnx_file.translation import Translation, elements_in, shape_of, written
from importers.onnx_file.work import RANK_LIMIT, Tensor, Work
from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.validate import violations
from nnhal.versions import needed_level

NO_NODE = -1  # number in `missing` of what concerns a tensor and no node
FORMS = 4  # in which each value of the file may be used, on average
LARGEST_SIZE = 2**31 - 1
DTYPE_NAMES = frozenset(DTYPES.values())
NO_SIZES: Mapping[str, int] = {}


def import_onnx(
    data: bytes, name: str, folder: Path | None = None, dimensions: Mapping[str, int] = NO_SIZES
) -> Imported:
    """An ONNX model as a model of the contract.

    Images stay [batch, channels, height, width]. 64-bit integers become 32-bit ones. Tensors of more than four
    dimensions are held with neighbouring ones joined where no operation takes them as they are.

    Args:
        data: the content of the file.
        name: of the file, for messages.
        folder: where external values lie; None where none may be read.
        dimensions: sizes of named dimensions; one without a name goes by `input[axis]`. Unknown first dimensions
            are 1.

    Raises:
        UnreadableFile: the file is damaged, or of a version that is not read.
        UsageError: an input has a size that nothing tells, or the package `onnx` is missing.
    """
    graph = parse(data, name, folder)
    sizes = _sizes(graph, dimensions, name)
    work = Work(budget=Budget(LARGEST_SUM + FORMS * elements_in(graph)), quantization=scan(graph))
    translation = Translation()
    shapes = {declared.name: _input_shape(declared, sizes, name) for declared in graph.inputs}
    for declared in graph.inputs:
        _place(work, declared, shapes[declared.name])
        if declared.name in work.untold:
            translation.missing.append(Inexpressible(NO_NODE, declared.name, work.untold[declared.name]))
    known = {one.name: shape for one in graph.declared.values() if (shape := shape_of(one, sizes)) is not None}
    with np.errstate(all="ignore"):  # a file's numbers may be anything; they become what arithmetic makes of them
        translation.run(work, graph, known)
    model = None if translation.missing else _finished(work, graph, translation)
    names = {*shapes, *(output for node in graph.nodes for output in node.outputs)} if model is not None else set()
    places = {one.name: one.operand for one in work.tensors.values()
              if one is not None and one.operand is not None and one.name in names}  # fmt: skip
    return Imported(
        name,
        model,
        tuple(_port(work, one, shapes[one.name], place, model, inputs=True) for place, one in enumerate(graph.inputs)),
        tuple(_port(work, one, known.get(one.name, ()), place, model) for place, one in enumerate(graph.outputs)),
        tuple(f"{node.domain}.{node.operator}" if node.domain else node.operator for node in graph.nodes),
        tuple(sorted(translation.missing, key=lambda one: one.number)),
        places,
        tuple(work.assembly.origins) if model is not None else (),
        int(needed_level(model)) if model is not None else 1,
    )


def _finished(work: Work, graph: Graph, translation: Translation) -> Model | None:
    """The model with its outputs; None, with a word on it, where one cannot be an output or a limit is passed."""
    work.assembly.origin = NO_NODE
    try:
        model = work.assembly.finish(written(work, [work.tensor(output.name) for output in graph.outputs]))
    except Refusal as refusal:
        translation.missing.append(Inexpressible(NO_NODE, "outputs", str(refusal)))
        return None
    found = violations(model)
    for violation in found:
        place = NO_NODE if violation.operation is None else work.assembly.origins[violation.operation]
        translation.missing.append(Inexpressible(place, "the model", violation.text))
    return None if found else model


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def _sizes(graph: Graph, given: Mapping[str, int], name: str) -> dict[str, int]:
    """Sizes by the names of dimensions: the user's, and 1 for what stands first in some input.

    Raises:
        UsageError: a size is no positive number, or for a dimension that is not there.
    """
    names = {size for one in graph.inputs for size in one.dimensions or () if isinstance(size, str)}
    places = {f"{one.name}[{axis}]" for one in graph.inputs for axis in range(len(one.dimensions or ()))}
    for key, size in given.items():
        if key not in names | places:
            known = ", ".join(sorted(names)) or "none"
            raise UsageError(f"{name} has no dimension {key!r} to be given a size; named ones: {known}")
        if not 0 < size <= LARGEST_SIZE:
            raise UsageError(f"dimension {key!r} of {name} cannot have the size {size}; give one from 1 on")
    sizes = dict(given)
    for one in graph.inputs:
        first = one.dimensions[0] if one.dimensions else None
        if isinstance(first, str):
            sizes.setdefault(first, 1)
    return sizes


def _input_shape(declared: Declared, sizes: Mapping[str, int], name: str) -> Shape:
    """The dimensions of an input.

    Raises:
        UsageError: one of them is not known.
    """
    if declared.dimensions is None:
        if declared.dtype in DTYPE_NAMES:
            raise UsageError(f"input {declared.name!r} of {name} has no dimensions; export the model with fixed ones")
        return ()
    shape = []
    for axis, size in enumerate(declared.dimensions):
        place = f"{declared.name}[{axis}]"
        known = sizes.get(place) or (sizes.get(size) if isinstance(size, str) else size) or (None if axis else 1)
        if known is None:
            key = size if isinstance(size, str) else place
            raise UsageError(f"input {declared.name!r} of {name} has an unknown size; give the dimension {key!r} one")
        shape.append(known)
    return tuple(shape)


def _place(work: Work, declared: Declared, shape: Shape) -> None:
    """Makes an input known: as an operand, or as what cannot be one."""
    try:
        if declared.dtype not in DTYPE_NAMES:
            raise Refusal(f"{declared.name!r} is of type {declared.dtype}, which no operand type has")
        if len(shape) > RANK_LIMIT:
            raise Refusal(f"{declared.name!r} has {len(shape)} dimensions")
        tensor = Tensor(declared.name, np.dtype(declared.dtype), shape)
        tensor.operand = work.assembly.input(work.kind(tensor), held(shape))
        work.tensors[declared.name] = tensor
    except Refusal as refusal:
        work.untold[declared.name] = str(refusal)


def _port(
    work: Work, declared: Declared, shape: Shape, place: int, model: Model | None, *, inputs: bool = False
) -> Port:
    """An input or output as the file has it."""
    tensor = work.tensors.get(declared.name)
    if model is None or tensor is None:
        return Port(declared.name, declared.dtype, shape)
    operand = (model.main.input_indexes if inputs else model.main.output_indexes)[place]
    what = model.main.operands[operand]
    return Port(declared.name, tensor.dtype.name, tensor.shape, what.scale, what.zero_point, operand)
