"""`orbitmq msg`, `dlq`, `topic tail`, `bench`, `completion`: messages in, messages found, messages given up and sent again."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

import orbitmq as mq
from orbitmq.admin.dead_letters import DeadLetterRow
from orbitmq.admin.messages import MessageRow
from orbitmq.admin.sending import ReceiptRow
from orbitmq.admin.traces import MessageTrace, decode_events
from orbitmq.cli.measuring import BenchRow
from orbitmq.sync import connect
from tests.child import child
from tests.cli.kit import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.client.received import ReceivedMessage
    from tests.cli.kit import Command


def test_a_message_is_sent_and_found_in_every_way(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Sent", "-q", "1")
    sent = orbitmq.ok("msg", "send", "Sent", "hello", "--tag", "new", "--key", "a1", "-p", "color=red", "-o", "json")
    (receipt,) = sent.rows(ReceiptRow)
    assert (receipt.broker, receipt.queue, receipt.offset, receipt.status) == ("test", 0, 0, "SEND_OK")

    by_id = orbitmq.ok("msg", "get", receipt.id, "--topic", "Sent", "-o", "json").document(MessageRow)
    assert (by_id.body, by_id.tag, by_id.keys, by_id.properties["color"]) == ("hello", "new", ["a1"], "red")
    for way in (
        (receipt.id,),
        (receipt.offset_id,),
        ("--topic", "Sent", "--queue", "test:0", "--offset", "0"),
    ):
        assert orbitmq.ok("msg", "get", *way, "-o", "json").document(MessageRow) == by_id
    assert orbitmq.ok("msg", "get", receipt.id, "--raw").out == "hello"
    for search in (("--key", "a1"), ("--from", "1h"), ("--grep", "ell"), ("--filter", "new")):
        assert orbitmq.ok("msg", "find", "Sent", *search, "-o", "json").rows(MessageRow) == [by_id]
    for search in (("--key", "a2"), ("--to", "1h"), ("--grep", "elk"), ("--filter", "old")):
        assert orbitmq.ok("msg", "find", "Sent", *search, "-o", "json").json == []
    assert orbitmq.failure("msg", "get", "C0000202000000000000000000000000", "--topic", "Sent").code == 4
    assert orbitmq.failure("msg", "get", "--topic", "Sent", "--queue", "test:0", "--offset", "9").code == 4
    assert orbitmq.failure("msg", "get").code == 2


def test_messages_come_from_stdin_and_files(orbitmq: Command, tmp_path: Path) -> None:
    orbitmq.ok("topic", "create", "Lines", "-q", "4")
    orbitmq.ok("msg", "send", "Lines", "--tag", "line", "--order-key", "one", typed="first\nsecond\n\nthird\n")
    rows = orbitmq.ok("msg", "find", "Lines", "-o", "json").rows(MessageRow)
    assert [row.body for row in rows] == ["first", "second", "third"]
    assert len({row.queue for row in rows}) == 1

    file = tmp_path / "messages.jsonl"
    lines = [{"body": f"j{number}", "keys": [f"k{number}"], "properties": {"n": str(number)}} for number in range(150)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "sent 150 messages" in orbitmq.ok("msg", "send", "Lines", "--file", str(file), "--format", "json").out
    (found,) = orbitmq.ok("msg", "find", "Lines", "--key", "k149", "-o", "json").rows(MessageRow)
    assert (found.body, found.properties["n"]) == ("j149", "149")

    (tmp_path / "binary").write_bytes(bytes(range(256)))
    orbitmq.ok("msg", "send", "Lines", "--file", str(tmp_path / "binary"), "--format", "whole", "--key", "bin")
    (found,) = orbitmq.ok("msg", "find", "Lines", "--key", "bin", "-o", "json").rows(MessageRow)
    assert found.body_encoding == "base64"

    for wrong in ('{"body": "x", "body_encoding": "base64"}', '{"body": "x", "body_encoding": "latin-1"}', "no JSON"):
        file.write_text('{"body": "fine"}\n' + wrong + "\n")
        refused = orbitmq.failure("msg", "send", "Lines", "--file", str(file), "--format", "json")
        assert "line 2 is no message" in refused.err
    assert "there is no message on stdin" in orbitmq.failure("msg", "send", "Lines", typed="\n\n").err
    assert "no length of time" in orbitmq.failure("msg", "send", "Lines", "x", "--delay", "soon").err
    orbitmq.ok("msg", "send", "Lines", "typed \udcff", "--key", "bytes")
    (found,) = orbitmq.ok("msg", "find", "Lines", "--key", "bytes", "-o", "json").rows(MessageRow)
    assert base64.b64decode(found.body) == b"typed \xff"
    file.write_text('{"body": "fine"}\nno JSON\n')
    assert "line 2" in orbitmq.failure("msg", "send", "Lines", "--file", str(file), "--format", "json").err


def test_what_comes_through_a_pipe_is_sent_as_it_comes(orbitmq: Command) -> None:
    """As with `tail -f log | orbitmq msg send Logs`: nobody waits for the end."""
    orbitmq.ok("topic", "create", "Piped", "-q", "1")
    command = [sys.executable, "-m", "orbitmq", "msg", "send", "Piped", "--tag", "t", "-n", orbitmq.name_server]
    with child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(2):
            process.stdin.write(f"line {number}\n")
            process.stdin.flush()
            wait_until(partial(lambda want: want in orbitmq.ok("msg", "find", "Piped").out, f"line {number}"))
        out, _ = process.communicate("the last, without an end", timeout=60)
    assert process.returncode == 0
    assert len(out.splitlines()) == 4
    want = ["line 0", "line 1", "the last, without an end"]
    assert [row["body"] for row in orbitmq.ok("msg", "find", "Piped", "-o", "json").json] == want

    orbitmq.ok("topic", "create", "Copied", "-q", "1")
    shell = f"{sys.executable} -m orbitmq"
    copy = f"{shell} msg find Piped -o json | {shell} msg send Copied --format json"
    environment = {**os.environ, "NAMESRV_ADDR": orbitmq.name_server}
    subprocess.run(["bash", "-c", copy], env=environment, timeout=120, check=True, capture_output=True)
    rows = orbitmq.ok("msg", "find", "Copied", "-o", "json").json
    assert [(row["body"], row["tag"]) for row in rows] == [(body, "t") for body in want]


def test_a_search_gives_the_oldest_of_all_queues_and_says_when_there_are_more(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Searched", "-q", "3")
    for number in range(9):
        where = ("--queue", f"test:{number % 3}", "--tag", "odd" if number % 2 else "even", "-p", f"n={number}")
        orbitmq.ok("msg", "send", "Searched", f"m{number}", *where, "--key", "all")
    find = ("msg", "find", "Searched", "-o", "json")
    assert [row["body"] for row in orbitmq.ok(*find, "--max", "4").json] == ["m0", "m1", "m2", "m3"]
    chosen = orbitmq.ok(*find, "--where", "queue=1", "--sort", "-offset", "--limit", "2", "--fields", "body").json
    assert chosen == [{"body": "m7"}, {"body": "m4"}]
    assert [row["body"] for row in orbitmq.ok(*find, "--sql", "n > 6").json] == ["m7", "m8"]
    assert len(orbitmq.ok(*find, "--sort", "properties").json) == 9
    assert len(orbitmq.ok(*find, "--key", "all", "--filter", "odd").json) == 4
    assert orbitmq.failure(*find, "--sql", "n > 6", "--key", "all").code == 2
    assert "topic describe" in orbitmq.failure(*find, "--queue", "test:9").err
    assert "--max" not in orbitmq.ok(*find).err
    orbitmq.ok("msg", "send", "Searched", typed="again\n" * 100)
    assert "these are the first 100; --max finds more" in orbitmq.ok(*find).err


def test_a_table_of_messages_shows_where_bodies_begin_and_one_message_keeps_its_lines(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Long", "-q", "1")
    orbitmq.ok("msg", "send", "Long", '{\n  "order": 42\n}' + " " + "x" * 80, "--key", "long")
    table = orbitmq.ok("msg", "find", "Long")
    assert table.out.rstrip().endswith("...")
    assert orbitmq.ok("msg", "find", "Long", "--fields", "body").out.rstrip().endswith("x" * 80)
    message = orbitmq.ok("msg", "get", "--topic", "Long", "--queue", "test:0", "--offset", "0").out
    assert re.search(r'^body +\{\n +  "order": 42\n +\} x+$', message, re.MULTILINE)


def test_a_tail_shows_what_is_there_and_what_comes(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Tailed", "-q", "2")
    orbitmq.ok("msg", "send", "Tailed", "old", "--tag", "a", "--key", "k\x1b")
    shown = orbitmq.ok(
        "topic", "tail", "Tailed", "--from", "earliest", "--count", "1", "--template", "{tag}|{body}\\t!"
    )
    assert shown.out == "a|old\t!\n"
    assert "k." in orbitmq.ok("topic", "tail", "Tailed", "--from", "earliest", "--count", "1").out
    assert "fields are" in orbitmq.failure("topic", "tail", "Tailed", "--template", "{nothing}").err
    assert orbitmq.failure("topic", "tail", "Tailed", "--from", "soon").code == 2

    command = [sys.executable, "-m", "orbitmq", "topic", "tail", "Tailed", "--from", "earliest", "--sql", "n > 5"]
    command += ["-o", "json", "--count", "1", "-n", orbitmq.name_server]
    with child(command, stdout=subprocess.PIPE) as process:
        orbitmq.ok("msg", "send", "Tailed", "small", "-p", "n=3")
        orbitmq.ok("msg", "send", "Tailed", "large", "-p", "n=7")
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["body"] == "large"
    assert process.returncode == 0


def test_the_life_of_a_message_is_a_tree(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Traced", "-q", "1")
    outcomes: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        outcomes.append(message.attempt)

    with connect(orbitmq.name_server) as client:
        receipt = client.producer(group="TraceWriters").send("Traced", b"seen")
        with client.consumer("Traced", group="TraceReaders", start="earliest", handler=handle):
            wait_until(lambda: outcomes == [1])
    tree = orbitmq.ok("msg", "trace", receipt.message_id, "--topic", "Traced").out
    assert "queue 0, offset 0" in tree
    assert "group TraceReaders: read, offline" in tree
    assert "no traces" in tree
    found = orbitmq.ok("msg", "trace", receipt.message_id, "--topic", "Traced", "-o", "json").document(MessageTrace)
    assert [(group.group, group.state) for group in found.groups] == [("TraceReaders", "read")]
    (receipt_row,) = orbitmq.ok("msg", "send", "Traced", "unseen", "-o", "json").rows(ReceiptRow)
    assert "TraceReaders: not read yet" in orbitmq.ok("msg", "trace", receipt_row.id, "--topic", "Traced").out


@pytest.mark.parametrize("trace_topic", ["RMQ_SYS_TRACE_TOPIC", "TracesOfOurs"])
async def test_what_clients_tell_is_in_the_tree(orbitmq: Command, trace_topic: str) -> None:
    async with (
        mq.connect(orbitmq.name_server) as client,
        mq.Tracer(client, topic=trace_topic) as tracer,
        client.producer(group="Telling", hooks=[tracer]) as producer,
    ):
        receipt = await producer.send("Told", b"x", keys=["told"])
    command = [sys.executable, "-m", "orbitmq", "msg", "trace", receipt.message_id, "-n", orbitmq.name_server]
    if trace_topic != "RMQ_SYS_TRACE_TOPIC":
        command += ["--trace-topic", trace_topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "sent by Telling from 127.0.0.1:" in done.stdout
    assert "no group reads this topic" in done.stdout


def test_traces_of_every_release_are_read() -> None:
    records = [
        "Pub\x011000\x01R\x01P\x01T\x01ID\x01tag\x01k\x01host\x0110\x015\x010\x01true",
        "Pub\x011000\x01R\x01P\x01T\x01OTHER\x01tag\x01k\x01host\x0110\x015\x010\x01OFFSET\x01true",
        "SubBefore\x013000\x01R\x01G\x01REQ\x01ID\x011\x01k",
        "SubAfter\x01REQ\x01ID\x017\x01false\x01k\x014",
        "SubBefore\x012000\x01R\x01G\x01LOST\x01ID\x010\x01k",
        "EndTransaction\x014000\x01R\x01P\x01T\x01ID\x01tag\x01k\x01host\x012\x01TX\x01COMMIT_MESSAGE\x01false",
        "Recall\x015000\x01R\x01P\x01T\x01ID\x01true",
        "Unheard\x01of",
        "Pub\x01soon\x01R\x01P\x01T\x01ID\x01tag\x01k\x01host\x0110\x015\x010\x01true",
        "SubBefore\x016000\x01R\x01G\x01ODD\x01ID\x01often\x01k",
        "SubAfter\x01LOST\x01ID\x01long\x01true\x01k\x010",
    ]
    events = decode_events([("client", record) for record in records], "ID")
    assert [(event.kind, event.attempt, event.cost_ms, event.outcome) for event in events] == [
        ("sent", None, 5, "success"),
        ("consumed", 1, None, "unknown"),
        ("consumed", 2, 7, "failed"),
        ("transaction", None, None, "commit_message"),
        ("recalled", None, None, "success"),
    ]


def test_dead_letters_are_listed_exported_and_sent_again(orbitmq: Command, tmp_path: Path) -> None:
    orbitmq.ok("topic", "create", "Feared", "-q", "1")
    seen: list[tuple[str, bytes]] = []

    def refuse(message: ReceivedMessage) -> None:
        seen.append((message.topic, message.body))
        if len(seen) == 1:
            raise mq.RetryLater(delay_level=-1)

    with connect(orbitmq.name_server) as client:
        client.producer(group="FearWriters").send("Feared", b"boo", keys=["b1"], tag="t", properties={"own": "1"})
        with client.consumer("Feared", group="Fearful", start="earliest", handler=refuse):
            wait_until(lambda: len(seen) == 1)
            wait_until(lambda: orbitmq.ok("dlq", "ls", "-o", "json", "--where", "group=Fearful").json != [])
            (row,) = orbitmq.ok("dlq", "ls", "-o", "json", "--where", "group=Fearful").rows(DeadLetterRow)
            assert row.messages == 1
            (letter,) = orbitmq.ok("dlq", "ls", "Fearful", "-o", "json").rows(MessageRow)
            assert (letter.body, letter.keys, letter.tag) == ("boo", ["b1"], "t")
            assert orbitmq.ok("dlq", "ls", "Fearful", "--key", "other", "-o", "json").json == []
            assert orbitmq.ok("dlq", "ls", "Fearful", "--where", "body=x*", "-o", "json").json == []
            assert orbitmq.ok("dlq", "ls", "Fearful", "--fields", "tag", "-o", "json").json == [{"tag": "t"}]
            assert "of a GROUP" in orbitmq.failure("dlq", "ls", "--key", "b1").err

            assert "to group Fearful alone" in orbitmq.ok("dlq", "resend", "Fearful", "--dry-run").out
            orbitmq.ok("dlq", "resend", "Fearful", "--id", letter.id, "--yes")
            wait_until(lambda: len(seen) == 2)
            assert seen[1] == ("Feared", b"boo")

    file = tmp_path / "letters.jsonl"
    orbitmq.ok("dlq", "export", "Fearful", "--to-file", str(file))
    orbitmq.ok("topic", "create", "Second", "-q", "1")
    orbitmq.ok("msg", "send", "Second", "--file", str(file), "--format", "json")
    (copy,) = orbitmq.ok("msg", "find", "Second", "-o", "json").rows(MessageRow)
    assert (copy.body, copy.tag, copy.keys, copy.properties["own"]) == ("boo", "t", ["b1"], "1")

    orbitmq.ok("dlq", "resend", "Fearful", "--to-all", typed="y\n")
    assert len(orbitmq.ok("msg", "find", "Feared", "-o", "json").json) == 2
    assert "has no dead letters" in orbitmq.failure("dlq", "ls", "Nobody").err


def test_a_bench_counts_and_times(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Bench", "-q", "2")
    sent, read = orbitmq.ok(
        "bench", "--topic", "Bench", "--messages", "200", "--size", "10", "--read", "-o", "json"
    ).rows(BenchRow)
    assert (sent.what, sent.messages, read.what, read.messages) == ("send", 200, "read", 200)
    assert sent.p99_ms >= sent.median_ms > 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_given_what_they_need_to_complete(orbitmq: Command, shell: str) -> None:
    assert "_ORBITMQ_COMPLETE" in orbitmq.ok("completion", shell).out


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("orbitmq topic de", ["plain,describe"]),
        ("orbitmq topic describe Compl", ["plain,Completed"]),
        ("orbitmq group lag Comp", ["plain,CompletedGroup"]),
        ("orbitmq group lag CompletedGroup --topic Compl", ["plain,Completed"]),
        ("orbitmq group lag -n 127.0.0.1:1 Comp", []),
    ],
)
def test_commands_and_names_complete(orbitmq: Command, words: str, completed: list[str]) -> None:
    orbitmq.ok("topic", "create", "Completed", "--if-missing")
    orbitmq.ok("group", "create", "CompletedGroup", "--if-missing")
    environment = {
        "_ORBITMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "NAMESRV_ADDR": orbitmq.name_server,
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from orbitmq.cli.entry import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == completed


def test_whoever_looks_sees_progress(orbitmq: Command, tmp_path: Path) -> None:
    """A bar, where stderr is a terminal; stdout stays clean."""
    orbitmq.ok("topic", "create", "Progress", "-q", "1")
    (tmp_path / "lines").write_text("line\n" * 200)
    master, slave = os.openpty()
    command = [sys.executable, "-m", "orbitmq", "msg", "send", "Progress", "--file", str(tmp_path / "lines")]
    environment = {**os.environ, "TERM": "xterm", "NAMESRV_ADDR": orbitmq.name_server}
    with child(command, stdout=subprocess.PIPE, stderr=slave, env=environment) as process:
        os.close(slave)
        out, _ = process.communicate(timeout=60)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal without a program ends
        while more := os.read(master, 65536):
            seen += more
    os.close(master)
    assert out == "sent 200 messages to Progress\n"
    assert b"sending" in seen
