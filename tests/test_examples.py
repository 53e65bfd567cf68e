"""The examples run as they are, and print what their readers expect."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import RequestFailed
from orbitmq.sync import PullConsumer, connect
from orbitmq.testing import Server

if TYPE_CHECKING:
    from orbitmq.message import QueueRef

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_the_demo_sends_receives_archives_with_spark_and_finds_everything_on_disk(tmp_path: Path) -> None:
    printed = run("demo.py", "--keep", str(tmp_path))
    assert printed.count("300 new messages archived, each exactly once") == 3
    assert "shop-a        540 messages" in printed
    assert "<svg" in (tmp_path / "payments.html").read_text()
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) >= 3
    assert "got order 0, order 3, order 6, order 9" in printed
    assert "an hour later: 'drink some tea'" in printed
    assert "consumers see card 1: charged, card 3: charged" in printed
    assert "try 1 fails, try 2 succeeds" in printed
    assert "messages archived, each once       900" in printed
    assert str(tmp_path / "payments.html") in printed.partition("In figures")[2]
    assert "Orders         12 messages" in printed
    assert "Readings    2,000 messages" in printed


def test_the_demo_without_spark_installed_says_so_before_it_begins() -> None:
    without = "import runpy, sys; sys.modules['pyspark'] = None; runpy.run_path(sys.argv.pop(), run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", without, str(EXAMPLES / "demo.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Spark is not installed here (pip install '.[spark]'); --no-spark leaves it out" in done.stderr


def test_one_message_is_sent_and_received() -> None:
    with Server() as server:
        printed = run("send_and_receive.py", server.address)
    assert "received 'hello, world'" in printed


def test_an_app_turns_orders_into_invoices(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.address)
        printed = run("orders_app.py")
    assert printed.splitlines() == [f"order {number}: {12 * number}.00" for number in range(1, 6)]


def test_the_blocking_client_sends_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.address)
        printed = run("blocking.py")
    assert printed.splitlines() == ["message 0, message 1, message 2", "3 messages in 4 queues"]


def first_queue(reader: PullConsumer, topic: str) -> QueueRef:
    """A name server hears of a topic that a send made a moment later."""
    for _ in range(600):
        try:
            return reader.queues(topic)[0]
        except RequestFailed:
            time.sleep(0.05)
    raise AssertionError(f"topic {topic} does not come")


def test_groups_that_lag_are_named() -> None:
    with Server() as server, connect(server.address) as client:
        client.producer(group="writers", create_queues=1).send("Orders", b"unread")
        reader = client.pull_consumer(group="slow")
        queue = first_queue(reader, "Orders")
        reader.fetch(queue, offset=0)  # which makes the group
        reader.commit_offset(queue, 0)
        server.clock.advance(minutes=2)
        printed = run("lagging_groups.py", server.address)
    assert printed.startswith("slow is behind in Orders: 1 messages, 12")


def test_every_kind_of_message_in_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.address)
        printed = run("every_kind.py")
    assert printed.splitlines() == ['asked: {"cents":300}', "leased: paid, reminder"]


def test_every_example_is_tried() -> None:
    tried = {"blocking.py", "demo.py", "every_kind.py", "lagging_groups.py", "orders_app.py", "send_and_receive.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tried
