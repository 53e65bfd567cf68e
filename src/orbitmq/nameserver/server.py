"""The name server as a whole: builds the parts, starts them, stops them. Java: NamesrvController, NamesrvStartup"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.access.opening import open_gate, open_users, own_signature
from orbitmq.access.proxies import TrustedProxies
from orbitmq.clock import Clock, SystemClock
from orbitmq.errors import OrbitError
from orbitmq.nameserver.departures import Departures
from orbitmq.nameserver.kv_config import KvConfig
from orbitmq.nameserver.metrics import Metrics
from orbitmq.nameserver.opening import Opening
from orbitmq.nameserver.other_cluster import OtherCluster
from orbitmq.nameserver.registry import MinimumIdChange, RouteRegistry
from orbitmq.nameserver.route_answers import RouteAnswers
from orbitmq.nameserver.routes import build_express, build_routes
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import MinBrokerIdChanged
from orbitmq.tasks import Tasks
from orbitmq.transport.address import Address, parse_address
from orbitmq.transport.connection import Connection
from orbitmq.transport.doorman import Doorman
from orbitmq.transport.exporter import Exporter
from orbitmq.transport.limits import Limits
from orbitmq.transport.load_limits import Refusals
from orbitmq.transport.pool import Pool
from orbitmq.transport.rates import Rates
from orbitmq.transport.server import Server
from orbitmq.transport.tls import ClientTls

if TYPE_CHECKING:
    from orbitmq.nameserver.settings import NameServerConfiguration
    from orbitmq.transport.network import Network

logger = logging.getLogger(__name__)

_FIRST_SCAN_SECONDS: Final = 5.0
_FIRST_REPORT_SECONDS: Final = 60.0
_REPORT_SECONDS: Final = 600.0
_NOTICE_SECONDS: Final = 0.3
_ANY_CLUSTER: Final = "DefaultCluster"  # a name server belongs to none; policies name it like this


class NameServer:
    """`async with NameServer(configuration) as server: server.address`"""

    def __init__(
        self, configuration: NameServerConfiguration, *, clock: Clock | None = None, network: Network | None = None
    ) -> None:
        clock = clock or SystemClock()
        settings = configuration.settings
        self.configuration = configuration
        self.registry = RouteRegistry(
            clock,
            silent_ms=lambda: configuration.settings.broker_silent_millis,
            delete_unlisted_topics=lambda: configuration.settings.delete_topic_with_broker_registration,
            announce=self._announce_minimum_id,
        )
        self.kv_config = KvConfig(Path(settings.kv_config_path))
        self._departures = Departures(self.registry, lambda: configuration.settings.un_register_broker_queue_capacity)
        limits = Limits(
            idle_seconds=settings.server_channel_max_idle_time_seconds, backlog=settings.server_socket_backlog
        )
        outgoing = configuration.tls.outgoing
        tls = ClientTls(outgoing).newest if outgoing.enabled else None
        self._pool = Pool(limits=limits, network=network, tls=tls, sign=own_signature(settings))
        folder = Path(settings.kv_config_path).parent / "auth"
        self.users = open_users(settings, folder, Path(settings.rocketmq_home) / "conf" / "plain_acl.yml")
        refusals = Refusals()
        rates = Rates("user", lambda: configuration.settings, clock, refusals)
        gate = open_gate(settings, self.users, _ANY_CLUSTER, rates)
        answers = RouteAnswers(self.registry, self.kv_config, configuration)
        opening = Opening(clock, configuration)
        routes = build_routes(
            registry=self.registry,
            answers=answers,
            departures=self._departures,
            kv_config=self.kv_config,
            configuration=configuration,
            opening=opening,
            other_cluster=OtherCluster(configuration, self._pool) if settings.cluster_test else None,
            users=self.users,
            gate=gate,
            refusals=refusals,
        )
        self._server = Server(
            routes,
            express=build_express(answers, opening) if gate is None else {},
            limits=limits,
            tls=configuration.tls,
            on_close=self._connection_closed,
            network=network,
            doorman=Doorman(lambda: configuration.settings, clock, refusals),
            believes_proxy=TrustedProxies(lambda: configuration.settings, is_guarded=gate is not None).believes,
        )
        configuration.when_changed += [rates.refresh, self._server.limits_changed]
        self._exporter = Exporter(Metrics(self.registry, self._server, refusals).text, network)
        self._tasks = Tasks()
        self._stopping = False
        self.address: Address | None = None
        self.metrics_address: Address | None = None  # where /metrics is, if it is anywhere

    async def start(self) -> Address:
        settings = self.configuration.settings
        self.kv_config.load()
        self.address = await self._server.start(settings.bind_address, settings.listen_port)
        if settings.metrics_exporter_type == "PROM":
            host = settings.metrics_prom_exporter_host or settings.bind_address
            self.metrics_address = await self._exporter.start(host, settings.metrics_prom_exporter_port)
        self._tasks.start(self._scan(), "dropping silent brokers")
        self._tasks.start(self._report(), "reporting")
        return self.address

    async def stop(self) -> None:
        self._stopping = True
        await self._tasks.close()
        await self._exporter.stop()
        await self._server.stop()
        await self._pool.close()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def expire_silent_brokers(self) -> None:
        for key, channel in self.registry.silent_brokers():
            logger.warning("broker at %s of %s fell silent: its routes are gone", key.address, key.cluster)
            self._departures.add(self.registry.departure(key))
            if isinstance(channel, Connection):
                channel.close()

    def _connection_closed(self, connection: Connection) -> None:
        if self._stopping:  # it is we who close them all; the brokers are well
            return
        for departure in self.registry.departures_with(connection):
            logger.warning("lost the connection to broker %s: its routes are gone", departure.address)
            self._departures.add(departure)

    def _announce_minimum_id(self, change: MinimumIdChange) -> None:
        if self.configuration.settings.notify_min_broker_id_changed:
            for recipient in change.recipients:
                self._tasks.start(self._send_notice(recipient, change), f"telling {recipient}")

    async def _send_notice(self, recipient: str, change: MinimumIdChange) -> None:
        header = MinBrokerIdChanged(
            min_broker_id=change.minimum_id,
            min_broker_addr=change.minimum_address,
            offline_broker_addr=change.offline_address,
            ha_broker_addr=change.ha_address,
        )
        try:
            async with asyncio.timeout(_NOTICE_SECONDS):
                await self._pool.notify(
                    parse_address(recipient), new_request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header)
                )
        except (OrbitError, TimeoutError) as error:
            logger.warning(
                "could not tell %s that the first broker of %s changed: %s", recipient, change.broker_name, error
            )

    async def _scan(self) -> None:
        await asyncio.sleep(min(_FIRST_SCAN_SECONDS, self.configuration.settings.broker_silent_millis / 1000))
        while True:
            self.expire_silent_brokers()
            await asyncio.sleep(self.configuration.settings.scan_not_active_broker_interval / 1000)

    async def _report(self) -> None:
        await asyncio.sleep(_FIRST_REPORT_SECONDS)
        while True:
            logger.info("routes: %s", self.registry.summary())
            logger.info("kept settings: %s", self.kv_config.summary())
            logger.info("%d connections", len(self._server.connections))
            await asyncio.sleep(_REPORT_SECONDS)
