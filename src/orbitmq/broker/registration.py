"""Telling every name server who we are and which topics we have: at start, every half minute, and when topics change.

Java: BrokerController.registerBrokerAll, BrokerOuterAPI
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.errors import BodyError, OrbitError
from orbitmq.protocol.bodies.registration import Registration as RegistrationBody
from orbitmq.protocol.bodies.registration import body_checksum, encode_compressed
from orbitmq.protocol.bodies.route import KvTable
from orbitmq.protocol.bodies.topics import DataVersion, TopicConfig, TopicTable
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.nameserver import (
    BrokerRegistered,
    DataVersionVerdict,
    QueryDataVersion,
    RegisterBroker,
    UnregisterBroker,
)
from orbitmq.tasks import set_within
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.broker.name_servers import NameServers
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topics import Topics
    from orbitmq.protocol.command import Command
    from orbitmq.storage import tables
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.pool import Pool

logger = logging.getLogger(__name__)

_ALL_PERMISSIONS: Final = 6
_NOWHERE: Final = Address("", 0)
_REJOIN_SECONDS: Final = 1.0
_UNREGISTER_SECONDS: Final = 3.0
# Less than the 3 s after which a client that sends gives up, and sends again.
_TELL_SECONDS: Final = 2.0


class Registration:
    def __init__(
        self,
        topics: Topics,
        configuration: BrokerConfiguration,
        name_servers: NameServers,
        make_pool: Callable[..., Pool],
        follow: Callable[[Address | None, Address | None], None] | None = None,
    ) -> None:
        """`follow`, of a slave, is told who the master is and where it sends its log from."""
        self._name_servers = name_servers
        self.filter_servers: list[str] = []
        self._topics = topics
        self._configuration = configuration
        self._follow = follow
        self._address = self._ha_address = _NOWHERE
        self._pool = make_pool(on_close=self._connection_lost)
        self._changed: dict[str, tables.TopicConfig] = {}
        self.untold: dict[str, asyncio.Event] = {}  # changed topic -> set when the name servers were told of it
        self._told = asyncio.Event()  # of the changes that wait
        self._wake = asyncio.Event()
        self._lost = False
        self._reachable: set[Address] = set()
        # Name servers that did not take a change. They believe a topic they know only together with a version they do not know:
        # after the next change, told alone, they would have that one's version and never hear of this one.
        self._missed: set[Address] = set()
        self._stopping = False

    def settle_at(self, address: Address, ha_address: Address) -> None:
        self._address = address
        self._ha_address = ha_address

    @property
    def address(self) -> Address:
        """Where others find this broker."""
        return self._address

    @property
    def ha_address(self) -> Address:
        """Where slaves find it."""
        return self._ha_address

    async def start(self) -> None:
        """The first registration: all topics, to all name servers."""
        await self._register_everywhere(None)

    async def run(self) -> None:
        """Go on registering: periodically, at once when a topic changes, and soon after a name server came back."""
        while True:
            period_ms = min(max(self._configuration.settings.register_name_server_period, 10_000), 60_000)
            if not await set_within(self._wake, period_ms / 1000):
                await self._register_everywhere(None)
                continue
            self._wake.clear()
            changed, self._changed = self._changed, {}
            told, self._told = self._told, asyncio.Event()
            try:
                if changed:
                    # Whoever made one waits for this: after a kill it has to be known here, too.
                    await self._topics.settle()
                if self._lost:
                    self._lost = False
                    await asyncio.sleep(_REJOIN_SECONDS)
                    await self._register_everywhere(None)
                elif changed:
                    await self._register_everywhere(list(changed.values()))
            finally:
                self._forget(told)

    async def follow_name_servers(self) -> None:
        """Register with name servers that appear while the broker runs."""
        while True:
            await asyncio.sleep(self._name_servers.refresh_seconds)
            if await self._name_servers.refresh():
                await self._register_everywhere(None)

    def topics_changed(self, changed: Iterable[tables.TopicConfig]) -> None:
        """Several changes in one turn of the loop travel together."""
        if self._name_servers.addresses:
            if not self._changed:
                asyncio.get_running_loop().call_later(_TELL_SECONDS, self._forget, self._told)
            changed = list(changed)
            self.untold.update((config.topic_name, self._told) for config in changed)
        self._changed.update((config.topic_name, config) for config in changed)
        self._wake.set()

    async def until_told(self, topic: str) -> None:
        """Until the topic is kept and the name servers know how it is now, or there was time for both. At once without any.

        Whoever made a topic may ask for its route next, and some clients (Go's) ask only once.
        """
        told = self.untold.get(topic)
        if told is not None:
            await told.wait()

    def is_awaited(self, topic: str) -> bool:
        """Whether a topic was just made, and nobody's message to it is confirmed before it is kept. Not so when it only changed."""
        return topic in self.untold and self._topics.is_unkept(topic)

    def _forget(self, told: asyncio.Event) -> None:
        """Nobody waits any longer for these changes to be told."""
        if not told.is_set():
            self.untold = {topic: event for topic, event in self.untold.items() if event is not told}
            told.set()

    def again_soon(self) -> None:
        """Everything to everyone, in a moment: what they answer may have changed."""
        self._lost = True
        self._wake.set()

    async def stop(self) -> None:
        self._stopping = True
        self._forget(self._told)
        settings = self._configuration.settings
        header = UnregisterBroker(
            broker_name=settings.broker_name,
            broker_addr=str(self._address),
            cluster_name=settings.broker_cluster_name,
            broker_id=settings.broker_id,
        )
        calls = [
            self._pool.call(server, new_request(RequestCode.UNREGISTER_BROKER, header), _UNREGISTER_SECONDS)
            for server in self._name_servers.addresses
            if server in self._reachable
        ]
        await asyncio.gather(*calls, return_exceptions=True)
        await self._pool.close()

    async def _register_everywhere(self, changed: list[tables.TopicConfig] | None) -> None:
        """Whatever fails at one of them, the others hear of us, and it does again the next time."""
        servers = self._name_servers.addresses
        outcomes = await asyncio.gather(
            *(self._register(server, changed) for server in servers), return_exceptions=True
        )
        for server, failure in zip(servers, outcomes, strict=True):
            if failure is not None:
                logger.error("registering with name server %s failed: %r", server, failure, exc_info=failure)

    async def _register(self, server: Address, changed: list[tables.TopicConfig] | None) -> None:
        settings = self._configuration.settings
        timeout_seconds = settings.register_broker_timeout_mills / 1000
        body = self._body(None if server in self._missed else changed)
        header = RegisterBroker(
            broker_name=settings.broker_name,
            broker_addr=str(self._address),
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=str(self._ha_address),
            broker_id=settings.broker_id,
            heartbeat_timeout_millis=settings.broker_not_active_timeout_millis
            if settings.enable_slave_acting_master
            else None,
            enable_acting_master=settings.enable_slave_acting_master,
            compressed=settings.compressed_register,
            body_crc32=body_checksum(body),
        )
        try:
            if changed is None and not settings.force_register and not await self._is_outdated(server, timeout_seconds):
                return
            answer = await self._pool.call(
                server, new_request(RequestCode.REGISTER_BROKER, header, body), timeout_seconds
            )
        except OrbitError as error:
            if server in self._reachable or changed is None:
                logger.warning("cannot register with name server %s: %s", server, error)
            self._reachable.discard(server)
            self._missed.add(server)
            return
        if answer.code != ResponseCode.SUCCESS:
            logger.warning("name server %s refused this broker: %s", server, answer.remark)
            self._missed.add(server)
            return
        self._missed.discard(server)
        if server not in self._reachable:
            self._reachable.add(server)
            logger.info("registered with name server %s", server)
        if self._follow is not None:
            try:
                self._learn_master(answer, self._follow)
            except OrbitError as error:
                logger.warning("what name server %s says of our master cannot be read: %s", server, error)
        if answer.body:
            try:
                ordered = KvTable.from_json(answer.body).table
            except BodyError as error:
                logger.warning("what name server %s says of ordered topics cannot be read: %s", server, error)
            else:
                self._topics.mark_ordered(ordered)

    @staticmethod
    def _learn_master(answer: Command, follow: Callable[[Address | None, Address | None], None]) -> None:
        """A name server that knows no master says nothing: one that is away for a moment is still the master."""
        registered = answer.read(BrokerRegistered)
        if registered.master_addr and registered.ha_server_addr:
            follow(parse_address(registered.master_addr), parse_address(registered.ha_server_addr))

    async def _is_outdated(self, server: Address, timeout_seconds: float) -> bool:
        """Whether the name server knows something else of us than what is so now."""
        settings = self._configuration.settings
        header = QueryDataVersion(
            broker_name=settings.broker_name,
            broker_addr=str(self._address),
            cluster_name=settings.broker_cluster_name,
            broker_id=settings.broker_id,
        )
        query = new_request(RequestCode.QUERY_DATA_VERSION, header, _version(self._topics.version).to_json())
        answer = await self._pool.call(server, query, timeout_seconds)
        return answer.code != ResponseCode.SUCCESS or answer.read(DataVersionVerdict).changed

    def _body(self, changed: list[tables.TopicConfig] | None) -> bytes:
        configs = self._topics.all().values() if changed is None else changed
        table = TopicTable(
            data_version=_version(self._topics.version),
            topic_config_table={config.topic_name: self._announced(config) for config in configs},
        )
        body = RegistrationBody(topic_config_serialize_wrapper=table, filter_server_list=self.filter_servers)
        return encode_compressed(body) if self._configuration.settings.compressed_register else body.to_json()

    def _announced(self, config: tables.TopicConfig) -> TopicConfig:
        permission = self._configuration.settings.broker_permission
        perm = config.perm & permission if permission & _ALL_PERMISSIONS != _ALL_PERMISSIONS else config.perm
        return TopicConfig(
            topic_name=config.topic_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=config.attributes,
        )

    def _connection_lost(self, connection: Connection) -> None:
        """A name server forgets a broker whose connection breaks, so it has to be told again."""
        if not self._stopping:
            self.again_soon()


def _version(version: tables.DataVersion) -> DataVersion:
    return DataVersion(counter=version.counter, state_version=version.state_version, timestamp=version.timestamp)
