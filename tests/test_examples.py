"""The examples run as they are, and print what their readers expect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orbitmq.testing import Server

if TYPE_CHECKING:
    import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_demo_sends_receives_and_finds_everything_on_disk() -> None:
    printed = run("demo.py")
    assert "got order 0, order 3, order 6, order 9" in printed
    assert "Orders         12 messages" in printed
    assert "Readings    2,000 messages" in printed


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


def test_every_example_is_tried() -> None:
    tried = {"blocking.py", "demo.py", "orders_app.py", "send_and_receive.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tried
