"""`orbitmq console` as a process."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.kit import Command
from tests.console.visitor import Visitor

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.testing import Server


def started(server: Server, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """The process, and what it prints when it is ready."""
    command = [sys.executable, "-m", "orbitmq", "console", "-n", server.address, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline()


def stopped(process: subprocess.Popen[str]) -> str:
    """What it said on stderr. It ended as it was told to, without a failure."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return errors


def test_the_printed_address_lets_in_and_interrupt_ends_it(server: Server) -> None:
    process, line = started(server)
    try:
        found = re.search(r"(http://127\.0\.0\.1:\d+)(/enter\?token=\S+)", line)
        assert found is not None, line
        visitor = Visitor(found[1])
        assert visitor.get("/").status == 401
        assert "Brokers" in visitor.get(found[2]).words
    finally:
        errors = stopped(process)
    assert [line.partition("INFO")[2].strip() for line in errors.splitlines()] == [
        "stopping: answering what was asked, then closing",
        "stopped",
    ]


def test_a_token_from_a_file_is_not_printed(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-token-of-this-team\n")
    process, line = started(server, "--token-file", str(file))
    try:
        assert "the-token-of-this-team" not in line
        url = line.split()[-1]
        assert Visitor(url, {"Authorization": "Bearer the-token-of-this-team"}).json("/")["brokers"]
    finally:
        assert "the-token-of-this-team" not in stopped(process)


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        (("--certificate", "{file}"), 2, "--certificate and --key belong together"),
        (("--certificate", "{file}", "--key", "{file}"), 1, "cannot be used with key"),
        (("--token-file", "{file}"), 1, "can be guessed"),
        (("--port", "{taken}"), 1, "--port 0 takes a free port"),
    ],
)
def test_what_cannot_start_says_why(
    server: Server, tmp_path: Path, arguments: tuple[str, ...], code: int, cause: str
) -> None:
    file = tmp_path / "file"
    file.write_text("short")
    given = [one.format(file=file, taken=server.address.rpartition(":")[2]) for one in arguments]
    outcome = Command(server.address)("console", "--port", "0", *given)
    assert outcome.code == code
    assert cause in outcome.err
    assert "\n" not in outcome.err.strip()
