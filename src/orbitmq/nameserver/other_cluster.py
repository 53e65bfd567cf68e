"""Cluster-test mode: routes this name server does not know are looked up in another cluster.

The other cluster's name servers are given directly (`orbitmq.clusterTestNamesrvAddr`), or found the way Java finds them: an
HTTP look-up at `http://<rocketmq.namesrv.domain>/rocketmq/nsaddr-<productEnvName>?nofix=1`.

Java: ClusterTestRequestProcessor
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.transport.address import Address, parse_addresses
from orbitmq.transport.lookup import fetch_name_servers, published_list

if TYPE_CHECKING:
    from orbitmq.nameserver.settings import NameServerConfiguration
    from orbitmq.transport.pool import Pool

_TIMEOUT_SECONDS: Final = 3.0


class OtherCluster:
    def __init__(self, configuration: NameServerConfiguration, pool: Pool) -> None:
        self._configuration = configuration
        self._pool = pool
        self._found: list[Address] = []

    async def route(self, topic: str) -> bytes:
        """The route's body as the other cluster gave it. RequestFailed when it has none, or cannot be asked."""
        problems = []
        try:
            addresses = await self._name_servers()
        except TransportError as error:
            addresses = []
            problems.append(str(error))
        for address in addresses:
            query = new_request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic=topic, accept_standard_json_only=True)
            )
            try:
                answer = await self._pool.call(address, query, _TIMEOUT_SECONDS)
            except TransportError as error:
                problems.append(str(error))
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise RequestFailed(answer.code, answer.remark or "")
            return answer.body
        self._found = []  # look them up anew next time
        raise RequestFailed(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {topic}; the other cluster cannot be asked: "
            + ("; ".join(problems) or "no name server is known"),
        )

    async def _name_servers(self) -> list[Address]:
        settings = self._configuration.settings
        if settings.cluster_test_namesrv_addr:
            return parse_addresses(settings.cluster_test_namesrv_addr)
        if not self._found:
            url = published_list(f"nsaddr-{settings.product_env_name}?nofix=1")
            self._found = await fetch_name_servers(url, _TIMEOUT_SECONDS)
        return self._found
