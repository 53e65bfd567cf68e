"""`orbitmq dev` as a user starts it: ready by its own word, whole, and gone without a trace."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.transport.address import parse_address
from orbitmq.transport.pool import Pool

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
    assert process.wait(30) == 0
    assert not Path(ready["data"]).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["topics.toml"]


def test_what_it_keeps_is_in_its_folder_and_there_again(started: Any, tmp_path: Path) -> None:
    for _ in range(2):
        process = started("--data", "kept", "--json-ready")
        assert json.loads(process.stdout.readline())["data"] == str(tmp_path / "kept")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_the_welcome_names_the_addresses(started: Any) -> None:
    process = started("--ephemeral")
    lines = [process.stdout.readline() for _ in range(10)]
    assert any("name server   127.0.0.1:" in line for line in lines)
    assert any("orbitmq.connect" in line for line in lines)


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
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert complaint in errors.strip().splitlines()[-1]
    assert "Traceback" not in errors


def test_a_port_in_use_is_named(started: Any) -> None:
    first = started("--ephemeral", "--json-ready")
    port = json.loads(first.stdout.readline())["nameServer"].rpartition(":")[2]
    second = started("--ephemeral", "--port", port)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 1
    assert f"127.0.0.1:{port} is in use" in errors
