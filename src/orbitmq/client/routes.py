"""What a route says: which queues of a topic can be written and read, and where their brokers are.

Java: MQClientInstance.topicRouteData2TopicPublishInfo, topicRouteData2TopicSubscribeInfo
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from orbitmq.protocol.bodies.route import TopicRoute

MASTER: Final = 0
_WRITABLE: Final = 2
_READABLE: Final = 4


class Route:
    """One topic's queues and brokers. Equal routes lead to the same decisions."""

    __slots__ = ("brokers", "readable", "topic", "writable")

    def __init__(
        self,
        topic: str,
        writable: tuple[QueueRef, ...],
        readable: tuple[QueueRef, ...],
        brokers: dict[str, dict[int, Address]],
    ) -> None:
        self.topic = topic
        self.writable = writable
        self.readable = readable
        self.brokers = brokers  # broker name -> broker id -> address

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Route):
            return NotImplemented
        return (self.topic, self.writable, self.readable, self.brokers) == (
            other.topic,
            other.writable,
            other.readable,
            other.brokers,
        )

    __hash__ = None  # type: ignore[assignment]


def route_of(topic: str, found: TopicRoute) -> Route:
    brokers = {data.broker_name: _addresses(data.broker_addrs) for data in found.broker_datas}
    datas = sorted(found.queue_datas, key=lambda data: data.broker_name)
    readable = tuple(
        QueueRef(topic, data.broker_name, queue_id)
        for data in datas
        if data.perm & _READABLE
        for queue_id in range(data.read_queue_nums)
    )
    if found.order_topic_conf:
        writable = _ordered_queues(topic, found.order_topic_conf)
    else:
        # A broker without its master takes no messages.
        writable = tuple(
            QueueRef(topic, data.broker_name, queue_id)
            for data in datas
            if data.perm & _WRITABLE and MASTER in brokers.get(data.broker_name, ())
            for queue_id in range(data.write_queue_nums)
        )
    return Route(topic, writable, readable, brokers)


def route_from_template(topic: str, template: TopicRoute, queues: int) -> Route:
    """The route that a topic will have once its first message has created it after the template topic."""
    for data in template.queue_datas:
        data.read_queue_nums = data.write_queue_nums = min(queues, data.read_queue_nums)
    return route_of(topic, template)


def _addresses(texts: dict[int, str]) -> dict[int, Address]:
    found = {}
    for broker_id, text in texts.items():
        try:
            found[broker_id] = parse_address(text)
        except ConfigError:
            continue  # a broker that registered nonsense must not hide the others
    return found


def _ordered_queues(topic: str, conf: str) -> tuple[QueueRef, ...]:
    """`broker-a:8;broker-b:8`: how many queues an ordered topic keeps on each broker, whether it is there or not."""
    queues: list[QueueRef] = []
    for part in conf.split(";"):
        broker_name, _, count = part.partition(":")
        if broker_name and count.isdigit():
            queues += [QueueRef(topic, broker_name, queue_id) for queue_id in range(int(count))]
    return tuple(queues)
