"""What the doctor sees: clocks, disks, groups whose members disagree, name servers that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.admin import group_checks
from orbitmq.admin.brokers import BrokerPlace, broker_row, up_seconds
from orbitmq.admin.diagnosis import Finding, clock_finding, diagnose, disk_finding, releases_finding
from orbitmq.admin.groups import consumer_connections
from orbitmq.admin.session import open_session
from orbitmq.errors import CallTimeout
from orbitmq.sync import connect
from orbitmq.testing import Cluster, Server
from orbitmq.transport.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


async def findings(address: str, topic: str | None = None, group: str | None = None) -> dict[str, Finding]:
    """By step; of several in one step the worst."""
    worst: dict[str, Finding] = {}
    order = ("ok", "warning", "failed")
    async with open_session(address) as session:
        async for finding in diagnose(session, topic=topic, group=group):
            known = worst.get(finding.step)
            if known is None or order.index(known.verdict) < order.index(finding.verdict):
                worst[finding.step] = finding
    return worst


async def test_a_healthy_server_is_healthy(server: Server) -> None:
    found = await findings(server.address)
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert list(found)[:5] == ["name", "port", "language", "name server", "brokers"]
    assert all(not finding.cure for finding in found.values())


async def test_a_clock_that_is_off_is_told_with_the_figure(server: Server) -> None:
    server.clock.advance(seconds=90)
    finding = (await findings(server.address))["broker test, clock"]
    assert finding.verdict == "warning"
    assert "s ahead of ours" in finding.found
    assert "NTP" in finding.cure


@pytest.mark.parametrize(
    ("behind_ms", "verdict", "words"),
    [
        (0, "ok", "agrees"),
        (5900, "ok", "agrees"),
        (60_000, "warning", "59 s behind"),
        (-60_000, "warning", "60 s ahead of"),
    ],
)
def test_whole_seconds_and_the_way_there_are_allowed_for(behind_ms: int, verdict: str, words: str) -> None:
    started_ms, up_ms = 1_700_000_000_000, 3_600_000
    table = {"bootTimestamp": str(started_ms), "runtime": "[ 0 days, 1 hours, 0 minutes, 0 seconds ]"}
    now_ms = started_ms + up_ms + behind_ms
    finding = clock_finding("broker b", table, now_ms, now_ms)
    assert (finding.verdict, words in finding.found) == (verdict, True), finding


@pytest.mark.parametrize(
    ("ratio", "verdict"), [("0.40", "ok"), ("0.80", "warning"), ("0.95", "failed"), ("", "warning")]
)
def test_a_disk_that_fills_is_told_before_it_is_full(ratio: str, verdict: str) -> None:
    assert disk_finding("broker b", {"commitLogDiskRatio": ratio}).verdict == verdict


async def test_members_that_disagree_are_named(server: Server) -> None:
    with connect(server.address) as client:
        producer = client.producer(group="P")
        for topic in ("Red", "Blue"):
            producer.send(topic, b"x")
        with (
            client.consumer("Red", group="Torn", handler=lambda message: None),
            client.consumer("Blue", group="Torn", handler=lambda message: None),
        ):
            found = await findings(server.address, "Red", "Torn")
            members = found["group Torn, members"]
            assert members.verdict == "failed"
            assert "Red [*]" in members.found
            assert "Blue [*]" in members.found
            assert "messages get lost" in members.cure


async def test_members_that_were_not_asked_are_not_said_to_agree(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_answers(*arguments: object, **options: object) -> dict[str, Any]:
        raise CallTimeout("no answer in time")

    with connect(server.address) as client:
        client.producer(group="P").send("Red", b"x")
        with client.consumer("Red", group="Alone", handler=lambda message: None):
            assert (await findings(server.address, "Red", "Alone"))["group Alone, members"].verdict == "ok"
            monkeypatch.setattr(group_checks, "running_info", nobody_answers)
            members = (await findings(server.address, "Red", "Alone"))["group Alone, members"]
            assert (members.verdict, "1 of 1 did not say what they subscribe to" in members.found) == ("warning", True)
            assert "no answer in time" in members.found


async def test_a_member_is_asked_by_way_of_a_broker_that_is_there() -> None:
    with Cluster(masters=2) as cluster:
        cluster.create_topic("Red", queues=1)
        with (
            connect(cluster.address) as client,
            client.consumer("Red", group="Readers", handler=lambda message: None),
        ):
            async with open_session(cluster.address, timeout=2.0) as session:
                cluster["a"].pause()
                try:
                    (member,) = await consumer_connections(session, "Readers")
                    info = await group_checks.running_info(session, "Readers", member.client_id)
                finally:
                    cluster["a"].resume()
    assert ("Red", "*") in group_checks.subscriptions_of(info)


async def test_more_members_than_queues_and_a_topic_not_subscribed(server: Server) -> None:
    with connect(server.address) as client:
        client.producer(group="P", create_queues=1).send("Narrow", b"x")
        client.producer(group="P").send("Other", b"x")
        with (
            client.consumer("Narrow", group="Crowd", handler=lambda message: None),
            client.consumer("Narrow", group="Crowd", handler=lambda message: None),
        ):
            found = (await findings(server.address, "Narrow", "Crowd"))["group Crowd, topic"]
            assert found.verdict == "warning"
            assert "2 members share 1 queues" in found.found
            found = (await findings(server.address, "Other", "Crowd"))["group Crowd, topic"]
            assert "does not subscribe to Other" in found.found


async def test_name_servers_that_know_different_brokers(server: Server) -> None:
    with Server() as other:
        found = await findings(f"{server.address};{other.address}")
    assert found["brokers"].verdict == "warning"
    assert "all name servers in namesrvAddr" in found["brokers"].cure


async def test_a_broker_that_takes_nothing_is_told() -> None:
    with Server(settings={"brokerPermission": "4"}) as reading:
        found = (await findings(reading.address))["broker test, settings"]
    assert found.verdict == "warning"
    assert "brokerPermission=6" in found.cure


def test_brokers_of_different_releases_are_named() -> None:
    assert releases_finding("C", {"a:1": "V5_3_3", "b:1": "V5_3_3"}).verdict == "ok"
    mixed = releases_finding("C", {"a:1": "V4_9_7", "b:1": "V5_3_3"})
    assert (mixed.verdict, "a:1 is V4_9_7, b:1 is V5_3_3" in mixed.found) == ("warning", True)


def test_figures_of_old_and_new_brokers_are_read() -> None:
    place = BrokerPlace("c", "b", 1, Address("h", 1))
    table = {
        "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
        "getTransferedTps": "7.5 6 5",
        "putTps": "1.5 1 1",
        "msgPutTotalTodayNow": "10",
        "msgPutTotalTodayMorning": "4",
    }
    row = broker_row(place, table)
    assert (row.role, row.get_tps, row.put_tps, row.stored_today) == ("slave", 7.5, 1.5, 6)
    assert up_seconds(table) == ((24 + 2) * 60 + 3) * 60 + 4
    assert broker_row(place, {}).up_seconds is None
