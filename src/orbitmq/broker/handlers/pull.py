"""Handing messages out. Java: PullMessageProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitmq.broker.pulling import Pulling
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection


async def pull_message(pulling: Pulling, request: Command, connection: Connection) -> Command | None:
    return pulling.pull(request, connection)
