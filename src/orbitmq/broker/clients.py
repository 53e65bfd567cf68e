"""Who is connected: producers and consumers by group, as their heartbeats say. Java: ProducerManager, ConsumerManager"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.headers.groups import ConsumerGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from orbitmq.clock import Clock
    from orbitmq.protocol.bodies.groups import ConsumerData, Subscription
    from orbitmq.transport.connection import Connection

logger = logging.getLogger(__name__)

BROADCASTING: Final = "BROADCASTING"


class Client:
    """One client's place in one group."""

    __slots__ = ("access_key", "client_id", "connection", "language", "last_seen_ms", "subscriptions", "version")

    def __init__(
        self, connection: Connection, client_id: str, language: str, version: int, now_ms: int, access_key: str = ""
    ) -> None:
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.access_key = access_key  # of producers: what their heartbeat was signed with, where that is looked at
        self.last_seen_ms = now_ms
        self.subscriptions: dict[str, str] = {}  # topic -> expression, to compare members with each other


class Holders:
    """The producers that say to be one client. Behind a gate anyone may say so: it is the one who said it first, as long as anybody
    does, on its newest connection.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner  # an access key; empty for all where nobody looks at them
        self.clients: dict[Client, None] = {}  # in the order in which they came

    def newest(self) -> Client | None:
        return next((client for client in reversed(self.clients) if client.access_key == self.owner), None)


class ConsumerMembers:
    """The consumers of one group. What the newest heartbeat says of the group counts for all of it."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        self.clients: dict[Connection, Client] = {}
        self.subscriptions: dict[str, Subscription] = {}

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        """Each once. A client that lost its connection and came back is here twice until the old one is noticed to be dead;
        told so, its group would give a share of the queues to nobody.
        """
        return list(dict.fromkeys(client.client_id for client in self.clients.values()))

    def find(self, client_id: str) -> Client | None:
        return next((client for client in self.clients.values() if client.client_id == client_id), None)

    def take_subscriptions(self, wanted: Iterable[Subscription]) -> bool:
        """Whether a topic came or went. Of two versions of a subscription the newer counts."""
        changed = False
        topics = set()
        for subscription in wanted:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            changed |= known is None
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in self.subscriptions.keys() - topics:
            del self.subscriptions[topic]
            changed = True
        return changed

    def differing_members(self) -> list[str]:
        """Clients that do not subscribe to what the first does: a part of the messages will reach nobody."""
        members = [client for client in self.clients.values() if client.subscriptions]
        return [client.client_id for client in members[1:] if client.subscriptions != members[0].subscriptions]


