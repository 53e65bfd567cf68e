"""Every command as a user types it: the real program, in a process of its own, against a cluster of real servers.

One story, told on our servers (test_every_command.py) and on Apache's (tests/interop/test_every_command.py). What is printed as JSON
is held against docs/cli-schemas.json.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from orbitmq.cli.entry import cli
from tests import golden_stores
from tests.cli import schemas
from tests.cli.field_tables import STREAMS
from tests.console.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PATIENCE_SECONDS: Final = 90.0
_PAUSE_SECONDS: Final = 0.2
_CHANGES: Final = ("msg send", "bench")  # print JSON, but are not to be repeated until they say the right thing
_tours: Final = itertools.count(1)
_VERBS: Final = "mqadmin"  # whose verbs have tests of their own: test_mqadmin.py, tests/interop/test_our_mqadmin.py


class Typed(NamedTuple):
    """What is typed behind `orbitmq`, with {words} of the cluster; a part of what it prints; its exit code."""

    text: str
    says: str = ""
    code: int = 0


# Handles what is good, and gives up at once what is bad.
APP: Final = """
import orbitmq as mq
app = mq.App(credentials={credentials})
@app.subscriber("{topic}", group="{group}", start="earliest")
async def handle(message: mq.Message) -> None:
    if message.tag == "bad":
        raise mq.RetryLater("no use", delay_level=-1)
"""

BEFORE: Final = (
    Typed("cluster -o json", '"masters": 1'),
    Typed("broker ls -o json", '"{broker}"'),
    Typed("broker describe {broker} -o json", '"brokerVersionDesc"'),
    Typed("broker config {broker} fileReservedTime=50 --yes", "changed fileReservedTime on {broker}"),
    Typed("broker config {broker} fileReservedTime -o json", '"50"'),
    Typed("topic create {topic} -q 2", "{topic}"),
    Typed("topic update {topic} -q 3", "{topic}"),
    Typed("topic describe {topic} -o json", '"write_queues": 3'),
    Typed("topic ls {topic} -o json", '"{topic}"'),
    Typed("group create {group} --max-retries 3", "{group}"),
    Typed("group update {group} --max-retries 2", "{group}"),
    Typed("msg send {topic} hello --queue {broker}:0 --key k1 --tag bad -o json", '"SEND_OK"'),
    Typed("msg send {topic} hello --queue {broker}:1 --key k2 --tag good -o json", '"SEND_OK"'),
    Typed("msg get {id} --topic {topic} -o json", '"k2"'),
    Typed("msg find {topic} --key k1 -o json", '"bad"'),
    Typed("topic tail {topic} --from earliest --count 2 -o json", '"good"'),
    Typed("store ls {store} --topic {topic} -o json", '"messages": 1'),
    Typed("store dump {store} --topic {topic} -o json", '"k1"'),
)
WHILE_THE_APP_RUNS: Final = (
    Typed("group connections {group} -o json", '"PYTHON"'),
    Typed("group ls {group} -o json", '"{group}"'),
    Typed("group describe {group} -o json", '"max_retries": 2'),
    Typed("group lag {group} --topic {topic} -o json", '"lag": 0'),
    Typed("group lag {group} --queues -o json", '"committed": 1'),
    Typed("msg trace {id} --topic {topic} -o json", '"{group}"'),
    Typed("broker stats --topic {topic} -o json", '"{topic}"'),
    Typed("dlq ls -o json", '"{group}"'),
    Typed("dlq ls {group} -o json", '"k1"'),
    Typed("dlq export {group}", '"k1"'),
    Typed("dlq resend {group} --yes", "sent 1 dead letters again"),
    Typed("doctor --topic {topic} --group {group} -o json", "they subscribe to the same"),
)
AFTER: Final = (
    Typed("group create {copy}", "{copy}"),
    Typed("group reset {copy} --topic {topic} --to-earliest --yes", "{copy}"),
    Typed("group clone {group} {copy} --topic {topic} --yes", "{copy}"),
    Typed("group lag {copy} --queues -o json", '"committed": 1'),
    Typed("bench --topic {topic} --messages 50 --size 10 --read -o json", '"messages": 50'),
    Typed("acl user create {user} --password a-secret", "created user {user}"),
    Typed("acl user update {user} --password another-secret", "changed user {user}"),
    Typed("acl user ls -o json", '"{user}"'),
    Typed("acl grant {user} Topic:{topic} --action Sub", "allowed {user} Sub on Topic:{topic}"),
    Typed("acl policy grant {user} Group:{group} --action Sub", "allowed {user} Sub"),
    Typed("acl ls {user} -o json", '"Topic:{topic}"'),
    Typed("acl policy ls {user} -o json", '"Group:{group}"'),
    Typed("acl check {user} Sub Topic:{topic} -o json", '"allowed": true'),
    Typed("acl check {user} Pub Topic:{topic} -o json", '"allowed": false', code=5),
    Typed("acl export -o json", '"{user}"'),
    Typed("acl revoke {user} --resource Topic:{topic} --yes", "took 1 policies"),
    Typed("acl policy revoke {user} --yes", "took 1 policies"),
    Typed("acl user rm {user} --yes", "deleted user {user}"),
    Typed("mqadmin clusterList", "{broker}"),
    Typed("group rm {copy} --yes", "{copy}"),
    Typed("topic rm {topic} --yes", "{topic}"),
)
MENDING: Final = (
    Typed("store verify {damaged} -o json", '"commitlog/stray"', code=1),
    Typed("store repair {damaged} --dry-run -o json", '"kept_in": null'),
    Typed("store repair {damaged} --yes -o json", '"move commitlog/stray aside"'),
    Typed("store verify {damaged} -o json", '"findings": []'),
)
STORY: Final = (*BEFORE, *WHILE_THE_APP_RUNS, *AFTER, *MENDING)
IN_THE_BACKGROUND: Final = {"run", "console"}


def leaves(group: click.Group = cli, context: click.Context | None = None, path: str = "") -> Iterator[str]:
    """Every command that can be typed, but for mqadmin's verbs."""
    context = context or click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command or name == _VERBS:
            yield path + name
        if isinstance(command, click.Group) and name != _VERBS:
            yield from leaves(command, context, f"{path}{name} ")


