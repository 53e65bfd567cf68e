"""Who gets which queues: Java's rules, on the vectors of its own tests and on every small size."""

import pytest

from orbitmq.client.assignment import (
    Strategy,
    configured,
    consistent_hash,
    machine_rooms,
    nearby,
    share_of,
    strategy_from,
)
from orbitmq.errors import ConfigError
from orbitmq.message import QueueRef
from orbitmq.message.shares import averagely, in_a_circle


def queues(count: int, broker: str = "b") -> list[QueueRef]:
    return [QueueRef("T", broker, number) for number in range(count)]


def ids(strategy: Strategy, count: int, members: list[str], broker: str = "b") -> list[list[int]]:
    return [[queue.queue_id for queue in share_of(strategy, queues(count, broker), members, me)] for me in members]


def test_averagely_gives_blocks() -> None:
    assert ids(averagely, 8, ["c0", "c1", "c2"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert ids(averagely, 2, ["c0", "c1", "c2"]) == [[0], [1], []]
    assert ids(averagely, 4, ["c0"]) == [[0, 1, 2, 3]]


def test_in_a_circle_deals_them_out() -> None:
    assert ids(in_a_circle, 8, ["c0", "c1", "c2"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_machine_rooms_take_only_their_brokers() -> None:
    assert ids(machine_rooms(["room1"]), 8, ["c0", "c1", "c2"], "room1@b") == [[0, 1, 6], [2, 3, 7], [4, 5]]
    assert ids(machine_rooms(["room2"]), 8, ["c0"], "room1@b") == [[]]
    assert ids(machine_rooms(["room1"]), 8, ["c0"], "room1") == [[]]


def test_the_consistent_ring_is_javas() -> None:
    from orbitmq.client.assignment import _queue_hash, _ring_hash

    assert _ring_hash("a-0") == 2707812305
    assert _queue_hash(QueueRef("T", "b", 0)) == 562732085


def test_a_member_that_leaves_the_ring_moves_only_its_own_queues() -> None:
    members = ["c0", "c1", "c2", "c3"]
    before = {queue: me for me in members for queue in share_of(consistent_hash, queues(64), members, me)}
    rest = members[:3]
    after = {queue: me for me in rest for queue in share_of(consistent_hash, queues(64), rest, me)}
    assert all(after[queue] == owner for queue, owner in before.items() if owner != "c3")


@pytest.mark.parametrize(
    "strategy",
    [
        averagely,
        in_a_circle,
        consistent_hash,
        machine_rooms(["r"]),
        nearby(lambda queue: "r", lambda member: member[0]),
    ],
    ids=["averagely", "circle", "ring", "rooms", "nearby"],
)
def test_every_queue_has_exactly_one_owner(strategy: Strategy) -> None:
    for count in range(1, 17):
        for size in range(1, 8):
            members = [f"c{number}" for number in range(size)]
            shares = ids(strategy, count, members, "r@b")
            assert sorted(queue for share in shares for queue in share) == list(range(count))


def test_nearby_keeps_queues_in_their_room_and_shares_the_orphans() -> None:
    strategy = nearby(lambda queue: queue.broker_name, lambda member: member.split("@")[0])
    everything = queues(2, "east") + queues(2, "west") + queues(2, "north")
    members = ["east@1", "west@1"]
    shares = {me: share_of(strategy, everything, members, me) for me in members}
    assert shares["east@1"] == [*queues(2, "east"), QueueRef("T", "north", 0)]
    assert shares["west@1"] == [*queues(2, "west"), QueueRef("T", "north", 1)]


def test_configured_queues_stay_whoever_comes() -> None:
    mine = queues(2)
    assert share_of(configured(mine), queues(8), ["c0", "c1"], "c1") == mine


def test_who_is_not_in_the_group_owns_nothing() -> None:
    assert share_of(averagely, queues(4), ["c0"], "c9") == []
    assert share_of(averagely, queues(4), [], "c9") == []


def test_order_of_arrival_does_not_matter() -> None:
    members = ["c2", "c0", "c1"]
    assert share_of(averagely, queues(8)[::-1], members, "c0") == queues(8)[:3]


def test_strategies_have_names() -> None:
    assert strategy_from("circle") is in_a_circle
    with pytest.raises(ConfigError, match="unknown") as caught:
        strategy_from("fair")
    assert "averagely" in caught.value.hint
