"""Who of a master and its slaves is alive, as the name servers know it, and signs of life for them.

Java: BrokerOuterAPI.syncBrokerMemberGroup, sendHeartbeat
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.protocol.bodies.route import BrokerMembersBody
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import BrokerHeartbeat, MemberGroup
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from orbitmq.broker.name_servers import NameServers
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_ASK_SECONDS: Final = 3.0


class Members:
    def __init__(
        self, configuration: BrokerConfiguration, name_servers: NameServers, registration: Registration, pool: Pool
    ) -> None:
        self._configuration = configuration
        self._name_servers = name_servers
        self._registration = registration
        self._pool = pool

    async def alive(self) -> dict[int, Address]:
        """By broker id; empty when no name server could say."""
        settings = self._configuration.settings
        header = MemberGroup(cluster_name=settings.broker_cluster_name, broker_name=settings.broker_name)
        for server in self._name_servers.addresses:
            try:
                query = new_request(RequestCode.GET_BROKER_MEMBER_GROUP, header)
                answer = await self._pool.call(server, query, _ASK_SECONDS)
                if answer.code == ResponseCode.SUCCESS:
                    members = BrokerMembersBody.from_json(answer.body).broker_member_group.broker_addrs
                    return {broker_id: parse_address(address) for broker_id, address in members.items()}
                logger.warning("name server %s does not say who is alive: %s", server, answer.remark)
            except OrbitError as error:
                logger.debug("name server %s cannot be asked who is alive: %s", server, error)
        return {}

    async def say_alive(self) -> None:
        """To every name server; one that is away learns it by a registration later."""
        settings = self._configuration.settings
        header = BrokerHeartbeat(
            cluster_name=settings.broker_cluster_name,
            broker_addr=str(self._registration.address),
            broker_name=settings.broker_name,
        )
        calls = [
            self._pool.call(server, new_request(RequestCode.BROKER_HEARTBEAT, header), _ASK_SECONDS)
            for server in self._name_servers.addresses
        ]
        await asyncio.gather(*calls, return_exceptions=True)

    async def close(self) -> None:
        await self._pool.close()