class Clients:
    def __init__(self, clock: Clock, notify_enabled: Callable[[str], bool]) -> None:
        """`notify_enabled(group)`: whether its members want to hear of each other."""
        self._clock = clock
        self.on_subscribed: Callable[[str, list[Subscription]], None] = lambda group, subscriptions: None
        self.on_group_gone: Callable[[str], None] = lambda group: None  # its last member has left
        self._notify_enabled = notify_enabled
        self._producers: dict[str, dict[Connection, Client]] = {}
        self._holders: dict[str, Holders] = {}  # of ids of producers
        self._consumers: dict[str, ConsumerMembers] = {}

    # ---- questions

    def consumers(self, group: str) -> ConsumerMembers | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> dict[str, ConsumerMembers]:
        return self._consumers

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Client]]:
        return {group: list(clients.values()) for group, clients in self._producers.items()}

    def groups_subscribing(self, topic: str) -> list[str]:
        return [group for group, members in self._consumers.items() if topic in members.subscriptions]

    def producer_by_id(self, client_id: str) -> Client | None:
        holders = self._holders.get(client_id)
        return None if holders is None else holders.newest()

    # ---- coming

    def register_producer(
        self, group: str, connection: Connection, client_id: str, language: str, version: int, access_key: str
    ) -> None:
        clients = self._producers.setdefault(group, {})
        client = clients.get(connection)
        if client is None or (client.client_id, client.access_key) != (client_id, access_key):
            if client is not None:
                self._let_go(client)
            client = Client(connection, client_id, language, version, self._clock.now_ms(), access_key)
            clients[connection] = client
            self._holders.setdefault(client_id, Holders(access_key)).clients[client] = None
        else:
            client.last_seen_ms = self._clock.now_ms()

    def register_consumer(
        self, data: ConsumerData, connection: Connection, client_id: str, language: str, version: int
    ) -> None:
        """Take a consumer's heartbeat for one of its groups; members hear of it if it changes who consumes what."""
        members = self._consumers.get(data.group_name)
        if members is None:
            members = self._consumers[data.group_name] = ConsumerMembers(data.group_name)
        members.consume_type = str(data.consume_type)
        members.message_model = str(data.message_model)
        members.consume_from_where = str(data.consume_from_where)
        client = members.clients.get(connection)
        changed = client is None or client.client_id != client_id
        if client is None or client.client_id != client_id:
            client = members.clients[connection] = Client(
                connection, client_id, language, version, self._clock.now_ms()
            )
        client.last_seen_ms = self._clock.now_ms()
        changed |= members.take_subscriptions(data.subscription_data_set)
        self.on_subscribed(data.group_name, data.subscription_data_set)
        expressions = {s.topic: s.sub_string for s in data.subscription_data_set}
        if client.subscriptions != expressions:
            client.subscriptions = expressions
            self._warn_of_differences(members)
        if changed:
            self._notify(members)

    def refresh_consumer(self, group: str, connection: Connection) -> bool:
        """A heartbeat that says "as before". False when there is no before, or another member has said otherwise since: all of it must be said again."""
        members = self._consumers.get(group)
        if members is None or (client := members.clients.get(connection)) is None:
            return False
        client.last_seen_ms = self._clock.now_ms()
        return client.subscriptions == {topic: wanted.sub_string for topic, wanted in members.subscriptions.items()}

    # ---- going

    def unregister(self, connection: Connection, client_id: str, producer_group: str, consumer_group: str) -> None:
        producers = self._producers.get(producer_group, {})
        client = producers.get(connection)
        if client is not None and client.client_id == client_id:
            self._drop_producer(producer_group, connection)
        members = self._consumers.get(consumer_group)
        client = members.clients.get(connection) if members is not None else None
        if members is not None and client is not None and client.client_id == client_id:
            self._drop_consumer(members, connection)

    def connection_closed(self, connection: Connection) -> None:
        for group in [group for group, clients in self._producers.items() if connection in clients]:
            self._drop_producer(group, connection)
        for members in [members for members in self._consumers.values() if connection in members.clients]:
            self._drop_consumer(members, connection)

    def expire(self, silent_ms: int) -> None:
        """Close the connections of clients that have not sent a heartbeat for too long."""
        oldest = self._clock.now_ms() - silent_ms
        silent = [
            client
            for clients in [*self._producers.values(), *(members.clients for members in self._consumers.values())]
            for client in clients.values()
            if client.last_seen_ms < oldest
        ]
        for client in silent:
            logger.warning("client %s at %s fell silent", client.client_id, client.connection.peer)
            self.connection_closed(client.connection)
            client.connection.close()

    def _drop_producer(self, group: str, connection: Connection) -> None:
        clients = self._producers[group]
        self._let_go(clients.pop(connection))
        if not clients:
            del self._producers[group]

    def _let_go(self, producer: Client) -> None:
        holders = self._holders[producer.client_id]
        del holders.clients[producer]
        if not holders.clients:
            del self._holders[producer.client_id]

    def _drop_consumer(self, members: ConsumerMembers, connection: Connection) -> None:
        del members.clients[connection]
        if not members.clients:
            del self._consumers[members.group]
            self.on_group_gone(members.group)
        self._notify(members)

    def _notify(self, members: ConsumerMembers) -> None:
        """Tell every member that it is time to share the queues anew."""
        if not self._notify_enabled(members.group):
            return
        for connection in members.clients:
            header = ConsumerGroup(consumer_group=members.group)
            connection.notify(new_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))

    @staticmethod
    def _warn_of_differences(members: ConsumerMembers) -> None:
        differing = members.differing_members()
        if differing:
            logger.warning(
                "group %s: %s subscribes to other topics or tags than the rest; messages will be missed",
                members.group,
                ", ".join(differing),
            )
