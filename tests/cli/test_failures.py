"""What goes wrong every day: each time one line that names cause and cure, the right exit code, and no traceback."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.storage.files import LocalDisk
from orbitmq.sync import connect
from orbitmq.testing import Server
from orbitmq.transport.address import parse_address
from tests.child import child
from tests.cli.kit import Command, wait_until
from tests.cli.test_acl import GUARDED, ROOT
from tests.nameserver.running import register
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAILED, WRONG_USE, UNREACHABLE, NOT_FOUND, NOT_PERMITTED, DECLINED = 1, 2, 3, 4, 5, 6
PATIENCE_SECONDS = 60
FAQ = Path(__file__).parent.parent.parent / "docs" / "faq.md"
FAQ_QUOTES = [
    text for line in re.findall(r"(?m)^### (.*)$", FAQ.read_text()) for text in re.findall(r'"([^"]+)"', line)
]


# ---- something else listens, or nothing


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port where every connection is given to `answer`, until the end."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            while True:
                try:
                    line, _ = door.accept()
                except OSError:
                    return
                with line:
                    answer(line)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_SECONDS)


def answer_http(line: socket.socket) -> None:
    line.recv(4096)
    line.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    line.recv(4096)


def say_nothing(line: socket.socket) -> None:
    while line.recv(4096):
        pass


def hang_up(line: socket.socket) -> None:
    line.recv(1)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(answer_http, "HTTP"), (say_nothing, "did not answer in time"), (hang_up, "closed before it answered")],
)
def test_something_else_listens_there(
    answer: Callable[[socket.socket], None], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listener(answer) as address:
        outcome = Command(address).failure("topic", "ls", "--timeout", "0.5")
        assert outcome.code == UNREACHABLE
        assert cause in outcome.err
        seen = Command(address)("doctor", "--timeout", "0.5")
        assert seen.code == FAILED
        assert f"FAILED   language: {address}" in seen.out or cause in seen.out
        assert "->" in seen.out
    assert not caplog.messages, "without -v Python prints them, beside the one line that says it"


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"127.0.0.1:{door.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("", UNREACHABLE, ["nothing listens on", "orbitmq dev"]),
        ("no-such-host.invalid:9876", UNREACHABLE, ["cannot resolve no-such-host.invalid", "DNS"]),
        ("nonsense", WRONG_USE, ["'nonsense' is not an address", "host:port"]),
        ("127.0.0.1:99999", WRONG_USE, ["'127.0.0.1:99999' is not an address"]),
    ],
    ids=["server down", "unknown host", "no address", "no port"],
)
def test_the_address_is_wrong(address: str, code: int, words: list[str]) -> None:
    outcome = Command(address or free_address()).failure("group", "ls")
    assert outcome.code == code
    assert is_answered(outcome.err)
    assert all(word in outcome.err for word in words), outcome.err


def test_a_broker_is_no_name_server(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    outcome = Command(server.broker_address).failure("topic", "ls")
    assert outcome.code == FAILED
    assert "a broker where a name server is meant" in outcome.err
    assert "refused request GET_BROKER_CLUSTER_INFO from 127.0.0.1" in caplog.text, (
        "the broker's log names what was asked"
    )
    assert "is a broker, not a name server" in Command(server.broker_address)("doctor").out


def test_a_server_that_stands_still_is_not_waited_for_for_ever() -> None:
    with Server() as stuck:
        stuck.pause()
        outcome = Command(stuck.address).failure("topic", "ls", "--timeout", "0.5")
        stuck.resume()
    assert outcome.code == UNREACHABLE
    assert "did not answer in time" in outcome.err


def test_a_broker_with_a_wrong_address_is_named_with_the_cure() -> None:
    """As in containers: the name server gives out an address that only the broker itself can use."""
    with Server(settings={"brokerIP1": "127.0.0.77"}) as lost:
        outcome = Command(lost.address).failure("topic", "ls")
        assert outcome.code == UNREACHABLE
        assert "nothing listens on 127.0.0.77" in outcome.err
        seen = Command(lost.address)("doctor")
        assert seen.code == FAILED
        assert "registered as 127.0.0.77" in seen.out
        assert "brokerIP1" in seen.out
        rows = Command(lost.address).ok("broker", "ls", "-o", "json").json
        assert "127.0.0.77" in rows[0]["problem"]


@pytest.mark.parametrize(
    ("answer", "said", "cure"),
    [(say_nothing, "did not answer in time", "see its log"), (answer_http, "HTTP", "is brokerIP1 the address of")],
)
async def test_a_broker_that_is_reached_and_does_not_answer_is_not_said_to_have_a_wrong_port(
    answer: Callable[[socket.socket], None], said: str, cure: str
) -> None:
    with Server() as server, listener(answer) as address:
        async with raw_client(parse_address(server.address)) as broker:
            await register(broker, "odd", address=address)
            seen = await asyncio.to_thread(Command(server.address), "doctor", "--timeout", "0.5")
    assert seen.code == FAILED
    (told,) = re.findall(r"FAILED   broker odd: (.*)\n +-> (.*)", seen.out)
    assert f"connections to {address} are taken" in told[0]
    assert said in told[0]
    assert cure in told[1]
    assert "open port" not in seen.out


def test_no_broker_is_registered(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orbitmq", "nameserver", "--host", "127.0.0.1", "--port", "0"]
    with child(command, stdout=subprocess.PIPE, env={**os.environ, "HOME": str(tmp_path)}) as alone:
        assert alone.stdout is not None
        address = alone.stdout.readline().split()[-1]
        outcome = Command(address).failure("topic", "ls")
        seen = Command(address)("doctor")
        alone.send_signal(signal.SIGTERM)
        alone.communicate(timeout=PATIENCE_SECONDS)
    assert outcome.code == NOT_FOUND
    assert "no broker is registered" in outcome.err
    assert f"namesrvAddr={address}" in seen.out


# ---- the server says no


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("topic", "describe", "Nope"), NOT_FOUND, ["topic 'Nope' does not exist", "topic create"]),
        (("topic", "rm", "Nope", "--yes"), NOT_FOUND, ["topic 'Nope' does not exist"]),
        (("topic", "tail", "Nope"), NOT_FOUND, ["topic 'Nope' does not exist"]),
        (("msg", "find", "Nope", "--key", "k"), NOT_FOUND, ["topic 'Nope' does not exist"]),
        (("msg", "send", "Nope", "x"), NOT_FOUND, ["Nope", "autoCreateTopicEnable"]),
        (("group", "describe", "Nope"), NOT_FOUND, ["group 'Nope' does not exist", "group create"]),
        (("group", "lag", "Nope"), NOT_FOUND, ["group 'Nope' does not exist"]),
        (("group", "reset", "Nope", "--to-latest"), NOT_FOUND, ["group 'Nope' does not exist"]),
        (("group", "reset", "Idle", "--to-latest"), NOT_FOUND, ["has read nothing yet", "--topic"]),
        (("group", "connections", "Idle"), NOT_FOUND, ["nobody of group 'Idle' is connected", "start a consumer"]),
        (("broker", "describe", "Nope"), NOT_FOUND, ["there is no broker 'Nope'", "registered: test"]),
        (("topic", "ls", "-c", "Nope"), NOT_FOUND, ["there is no cluster 'Nope'", "DefaultCluster"]),
        (("msg", "get", "00" * 16), NOT_FOUND, ["there is no message"]),
        (("topic", "create", "Wide", "-q", "100000"), FAILED, ["cannot have 100000 queues", "from 0 to 65536"]),
        (("dlq", "ls", "Nope"), NOT_FOUND, ["has no dead letters", "dlq ls"]),
        (("msg", "send", "ReadOnly", "x"), NOT_PERMITTED, ["no queue that can be written", "permission"]),
        (("topic", "tail", "WriteOnly"), NOT_PERMITTED, ["cannot be read", "--permission rw"]),
        (("topic", "create", "ReadOnly"), FAILED, ["exists on test", "topic update"]),
        (("topic", "create", "a/b"), FAILED, ["'a/b' is not a valid name", "letters, digits"]),
        (("group", "create", "a b"), FAILED, ["'a b' is not a valid name", "letters, digits"]),
        (("topic", "rm", "SELF_TEST_TOPIC", "--yes"), FAILED, ["SELF_TEST_TOPIC", "system topic"]),
        (("broker", "config", "test", "fileReservedTim=9", "--yes"), FAILED, ["no setting", "fileReservedTime?"]),
        (
            ("broker", "config", "test", "storePathRootDir=/x", "--yes"),
            NOT_PERMITTED,
            ["storePathRootDir", "configuration file"],
        ),
        (("msg", "send", "SCHEDULE_TOPIC_XXXX", "x"), FAILED, ["belongs to the broker"]),
        (("group", "create", "Idle"), FAILED, ["'Idle' exists on test", "group update"]),
        (("msg", "find", "ReadOnly", "--queue", "test:99"), NOT_FOUND, ["has no queue 99", "topic describe"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_the_server_says_no(strict: Command, arguments: tuple[str, ...], code: int, words: list[str]) -> None:
    outcome = strict(*arguments)
    assert outcome.code == code, outcome
    line = outcome.err.strip().splitlines()[-1]
    assert line.startswith("orbitmq: ")
    assert all(word in line for word in words), line
    assert "Traceback" not in outcome.err
    assert is_answered(line), f"docs/faq.md does not say what to do about: {line}"


def is_answered(line: str) -> bool:
    """Whether a heading of the questions quotes such a line; names and figures in it are examples."""
    for quoted in FAQ_QUOTES:
        pieces = [piece for piece in re.split(r"…|'[^']*'|\[[^]]*\]|\d+", quoted) if len(piece.strip()) > 3]
        if pieces and re.search(".*".join(map(re.escape, pieces)), line):
            return True
    return False


def test_a_question_that_nobody_wrote_down_is_found() -> None:
    assert is_answered("orbitmq: topic 'Nope' does not exist (`orbitmq topic create` makes it)")
    assert not is_answered("orbitmq: the moon is in the way (wait a month)")


@pytest.fixture(scope="module")
def strict() -> Iterator[Command]:
    """A server that creates nothing by itself."""
    settings = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
    with Server(settings=settings) as running:
        command = Command(running.address)
        command.ok("topic", "create", "ReadOnly", "--permission", "r")
        command.ok("topic", "create", "WriteOnly", "--permission", "w")
        command.ok("group", "create", "Idle")
        yield command


def test_a_full_disk_is_said_to_be_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalDisk, "used_percent", lambda *_: 95)
    with Server(settings={"cleanResourceInterval": "20"}) as full:
        command = Command(full.address)
        command.ok("topic", "create", "T", "-q", "1")
        wait_until(lambda: command("msg", "send", "T", "x").code != 0)  # it looks every 20 ms
        outcome = command.failure("msg", "send", "T", "x")
    assert outcome.code == FAILED
    assert "the disk is 95% full: " in outcome.err
    assert "make room" in outcome.err
    assert is_answered(outcome.err)


@pytest.mark.parametrize(
    ("credentials", "cause"),
    [
        (None, "username cannot be null"),
        ((ROOT[0], "guessed"), "check signature failed"),
        (("nobody", "her-secret"), "User:nobody is not found"),
        (("alice", "alice-secret"), "User:alice has no permission to access Topic:Theirs"),
    ],
    ids=["nobody in particular", "a wrong secret", "an unknown user", "not granted"],
)
def test_who_may_not_is_told_why(guarded: str, credentials: tuple[str, str] | None, cause: str) -> None:
    outcome = Command(guarded, credentials).failure("msg", "send", "Theirs", "x")
    assert outcome.code == NOT_PERMITTED
    assert cause in outcome.err
    assert "check credentials" in outcome.err
    assert is_answered(outcome.err), f"docs/faq.md does not say what to do about: {outcome.err}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with Server(settings=GUARDED) as running:
        root = Command(running.address, ROOT)
        root.ok("topic", "create", "Theirs")
        root.ok("acl", "user", "create", "alice", "--password", "alice-secret")
        yield running.address


def test_a_message_too_large_is_refused_before_it_is_sent(strict: Command, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (5 << 20))
    outcome = strict.failure("msg", "send", "WriteOnly", "--file", str(tmp_path / "large"), "--format", "whole")
    assert "5,242,880 bytes" in outcome.err
    assert "maxMessageSize" in outcome.err


# ---- wrong use


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topik", "ls"), ["No such command 'topik': did you mean 'topic'?"]),
        (("broker", "-n", "127.0.0.1:1", "ls"), ["--namesrv: write options after `ls`"]),
        (("-n", "127.0.0.1:1", "topic", "ls"), ["'-n'", "Write options after the command's name"]),
        (("topic", "list"), ["No such command 'list': did you mean 'ls'?"]),
        (("msg", "xyzzy"), ["No such command 'xyzzy': there are find, get, send, trace"]),
        (("topic", "create", "T", "--queus", "3"), ["--queus", "--queues"]),
        (("group", "reset", "g", "--to-time", "yesterday noon"), ["'yesterday noon' is no time", "2026-11-15"]),
        (("group", "reset", "g", "--to-time", "2026-13-45"), ["'2026-13-45' is no time"]),
        (("group", "reset", "g"), ["--to-time, --to-offset, --to-earliest, --to-latest"]),
        (("group", "reset", "g", "--to-latest", "--to-offset", "3"), ["give one of"]),
        (("topic", "ls", "--watch", "Ord*"), ["'Ord*' is no number of seconds", "--watch last"]),
        (("topic", "ls", "--watch", "0"), ["too often"]),
        (("topic", "ls", "-o", "xml"), ["'xml' is not one of", "'yaml'"]),
        (("topic", "ls", "--access-key", "ak"), ["--secret-key"]),
        (("msg", "send", "T", "x", "--queue", "3"), ["BROKER:QUEUE"]),
        (("msg", "send", "T", "x", "-p", "color"), ["NAME=VALUE"]),
        (("msg", "send", "T", "x", "--file", "no-such-file"), ["no-such-file"]),
        (("topic", "tail", "T", "--filter", "a", "--sql", "b"), ["exclude each other"]),
        (("store", "ls", "no-such-folder"), ["no-such-folder"]),
        (("spark", "sql", "SELECT 1", "--secret-key", "sk"), ["--access-key and --secret-key belong together"]),
        (("spark", "archive", "--to", "lake"), ["name topics, or give --pattern"]),
        (("pipeline", "run", "pipeline.toml", "--access-key", "ak"), ["belong together"]),
        (("help", "topic"), ["No such command 'help': did you mean '--help'?"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_use_is_exit_code_2_and_names_the_help(
    orbitmq: Command, arguments: tuple[str, ...], words: list[str]
) -> None:
    outcome = orbitmq.failure(*arguments)
    assert outcome.code == WRONG_USE
    assert all(word in outcome.err for word in words), outcome.err
    assert "--help`" in outcome.err


@pytest.mark.parametrize("arguments", [(), ("topic",), ("acl", "user"), ("spark",), ("mqadmin",)], ids=" ".join)
def test_whoever_names_no_command_sees_which_there_are(orbitmq: Command, arguments: tuple[str, ...]) -> None:
    outcome = orbitmq(*arguments)
    assert (outcome.code, outcome.out) == (WRONG_USE, "")
    lines = outcome.err.splitlines()
    assert lines[0] == f"Usage: {' '.join(('orbitmq', *arguments))} [OPTIONS] COMMAND [ARGS]..."
    assert "Commands:" in lines


def test_tls_where_none_is_spoken_is_guessed(orbitmq: Command) -> None:
    outcome = orbitmq.failure("topic", "ls", "--tls", "--timeout", "2")
    assert outcome.code == UNREACHABLE
    assert "without --tls" in outcome.err


def test_nobody_there_to_answer_changes_nothing(orbitmq: Command) -> None:
    orbitmq.ok("topic", "create", "Kept")
    outcome = orbitmq("topic", "rm", "Kept", typed="")
    assert outcome.code == DECLINED
    assert outcome.err.splitlines()[-1] == "orbitmq: nothing was changed"
    orbitmq.ok("topic", "describe", "Kept")


def test_more_is_told_on_request(orbitmq: Command) -> None:
    outcome = orbitmq("topic", "describe", "Nope", "-v")
    assert outcome.code == NOT_FOUND
    assert "Traceback" in outcome.err
    assert "response code: 17" in outcome.err


def test_more_is_told_of_commands_that_have_no_such_option(orbitmq: Command, tmp_path: Path) -> None:
    outcome = orbitmq("-v", "store", "ls", str(tmp_path / "nowhere"))
    assert outcome.code == WRONG_USE
    assert "Traceback" in outcome.err


# ---- servers that cannot start


def started(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orbitmq", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_a_port_in_use_is_named(server: Server, tmp_path: Path) -> None:
    port = server.address.rpartition(":")[2]
    code, line = started(tmp_path, "nameserver", "--host", "127.0.0.1", "--port", port)
    assert code == FAILED
    assert f"{server.address} is in use" in line


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        (
            "haListenPort={}",
            "stop it, or give slaves another port with haListenPort: it is listenPort + 1 where none is set",
        ),
        (
            "metricsPromExporterPort={}",
            "stop it, or choose another port with metricsPromExporterPort; 0 takes a free one",
        ),
    ],
)
def test_another_port_of_a_broker_in_use_is_told_with_the_setting_that_chooses_it(
    server: Server, tmp_path: Path, setting: str, cure: str
) -> None:
    port = server.broker_address.rpartition(":")[2]
    chosen = (f"--set={setting.format(port)}", "--set=metricsExporterType=PROM")
    code, line = started(tmp_path, "broker", "--host", "127.0.0.1", "--port", "0", "--store", "store", *chosen)
    assert code == FAILED
    assert f"127.0.0.1:{port} is in use by another process ({cure})" in line
    assert is_answered(line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("broker", "-c", "no-such-file"), ["cannot read no-such-file"]),
        (("broker", "--set", "listenPort"), ["has no value", "key=value"]),
        (("broker", "--set", "listenPort=many"), ["listenPort=many"]),
        (("broker", "--store", "a-file/store", "--port", "0"), ["a-file", "name another folder"]),
        (("nameserver", "-c", "a-folder"), ["a-folder"]),
        (("run", "nowhere:app"), ["cannot load 'nowhere:app'", "is this the right folder?"]),
        (("dev", "--ephemeral", "--topics", "no-such-file"), ["no-such-file", "--topics takes a TOML file"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, arguments: tuple[str, ...], words: list[str]) -> None:
    (tmp_path / "a-file").write_text("")
    (tmp_path / "a-folder").mkdir()
    code, line = started(tmp_path, *arguments)
    assert code == FAILED
    assert all(word in line for word in words), line
    assert is_answered(line)


def test_a_folder_in_use_or_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    with Server(data=tmp_path / "data"):
        code, line = started(tmp_path, "broker", "--store", "data/store", "--port", "0")
        assert code == FAILED
        assert "data/store" in line
        code, line = started(tmp_path, "dev", "--data", "data", "--port", "0", "--broker-port", "0")
        assert code == FAILED
        assert "`orbitmq dev --data` names another folder" in line
        assert is_answered(line)
    (tmp_path / "strange" / "commitlog").mkdir(parents=True)
    (tmp_path / "strange" / "commitlog" / "00000000000000000000").write_bytes(b"of another make")
    code, line = started(tmp_path, "broker", "--store", "strange", "--port", "0")
    assert code == FAILED
    assert "has 15 bytes" in line
    assert "store verify" in line


@pytest.mark.parametrize("command", ["ls", "verify", "dump", "repair"])
def test_a_folder_that_is_no_store_is_not_found_to_be_a_sound_one(
    orbitmq: Command, tmp_path: Path, command: str
) -> None:
    with Server(data=tmp_path / "data"):
        pass
    orbitmq.ok("store", command, str(tmp_path / "data" / "store"))  # nobody has sent anything, but it is one
    for folder, cure in ((tmp_path, "storePathRootDir"), (tmp_path / "data", f"did you mean {tmp_path}/data/store?")):
        outcome = orbitmq.failure("store", command, str(folder))
        assert (outcome.code, outcome.out) == (FAILED, "")
        assert f"there is no store in {folder}" in outcome.err
        assert cure in outcome.err
        assert is_answered(outcome.err)


def test_a_store_without_the_topic_or_the_queue_says_so(tmp_path: Path) -> None:
    with Server(data=tmp_path / "data") as server, connect(server.address) as client:
        client.producer(group="P").send("Orders", b"x")
    orbitmq, store = Command("127.0.0.1:1"), str(tmp_path / "data" / "store")
    for arguments in (("-t", "Oders"), ("-t", "Oders", "--key", "k"), ("-t", "Orders", "--queue", "99")):
        outcome = orbitmq.failure("store", "dump", store, *arguments)
        assert (outcome.code, outcome.out) == (NOT_FOUND, "")
        assert "has no queue" in outcome.err
        assert "store ls" in outcome.err
        assert is_answered(outcome.err)
    assert "Orders" in orbitmq.ok("store", "dump", store, "-t", "Orders").out


# Becomes somebody else when all that a server needs is loaded: another user may not be able to read this Python.
AS_NOBODY = """
import encodings.idna, os, sys
import orbitmq.cli.broker, orbitmq.cli.broker_server, orbitmq.cli.dev, orbitmq.cli.nameserver
from orbitmq.cli.entry import cli
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
cli(sys.argv[1:], prog_name="orbitmq")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "--host", "127.0.0.1", "--port", "0", "--store", "{closed}"),
        ("broker", "--host", "127.0.0.1", "--port", "0", "--store", "{readable}"),
        ("dev", "--port", "0", "--broker-port", "0", "--data", "{closed}"),
        ("dev", "--port", "0", "--broker-port", "0", "--data", "{readable}/new"),
        ("nameserver", "-c", "{closed}/namesrv.properties"),
    ],
    ids=lambda value: " ".join((value[0], value[-1])),
)
def test_a_data_folder_of_another_user_is_named_with_the_cure(arguments: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as parent:  # not pytest's folder, which is closed to others altogether
        Path(parent).chmod(0o755)
        folders = {"closed": Path(parent) / "closed", "readable": Path(parent) / "readable"}
        for folder in folders.values():
            folder.mkdir()
        folders["closed"].chmod(0o700 if os.geteuid() == 0 else 0)
        folders["readable"].chmod(0o555)
        try:
            words = [word.format(**folders) for word in arguments]
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, *words],
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_SECONDS,
                check=False,
            )
        finally:
            for folder in folders.values():
                folder.chmod(0o755)
    assert (done.returncode, done.stdout) == (FAILED, "")
    line = done.stderr.strip().splitlines()[-1]
    assert "Permission denied" in line
    assert parent in line
    assert "check the owner" in line or "belong to another user" in line or "-c takes a file" in line
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_makes_no_noise(orbitmq: Command) -> None:
    shell = f"{sys.executable} -m orbitmq topic ls -a -n {orbitmq.name_server} | true"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stderr == b""


