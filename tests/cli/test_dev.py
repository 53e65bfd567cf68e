"""`orbitmq dev` as a user starts it: ready by its own word, whole, and gone without a trace."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orbitmq as mq
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.transport.address import parse_address
from orbitmq.transport.pool import Pool
from tests.cli.kit import Command as CommandLine

if TYPE_CHECKING:
    from collections.abc import Iterator

import pytest

_DEV = [sys.executable, "-m", "orbitmq", "dev", "--port", "0", "--broker-port", "0"]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts `orbitmq dev` with more arguments, in the test's own folder."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*_DEV, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def _route(name_server: str, topic: str) -> Command:
    async def ask() -> Command:
        pool = Pool()
        try:
            query = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic=topic))
            return await pool.call(parse_address(name_server), query, 20)
        finally:
            await pool.close()

    return asyncio.run(ask())


def test_it_says_when_it_is_ready_and_has_the_topics_of_the_file(started: Any, tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text(
        '[topics.Orders]\nqueues = 3\nattributes = { "message.type" = "FIFO" }\n[topics.Logs]\n'
    )
    process = started("--ephemeral", "--json-ready", "--topics", "topics.toml")
    ready = json.loads(process.stdout.readline())

    for topic, queues in (("Orders", 3), ("Logs", 4)):
        answer = _route(ready["nameServer"], topic)
        (data,) = TopicRoute.from_json(answer.body).queue_datas
        assert (data.write_queue_nums, data.read_queue_nums) == (queues, queues)
    assert Path(ready["data"]).is_dir()

    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 0
    assert not Path(ready["data"]).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["topics.toml"]


def test_what_it_keeps_is_in_its_folder_and_there_again(started: Any, tmp_path: Path) -> None:
    for _ in range(2):
        process = started("--data", "kept", "--json-ready")
        assert json.loads(process.stdout.readline())["data"] == str(tmp_path / "kept")
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_welcome_names_the_addresses(started: Any) -> None:
    process = started("--ephemeral")
    lines = [process.stdout.readline() for _ in range(10)]
    assert any("name server   127.0.0.1:" in line for line in lines)
    assert any("orbitmq.connect" in line for line in lines)
    assert any("advertised    127.0.0.1: it is the only address" in line for line in lines)


def test_on_every_address_clients_are_told_one_that_they_can_reach(started: Any) -> None:
    """As in a container with published ports; and settings of the broker can be given."""
    given = ("--host", "0.0.0.0", "--advertise", "127.0.0.1", "--set", "autoCreateTopicEnable=false")
    process = started("--ephemeral", *given, "--set", "fileReservedTim=1")
    welcome = "".join(process.stdout.readline() for _ in range(14))
    (name_server,) = set(re.findall(r"127\.0\.0\.1:\d+(?=\")", welcome))
    assert f"name server   {name_server}" in welcome
    assert "advertised    127.0.0.1: brokerIP1 says so" in welcome
    assert "open          to anyone who reaches this machine" in welcome
    assert "fileReservedTime?" in process.stderr.readline()
    orbitmq = CommandLine(name_server)
    assert "autoCreateTopicEnable" in orbitmq.failure("msg", "send", "Nope", "x").err
    orbitmq.ok("topic", "create", "There", "-q", "1")
    orbitmq.ok("msg", "send", "There", "x")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[topics.Orders]\nqueus = 3\n", "queus"),
        ("[topics", "topics.toml"),
        ('[topics.Orders]\nattributes = { "message.type" = "ODD" }\n', "message.type=ODD"),
        ('[topics."a/b"]\n', "a/b"),
    ],
    ids=["unknown key", "no TOML", "unknown attribute value", "impossible name"],
)
def test_a_topics_file_that_is_wrong_is_one_line_and_exit_code_1(
    started: Any, tmp_path: Path, content: str, complaint: str
) -> None:
    (tmp_path / "topics.toml").write_text(content)
    process = started("--ephemeral", "--topics", "topics.toml")
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 1
    assert complaint in errors.strip().splitlines()[-1]
    assert "Traceback" not in errors


def test_a_port_in_use_is_named(started: Any) -> None:
    first = started("--ephemeral", "--json-ready")
    port = json.loads(first.stdout.readline())["nameServer"].rpartition(":")[2]
    second = started("--ephemeral", "--port", port)
    _, errors = second.communicate(timeout=90)
    assert second.returncode == 1
    assert f"127.0.0.1:{port} is in use" in errors


def test_a_small_cluster_is_started_and_stopped_as_one(started: Any, tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text("[topics.T]\n")
    process = started("--data", "kept", "--json-ready", "--brokers", "2", "--slaves", "1", "--topics", "topics.toml")
    ready = json.loads(process.stdout.readline())
    assert list(ready["brokers"]) == ["dev", "dev, slave 1", "dev-2", "dev-2, slave 1"]

    asyncio.run(_use(ready["nameServer"]))
    route = TopicRoute.from_json(_route(ready["nameServer"], "T").body)
    addresses = [address for broker in route.broker_datas for address in broker.broker_addrs.values()]
    assert sorted(addresses) == sorted(ready["brokers"].values())

    process.send_signal(signal.SIGINT)
    assert process.wait(90) == 0
    for address in ready["brokers"].values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(tuple(address.rsplit(":", 1)), 5).close()
    assert not list(tmp_path.rglob("abort")), "every store was closed in order"


def test_a_cluster_whose_first_process_is_killed_ends(started: Any) -> None:
    process = started("--ephemeral", "--json-ready", "--brokers", "2")
    other = json.loads(process.stdout.readline())["brokers"]["dev-2"]
    process.kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(tuple(other.rsplit(":", 1)), 5).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.1)
    raise AssertionError("the other broker goes on")


@pytest.mark.timeout(400)
def test_tls_with_a_throw_away_certificate(started: Any, tmp_path: Path) -> None:
    authority = tmp_path / "kept" / "tls" / "ca.pem"
    (tmp_path / "topics.toml").write_text("[topics.T]\n")
    seen = set()
    for _ in range(2):
        process = started("--data", "kept", "--tls", "--json-ready", "--brokers", "2", "--topics", "topics.toml")
        ready = json.loads(process.stdout.readline())
        assert ready["tlsAuthority"] == str(authority)
        seen.add(authority.read_text())
        asyncio.run(_use(ready["nameServer"], ssl.create_default_context(cafile=authority)))
        with pytest.raises(mq.OrbitError):  # in whichever words: its connection is gone before, or while it waits
            asyncio.run(_use(ready["nameServer"], ssl.create_default_context()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
    assert len(seen) == 1, "what clients were told to trust stays"
    assert authority.with_name("server.key").stat().st_mode & 0o777 == 0o600


def test_tls_is_explained_for_every_language(started: Any) -> None:
    process = started("--ephemeral", "--tls")
    text = ""
    while "orbitmq topic ls --tls" not in text:
        line = process.stdout.readline()
        assert line, text
        text += line
    for word in ("create_default_context(cafile=", "-Dtls.client.trustCertPath=", "consumer.WithTls(true)"):
        assert word in text


def test_without_trustme_tls_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "trustme.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([*_DEV, "--ephemeral", "--tls"], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 1
    assert "pip install 'orbitmq[tls]'" in done.stderr
    assert "Traceback" not in done.stderr


async def _use(name_server: str, tls: ssl.SSLContext | None = None) -> None:
    """Messages go to both masters."""
    async with mq.connect(name_server, tls=tls, timeout=30) as client, client.producer(group="P") as producer:
        receipts: list[mq.Receipt] = []
        async with asyncio.timeout(60):
            while len({receipt.queue.broker_name for receipt in receipts}) < 2:
                receipts.append(await producer.send("T", b"hello"))


def test_messages_of_the_topics_file_are_sent_once(started: Any, tmp_path: Path) -> None:
    (tmp_path / "topics.toml").write_text('[topics.Orders]\nqueues = 1\nmessages = ["first", "second"]\n')
    for _ in range(2):
        process = started("--data", "kept", "--json-ready", "--topics", "topics.toml")
        ready = json.loads(process.stdout.readline())
        assert asyncio.run(_bodies(ready["nameServer"], "Orders")) == [b"first", b"second"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0


async def _bodies(name_server: str, topic: str) -> list[bytes]:
    async with mq.connect(name_server) as client, client.pull_consumer(group="G") as consumer:
        (queue,) = await consumer.queues(topic)
        return [message.body for message in await consumer.fetch(queue, offset=0, max=32)]
