"""The route tables, rule by rule. Numbers in names follow the protocol document's chapter on the name server."""

from __future__ import annotations

from typing import Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.nameserver.registry import (
    UNIT_SUB_TOPICS,
    UNIT_SUB_TOPICS_OUTSIDE_UNITS,
    UNIT_TOPICS,
    BrokerAnnouncement,
    BrokerKey,
    Departure,
    MinimumIdChange,
    Registered,
    RouteRegistry,
)
from orbitmq.nameserver.route_answers import keep_zone
from orbitmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from orbitmq.protocol.bodies.topics import DataVersion, TopicQueueMapping
from tests.nameserver.running import topic_table

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


class World:
    """A registry, its clock, and what it announced."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.delete_unlisted = False
        self.announced: list[MinimumIdChange] = []
        self.registry = RouteRegistry(
            self.clock, delete_unlisted_topics=lambda: self.delete_unlisted, announce=self.announced.append
        )

    def register(self, name: str = "b", address: str = A, broker_id: int = 0, **more: Any) -> Registered | None:
        channel = more.pop("channel", address)
        announcement: dict[str, Any] = {
            "cluster": "c",
            "name": name,
            "broker_id": broker_id,
            "address": address,
            "ha_address": address + "-ha",
            "topics": topic_table("t1", "t2"),
            **more,
        }
        return self.registry.register(BrokerAnnouncement(**announcement), channel)

    def unregister(self, name: str = "b", address: str = A, broker_id: int = 0, cluster: str = "c") -> None:
        self.registry.unregister([Departure(cluster, address, name, broker_id)])

    def route(self, topic: str = "t1", **options: bool) -> TopicRoute:
        found = self.registry.route(topic, **options)
        assert found is not None
        return found

    def addresses(self, topic: str = "t1", **options: bool) -> dict[str, dict[int, str]]:
        found = self.registry.route(topic, **options)
        return {broker.broker_name: broker.broker_addrs for broker in found.broker_datas} if found else {}

    def perm(self, topic: str = "t1", name: str = "b") -> int:
        (queues,) = [queues for queues in self.route(topic).queue_datas if queues.broker_name == name]
        return queues.perm


@pytest.fixture
def world() -> World:
    return World()


# ---- 4.2: registering


def test_a_master_brings_its_topics(world: World) -> None:
    assert world.register() == Registered()
    route = world.route()
    assert route.broker_datas == [BrokerData(cluster="c", broker_name="b", broker_addrs={0: A})]
    assert route.queue_datas == [QueueData(broker_name="b")]
    assert world.registry.topics() == ["t1", "t2"]
    assert world.registry.cluster_info().cluster_addr_table == {"c": ["b"]}


def test_a_topic_of_two_brokers_has_both(world: World) -> None:
    world.register("b1", A)
    world.register("b2", B)
    assert world.addresses() == {"b1": {0: A}, "b2": {0: B}}


def test_a_slave_learns_its_master_and_brings_no_topics(world: World) -> None:
    world.register()
    assert world.register(address=B, broker_id=1, topics=topic_table("t1", "t2", "t3")) == Registered(A, A + "-ha")
    assert world.addresses() == {"b": {0: A, 1: B}}
    assert world.registry.route("t3") is None


def test_a_slave_without_a_live_master_learns_nothing(world: World) -> None:
    assert world.register(address=B, broker_id=1) == Registered()
    world.register()
    world.registry._drop_live(BrokerKey("c", A))
    assert world.register(address=B, broker_id=1) == Registered()


def test_a_first_registration_with_one_topic_is_refused_and_leaves_no_trace(world: World) -> None:
    assert world.register(topics=topic_table("only")) is None
    assert world.registry.cluster_info().broker_addr_table == {}
    assert world.registry.cluster_info().cluster_addr_table == {}
    assert world.register(topics=topic_table()) is not None
    assert world.register(topics=topic_table("only", version=2)) is not None


def test_the_one_topic_rule_counts_per_broker_id(world: World) -> None:
    world.register()
    assert world.register(address=B, broker_id=1, topics=topic_table("only")) is None
    assert world.addresses() == {"b": {0: A}}


def test_a_slave_that_became_master_is_listed_once(world: World) -> None:
    world.register()
    world.register(address=B, broker_id=1)
    world.unregister()
    world.register(address=B, broker_id=0)
    assert world.addresses() == {"b": {0: B}}


@pytest.mark.parametrize(("newcomer", "holder"), [(1, A), (2, B), (3, B)])
def test_of_two_that_claim_an_id_the_higher_state_version_keeps_it(world: World, newcomer: int, holder: str) -> None:
    world.register(topics=topic_table("t1", "t2", state_version=2))
    assert world.register(address=B, topics=topic_table("t1", "t2", state_version=newcomer)) == Registered()
    assert world.addresses() == {"b": {0: holder}}
    assert (world.registry.data_version("c", B) is not None) == (holder == B)


def test_an_unchanged_version_changes_no_known_topic(world: World) -> None:
    world.register()
    world.registry.wipe_write_permission("b")
    world.register()
    assert world.perm() == 4
    world.register(topics=topic_table("t1", "t2", version=2))
    assert world.perm() == 6


def test_an_unchanged_version_still_brings_back_a_topic_that_is_missing(world: World) -> None:
    world.register()
    world.registry.delete_topic("t1")
    world.register()
    assert world.perm() == 6


def test_registration_removes_no_topic_unless_it_is_told_to(world: World) -> None:
    world.register(topics=topic_table("b", "t1", "t2", "t3"))
    world.register(topics=topic_table("b", "t1", "t2", version=2))
    assert world.registry.topics() == ["b", "t1", "t2", "t3"]
    world.delete_unlisted = True
    world.register(topics=topic_table("b", "t1", "t2", version=2))
    assert world.registry.topics() == ["b", "t1", "t2"]


def test_a_changed_topic_told_alone_removes_no_other(world: World) -> None:
    world.delete_unlisted = True
    world.register(topics=topic_table("b", "t1", "t2"))
    world.register(topics=topic_table("t3", version=2))
    world.register(topics=topic_table("t2", "t4", version=3))
    assert world.registry.topics() == ["b", "t1", "t2", "t3", "t4"]


def test_a_prime_slave_speaks_for_its_topics_and_makes_them_read_only_as_acting_master(world: World) -> None:
    world.register(address=B, broker_id=2, acting_master=True)
    assert world.perm() == 4
    world.register(name="other", address=C, broker_id=1, acting_master=False, topics=topic_table("u1", "u2"))
    assert world.perm("u1", "other") == 6


def test_an_old_slave_never_speaks_for_its_topics(world: World) -> None:
    world.register(address=B, broker_id=1, acting_master=None)
    assert world.registry.topics() == []


def test_filter_servers_are_kept_shown_and_removed(world: World) -> None:
    world.register(filter_servers=["f:1"])
    assert world.route().filter_server_table == {A: ["f:1"]}
    world.register(filter_servers=None)
    assert world.route().filter_server_table == {A: ["f:1"]}
    world.register(filter_servers=[])
    assert world.route().filter_server_table == {}


def test_a_zone_is_remembered(world: World) -> None:
    world.register(zone="z1")
    assert world.route().broker_datas[0].zone_name == "z1"


def test_static_topic_mappings_come_and_go_with_their_broker(world: World) -> None:
    table = topic_table("t1", "t2")
    table.topic_queue_mapping_info_map["t1"] = TopicQueueMapping(topic="t1", bname="b", total_queues=8)
    world.register(topics=table)
    assert world.route().topic_queue_mapping_by_broker == {"b": table.topic_queue_mapping_info_map["t1"]}
    world.register("b2", B)
    world.unregister()
    assert world.route().topic_queue_mapping_by_broker is None
    assert world.registry._mappings == {}


def test_a_broker_that_comes_back_under_another_name_leaves_no_ghost(world: World) -> None:
    world.register("old", A)
    world.register("new", A, topics=topic_table("t1", "t2", version=9))
    assert world.addresses() == {"new": {0: A}}
    assert set(world.registry.cluster_info().broker_addr_table) == {"new"}


def test_a_broker_that_comes_back_in_another_cluster_does_not_leave_with_its_former_entry(world: World) -> None:
    world.register("b", A, cluster="former", channel="lost with the power")
    world.clock.advance(ms=60_000)
    world.register("b", A, cluster="later")
    assert world.registry.cluster_info().cluster_addr_table == {"later": ["b"]}
    world.clock.advance(ms=90_000)
    world.registry.unregister([world.registry.departure(key) for key, _ in world.registry.silent_brokers()])
    world.registry.unregister(world.registry.departures_with("lost with the power"))
    assert world.addresses() == {"b": {0: A}}
    assert world.route().broker_datas[0].cluster == "later"


def test_replicas_that_name_different_clusters_leave_no_ghost(world: World) -> None:
    world.register("b", A, cluster="c1")
    world.register("b", B, broker_id=1, cluster="c2", topics=topic_table())
    world.registry.unregister(world.registry.departures_with(B))
    assert world.addresses() == {"b": {0: A}}
    world.registry.unregister(world.registry.departures_with(A))
    assert world.registry.cluster_info().broker_addr_table == {}
    assert world.registry.cluster_info().cluster_addr_table == {}
    assert world.registry.topics() == []


# ---- 4.3: liveness


def test_a_broker_falls_silent_after_its_time(world: World) -> None:
    world.register(channel="line")
    world.clock.advance(ms=120_000)
    assert world.registry.silent_brokers() == []
    world.clock.advance(ms=1)
    assert world.registry.silent_brokers() == [(BrokerKey("c", A), "line")]


def test_a_broker_may_name_its_own_time(world: World) -> None:
    world.register(timeout_ms=10_000)
    world.clock.advance(ms=10_001)
    assert [key for key, _ in world.registry.silent_brokers()] == [BrokerKey("c", A)]


def test_hearing_from_a_broker_begins_its_time_anew(world: World) -> None:
    world.register()
    world.clock.advance(ms=100_000)
    world.registry.heard_from("c", A)
    world.registry.heard_from("c", "nobody:1")
    world.clock.advance(ms=100_000)
    assert world.registry.silent_brokers() == []
    world.register()
    world.clock.advance(ms=100_000)
    assert world.registry.silent_brokers() == []


def test_a_channel_stands_for_every_broker_registered_over_it(world: World) -> None:
    world.register("b1", A, channel="line")
    world.register("b2", B, channel="line")
    world.register("b3", C, channel="other")
    gone = world.registry.departures_with("line")
    assert sorted(gone) == [Departure("c", A, "b1", 0), Departure("c", B, "b2", 0)]
    world.registry.unregister(gone)
    assert world.addresses() == {"b3": {0: C}}
    assert world.registry.departures_with("line") == []


def test_a_broker_that_reconnected_does_not_leave_with_its_old_channel(world: World) -> None:
    world.register(channel="old")
    world.register(channel="new")
    assert world.registry.departures_with("old") == []
    assert [departure.address for departure in world.registry.departures_with("new")] == [A]


def test_versions_are_told_by_address(world: World) -> None:
    world.register()
    assert world.registry.data_version("c", A) == DataVersion(counter=1, timestamp=1_700_000_000_000)
    assert world.registry.data_version("other", A) is None


# ---- 4.4: leaving


def test_the_last_address_takes_name_cluster_and_topics_with_it(world: World) -> None:
    world.register()
    world.unregister()
    assert world.registry.route("t1") is None
    assert world.registry.topics() == []
    assert world.registry.cluster_info().broker_addr_table == {}
    assert world.registry.cluster_info().cluster_addr_table == {}


def test_losing_the_master_leaves_the_routes_to_its_slave(world: World) -> None:
    world.register()
    world.register(address=B, broker_id=1)
    world.unregister()
    assert world.addresses() == {"b": {1: B}}
    assert world.perm() == 6


def test_losing_the_master_of_an_acting_master_group_makes_its_topics_read_only(world: World) -> None:
    world.register(acting_master=True)
    world.register(address=B, broker_id=1, acting_master=True)
    world.unregister()
    assert world.perm() == 4


def test_unknown_brokers_may_leave(world: World) -> None:
    world.register()
    world.unregister("nobody", "1.1.1.1:1")
    assert world.addresses() == {"b": {0: A}}


def test_many_leave_in_one_pass(world: World) -> None:
    for i in range(20):
        world.register(f"b{i}", f"10.0.1.{i}:1")
    world.registry.unregister([Departure("c", f"10.0.1.{i}:1", f"b{i}", 0) for i in range(19)])
    assert world.addresses() == {"b19": {0: "10.0.1.19:1"}}


# ---- 4.5: routes


def test_a_route_needs_queues_and_a_broker(world: World) -> None:
    assert world.registry.route("t1") is None
    world.register()
    del world.registry._brokers["b"]
    assert world.registry.route("t1") is None


def test_a_route_is_a_copy(world: World) -> None:
    world.register()
    world.route().broker_datas[0].broker_addrs[7] = "hacked"
    assert world.addresses() == {"b": {0: A}}


ACTING = [
    # acting master enabled, ids, writable, what clients see
    (True, {1: B, 2: C}, False, {0: B, 2: C}),
    (True, {0: A, 1: B}, False, {0: A, 1: B}),
    (False, {1: B}, False, {1: B}),
]


@pytest.mark.parametrize(("enabled", "ids", "writable", "seen"), ACTING)
def test_an_acting_master_is_shown_as_the_master(
    world: World, enabled: bool, ids: dict[int, str], writable: bool, seen: dict[int, str]
) -> None:
    for broker_id, address in ids.items():
        world.register(address=address, broker_id=broker_id, acting_master=enabled)
    if not writable:
        world.registry.wipe_write_permission("b")
    assert world.addresses(acting_masters=True) == {"b": seen}
    assert world.addresses(acting_masters=False) == {"b": ids}


def test_a_writable_topic_gets_no_acting_master(world: World) -> None:
    world.register(address=B, broker_id=1, acting_master=True)
    world.registry.add_write_permission("b")
    assert world.addresses(acting_masters=True) == {"b": {1: B}}


def test_brokers_see_each_other_as_they_are(world: World) -> None:
    topic = "rmq_sys_SYNC_BROKER_MEMBER_b"
    world.register(address=B, broker_id=1, acting_master=True, topics=topic_table(topic, "t2"))
    assert world.addresses(topic, acting_masters=True) == {"b": {1: B}}


def zones() -> TopicRoute:
    brokers = [("near", "Z1", 0), ("far", "z2", 0), ("nowhere", None, 0), ("orphan", "z2", 1)]
    return TopicRoute(
        broker_datas=[
            BrokerData(cluster="c", broker_name=name, broker_addrs={broker_id: name + ":1"}, zone_name=zone)
            for name, zone, broker_id in brokers
        ],
        queue_datas=[QueueData(broker_name=name) for name, _, _ in brokers],
        filter_server_table={name + ":1": ["f:1"] for name, _, _ in brokers},
    )


@pytest.mark.parametrize(("zone", "kept"), [("z1", ["near", "orphan"]), ("Z2", ["far", "orphan"]), ("z3", ["orphan"])])
def test_a_zone_keeps_its_own_brokers_and_those_without_a_master(zone: str, kept: list[str]) -> None:
    route = keep_zone(zones(), zone)
    assert [broker.broker_name for broker in route.broker_datas] == kept
    assert [queues.broker_name for queues in route.queue_datas] == kept
    assert list(route.filter_server_table) == [name + ":1" for name in kept]


# ---- 4.6, 4.7 and the lists


def test_write_permission_is_taken_and_given_and_counted(world: World) -> None:
    world.register("b1", A, topics=topic_table("t1", "t2", perm=7))
    world.register("b2", B)
    assert world.registry.wipe_write_permission("b1") == 2
    assert (world.perm("t1", "b1"), world.perm("t1", "b2")) == (5, 6)
    assert world.registry.add_write_permission("b1") == 2
    assert world.perm("t1", "b1") == 6
    assert world.registry.wipe_write_permission("nobody") == 0


def test_a_topic_is_registered_only_on_brokers_that_exist(world: World) -> None:
    world.register()
    world.registry.register_topic("new", [QueueData(broker_name="b", read_queue_nums=2)])
    assert world.route("new").queue_datas[0].read_queue_nums == 2
    world.registry.register_topic("bad", [QueueData(broker_name="b"), QueueData(broker_name="nobody")])
    assert world.registry.route("bad") is None


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(world: World) -> None:
    world.register("b1", A, cluster="c1")
    world.register("b2", B, cluster="c2")
    world.registry.delete_topic("t1", "c1")
    assert world.addresses("t1") == {"b2": {0: B}}
    world.registry.delete_topic("t1", "unknown")
    assert world.addresses("t1") == {"b2": {0: B}}
    world.registry.delete_topic("t1")
    assert world.registry.route("t1") is None
    world.registry.delete_topic("t1")
    assert world.addresses("t2") == {"b1": {0: A}, "b2": {0: B}}


def test_topics_are_listed_by_cluster(world: World) -> None:
    world.register("b1", A, cluster="c1", topics=topic_table("t1", "t2"))
    world.register("b2", B, cluster="c2", topics=topic_table("t2", "t3"))
    assert world.registry.topics_of_cluster("c1") == ["t1", "t2"]
    assert world.registry.topics_of_cluster("c2") == ["t2", "t3"]
    assert world.registry.topics_of_cluster("c3") == []


def test_clusters_and_brokers_are_system_topics(world: World) -> None:
    assert world.registry.system_topics() == ([], None)
    world.register("b2", B)
    world.register("b1", A)
    assert world.registry.system_topics() == (["c", "b1", "b2"], B)


@pytest.mark.parametrize(
    ("flags", "found"),
    [(UNIT_TOPICS, ["unit", "both"]), (UNIT_SUB_TOPICS, ["sub", "both"]), (UNIT_SUB_TOPICS_OUTSIDE_UNITS, ["sub"])],
)
def test_topics_are_found_by_their_unit_flags(world: World, flags: dict[str, int], found: list[str]) -> None:
    for number, name in enumerate(["none", "unit", "sub", "both"]):
        world.register("b", A, topics=topic_table(name, "filler", version=number, topic_sys_flag=number))
    assert [topic for topic in world.registry.topics_with_flags(**flags) if topic != "filler"] == found


def test_members_of_a_group_are_told(world: World) -> None:
    world.register()
    world.register(address=B, broker_id=1)
    assert world.registry.members("c", "b").broker_addrs == {0: A, 1: B}
    assert world.registry.members("c", "nobody").broker_addrs == {}


# ---- 4.10: the smallest id


def test_the_replicas_left_hear_that_the_smallest_id_is_gone(world: World) -> None:
    world.register(acting_master=True)
    world.register(address=B, broker_id=1, acting_master=True)
    world.register(address=C, broker_id=2, acting_master=True)
    world.unregister()
    assert world.announced == [MinimumIdChange("b", 1, B, A, None, (B, C))]


def test_a_smaller_id_that_comes_is_announced_to_the_others(world: World) -> None:
    world.register(address=B, broker_id=1, acting_master=True)
    world.register(address=A, broker_id=0, acting_master=True)
    assert world.announced == [MinimumIdChange("b", 0, A, None, A + "-ha", (B,))]


def test_larger_ids_coming_and_going_are_nobodys_business(world: World) -> None:
    world.register(acting_master=True)
    world.register(address=B, broker_id=1, acting_master=True)
    world.unregister(address=B, broker_id=1)
    assert world.announced == []


def test_without_acting_masters_a_loss_is_not_announced(world: World) -> None:
    world.register()
    world.register(address=B, broker_id=1)
    world.unregister()
    assert world.announced == []


# ---- what answers may be kept for how long


def test_the_generation_grows_with_every_visible_change_and_stands_still_otherwise(world: World) -> None:
    def grows(change: Any) -> bool:
        before = world.registry.generation
        change()
        return world.registry.generation > before

    assert grows(world.register)
    assert not grows(world.register)
    assert not grows(lambda: world.registry.heard_from("c", A))
    assert grows(lambda: world.register(topics=topic_table("t1", "t2", version=2, perm=4)))
    assert grows(lambda: world.register(address=B, broker_id=1))
    assert grows(lambda: world.register(zone="z"))
    assert grows(lambda: world.register(acting_master=True))
    assert grows(lambda: world.register(filter_servers=["f:1"]))
    assert grows(lambda: world.registry.wipe_write_permission("b"))
    assert grows(lambda: world.registry.register_topic("t9", [QueueData(broker_name="b")]))
    assert grows(lambda: world.registry.delete_topic("t9"))
    assert grows(lambda: world.unregister(address=B, broker_id=1))
    assert grows(world.unregister)


def test_the_state_is_summed_up_for_the_log(world: World) -> None:
    assert world.registry.summary() == "0 clusters, 0 topics, 0 brokers: none"
    world.register()
    assert world.registry.summary() == f"1 clusters, 2 topics, 1 brokers: b of c at {A}"