def command_in(words: Sequence[str]) -> str:
    """Of what is typed, the words that name the command."""
    command: click.Command | None = cli
    path: list[str] = []
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-") or path == [_VERBS]:
            break
        command = command.get_command(click.Context(command), word)
        path.append(word)
    return " ".join(path)


def schema_of(words: Sequence[str]) -> str | None:
    """The name under which what these words print is documented. Some commands print two things."""
    command = command_in(words)
    rest = words[len(command.split()) :]
    for name in (f"{command} GROUP" if rest and not rest[0].startswith("-") else "", f"{command} --queues"):
        if name in schemas.DOCUMENTED and (name.endswith("GROUP") or "--queues" in rest):
            return name
    return command if command in schemas.DOCUMENTED else None


class Tour:
    """Types commands against one cluster; `words` are what stands in braces, beside names of its own.

    Also in `folder` is a store that Apache's broker wrote, into which somebody put a file that does not belong there.
    """

    def __init__(
        self, name_server: str, folder: Path, words: Mapping[str, str], credentials: tuple[str, str] | None = None
    ) -> None:
        self._folder = folder
        damaged = golden_stores.unpack("5.3.3", folder / "kept")
        (damaged / "commitlog" / "stray").write_text("put here by mistake")
        number = next(_tours)  # a test that is repeated finds what it made the first time
        names = {name: f"{name.capitalize()}OfTour{number}" for name in ("topic", "group", "copy", "user")}
        self._words = {**words, **names, "damaged": str(damaged), "credentials": repr(credentials)}
        self._environment = {**os.environ, "NAMESRV_ADDR": name_server, "HOME": str(folder)}
        if credentials is not None:
            self._environment |= {"ORBITMQ_ACCESS_KEY": credentials[0], "ORBITMQ_SECRET_KEY": credentials[1]}

    def tell(self, story: Sequence[Typed]) -> None:
        for typed in story:
            self.type(typed)

    def type(self, typed: Typed) -> None:
        """Once; what only looks is repeated until it sees what it should, for what others do takes its time."""
        words = [word.format(**self._words) for word in shlex.split(typed.text)]
        schema = schema_of(words)
        wanted = typed.says.format(**self._words) if "{" in typed.says else typed.says
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = self._run(words)
            if done.returncode == typed.code and wanted in done.stdout:
                break
            may_repeat = schema is not None and schema not in _CHANGES and time.monotonic() < deadline
            assert may_repeat, f"orbitmq {shlex.join(words)}: wanted {wanted!r} and {typed.code}; got {done}"
            time.sleep(_PAUSE_SECONDS)
        if schema is not None and ("json" in words or schema in STREAMS):
            value = schemas.printed_value(schema, done.stdout)
            schemas.check(schema, value)
            if schema == "msg send":
                self._words["id"] = value[0]["id"]

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orbitmq", *words],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
            cwd=self._folder,
            env=self._environment,
        )

    @contextmanager
    def running_app(self) -> Iterator[None]:
        """`orbitmq run`."""
        (self._folder / "tour_app.py").write_text(APP.format(**self._words))
        with self._started("run", "tour_app:app"):
            yield

    def visit_console(self) -> None:
        """`orbitmq console`, and a visitor who was given the address that it prints."""
        with self._started("console", "--port", "0") as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(http://127\.0\.0\.1:\d+)(/enter\?token=\S+)", line)
            assert found is not None, line
            visitor = Visitor(found[1])
            assert self._words["broker"] in visitor.get(found[2]).words
            assert self._words["topic"] in visitor.get("/topics").words

    @contextmanager
    def _started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Ends as Ctrl-C ends it: without a failure."""
        command = [sys.executable, "-m", "orbitmq", *words]
        log = self._folder / f"{words[0]}.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self._folder, env=self._environment
            ) as process,
        ):
            try:
                yield process
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
            finally:
                process.kill()
        assert "Traceback" not in log.read_text()