def test_a_broker_out_of_reach_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """What the others have is shown, with a line about what is missing; changes are refused."""
    arguments = ["--host", "127.0.0.1", "--port", "0", "--store", str(tmp_path / "store")]
    for setting in ("brokerName=lost", "brokerIP1=127.0.0.77", "mappedFileSizeCommitLog=1048576"):
        arguments += ["--set", setting]
    with Server() as living:
        orbitmq = Command(living.address)
        orbitmq.ok("topic", "create", "Living", "-q", "1")
        orbitmq.ok("group", "create", "LivingGroup")
        command = [sys.executable, "-m", "orbitmq", "broker", "-n", living.address, *arguments]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as lost:
            assert lost.stdout is not None
            lost.stdout.readline()
            wait_until(lambda: len(orbitmq.ok("broker", "ls", "-o", "json").json) == 2)
            for reading in (
                ("topic", "ls"),
                ("group", "ls"),
                ("group", "lag", "LivingGroup"),
                ("broker", "stats", "-a"),
            ):
                outcome = orbitmq.ok(*reading)
                assert "is missing here: nothing listens on 127.0.0.77:" in outcome.err, reading
            assert "Living" in orbitmq.ok("topic", "ls").out
            problems = [row["problem"] is not None for row in orbitmq.ok("broker", "ls", "-o", "json").json]
            assert problems == [True, False]
            assert orbitmq.failure("topic", "create", "Everywhere").code == UNREACHABLE
            assert orbitmq("group", "rm", "LivingGroup", "--yes").code == UNREACHABLE
            lost.terminate()
