"""Route answers, encoded once and given to everyone who asks until something changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.errors import RequestFailed
from orbitmq.nameserver.kv_config import ORDER_TOPICS
from orbitmq.nameserver.registry import MASTER_ID
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from orbitmq.nameserver.kv_config import KvConfig
    from orbitmq.nameserver.registry import RouteRegistry
    from orbitmq.nameserver.settings import NameServerConfiguration
    from orbitmq.protocol.bodies.route import TopicRoute


class RouteAnswers:
    def __init__(self, registry: RouteRegistry, kv_config: KvConfig, configuration: NameServerConfiguration) -> None:
        self._registry = registry
        self._kv_config = kv_config
        self._configuration = configuration
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._in_zones: dict[
            bytes, bytes
        ] = {}  # each body once: askers can name zones without end, and answers are few
        self._generation = -1

    @property
    def generation(self) -> int:
        """Grows when any answer may have become another."""
        # Each of the three only ever grows, so their sum stands still only while all of them do.
        return self._registry.generation + self._kv_config.generation + self._configuration.generation

    def body(self, topic: str, *, standard: bool) -> bytes:
        """The answer's body. RequestFailed when the topic has no route."""
        self._forget_if_changed()
        body = self._encoded.get((topic, standard))
        if body is None:
            body = self._encoded[topic, standard] = self.route(topic).to_json(standard=standard)
        return body

    def body_in_zone(self, topic: str, zone: str, *, standard: bool) -> bytes:
        self._forget_if_changed()
        body = keep_zone(self.route(topic), zone).to_json(standard=standard)
        return self._in_zones.setdefault(body, body)

    def _forget_if_changed(self) -> None:
        if self.generation != self._generation:
            self._encoded.clear()
            self._in_zones.clear()
            self._generation = self.generation

    def route(self, topic: str) -> TopicRoute:
        settings = self._configuration.settings
        route = self._registry.route(topic, acting_masters=settings.support_acting_master)
        if route is None:
            raise RequestFailed(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
                hint="create the topic, and see that its broker is registered here",
            )
        if settings.order_message_enable:
            route.order_topic_conf = self._kv_config.get(ORDER_TOPICS, topic)
        return route


def keep_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Only the brokers of one zone, and those without a master: reading from a far slave beats not reading.

    Java: ZoneRouteRPCHook
    """
    far = {
        broker.broker_name: broker
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").lower() != zone.lower()
    }
    route.broker_datas = [broker for broker in route.broker_datas if broker.broker_name not in far]
    route.queue_datas = [queues for queues in route.queue_datas if queues.broker_name not in far]
    far_addresses = {address for broker in far.values() for address in broker.broker_addrs.values()}
    route.filter_server_table = {a: s for a, s in route.filter_server_table.items() if a not in far_addresses}
    return route
