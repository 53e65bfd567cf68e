"""`orbitmq spark replay | sql | dlq | trace | stats` on a real server, in the session that tests share; as programs: tests/cli/story.py."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

import orbitmq as mq
from orbitmq.cli.entry import cli
from orbitmq.client.trace import Tracer
from orbitmq.spark import replay as replaying
from orbitmq.spark.jobs import run_tasks
from orbitmq.spark.lake import Lake
from orbitmq.spark.property_texts import DEDUP_ID
from orbitmq.sync import connect
from orbitmq.testing import Server
from tests.child import child
from tests.cli import schemas
from tests.cli.kit import wait_until
from tests.client.scripted import eventually
from tests.spark.marks import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = SPARK


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with Server(data=data) as running:
        yield running


@pytest.fixture
def run(spark: SparkSession, server: Server) -> Any:
    """A command, in the shared session; what it printed."""

    def invoke(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, ["spark", *arguments, "-n", server.address])
        assert done.exit_code == code, done.output
        return done.stdout if code == 0 else done.output

    return invoke


def send(server: Server, topic: str, count: int, **options: Any) -> None:
    with connect(server.address) as client, client.producer(group="commands") as producer:
        for number in range(count):
            producer.send(topic, f"body {number}".encode(), tag=f"t{number % 3}", keys=[f"k{number}"], **options)


def received(server: Server, topic: str, count: int) -> list[Any]:
    """The first `count` messages of a topic."""
    found: list[Any] = []
    deadline = time.monotonic() + 60
    with connect(server.address) as client, client.pull_consumer(group="commands-check") as consumer:
        while len(found) < count and time.monotonic() < deadline:
            found = []
            for queue in consumer.queues(topic):
                at = 0
                while batch := consumer.fetch(queue, offset=at, max=256, wait=0).messages:
                    found += batch
                    at = batch[-1].queue_offset + 1
    return found


def test_sql_over_a_topic_in_every_form(run: Any, server: Server, tmp_path: Path) -> None:
    send(server, "Asked-1", 9)
    query = "SELECT tags, count(*) AS messages FROM `Asked-1` GROUP BY tags ORDER BY tags"
    assert run("sql", query, "-t", "Asked-1").split() == ["TAGS", "MESSAGES", "t0", "3", "t1", "3", "t2", "3"]
    rows = list(csv.DictReader(io.StringIO(run("sql", query, "-t", "Asked-1", "-o", "csv"))))
    assert rows[0] == {"tags": "t0", "messages": "3"}
    first = json.loads(
        run("sql", "SELECT body, properties FROM `Asked-1` ORDER BY keys LIMIT 1", "-t", "Asked-1", "-o", "json")
    )
    assert first[0]["body"] == "body 0"
    moments = "SELECT max(storeTimestamp) AS at, count(*) AS messages FROM `Asked-1`"
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        (row,) = read(run("sql", moments, "-t", "Asked-1", "-o", form))
        assert (row["messages"], datetime.fromisoformat(row["at"]).tzinfo) == (9, UTC)
        schemas.check("spark sql", [row])
    assert first[0]["properties"]["KEYS"] == "k0"
    run("sql", query, "-t", "Asked-1", "--to", str(tmp_path / "out"), "--as", "json")
    written = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert sorted(json.loads(line)["messages"] for line in written.splitlines()) == [3, 3, 3]
    wrong = run("sql", "SELECT boddy FROM `Asked-1`", "-t", "Asked-1", code=1)
    assert len(wrong.strip().splitlines()) == 1
    assert "boddy" in wrong
    missing = run("sql", "SELECT 1 FROM NoSuch", "-t", "NoSuch", code=4)
    assert "'NoSuch' does not exist" in missing
    assert len(missing.strip().splitlines()) == 1


def test_an_archive_is_replayed_at_a_rate_with_its_keys_and_where_it_came_from(
    run: Any, server: Server, tmp_path: Path
) -> None:
    send(server, "Played", 30, properties={"region": "eu"})
    run("archive", "Played", "--to", str(tmp_path / "lake"))
    printed = run("replay", "--lake", str(tmp_path / "lake"), "--to", "Played2", "--tags", "t1", "--rate", "1000")
    assert "sent 10 messages" in printed
    copies = received(server, "Played2", 10)
    originals = {message.message_id: message for message in received(server, "Played", 30)}
    assert len(copies) == 10
    for copy in copies:
        original = originals[copy.properties["REPLAY_MSG_ID"]]
        assert (copy.body, copy.tag, copy.keys) == (original.body, "t1", original.keys)
        assert copy.properties["region"] == "eu"
        assert copy.properties["REPLAY_STORED_MS"] == str(original.stored.stored_at_ms)
        assert copy.message_id != original.message_id
    printed = run("replay", "-t", "Played2", "--to", "Played3", "--keys", "id", "--no-origin", "--from", "1h")
    assert "sent 10 messages" in printed
    assert {message.keys[0] for message in received(server, "Played3", 10)} == {copy.message_id for copy in copies}
    assert "sent 0 messages" in run("replay", "-t", "Played2", "--to", "Played3", "--until", "1h")
    assert "sent 0 messages" in run("replay", "-t", "Played2", "--to", "Played3", "--tags", "none")
    assert "sent 10 messages" in run("replay", "-t", "Played2", "--to", "Played4", "--tags", "*")
    assert "give --to" in run("replay", "-t", "Played", code=2)


def test_a_replay_keeps_times_when_told_to(run: Any, server: Server, tmp_path: Path) -> None:
    send(server, "Aged", 20)
    run("archive", "Aged", "--to", str(tmp_path / "lake"))
    originals = {message.message_id: message for message in received(server, "Aged", 20)}
    began = time.time() * 1000
    for source in (("--lake", str(tmp_path / "lake")), ("-t", "Aged")):
        run("replay", *source, "--to", f"Aged-{source[0][-1]}", "--times", "keep")
        copies = received(server, f"Aged-{source[0][-1]}", 20)
        assert len(copies) == 20
        for copy in copies:
            original = originals[copy.properties["REPLAY_MSG_ID"]]
            assert copy.stored.born_at_ms == original.stored.born_at_ms < began <= copy.stored.stored_at_ms
    run("replay", "-t", "Aged", "--to", "Aged-new")
    assert all(copy.stored.born_at_ms >= began for copy in received(server, "Aged-new", 20))


def test_a_replay_sends_nothing_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent, at = 0.0, 0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(replaying, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    batch = pa.RecordBatch.from_arrays([pa.array(range(1000))], names=["number"])
    for piece in replaying._paced(iter([batch, batch]), 100.0):
        assert sent <= 100.0 * now + 1e-6
        sent += piece.num_rows
        at.append(now)
    assert (sent, round(now)) == (2000, 20)
    assert max(later - before for before, later in itertools.pairwise(at)) < 1, "no long pauses and bursts"
    assert [piece.num_rows for piece in replaying._paced(iter([batch]), None)] == [1000]


def test_a_replay_that_was_interrupted_goes_on_and_repeats_carry_the_same_ids(
    run: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(server, "Cut", 24)
    run("archive", "Cut", "--to", str(tmp_path / "lake"), "--batch", "4")
    command = ("replay", "--lake", str(tmp_path / "lake"), "--to", "Cut2", "--state", str(tmp_path / "state"))
    rounds = 0

    def dies_in_the_second_round(*arguments: Any) -> Any:
        nonlocal rounds
        rounds += 1
        results = run_tasks(*arguments)
        if rounds == 2:
            raise mq.OrbitError("the power went")
        return results

    with monkeypatch.context() as patched:
        patched.setattr(replaying, "run_tasks", dies_in_the_second_round)
        assert "the power went" in run(*command, code=1)
    assert "sent 24 messages" in run(*command)
    messages = received(server, "Cut2", 32)
    by_id: dict[str, set[bytes]] = {}
    for message in messages:
        by_id.setdefault(message.properties[DEDUP_ID], set()).add(message.body)
    assert len(messages) > 24
    assert sorted(next(iter(bodies)) for bodies in by_id.values()) == sorted(
        f"body {number}".encode() for number in range(24)
    )
    assert all(len(bodies) == 1 for bodies in by_id.values())
    other = run("replay", "--lake", str(tmp_path / "lake"), "--to", "Else", "--state", str(tmp_path / "state"), code=1)
    assert "belongs to another replay" in other


def test_a_replay_of_files_that_a_compaction_took_away_says_so(run: Any, server: Server, tmp_path: Path) -> None:
    send(server, "Compacted", 8)
    lake, state = str(tmp_path / "lake"), str(tmp_path / "state")
    run("archive", "Compacted", "--to", lake, "--batch", "4")
    units = [replaying.Unit(path=path) for path in sorted(Lake(lake).state().files)]
    said = f"lake {lake} () () None None to Compacted2"  # as a replay that was planned and did not get far leaves it
    Lake(state).write("replay.json", replaying.ReplayState(job="job", source=said, units=units))
    CliRunner().invoke(cli, ["spark", "compact", lake])
    told = run("replay", "--lake", lake, "--to", "Compacted2", "--state", state, code=1)
    assert "was compacted since this replay was planned" in told
    assert "another --state" in told


async def test_dead_letters_are_counted_and_sent_again_by_a_rule(run: Any, server: Server) -> None:
    async with mq.connect(server.address) as client:
        async with client.producer(group="commands") as producer:
            for number in range(6):
                await producer.send("Failing", f"body {number}".encode(), tag="bad" if number % 2 else "worse")

        given_up = 0
        async with client.consumer("Failing", group="unlucky", start="earliest") as consumer:
            async for message in consumer:
                async with message.process():
                    given_up += 1
                    raise mq.RetryLater("no use", delay_level=-1)
                if given_up == 6:
                    break
    assert len(received(server, "%DLQ%unlucky", 6)) == 6
    listed = json.loads(run("dlq", "unlucky", "-o", "json"))
    schemas.check("spark dlq", listed)
    assert [(row["origin_topic"], row["tag"], row["messages"]) for row in listed] == [
        ("Failing", "bad", 3),
        ("Failing", "worse", 3),
    ]
    rule = ("--where", "tags = 'bad' AND cast(body AS STRING) != 'body 1'")
    assert (
        "dry run"
        in CliRunner()
        .invoke(cli, ["spark", "dlq", "unlucky", *rule, "--resend", "--dry-run", "-n", server.address])
        .output
    )
    assert "sent 2 messages to group unlucky alone" in run("dlq", "unlucky", *rule, "--resend", "--yes")
    to_group = received(server, "%RETRY%unlucky", 2)
    assert sorted((message.body, message.properties["RETRY_TOPIC"]) for message in to_group) == [
        (b"body 3", "Failing"),
        (b"body 5", "Failing"),
    ]
    assert len(received(server, "Failing", 6)) == 6, "other groups do not get them again"
    (resent,) = json.loads(run("dlq", "unlucky", *rule, "--resend", "--to-all", "--yes", "-o", "json"))
    assert resent["messages"] == 2
    again = received(server, "Failing", 8)
    assert sorted(message.body for message in again)[-1] == b"body 5"
    assert len(again) == 8
    assert "for every group" in run("dlq", "unlucky", "--where", "tags = 'bad'", "--resend", "--to-all", "--yes")
    assert "group 'lucky' has no dead letters" in run("dlq", "lucky", code=4)
    assert "--to-all goes with --resend" in run("dlq", "unlucky", "--to-all", code=2)
    ids = Counter(message.properties.get(DEDUP_ID) for message in received(server, "Failing", 11))
    del ids[None]  # as they were sent at first
    assert sorted(ids.values()) == [1, 2, 2], "a letter has its own id, whatever it was chosen with"


async def test_latencies_come_out_of_the_trace_topic(run: Any, server: Server, tmp_path: Path) -> None:
    async with mq.connect(server.address) as client, Tracer(client) as tracer:
        async with client.producer(group="traced", hooks=[tracer]) as producer:
            for number in range(5):
                await producer.send("Traced", b"x", keys=[str(number)])

        async def handler(_: mq.ReceivedMessage) -> None:
            return

        async with client.consumer(
            "Traced", group="watching", start="earliest", handler=handler, hooks=[tracer]
        ) as consumer:
            await eventually(lambda: consumer.stats.acked == 5, seconds=60)
    pictures = ("--html", str(tmp_path / "trace.html"), "--png", str(tmp_path / "trace.png"))
    rows = json.loads(run("trace", "-o", "json", *pictures))
    schemas.check("spark trace", rows)
    found = {(row["stage"], row["topic"], row["group"]): row["messages"] for row in rows}
    assert found[("produce", "Traced", "traced")] == 5
    assert found[("deliver", "Traced", "watching")] == 5
    assert found[("consume", "Traced", "watching")] == 5
    assert all(0 <= row["p50_ms"] <= row["p99_ms"] <= row["max_ms"] for row in rows)
    assert "<svg" in (tmp_path / "trace.html").read_text()
    assert (tmp_path / "trace.png").read_bytes().startswith(b"\x89PNG")


def test_stats_of_a_topic_and_of_its_store_agree(run: Any, server: Server, data: Path, tmp_path: Path) -> None:
    send(server, "Counted", 12)
    with connect(server.address) as client, client.producer(group="commands") as producer:
        producer.send("Counted", b"y" * 5000, tag="large")
    by_topic = json.loads(run("stats", "-t", "Counted", "-o", "json", "--html", str(tmp_path / "s.html")))
    schemas.check("spark stats", by_topic)
    assert "largest:" in run("stats", "-t", "Counted")
    assert (by_topic["topics"][0]["topic"], by_topic["topics"][0]["messages"]) == ("Counted", 13)
    assert (by_topic["largest"][0]["bytes"], by_topic["tags"][0]["messages"]) == (5000, 4)
    assert sum(row["messages"] for row in by_topic["hours"]) == 13
    assert by_topic["queues"][0]["skew"] >= 1
    assert "Counted" in (tmp_path / "s.html").read_text()
    store = next(path.parent for path in data.rglob("commitlog"))
    by_store = json.loads(run("stats", "--store", str(store), "--top", "200", "-o", "json"))
    assert [row for row in by_store["tags"] if row["topic"] == "Counted"] == by_topic["tags"]
    assert "nothing to read" in run("stats", code=1)


@pytest.mark.timeout(900)
def test_an_interrupted_query_ends_without_a_word_of_sparks(tmp_path: Path) -> None:
    """Ctrl-C goes to all processes of the terminal: to the JVM and its workers, too."""
    endless = "SELECT id FROM range(1000000000000000) WHERE sha2(cast(id AS STRING), 256) = ''"
    command = [sys.executable, "-m", "orbitmq", "spark", "sql", endless, "--to", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child([*command, "--master", "local[1]"], **pipes, start_new_session=True) as running:
        begun = tmp_path / "out" / "_temporary"
        wait_until(lambda: begun.exists() or running.poll() is not None, seconds=400)
        os.killpg(running.pid, signal.SIGINT)
        printed, told = running.communicate(timeout=400)  # of the JVM as well: until it has ended
    assert (running.returncode, printed, told.strip()) == (130, "", "orbitmq: interrupted")
