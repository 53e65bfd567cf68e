"""`orbitmq topic`, `group`, `broker`, `cluster` on a running server, and the forms in which they answer."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import yaml

from orbitmq.admin.brokers import BrokerDetail, BrokerRow, SettingRow
from orbitmq.admin.clusters import ClusterRow
from orbitmq.admin.groups import ConnectionRow, GroupDetail, GroupRow
from orbitmq.admin.offsets import QueueLag, TopicLag
from orbitmq.admin.session import open_session
from orbitmq.admin.statistics import TrafficRow
from orbitmq.admin.topics import TopicDetail, TopicRow
from orbitmq.cli.view import View, show_rows, table_text
from orbitmq.sync import connect
from orbitmq.testing import Server
from orbitmq.transport.address import Address
from tests.child import child
from tests.cli.kit import Command, wait_until

if TYPE_CHECKING:
    from pathlib import Path


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


def test_what_would_be_deleted_of_one_cluster_is_not_told_of_all(tmp_path: Path) -> None:
    with Server() as server:
        orbitmq = Command(server.address)
        settings = {"brokerClusterName": "Other", "brokerName": "elsewhere", "namesrvAddr": server.address}
        broker = [sys.executable, "-m", "orbitmq.testing.broker_process", str(tmp_path), json.dumps(settings), "0"]
        with child(broker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert "address" in process.stdout.readline()
            wait_until(lambda: len(orbitmq.ok("cluster", "-o", "json").rows(ClusterRow)) == 2)
            orbitmq.ok("topic", "create", "Both", "-q", "2", "-c", "DefaultCluster")
            orbitmq.ok("topic", "create", "Both", "-q", "5", "-c", "Other")
            wait_until(lambda: "7 queues" in orbitmq.ok("topic", "rm", "Both", "--dry-run").out)
            assert "5 queues on elsewhere" in orbitmq.ok("topic", "rm", "Both", "-c", "Other", "--dry-run").out


def test_an_ordered_topic_is_noted_at_the_name_server(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Ordered", "-q", "2", "--ordered")
    assert orbitmq.ok("topic", "ls", "Ordered", "-o", "json").rows(TopicRow)[0].ordered
    noted = ("mqadmin", "updateOrderConf", "-m", "get", "-t", "Ordered")
    assert "orderConf=[test:2]" in orbitmq.ok(*noted).out
    orbitmq.ok("topic", "update", "Ordered", "-q", "3")
    assert "orderConf=[test:3]" in orbitmq.ok(*noted).out
    orbitmq.ok("topic", "update", "Ordered", "--unordered")
    assert "no order conf" in orbitmq.failure(*noted).err
    assert not orbitmq.ok("topic", "ls", "Ordered", "-o", "json").rows(TopicRow)[0].ordered
    assert "nothing to change" in orbitmq.failure("topic", "update", "Ordered").err
    orbitmq.ok("topic", "rm", "Ordered", "--yes")


def test_every_ordered_topic_is_noted_and_ordered_at_once(orbitmq: Command) -> None:
    for topic in ("OrderedFirst", "OrderedNext"):
        orbitmq.ok("topic", "create", topic, "-q", "2", "--ordered")
        assert "orderConf=[test:2]" in orbitmq.ok("mqadmin", "updateOrderConf", "-m", "get", "-t", topic).out
        assert orbitmq.ok("topic", "ls", topic, "-o", "json").rows(TopicRow)[0].ordered


def test_a_group_is_made_once_and_changed_without_losing_the_rest(orbitmq: Command) -> None:
    assert "created group Made on test" in orbitmq.ok("group", "create", "Made", "--max-retries", "3").out
    again = orbitmq.failure("group", "create", "Made", "--max-retries", "5")
    assert (again.code, "group update" in again.err) == (1, True)
    assert "is there already" in orbitmq.ok("group", "create", "Made", "--if-missing").out
    orbitmq.ok("group", "update", "Made", "--disabled")
    (row,) = orbitmq.ok("group", "ls", "Made", "-o", "json").rows(GroupRow)
    assert (row.max_retries, row.enabled) == (3, False)
    assert "`orbitmq group update Made --enabled`" in orbitmq("doctor", "-g", "Made").out
    assert "nothing to change" in orbitmq.failure("group", "update", "Made").err
    assert orbitmq.failure("group", "update", "Nobody", "--enabled").code == 4
    orbitmq.ok("group", "rm", "Made", "--yes")


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
    assert "neither number nor time" in orbitmq.failure("topic", "ls", "--where", "topic>5").err
    assert "is no time" in orbitmq.failure("dlq", "ls", "--where", "last_stored_at>soon").err
    assert len(orbitmq.ok("topic", "ls", "-a", "-o", "json", "--sort", "brokers").json) == len(everything)


def test_rows_are_chosen_by_what_tables_show_and_by_times(orbitmq: Command, filled: str) -> None:
    where = ("group", "ls", "Readers", "-o", "json", "--where")
    assert len(orbitmq.ok(*where, "enabled=yes").json) == len(orbitmq.ok(*where, "enabled=true").json) == 1
    assert orbitmq.ok(*where, "enabled=no").json == []
    for moment, count in (("1h", 10), ("2099-01-01", 0)):
        assert len(orbitmq.ok("msg", "find", filled, "-o", "json", "--where", f"stored_at>{moment}").json) == count


def test_what_costs_a_question_each_is_asked_only_where_it_is_wanted(orbitmq: Command, filled: str) -> None:
    (row,) = orbitmq.ok("topic", "ls", filled, "-o", "json").rows(TopicRow)
    assert row.messages is None
    assert orbitmq.ok("topic", "ls", filled, "-o", "json", "--where", "messages>9").rows(TopicRow)[0].messages == 10
    (quick,) = orbitmq.ok("group", "ls", "Readers", "--quick", "-o", "json").rows(GroupRow)
    assert (quick.members, quick.lag, quick.tps) == (None, None, None)
    (full,) = orbitmq.ok("group", "ls", "Readers", "-o", "json").rows(GroupRow)
    assert full.members == 0


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
    assert dry.out.splitlines()[1].split() == ["test", row.address, "fileReservedTime", "72", "48"]
    orbitmq.ok("broker", "config", "test", "fileReservedTime=48", "--yes")
    assert "48" in orbitmq.ok("broker", "config", "test", "fileReservedTime").out
    assert "fileReservedTime?" in orbitmq.failure("broker", "config", "test", "fileReservedTim").err
    keys = {row.key for row in orbitmq.ok("broker", "config", "test", "*Reserved*", "-o", "json").rows(SettingRow)}
    assert "fileReservedTime" in keys
    assert all("Reserved" in key for key in keys)


def test_watching_goes_on_until_it_is_interrupted(orbitmq: Command) -> None:
    command = [sys.executable, "-m", "orbitmq", "cluster", "--watch", "0.1", "-o", "json", "-n", orbitmq.name_server]
    # Whoever runs the tests in the background of a shell has them ignore Ctrl-C, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        try:
            process = stack.enter_context(child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        finally:
            signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert [line[0]["masters"] for line in lines] == [1, 1]
    assert (process.returncode, errors.strip()) == (130, "orbitmq: interrupted")


def test_watching_outlives_a_server_that_stands_still() -> None:
    with Server() as server:
        orbitmq = Command(server.address)
        command = [sys.executable, "-m", "orbitmq", "topic", "ls", "--watch", "0.1", "--timeout", "0.5", "-o", "json"]
        command += ["-n", server.address]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            server.pause()
            assert "looking again every 0.1 s" in process.stderr.readline()
            server.resume()
            orbitmq.ok("topic", "create", "Afterwards", "--timeout", "30")
            assert any("Afterwards" in line for line in process.stdout)
            process.kill()


async def test_a_broker_that_was_missing_is_tried_again_at_the_next_look(
    orbitmq: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fetch() -> list[TopicRow]:
        return []

    async with open_session(orbitmq.name_server) as session:
        session.silent[Address("10.0.0.1", 10911)] = "nobody home"
        await show_rows(session, View(), TopicRow, fetch)
        assert session.silent == {}
    assert "what broker 10.0.0.1:10911 has is missing here: nobody home" in capsys.readouterr().err


def test_columns_stay_straight_under_chinese_names() -> None:
    lines = table_text(("KEY", "N"), [("\u8ba2\u5355", 1), ("order", 22), ("e\u0301", 3)]).splitlines()
    assert lines[1:] == ["\u8ba2\u5355    1", "order  22", "e\u0301       3"]


def test_times_are_iso_for_programs_and_local_for_people(orbitmq: Command, filled: str) -> None:
    queue = orbitmq.ok("topic", "describe", filled, "-o", "json").json["queues"][0]
    stored = datetime.fromisoformat(queue["last_stored_at"])
    assert stored.tzinfo == UTC
    page = orbitmq.ok("topic", "describe", filled).out
    assert f"{stored.astimezone():%Y-%m-%d %H:%M:%S}" in page
    assert "BROKER  QUEUE  MIN OFFSET" in page  # no column that says the topic's name again


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
