"""The broker's own settings: shown, and changed while it runs. Java: AdminBrokerProcessor, Configuration"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from orbitmq.broker.settings import AT_NEXT_START
from orbitmq.configuration import change
from orbitmq.protocol.bodies.topics import DataVersion
from orbitmq.protocol.command import Command, ok
from orbitmq.protocol.headers.admin import ConfigVersion
from orbitmq.protocol.properties_text import format_properties

if TYPE_CHECKING:
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)


async def get_configuration(
    configuration: BrokerConfiguration, stats: Statistics, request: Command, connection: Connection
) -> Command:
    version = DataVersion(counter=configuration.generation, timestamp=stats.started_ms)
    body = format_properties(configuration.as_properties()).encode()
    return ok(ConfigVersion(version=version.to_json().decode()), body)


async def update_configuration(
    configuration: BrokerConfiguration,
    topics: Topics,
    delayed: DelayedMessages,
    request: Command,
    connection: Connection,
) -> Command:
    changed = await change(configuration, request.body, str(connection.peer))
    if "brokerPermission" in changed:
        topics.announce_all()
    if "messageDelayLevel" in changed:
        delayed.change_levels(configuration.settings.delay_levels_ms())
    if waiting := sorted(changed & AT_NEXT_START):
        logger.info("saved, and in force from the next start on: %s", ", ".join(waiting))
    if inert := sorted(changed & configuration.without_effect.keys()):
        logger.info("saved, and without effect here: %s", ", ".join(inert))
    return ok()
