"""`orbitmq topic`, `group`, `broker`, `cluster` on a running server, and the forms in which they answer."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import yaml

from orbitmq.admin.brokers import BrokerDetail, BrokerRow, SettingRow
from orbitmq.admin.clusters import ClusterRow
from orbitmq.admin.groups import ConnectionRow, GroupDetail, GroupRow
from orbitmq.admin.offsets import QueueLag, TopicLag
from orbitmq.admin.statistics import TrafficRow
from orbitmq.admin.topics import TopicDetail, TopicRow
from orbitmq.sync import connect
from tests.cli.kit import wait_until

if TYPE_CHECKING:
    from orbitmq.testing import Server
    from tests.cli.kit import Command


@pytest.fixture(scope="module")
def filled(orbitmq: Command) -> str:
    """A topic of two queues with ten messages, of which group `Readers` has read the first four of queue 0."""
    orbitmq.ok("topic", "create", "Filled", "-q", "2")
    orbitmq.ok("group", "create", "Readers", "--max-retries", "3")
    with connect(orbitmq.name_server) as client, client.producer(group="Writers") as producer:
        for number in range(10):
            producer.send(
                "Filled", f"m{number}".encode(), order_key="even" if number % 2 else "odd", keys=[f"k{number}"]
            )
    return "Filled"


def test_a_topic_is_made_changed_described_and_deleted(orbitmq: Command) -> None:
    assert "created topic Made on test" in orbitmq.ok("topic", "create", "Made", "-q", "3", "--type", "FIFO").out
    (row,) = orbitmq.ok("topic", "ls", "Ma*", "-o", "json").rows(TopicRow)
    assert (row.topic, row.read_queues, row.write_queues, row.message_type) == ("Made", 3, 3, "FIFO")

    orbitmq.ok("topic", "update", "Made", "--write-queues", "2", "--permission", "r")
    detail = orbitmq.ok("topic", "describe", "Made", "-o", "json").document(TopicDetail)
    (on_broker,) = detail.brokers
    assert (on_broker.read_queues, on_broker.write_queues, on_broker.permission) == (3, 2, "r")
    assert detail.attributes == {"message.type": "FIFO"}

    assert "there already" in orbitmq.ok("topic", "create", "Made", "--if-missing").out
    assert "update" in orbitmq.failure("topic", "create", "Made").err

    dry = orbitmq.ok("topic", "rm", "Made", "--dry-run")
    assert "0 messages in 3 queues" in dry.out
    assert orbitmq("topic", "rm", "Made", typed="n\n").code == 6
    assert orbitmq.ok("topic", "ls", "Made", "-o", "json").json != []
    orbitmq.ok("topic", "rm", "Made", typed="y\n")
    assert orbitmq.ok("topic", "ls", "Made", "-o", "json").json == []
    assert orbitmq.failure("topic", "describe", "Made").code == 4


def test_an_ordered_topic_is_noted_at_the_name_server(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Ordered", "-q", "2", "--ordered")
    assert orbitmq.ok("topic", "ls", "Ordered", "-o", "json").rows(TopicRow)[0].ordered
    orbitmq.ok("topic", "rm", "Ordered", "--yes")


def test_every_form_says_the_same(orbitmq: Command, filled: str) -> None:
    command = ("topic", "ls", filled, "--count", "--fields", "topic,messages,brokers")
    want = [{"topic": filled, "messages": 10, "brokers": ["test"]}]
    assert orbitmq.ok(*command, "-o", "json").json == want
    assert yaml.safe_load(orbitmq.ok(*command, "-o", "yaml").out) == want
    rows = list(csv.DictReader(io.StringIO(orbitmq.ok(*command, "-o", "csv").out)))
    assert rows == [{"topic": filled, "messages": "10", "brokers": '["test"]'}]
    table = orbitmq.ok(*command).out.splitlines()
    assert [line.split() for line in table] == [["TOPIC", "MESSAGES", "BROKERS"], [filled, "10", "test"]]


def test_rows_are_chosen_sorted_and_paged(orbitmq: Command, filled: str) -> None:
    everything = orbitmq.ok("topic", "ls", "-a", "-o", "json", "--sort", "topic").rows(TopicRow)
    assert {row.kind for row in everything} >= {"normal", "system"}
    second = orbitmq.ok("topic", "ls", "-a", "-o", "json", "--sort", "topic", "--skip", "1", "--limit", "1").json
    assert second[0]["topic"] == everything[1].topic
    big = orbitmq.ok("topic", "ls", "-a", "-o", "json", "--where", "read_queues>16", "--sort", "-read_queues").json
    assert [row["topic"] for row in big] == ["BenchmarkTest", "SCHEDULE_TOPIC_XXXX"]
    assert orbitmq.ok("topic", "ls", "-a", "-o", "json", "--where", "topic!=*", "--where", "brokers=test").json == []
    assert "read_queues" in orbitmq.failure("topic", "ls", "--sort", "size").err
    assert orbitmq.failure("topic", "ls", "--where", "topic").code == 2
    assert orbitmq.failure("topic", "ls", "--where", "read_queues>many").code == 2


def test_lag_is_in_messages_and_in_seconds(orbitmq: Command, filled: str, server: Server) -> None:
    orbitmq.ok("group", "reset", "Readers", "--topic", filled, "--to-offset", "1", "--yes")
    server.clock.advance(seconds=100)
    (row,) = orbitmq.ok("group", "lag", "Readers", "-o", "json").rows(TopicLag)
    assert (row.topic, row.queues, row.lag) == (filled, 2, 8)
    assert row.lag_seconds >= 100
    queues = orbitmq.ok("group", "lag", "Readers", "--queues", "-o", "json").rows(QueueLag)
    assert [(queue.committed, queue.max_offset, queue.lag) for queue in queues] == [(1, 5, 4), (1, 5, 4)]
    assert queues[0].last_consumed_at is not None
    assert orbitmq.failure("group", "lag", "Nobody").code == 4


@pytest.mark.parametrize(
    ("goal", "committed"),
    [
        (("--to-earliest",), [0, 0]),
        (("--to-latest",), [5, 5]),
        (("--to-offset", "3"), [3, 3]),
        (("--to-offset", "99"), [5, 5]),
        (("--to-time", "2001-01-01"), [0, 0]),
        (("--to-time", "1000000000000"), [0, 0]),
        (("--to-latest", "--queue", "test:1"), [2, 5]),
    ],
)
def test_an_offline_group_is_sent_anywhere(
    orbitmq: Command, filled: str, goal: tuple[str, ...], committed: list[int]
) -> None:
    orbitmq.ok("group", "reset", "Readers", "--topic", filled, "--to-offset", "2", "--yes")
    dry = orbitmq.ok("group", "reset", "Readers", "--topic", filled, *goal, "--dry-run")
    assert "COMMITTED" in dry.out
    found = orbitmq.ok("group", "lag", "Readers", "--queues", "-o", "json").rows(QueueLag)
    assert [queue.committed for queue in found] == [2, 2]
    orbitmq.ok("group", "reset", "Readers", "--topic", filled, *goal, typed="y\n")
    found = orbitmq.ok("group", "lag", "Readers", "--queues", "-o", "json").rows(QueueLag)
    assert [queue.committed for queue in found] == committed


def test_a_running_group_is_sent_back_and_seen(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Live", "-q", "1")
    seen: list[bytes] = []
    with connect(orbitmq.name_server) as client, client.producer(group="LiveWriters") as producer:
        for number in range(3):
            producer.send("Live", str(number).encode())
        with client.consumer(
            "Live", group="LiveReaders", start="earliest", handler=lambda message: seen.append(message.body)
        ):
            wait_until(lambda: len(seen) == 3)
            (member,) = orbitmq.ok("group", "connections", "LiveReaders", "-o", "json").rows(ConnectionRow)
            assert member.language == "PYTHON"
            writers = orbitmq.ok("group", "connections", "LiveWriters", "--producers", "-o", "json")
            assert writers.rows(ConnectionRow)[0].group == "LiveWriters"
            detail = orbitmq.ok("group", "describe", "LiveReaders", "-o", "json").document(GroupDetail)
            assert (detail.online, detail.model) == (True, "CLUSTERING")
            assert "Live" in [one.topic for one in detail.subscriptions]
            assert [row.members for row in orbitmq.ok("group", "ls", "Live*", "-o", "json").rows(GroupRow)] == [1]

            orbitmq.ok("group", "reset", "LiveReaders", "--topic", "Live", "--to-offset", "1", "--yes")
            producer.send("Live", b"3")  # ends the pull that waits, so that the next one comes at once
            wait_until(lambda: seen[-3:] == [b"1", b"2", b"3"])
    assert seen[:3] == [b"0", b"1", b"2"]
    assert orbitmq.failure("group", "connections", "LiveReaders").code == 4


def test_a_group_goes_on_where_another_is(orbitmq: Command, filled: str) -> None:
    orbitmq.ok("group", "reset", "Readers", "--topic", filled, "--to-offset", "4", "--yes")
    orbitmq.ok("group", "create", "Others")
    orbitmq.ok("group", "clone", "Readers", "Others", "--topic", filled, "--yes")
    found = orbitmq.ok("group", "lag", "Others", "--queues", "-o", "json").rows(QueueLag)
    assert [queue.committed for queue in found] == [4, 4]
    orbitmq.ok("group", "rm", "Others", "--yes")
    assert orbitmq.failure("group", "describe", "Others").code == 4


def test_brokers_and_clusters_are_shown(orbitmq: Command, server: Server, filled: str) -> None:
    (row,) = orbitmq.ok("broker", "ls", "-o", "json").rows(BrokerRow)
    assert (row.broker, row.role, row.address, row.version) == ("test", "master", server.broker_address, "V5_3_3")
    detail = orbitmq.ok("broker", "describe", "test", "-o", "json").document(BrokerDetail)
    assert detail.runtime["brokerVersionDesc"] == "V5_3_3"
    assert "brokerVersionDesc" in orbitmq.ok("broker", "describe", server.broker_address).out
    (cluster,) = orbitmq.ok("cluster", "-o", "json").rows(ClusterRow)
    assert (cluster.masters, cluster.slaves, cluster.unreachable) == (1, 0, 0)
    rows = orbitmq.ok("broker", "stats", "-t", filled, "-o", "json").rows(TrafficRow)
    assert rows[0].topic == filled


def test_a_setting_is_shown_and_changed(orbitmq: Command) -> None:
    (row,) = orbitmq.ok("broker", "config", "test", "fileReservedTime", "-o", "json").rows(SettingRow)
    assert row.value == "72"
    dry = orbitmq.ok("broker", "config", "test", "fileReservedTime=48", "--dry-run")
    assert dry.out.splitlines()[1].split() == ["test", "fileReservedTime", "72", "48"]
    orbitmq.ok("broker", "config", "test", "fileReservedTime=48", "--yes")
    assert "48" in orbitmq.ok("broker", "config", "test", "fileReservedTime").out
    assert "fileReservedTime?" in orbitmq.failure("broker", "config", "test", "fileReservedTim").err


def test_watching_goes_on_until_it_is_interrupted(orbitmq: Command) -> None:
    command = [sys.executable, "-m", "orbitmq", "cluster", "--watch", "0.1", "-o", "json", "-n", orbitmq.name_server]
    # Whoever runs the tests in the background of a shell has them ignore Ctrl-C, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert [line[0]["masters"] for line in lines] == [1, 1]
    assert (process.returncode, errors.strip()) == (130, "orbitmq: interrupted")


def test_times_are_iso_for_programs_and_local_for_people(orbitmq: Command, filled: str) -> None:
    queue = orbitmq.ok("topic", "describe", filled, "-o", "json").json["queues"][0]
    stored = datetime.fromisoformat(queue["last_stored_at"])
    assert stored.tzinfo == UTC
    assert f"{stored.astimezone():%Y-%m-%d %H:%M:%S}" in orbitmq.ok("topic", "describe", filled).out


@pytest.mark.parametrize("arguments", [("--help",), ("topic", "--help"), ("group", "reset", "--help")])
def test_help_loads_neither_client_nor_broker(arguments: tuple[str, ...]) -> None:
    script = (
        "import sys; from orbitmq.cli.entry import cli\n"
        "try: cli(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith(('orbitmq.client', 'orbitmq.broker', 'orbitmq.storage', "
        "'rich', 'yaml', 'asyncio'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True, env=os.environ
    )
    assert "Usage: orbitmq" in done.stdout or "Usage: " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
