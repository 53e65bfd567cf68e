"""What others see of a command that was given secrets as arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.cli.process_list import secrets_in
from tests.cli.kit import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

USER = '{"username":"root","password":"s3cret-of-root"}'


@pytest.mark.parametrize(
    ("arguments", "secrets"),
    [
        ([], []),
        (["topic", "list", "--access-key", "me", "--secret-key", "hush"], ["hush"]),
        (["topic", "list", "--secret-key=hush"], ["hush"]),
        (["acl", "user", "add", "ann", "--password", "hush"], ["hush"]),
        (["broker", "--set", f"initAuthenticationUser={USER}", "--set", "brokerName=b"], [USER]),
        (["broker", f"--set=initAuthenticationUser={USER}"], [USER]),
        (["mqadmin", "createUser", "-u", "ann", "-p", "hush"], ["hush"]),
        (["mqadmin", "updateTopic", "-p", "6"], []),
        (["topic", "list", "--secret-key"], []),
        (["broker", "--set", "brokerName=b", "--set"], []),
        (["msg", "send", "Orders", "--body", "password=1"], []),
    ],
)
def test_what_is_secret(arguments: list[str], secrets: list[str]) -> None:
    assert secrets_in(arguments) == secrets


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[Path]:
    """Of a broker that was told its first user."""
    command = [sys.executable, "-m", "orbitmq", "broker", "--store", str(tmp_path), "-n", "127.0.0.1:1", "--port", "0"]
    settings = ["--set", "authenticationEnabled=true", "--set", f"initAuthenticationUser={USER}"]
    with subprocess.Popen([*command, *settings], env=os.environ, stderr=subprocess.DEVNULL) as process:
        try:
            yield Path(f"/proc/{process.pid}/cmdline")
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs Linux's /proc")
def test_secrets_are_starred_and_nothing_else_is(command_line: Path) -> None:
    wait_until(lambda: b"*" in command_line.read_bytes())
    shown = command_line.read_text().split("\0")
    assert shown[-2] == f"initAuthenticationUser={'*' * len(USER)}"
    assert shown[1:5] == ["-m", "orbitmq", "broker", "--store"]
    assert "authenticationEnabled=true" in shown
