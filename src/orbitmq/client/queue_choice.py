"""Which queue a message goes to: the next one, or always the same for one key.

Java: MQFaultStrategy, TopicPublishInfo, SelectMessageQueueByHash; SendMessageActivity of the proxy
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.message.tags import java_hash

if TYPE_CHECKING:
    import random

    from orbitmq.client.faults import Faults
    from orbitmq.message import QueueRef


_MULTIPLIER: Final = 2862933555777941757
_LONG_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def queue_for_key(queues: tuple[QueueRef, ...], key: str) -> QueueRef:
    """Java's rule, so that both clients put one key into one queue: the remainder first, then its absolute value."""
    remainder = abs(java_hash(key)) % len(queues)  # Java's % keeps the sign, so its absolute value is this
    return queues[remainder]


def queue_for_group(queues: tuple[QueueRef, ...], group: str) -> QueueRef:
    """The rule of RocketMQ 5's proxy, so that its clients put one message group into the same queue: Guava's consistent hash,
    which moves few groups when queues are added.
    """
    state = java_hash(group)
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _LONG_MASK
        step = ((state >> 33) + 1) / 0x8000_0000
        following = int((candidate + 1) / step)
        if following >= len(queues):
            return queues[candidate]
        candidate = following


class RoundRobin:
    """Walks over a topic's queues from a random start. After a failure another broker's queue is preferred."""

    __slots__ = ("_next",)

    def __init__(self, randomness: random.Random) -> None:
        self._next = randomness.getrandbits(16)

    def choose(self, queues: tuple[QueueRef, ...], avoid_broker: str = "") -> QueueRef:
        count = len(queues)
        if avoid_broker:
            for _ in range(count):
                queue = queues[self._next % count]
                self._next += 1
                if queue.broker_name != avoid_broker:
                    return queue
        queue = queues[self._next % count]
        self._next += 1
        return queue

    def choose_available(self, queues: tuple[QueueRef, ...], faults: Faults, now: float, avoid_broker: str) -> QueueRef:
        """As `choose`, among the brokers that are not left alone; if all are, among all."""
        names = {queue.broker_name for queue in queues}
        good = {name for name in names if name != avoid_broker and faults.is_available(name, now)}
        if good and len(good) < len(names):
            queues = tuple(queue for queue in queues if queue.broker_name in good)
            return self.choose(queues)
        return self.choose(queues, avoid_broker)
