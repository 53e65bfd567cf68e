"""Who consumes which queues. Every member of a group computes the whole answer for itself, so the rules must be Java's exactly.

A strategy is a function of the sorted queues of a topic, the sorted client ids of the group, and one's own id; it returns
one's own share. Members that use different strategies would fight over queues: use one for the whole group.

Java: AllocateMessageQueueStrategy and its implementations
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef
from orbitmq.message.shares import averagely, in_a_circle

T = TypeVar("T")

Strategy = Callable[[Sequence[QueueRef], Sequence[str], str], list[QueueRef]]
"""(queues, client ids, own client id) -> own queues"""

_VIRTUAL_NODES: Final = 10


def configured(mine: Sequence[QueueRef]) -> Strategy:
    """Always these, whoever else is there. Java: AllocateMessageQueueByConfig"""
    fixed = list(mine)

    def strategy(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
        return [queue for queue in fixed if queue in queues]

    return strategy


def machine_rooms(rooms: Sequence[str]) -> Strategy:
    """Only brokers called `<room>@<name>` with a room of these; shares as even as can be. Java: ...ByMachineRoom"""
    wanted = frozenset(rooms)

    def strategy(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
        ours = [queue for queue in queues if _room_of_broker(queue.broker_name) in wanted]
        share, rest = divmod(len(ours), len(members))
        index = members.index(me)
        mine = ours[index * share : (index + 1) * share]
        return [*mine, *([ours[share * len(members) + index]] if index < rest else [])]

    return strategy


def consistent_hash(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
    """A ring: a member that leaves gives its queues to its neighbours and moves no others. Java: ...ConsistentHash"""
    ring = sorted((_ring_hash(f"{member}-{node}"), member) for member in members for node in range(_VIRTUAL_NODES))
    points = [point for point, _ in ring]
    return [queue for queue in queues if ring[bisect.bisect_left(points, _queue_hash(queue)) % len(ring)][1] == me]


def nearby(
    room_of_queue: Callable[[QueueRef], str], room_of_member: Callable[[str], str], inner: Strategy = averagely
) -> Strategy:
    """Queues stay in their machine room; those of a room without members are shared by all. Java: ...MachineRoomNearby"""

    def strategy(queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
        members_by_room = _grouped(members, room_of_member)
        queues_by_room = _grouped(queues, room_of_queue)
        my_room = room_of_member(me)
        mine = inner(queues_by_room.get(my_room, []), members_by_room[my_room], me)
        for room in sorted(queues_by_room):
            if room not in members_by_room:
                mine = [*mine, *inner(queues_by_room[room], members, me)]
        return mine

    return strategy


STRATEGIES: Final[Mapping[str, Strategy]] = {
    "averagely": averagely,
    "circle": in_a_circle,
    "consistent-hash": consistent_hash,
}
_STRATEGY_HINT: Final = f"one of {', '.join(STRATEGIES)}, or a function"


def strategy_from(given: str | Strategy) -> Strategy:
    if not isinstance(given, str):
        if not callable(given):
            raise ConfigError(f"strategy {given!r} cannot be called", hint=_STRATEGY_HINT)
        return given
    strategy = STRATEGIES.get(given)
    if strategy is None:
        raise ConfigError(f"strategy {given!r} is unknown", hint=_STRATEGY_HINT)
    return strategy


def share_of(strategy: Strategy, queues: Sequence[QueueRef], members: Sequence[str], me: str) -> list[QueueRef]:
    """A member that the brokers do not know yet owns nothing."""
    if me not in members or not queues:
        return []
    return strategy(sorted(queues), sorted(members), me)


def _room_of_broker(broker_name: str) -> str:
    room, at, _ = broker_name.partition("@")
    return room if at else ""


def _grouped(items: Sequence[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _queue_hash(queue: QueueRef) -> int:
    return _ring_hash(f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]")


def _ring_hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
