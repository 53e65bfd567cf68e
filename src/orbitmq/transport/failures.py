"""What a request that went wrong is answered with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.errors import MessageError, OrbitError, ProtocolError, RequestFailed
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode, ResponseCode, name_of

if TYPE_CHECKING:
    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)


def failure_answer(request: Command, error: Exception, peer: Address) -> Command:
    """The one place where an exception becomes an answer. What the peer did wrong, and what we did, is worth a line."""
    if isinstance(error, RequestFailed):
        return commands.answer(error.code, str(error))
    name = name_of(request.code, RequestCode)
    if isinstance(error, ProtocolError | MessageError):
        logger.warning("refused %s from %s: %s", name, peer, error)
        return commands.answer(ResponseCode.INVALID_PARAMETER, str(error))
    if isinstance(error, OrbitError):
        return commands.answer(error.code or ResponseCode.SYSTEM_ERROR, str(error))
    logger.error("request %s failed: %r", name, error, exc_info=error)
    return commands.answer(ResponseCode.SYSTEM_ERROR, f"internal error: {error!r}")


async def refuse_unknown_code(request: Command, connection: Connection) -> Command:
    logger.warning(
        "refused request %s from %s: nobody here serves it", name_of(request.code, RequestCode), connection.peer
    )
    return commands.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
