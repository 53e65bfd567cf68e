"""Our commands on a cluster of two Apache releases: 4.9.7 cannot move groups by itself, tell its producers, or do much of what 5.3.3 can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.admin.brokers import BrokerRow
from orbitmq.admin.clusters import ClusterRow
from orbitmq.admin.groups import GroupDetail
from orbitmq.admin.messages import MessageRow
from orbitmq.admin.offsets import QueueLag
from orbitmq.admin.topics import TopicDetail, TopicRow
from tests.cli.kit import Command, wait_until
from tests.console.visitor import TOKEN, Visitor, console_of
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.interop.world import World

pytestmark = INTEROP


@pytest.fixture(scope="module")
def orbitmq(world: World) -> Command:
    command = Command(world.apache["4.9.7"].address)
    command.ok("topic", "create", "CliOld", "-c", "cluster-4", "-q", "2")
    command.ok("group", "create", "CliOldReaders", "-c", "cluster-4")
    for number in range(6):
        command.ok("msg", "send", "CliOld", f"m{number}", "--queue", f"broker-4:{number % 2}", "--key", f"k{number}")
    return command


@pytest.fixture
def java_client(world: World, tmp_path: Path) -> Iterator[JavaClient]:
    client = JavaClient(world.java["4.9.7"], tmp_path / "client")
    yield client
    client.close()


def committed(orbitmq: Command, group: str) -> list[int]:
    rows = orbitmq.ok("group", "lag", group, "--topic", "CliOld", "--queues", "-o", "json").rows(QueueLag)
    return [row.committed for row in rows]


def test_both_releases_are_shown_side_by_side(orbitmq: Command) -> None:
    brokers = {row.broker: row for row in orbitmq.ok("broker", "ls", "-o", "json").rows(BrokerRow)}
    assert (brokers["broker-4"].version, brokers["broker-5"].version) == ("V4_9_7", "V5_3_3")
    assert brokers["broker-4"].disk_used_percent is not None
    assert {row.cluster for row in orbitmq.ok("cluster", "-o", "json").rows(ClusterRow)} == {"cluster-4", "cluster-5"}
    (row,) = orbitmq.ok("topic", "ls", "CliOld", "-o", "json").rows(TopicRow)
    assert (row.brokers, row.write_queues) == (["broker-4"], 2)
    detail = orbitmq.ok("topic", "describe", "CliOld", "-o", "json").document(TopicDetail)
    assert detail.messages == 6
    (found,) = orbitmq.ok("msg", "find", "CliOld", "--key", "k3", "-o", "json").rows(MessageRow)
    assert orbitmq.ok("msg", "get", found.id, "--topic", "CliOld", "-o", "json").document(MessageRow) == found
    assert orbitmq.ok("msg", "get", found.offset_id, "-o", "json").document(MessageRow) == found
    assert len(orbitmq.ok("msg", "find", "CliOld", "-o", "json").rows(MessageRow)) == 6
    assert "fileReservedTime" in orbitmq.ok("broker", "config", "broker-4", "fileReservedTime").out


def test_a_group_that_sleeps_is_moved_by_a_commit(orbitmq: Command) -> None:
    for goal, want in ((("--to-latest",), [3, 3]), (("--to-offset", "1"), [1, 1]), (("--to-earliest",), [0, 0])):
        reset = ("group", "reset", "CliOldReaders", "--topic", "CliOld", *goal)
        assert "commit" in orbitmq.ok(*reset, "--dry-run").out
        orbitmq.ok(*reset, "--yes")
        assert committed(orbitmq, "CliOldReaders") == want


def test_a_group_that_runs_is_moved_by_its_members(orbitmq: Command, java_client: JavaClient) -> None:
    java_client.open_push_consumer(
        "c", orbitmq.name_server, "CliOld", group="CliOldRunning", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET"
    )
    assert len(java_client.received("c", 6)) == 6
    wait_until(lambda: committed(orbitmq, "CliOldRunning") == [3, 3])
    detail = orbitmq.ok("group", "describe", "CliOldRunning", "-o", "json").document(GroupDetail)
    assert [member.version for member in detail.members] == ["V4_9_7"]
    reset = ("group", "reset", "CliOldRunning", "--topic", "CliOld")
    refused = orbitmq.failure(*reset, "--to-offset", "1")
    assert "by time only" in refused.err
    assert "members" in orbitmq.ok(*reset, "--to-earliest", "--dry-run").out
    orbitmq.ok(*reset, "--to-earliest", "--yes")
    assert len(java_client.received("c", 6, seconds=60)) == 6
    assert "they subscribe to the same" in orbitmq.ok("doctor", "--topic", "CliOld", "--group", "CliOldRunning").out


def test_the_doctor_looks_at_old_clusters_too(orbitmq: Command) -> None:
    seen = orbitmq.ok("doctor", "--topic", "CliOld", "--group", "CliOldReaders").out
    for words in (
        "is a name server",
        "2 registered",
        "release V4_9_7",
        "agrees with ours",
        "we may read it",
        "nobody is",
    ):
        assert words in seen


def test_the_console_shows_both_releases_on_every_page(orbitmq: Command) -> None:
    with console_of(orbitmq.name_server) as url:
        visitor = Visitor(url, {"Authorization": f"Bearer {TOKEN}"})
        assert {row["version"] for row in visitor.json("/")["brokers"]} == {"V4_9_7", "V5_3_3"}
        assert [row["messages"] for row in visitor.json("/topics?search=CliOld&kind=normal")["topics"]] == [6]
        shown = visitor.json("/topics/CliOld")
        assert sorted(row["body"] for row in shown["newest"]) == [f"m{number}" for number in range(6)]
        message = shown["newest"][0]
        pages = ("/", "/topics", "/topics/CliOld", "/groups", "/groups/CliOldReaders", "/dead-letters", "/doctor")
        for path in (*pages, "/brokers/broker-4", "/brokers/broker-5", f"/messages/{message['id']}?topic=CliOld"):
            page = visitor.get(path)
            assert page.status == 200, (path, page.words)
