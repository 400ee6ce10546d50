"""Driver-managed buffers of a framework: each is one of the device that runs the whole model, under a token of ours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from framework.members import Member
from framework.parts import Compiled
from nnhal.device import Buffer, BufferDesc, BufferRole
from nnhal.errors import DriverError, invalid
from nnhal.memory import Memory
from nnhal.model import BufferToken, Request
from nnhal.types import FL4, ErrorStatus


class FrameworkBuffer(Buffer):
    """A device's buffer."""

    def __init__(self, table: BufferTable, token: int, member: Member, inner: Buffer) -> None:
        self.token = token
        self.member = member
        self.inner = inner
        self._table = table

    def copy_to(self, destination: Memory) -> None:
        self.inner.copy_to(destination)

    def copy_from(self, source: Memory, dimensions: tuple[int, ...] = ()) -> None:
        self.inner.copy_from(source, dimensions)

    def close(self) -> None:
        self._table.forget(self.token)
        self.inner.close()


class BufferTable:
    """All buffers of a framework, by token."""

    def __init__(self) -> None:
        self._buffers: dict[int, FrameworkBuffer] = {}
        self._tokens = itertools.count(1)

    def allocate(
        self,
        desc: BufferDesc,
        parts: Sequence[Compiled | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> FrameworkBuffer:
        """A buffer on the device that runs all the models.

        Args:
            desc: as the client gave it.
            parts: of each model the part that is the whole of it; None for a model in parts.
            input_roles: as the client gave them.
            output_roles: likewise.

        Raises:
            DriverError: GENERAL_FAILURE where no single device runs all of them or its level has no buffers; else what
                the device says.
        """
        whole = [part for part in parts if part is not None]
        if not parts:
            raise invalid("a buffer for no prepared model")
        if len(whole) < len(parts) or len({part.member.name for part in whole}) > 1:
            text = "the models run on several devices, and no buffer is memory of all of them"
            raise DriverError(ErrorStatus.GENERAL_FAILURE, text)
        member = whole[0].member
        if member.level < FL4:
            text = f"{member.name} is of level {member.level.version}, which has no buffers"
            raise DriverError(ErrorStatus.GENERAL_FAILURE, text)
        inner = member.device.allocate(desc, [part.prepared for part in whole], input_roles, output_roles)
        token = next(self._tokens)
        self._buffers[token] = buffer = FrameworkBuffer(self, token, member, inner)
        return buffer

    def forget(self, token: int) -> None:
        """The token names no buffer from now on."""
        self._buffers.pop(token, None)

    def handed_on(self, request: Request, part: Compiled | None) -> Request:
        """A request with buffers under the tokens of the device that runs it.

        Raises:
            DriverError: INVALID_ARGUMENT for a token that names no buffer there.
        """
        if not any(isinstance(pool, BufferToken) for pool in request.pools):
            return request
        pools = tuple(self._inner(pool, part) if isinstance(pool, BufferToken) else pool for pool in request.pools)
        return replace(request, pools=pools)

    def _inner(self, pool: BufferToken, part: Compiled | None) -> BufferToken:
        buffer = self._buffers.get(pool.token)
        if buffer is None:
            raise invalid(f"no buffer has the token {pool.token}")
        if part is None or buffer.member.name != part.member.name:
            raise invalid(f"the buffer {pool.token} is memory of {buffer.member.name}, which does not run this model")
        return BufferToken(buffer.inner.token)
