"""One client id: the groups that live under it, the heartbeats that say so, and what brokers ask of them.

Everything in a process that talks to the same cluster in the same way shares one instance, so a hundred producers need one
connection per broker. Two members of one consumer group cannot share: brokers tell members apart by client id.

Java: MQClientInstance, MQClientManager
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.client.broker_requests import answers_of
from orbitmq.client.cluster import Cluster
from orbitmq.client.config import DEFAULT_INSTANCE_NAME, ClientConfig
from orbitmq.client.requests import Requests
from orbitmq.client.transaction_checks import TransactionChecks, transaction_asked
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.message.ids import UniqueIds
from orbitmq.protocol.bodies.groups import Heartbeat, ProducerData
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.groups import UnregisterClient
from orbitmq.protocol.versions import FIRST_OF_5
from orbitmq.tasks import Tasks, every
from orbitmq.transport.local_address import local_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orbitmq.client.leaser import Leaser
    from orbitmq.client.membership import Membership
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection, Handler

logger = logging.getLogger(__name__)

_UNREGISTER_SECONDS: Final = 3.0


class Instance:
    """Connections, routes and heartbeats of one client id.

    `answers` says by request code what brokers may ask of us. More codes may be added while it runs.
    """

    def __init__(self, config: ClientConfig, client_id: str, ip: str) -> None:
        self.config = config
        self.client_id = client_id
        self.users = 0
        self.reserved: set[str] = set()  # consumer groups that live here, or are about to
        self.consumers: dict[str, Membership] = {}
        self._leasers: dict[str, Leaser] = {}
        self.requests = Requests(client_id, config.clock)
        self.transaction_checks: dict[str, list[TransactionChecks]] = {}
        self.answers: dict[int, Handler] = {
            **answers_of(self.consumers, self._leasers, config),
            RequestCode.CHECK_TRANSACTION_STATE: partial(transaction_asked, self.transaction_checks),
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.requests.arrived,
        }
        self.cluster = Cluster(config, answers=self.answers, on_open=self._connected)
        self.unique_ids = UniqueIds(config.clock, _packed(ip), os.getpid(), config.randomness.getrandbits(32))
        self._producers: dict[str, int] = {}
        self._tasks = Tasks()
        self._heartbeats: set[Address] = set()
        self._greeted: dict[Address, tuple[Connection | None, int]] = {}
        self._versions: dict[Address, int] = {}  # what each broker said it is
        self._added = 0  # producer groups so far: what a broker was told of is older than what came since

    def start(self) -> None:
        config = self.config
        self._tasks.start(
            every(lambda: config.route_refresh_seconds, self.refresh_routes, "refreshing routes"), "routes"
        )
        self._tasks.start(every(lambda: config.heartbeat_seconds, self.heartbeat, "sending heartbeats"), "heartbeats")
        if self.cluster.name_servers.may_move:
            self._tasks.start(
                every(lambda: config.lookup_seconds, self.cluster.name_servers.look_up, "looking up name servers"),
                "name server look-up",
            )

    async def close(self) -> None:
        await self._tasks.close()
        await self.cluster.close()

    async def refresh_routes(self) -> None:
        changed = await self.cluster.refresh()
        if changed:
            logger.info("routes changed: %s", ", ".join(changed))
            for member in list(self.consumers.values()):
                member.rebalance_soon()

    # ---- groups

    def add_producer(self, group: str) -> None:
        self._producers[group] = self._producers.get(group, 0) + 1
        self._added += 1
        self._tasks.start(self._heartbeat_quietly(), f"heartbeat for {group}")

    def introduce_to_brokers_of(self, topics: Sequence[str]) -> None:
        """Let the brokers of these topics know our groups before anything is sent to them."""
        self._tasks.start(self._heartbeat_quietly(topics), f"heartbeat to brokers of {', '.join(topics)}")

    async def greet(self, broker_names: Iterable[str]) -> None:
        """Return when the masters of these brokers know our producers, over connections that are still open."""
        masters = [address for name in broker_names if (address := self.cluster.master(name)) is not None]
        strangers = [address for address in masters if self._greeted.get(address) != self._greeting(address)]
        outcomes = await asyncio.gather(*map(self.heartbeat_to, strangers), return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, OrbitError) or len(failures) == len(masters):
                raise failure
            logger.info("a master is away; the others know us: %s", failure)

    async def all_are_5(self, broker_names: Iterable[str]) -> bool:
        """Whether the masters of these brokers are of release 5.0 or later, as they said when they were greeted."""
        names = list(broker_names)
        await self.greet(names)
        masters = [self.cluster.master(name) for name in names]
        # One that is away says nothing.
        known = [self._versions[master] for master in masters if master in self._versions]
        return bool(known) and min(known) >= FIRST_OF_5

    def _greeting(self, address: Address) -> tuple[Connection | None, int]:
        return self.cluster.open_connection(address), self._added

    async def remove_producer(self, group: str) -> None:
        left = self._producers[group] - 1
        if left:
            self._producers[group] = left
            return
        del self._producers[group]
        await self._unregister(UnregisterClient(client_id=self.client_id, producer_group=group), masters_only=True)

    def add_consumer(self, member: Membership) -> None:
        self.consumers[member.group] = member

    async def remove_consumer(self, member: Membership) -> None:
        if self.consumers.get(member.group, member) is not member:
            return  # another one is in its place
        self.consumers.pop(member.group, None)
        await self._unregister(
            UnregisterClient(client_id=self.client_id, consumer_group=member.group), masters_only=False
        )

    def add_leaser(self, leaser: Leaser) -> None:
        """A member that leases messages: brokers should know that it is there, and may ask how it does."""
        self._leasers[leaser.group] = leaser

    async def remove_leaser(self, group: str) -> None:
        del self._leasers[group]
        await self._unregister(UnregisterClient(client_id=self.client_id, consumer_group=group), masters_only=False)

    async def _unregister(self, header: UnregisterClient, *, masters_only: bool) -> None:
        """Tell the brokers we are connected to; one that is gone will notice by itself."""
        connected = [
            address
            for address in self.cluster.addresses(masters_only=masters_only)
            if self.cluster.open_connection(address) is not None
        ]
        calls = [
            self.cluster.call(address, request(RequestCode.UNREGISTER_CLIENT, header), _UNREGISTER_SECONDS)
            for address in connected
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, OrbitError):
                logger.info("a broker did not hear that we leave: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    # ---- heartbeats

    async def heartbeat(self) -> None:
        """Tell every broker we may deal with who we are. Raises the first failure, after trying all."""
        if not self._has_groups():
            return
        addresses = self.cluster.addresses(masters_only=not self.consumers and not self._leasers)
        outcomes = await asyncio.gather(*map(self.heartbeat_to, addresses), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def heartbeat_to(self, address: Address) -> None:
        body = Heartbeat(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self._producers],
            consumer_data_set=[
                *(member.heartbeat_data() for member in self.consumers.values()),
                *(leaser.heartbeat_data() for leaser in self._leasers.values()),
            ],
        )
        added = self._added
        self._heartbeats.add(address)  # before it is sent: opening the connection must not send another
        try:
            answer = await self.cluster.ask(
                address, request(RequestCode.HEART_BEAT, body=body.to_json()), self.config.timeout_seconds
            )
            self._versions[address] = answer.version
            self._greeted[address] = self.cluster.open_connection(address), added
        finally:
            self._heartbeats.discard(address)

    async def _heartbeat_quietly(self, topics: Sequence[str] = ()) -> None:
        try:
            for topic in topics:
                await self.cluster.route(topic)
            await self.heartbeat()
        except OrbitError as error:
            logger.info("a heartbeat failed, the next may not: %s", error)

    def _connected(self, address: Address, connection: Connection) -> None:
        """A broker that is new, or back, must know our groups before it can serve them."""
        if address in self._heartbeats or address not in self.cluster.addresses(masters_only=False):
            return
        if self._has_groups():
            self._tasks.start(self._introduce(address), f"heartbeat to {address}")

    def _has_groups(self) -> bool:
        return bool(self._producers or self.consumers or self._leasers)

    async def _introduce(self, address: Address) -> None:
        try:
            await self.heartbeat_to(address)
        except OrbitError as error:
            logger.info("a heartbeat to %s failed, the next may not: %s", address, error)
        for member in list(self.consumers.values()):
            member.reconnected()


# ---- who shares what

_Key = tuple[asyncio.AbstractEventLoop, ClientConfig, str]
_open_instances: dict[_Key, list[Instance]] = {}

# A child process must not touch its parent's connections: it begins with none, and with new client ids.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_instances.clear)


def acquire(config: ClientConfig, *, consumer_group: str = "", fixed_name: bool = False) -> Instance:
    """The instance to use, shared with others when that is possible. Each acquire needs a release.

    `fixed_name` keeps the instance name `DEFAULT` as it is: offset files of broadcasting consumers are found by client id.
    """
    name = config.instance_name
    chosen = fixed_name or name != DEFAULT_INSTANCE_NAME
    key = (asyncio.get_running_loop(), config, name if chosen else "")
    instances = _open_instances.setdefault(key, [])
    instance = next((one for one in instances if consumer_group not in one.reserved), None)
    if instance is None:
        if instances and chosen:
            raise ConfigError(
                f"group {consumer_group!r} is already consumed under the instance name {name!r}",
                hint="give connect(instance_name=...) another name for the second one",
            )
        instance = _new_instance(config, name if chosen else "")
        instance.start()
        instances.append(instance)
    instance.users += 1
    if consumer_group:
        instance.reserved.add(consumer_group)
    return instance


async def release(instance: Instance, *, consumer_group: str = "") -> None:
    instance.users -= 1
    instance.reserved.discard(consumer_group)
    if instance.users:
        return
    for key, instances in list(_open_instances.items()):
        if instance in instances:
            instances.remove(instance)
            if not instances:
                del _open_instances[key]
    await instance.close()


def _new_instance(config: ClientConfig, name: str) -> Instance:
    ip = local_address(config.name_servers)
    name = name or f"{os.getpid()}#{config.randomness.getrandbits(48)}"
    host = f"[{ip}]" if ":" in ip else ip
    parts = [f"{host}@{name}", *([config.unit_name] if config.unit_name else [])]
    return Instance(config, "@".join(parts), ip)


def _packed(ip: str) -> bytes:
    import ipaddress

    return ipaddress.ip_address(ip).packed
