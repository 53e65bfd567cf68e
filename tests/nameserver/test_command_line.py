"""`orbitmq nameserver` as people run it: a process with files, signals and two streams of text."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.registration import Registration
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import FrameDecoder
from tests.nameserver.running import registration_fields, topic_table, write_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_SECONDS = 60
COMMAND = [sys.executable, "-m", "orbitmq"]
READY = "name server ready on "


class Running:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def ask(self, request: Command) -> Command:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as line:
            line.sendall(commands.encode(request))
            return read_answer(line)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Its exit status, and what it printed after the first line."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, out, err


def read_answer(line: socket.socket) -> Command:
    decoder = FrameDecoder()
    while True:
        data = line.recv(1 << 16)
        assert data, "closed instead of answered"
        if frames := decoder.feed(data):
            return commands.decode(frames[0])


@contextmanager
def nameserver(folder: Path, *arguments: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*COMMAND, "nameserver", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), process.communicate(timeout=PATIENCE_SECONDS)
        yield Running(process, int(line.rpartition(":")[2]))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**os.environ, "HOME": str(folder)},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_serves_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with nameserver(tmp_path, "--host", "127.0.0.1", "--port", "0") as running:
        answer = running.ask(Command(105, fields={"topic": "T"}))
        assert answer.code == 17
        status, out, err = running.stop(number)
    assert status == 0
    assert out == ""
    assert [line.split(" ", 3)[3].strip() for line in err.splitlines()] == [
        "stopping: answering what was asked, then closing",
        "stopped",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO ", line) for line in err.splitlines())


def test_a_request_under_way_is_answered_when_it_is_told_to_stop(tmp_path: Path) -> None:
    config = write_settings(tmp_path)
    with nameserver(tmp_path, "-c", str(config)) as running:
        with socket.create_connection(("127.0.0.1", running.port), PATIENCE_SECONDS) as line:
            puts = [
                commands.encode(Command(100, opaque=i, fields={"namespace": "n", "key": f"k{i}", "value": "v"}))
                for i in range(5)
            ]
            line.sendall(puts[0])
            assert read_answer(line).code == 0
            line.sendall(b"".join(puts[1:]))
            first = read_answer(line)
            running.process.send_signal(signal.SIGTERM)
            assert first.code == 0
            while line.recv(1 << 16):
                pass  # it answers what it had begun, then closes
        running.process.communicate(timeout=PATIENCE_SECONDS)
        assert running.process.returncode == 0
    kept = msgspec.json.decode((tmp_path / "kvConfig.json").read_bytes())
    assert kept["configTable"]["n"]["k0"] == "v"


def test_it_prints_every_setting_and_exits(tmp_path: Path) -> None:
    config = write_settings(tmp_path, scanNotActiveBrokerInterval=1234, mystery="x")
    done = run(tmp_path, "nameserver", "-p", "-c", str(config), "--port", "4321")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines == sorted(lines)
    assert {"listenPort=4321", "scanNotActiveBrokerInterval=1234", "mystery=x", f"configStorePath={config}"} <= set(
        lines
    )


def test_unknown_keys_are_pointed_out(tmp_path: Path) -> None:
    config = write_settings(tmp_path, listenProt=5, qqqqqqqq=1)
    with nameserver(tmp_path, "-c", str(config)) as running:
        _, _, err = running.stop()
    assert "listenProt is no setting of a name server; did you mean listenPort?" in err
    assert re.search(r"qqqqqqqq is no setting of a name server$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [({"listenPort": "many"}, "listenPort=many"), ({"clusterTest": "perhaps"}, "clusterTest=perhaps"),
     ({"listenPort": "70000"}, "out of range"), ({"tls.server.mode": "enforcing"}, "no certificate")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_one_line_and_status_one(
    values: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    done = run(tmp_path, "nameserver", "-c", str(write_settings(tmp_path, **values)))
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("orbitmq: ")


def test_a_missing_file_is_one_line_and_status_one(tmp_path: Path) -> None:
    done = run(tmp_path, "nameserver", "-c", str(tmp_path / "absent"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_and_status_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "nameserver", "--host", "127.0.0.1", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port} is in use by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kept_file_that_cannot_be_read_is_one_line_and_status_one(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").mkdir()
    done = run(tmp_path, "nameserver", "-c", str(write_settings(tmp_path)))
    assert done.returncode == 1
    assert "cannot read" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["nameserver", "--port", "x"], ["nameserver", "--nonsense"], ["nonsense"]])
def test_wrong_use_is_status_two(arguments: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, *arguments).returncode == 2


def test_help_and_version(tmp_path: Path) -> None:
    assert "Run a name server" in run(tmp_path, "--help").stdout
    assert "--port" in run(tmp_path, "nameserver", "-h").stdout
    assert re.match(r"orbitmq, version \d", run(tmp_path, "--version").stdout)


def test_names_from_the_network_cannot_forge_log_lines(tmp_path: Path) -> None:
    forged = "b\n2026-01-01 00:00:00.000 ERROR   all is lost \x1b[31m"
    body = Registration(topic_config_serialize_wrapper=topic_table("A", "B")).to_json()
    with nameserver(tmp_path, "--host", "127.0.0.1", "--port", "0") as running:
        assert running.ask(Command(103, fields=registration_fields(forged), body=body)).code == 0
        assert running.ask(Command(216, fields={"topic": forged})).code == 0
        _, _, err = running.stop()
    assert "\x1b" not in err
    assert r"b\x0a2026-01-01" in err
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for line in err.splitlines())
    assert not re.search(r"^2026-01-01 00:00:00\.000 ERROR", err, re.MULTILINE)


def test_garbage_on_the_port_is_no_traceback(tmp_path: Path) -> None:
    with nameserver(tmp_path, "--host", "127.0.0.1", "--port", "0") as running:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">II", 1 << 30, 0), b"\x16\x03\x01" + bytes(100)):
            with socket.create_connection(("127.0.0.1", running.port), PATIENCE_SECONDS) as line:
                line.sendall(garbage)
                assert line.recv(100) == b""
        assert running.ask(Command(105, fields={"topic": "T"})).code == 17
        _, _, err = running.stop()
    assert "Traceback" not in err
    assert len(err.splitlines()) == 3 + 2
