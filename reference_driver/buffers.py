"""Driver-managed buffers: allocation with all its checks, copies, and their use in requests.

A buffer is uninitialised until an execution or a copy fills it, and again after one that failed.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nnhal.device import Buffer, BufferDesc, BufferRole
from nnhal.errors import DriverError, invalid
from nnhal.memory import BytesMemory, Memory
from nnhal.model import (
    BufferToken,
    DataLocation,
    Operand,
    Request,
    RequestArgument,
    combine_dimensions,
    is_known,
    is_tensor,
)
from nnhal.types import OPERAND_TYPES, Array, ErrorStatus, OperandType, info

if TYPE_CHECKING:
    from reference_driver.execution import ReferencePreparedModel

Dimensions = tuple[int, ...]
Role = tuple[int, bool, int]  # number of the prepared model, is an output, its number


class ReferenceBuffer(Buffer):
    """Bytes that the driver keeps, with the dimensions that they have at present."""

    def __init__(self, owner: Buffers, token: int, operand: Operand, roles: frozenset[Role]) -> None:
        self.token = token
        self.roles = roles
        self.dimensions = operand.dimensions  # as far as they are the same for ever
        self._type = OperandType(operand.type)
        self._owner = owner
        self._lock = threading.Lock()
        self._content: tuple[bytes, Dimensions] | None = None

    def copy_to(self, destination: Memory) -> None:
        data, _ = self.content()
        if destination.size != len(data):
            raise invalid(f"{len(data)} bytes do not go into a memory of {destination.size}")
        destination.view()[:] = data

    def copy_from(self, source: Memory, dimensions: Dimensions = ()) -> None:
        self.clear()
        shape = self.dimensions
        if dimensions:
            both = combine_dimensions(dimensions, self.dimensions) if is_tensor(self._type) else None
            if both is None:
                raise invalid(f"dimensions {dimensions} do not fit a buffer of {self.dimensions}")
            shape = both
        if is_tensor(self._type) and not is_known(shape):
            raise invalid(f"dimensions {shape} are not fully known")
        due = math.prod(shape) * info(self._type).dtype.itemsize
        if source.size != due:
            raise invalid(f"a memory of {source.size} bytes for dimensions {shape}, which need {due}")
        self._set((bytes(source.view()), shape))

    def close(self) -> None:
        self._owner.forget(self.token)

    def content(self) -> tuple[bytes, Dimensions]:
        """What is in it.

        Raises:
            DriverError: GENERAL_FAILURE when nothing is.
        """
        with self._lock:
            if self._content is None:
                raise DriverError(ErrorStatus.GENERAL_FAILURE, "the buffer is not initialised")
            return self._content

    def clear(self) -> None:
        """Forgets what is in it."""
        self._set(None)

    def takes(self, shape: Dimensions) -> bool:
        """Whether a result of these dimensions fits."""
        return not is_tensor(self._type) or combine_dimensions(shape, self.dimensions) == shape

    def fill(self, value: Array) -> None:
        """Takes a result that fits."""
        stored = np.ascontiguousarray(value, info(self._type).dtype)
        self._set((stored.tobytes(), tuple(stored.shape)))

    def _set(self, content: tuple[bytes, Dimensions] | None) -> None:
        with self._lock:
            self._content = content


@dataclass(frozen=True)
class Attached:
    """A request whose buffers have been replaced: inputs by what is in them, outputs by nothing.

    Attributes:
        outputs: buffers that take results, by the number of the output.
    """

    request: Request
    outputs: dict[int, ReferenceBuffer]

    def fill(self, values: Sequence[Array]) -> None:
        """Puts results into the buffers.

        Raises:
            DriverError: GENERAL_FAILURE when one does not fit; then none is filled.
        """
        for number, buffer in self.outputs.items():
            if not buffer.takes(tuple(values[number].shape)):
                text = f"output {number} of {values[number].shape} does not fit a buffer of {buffer.dimensions}"
                raise DriverError(ErrorStatus.GENERAL_FAILURE, text)
        for number, buffer in self.outputs.items():
            buffer.fill(values[number])


class Buffers:
    """All buffers of a device, by token."""

    def __init__(self) -> None:
        self._buffers: dict[int, ReferenceBuffer] = {}
        self._tokens = itertools.count(1)

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[ReferencePreparedModel],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> ReferenceBuffer:
        """A new buffer for the roles.

        Raises:
            DriverError: INVALID_ARGUMENT for everything that is wrong with them.
        """
        roles: set[Role] = set()
        operand: Operand | None = None
        given = [(role, False) for role in input_roles] + [(role, True) for role in output_roles]
        for role, output in given:
            key, found = _role(prepared_models, role, output=output)
            if key in roles:
                raise invalid(f"{_name(key)} is given twice")
            roles.add(key)
            operand = found if operand is None else _merged(operand, found)
        if operand is None:
            raise invalid("a buffer without roles")
        if operand.type not in OPERAND_TYPES:
            raise DriverError(ErrorStatus.GENERAL_FAILURE, f"no buffers for operand type {operand.type}")
        if desc.dimensions and (not is_tensor(operand.type) or min(desc.dimensions) < 0):
            raise invalid(f"dimensions {desc.dimensions} of a {OperandType(operand.type).name}")
        token = next(self._tokens)
        whole = _merged(operand, replace(operand, dimensions=desc.dimensions))
        self._buffers[token] = buffer = ReferenceBuffer(self, token, whole, frozenset(roles))
        return buffer

    def forget(self, token: int) -> None:
        """The token names no buffer from now on."""
        self._buffers.pop(token, None)

    def check(self, request: Request, prepared: ReferencePreparedModel) -> None:
        """Refuses buffers that are not there, not for this use, or of other dimensions than the request says.

        Raises:
            DriverError: INVALID_ARGUMENT.
        """
        for _ in self._uses(request, prepared):
            pass

    def attach(self, request: Request, prepared: ReferencePreparedModel) -> Attached:
        """Takes the contents of input buffers, and those of output buffers away.

        Raises:
            DriverError: GENERAL_FAILURE when an input buffer has no content; INVALID_ARGUMENT as `check`.
        """
        arguments = {False: list(request.inputs), True: list(request.outputs)}
        pools: list[Memory | BufferToken] = list(request.pools)
        outputs: dict[int, ReferenceBuffer] = {}
        for output, number, buffer in self._uses(request, prepared):
            if output:
                outputs[number] = buffer
                arguments[True][number] = RequestArgument(has_no_value=True)
        for buffer in outputs.values():
            buffer.clear()  # whatever happens from here on
        for output, number, buffer in self._uses(request, prepared):
            if output:
                continue
            data, shape = buffer.content()
            if combine_dimensions(arguments[False][number].dimensions, shape) != shape:
                raise invalid(f"input {number} of {arguments[False][number].dimensions} is a buffer of {shape}")
            arguments[False][number] = RequestArgument(DataLocation(len(pools), 0, len(data)), shape)
            pools.append(BytesMemory(data))
        return Attached(Request(tuple(arguments[False]), tuple(arguments[True]), tuple(pools)), outputs)

    def _uses(self, request: Request, prepared: ReferencePreparedModel) -> Iterator[tuple[bool, int, ReferenceBuffer]]:
        """Each argument that lies in a buffer: whether it is an output, its number, the buffer."""
        for output, arguments in ((False, request.inputs), (True, request.outputs)):
            for number, argument in enumerate(arguments):
                pool = None if argument.has_no_value else request.pools[argument.location.pool_index]
                if not isinstance(pool, BufferToken):
                    continue
                buffer = self._buffers.get(pool.token)
                if buffer is None:
                    raise invalid(f"no buffer has the token {pool.token}")
                role = (prepared.number, output, number)
                if role not in buffer.roles:
                    raise invalid(f"the buffer {pool.token} was not made for {_name(role)}")
                if combine_dimensions(argument.dimensions, buffer.dimensions) is None:
                    text = f"{_name(role)} of {argument.dimensions} is in a buffer of {buffer.dimensions}"
                    raise invalid(text)
                yield output, number, buffer


def _role(prepared_models: Sequence[ReferencePreparedModel], role: BufferRole, *, output: bool) -> tuple[Role, Operand]:
    """A role by the prepared model's own number, and the operand that it is."""
    if not 0 <= role.model_index < len(prepared_models):
        raise invalid(f"prepared model {role.model_index} of {len(prepared_models)}")
    if not 0 < role.probability <= 1:
        raise invalid(f"the probability {role.probability} is not above 0 and up to 1")
    prepared = prepared_models[role.model_index]
    main = prepared.model.main
    indexes = main.output_indexes if output else main.input_indexes
    if not 0 <= role.io_index < len(indexes):
        raise invalid(f"{'output' if output else 'input'} {role.io_index} of {len(indexes)}")
    return (prepared.number, output, role.io_index), main.operands[indexes[role.io_index]]


def _name(role: Role) -> str:
    return f"{'output' if role[1] else 'input'} {role[2]} of prepared model {role[0]}"


def _merged(first: Operand, second: Operand) -> Operand:
    """One description of what both describe."""
    for name in ("type", "scale", "zero_point", "extra_params"):
        if getattr(first, name) != getattr(second, name):
            raise invalid(f"roles that differ in {name}: {getattr(first, name)} and {getattr(second, name)}")
    dimensions = combine_dimensions(first.dimensions, second.dimensions)
    if dimensions is None:
        raise invalid(f"dimensions {first.dimensions} and {second.dimensions} cannot both be")
    return replace(first, dimensions=dimensions)
