"""What a connection is about to send: pieces of frames, which leave in one write."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ProtocolError
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode, name_of

if TYPE_CHECKING:
    import asyncio

    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address
    from orbitmq.transport.tls import TlsLayer

logger = logging.getLogger(__name__)

_GATHER_BYTES: Final = 64 * 1024  # above it, the kernel gathers the pieces; below, copying them together is cheaper
_LARGE_PIECE_BYTES: Final = 16 * 1024  # a short header before so much is not worth copying both


class Outgoing:
    __slots__ = ("pieces", "size", "write_follows")

    def __init__(self) -> None:
        self.write_follows = False  # whoever adds something now need not see to it that it leaves
        self.pieces: list[bytes | memoryview] = []
        self.size = 0

    def add(self, pieces: list[bytes | memoryview]) -> None:
        self.pieces += pieces
        self.size += len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))

    def clear(self) -> None:
        self.pieces, self.size = [], 0

    def write_to(self, transport: asyncio.Transport, tls: TlsLayer | None) -> None:
        pieces, self.pieces = self.pieces, []
        size, self.size = self.size, 0
        if tls is not None:
            transport.write(tls.encrypt(b"".join(pieces)))
        elif size > _GATHER_BYTES or (len(pieces) == 2 and size > _LARGE_PIECE_BYTES):
            transport.writelines(pieces)
        else:
            transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def encoded_answer(request: Command, answer: Command, peer: Address) -> list[bytes | memoryview]:
    answer.opaque = request.opaque
    answer.flag |= FLAG_RESPONSE
    try:
        return commands.encode_pieces(answer)
    except ProtocolError as error:  # above all: larger than a frame may be
        logger.warning("cannot answer %s to %s: %s", name_of(request.code, RequestCode), peer, error)
        failure = commands.answer(ResponseCode.SYSTEM_ERROR, str(error))
        failure.opaque = request.opaque
        return commands.encode_pieces(failure)
