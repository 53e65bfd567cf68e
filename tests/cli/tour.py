"""Every command as a user types it: the real program, in a process of its own, against a cluster of real servers.

One story (story.py), told on our servers (test_every_command.py) and on Apache's (tests/interop/test_every_command.py), where Spark's
commands share a process (one_process.py). What is printed as JSON is held against docs/cli-schemas.json.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

import orbitmq as mq
from orbitmq.cli.entry import cli
from tests import golden_stores
from tests.cli import schemas
from tests.cli.field_tables import STREAMS
from tests.cli.one_process import one_process
from tests.cli.story import AFTER, APP, BEFORE, BEFORE_SPARK, MENDING, SPARK, UNTIL_SPARK, WHILE_THE_APP_RUNS
from tests.console.visitor import Visitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.cli.story import Typed

PATIENCE_SECONDS: Final = 90.0
_HUNG_SECONDS: Final = 600.0  # a JVM that starts on a machine with twenty others needs two minutes
_PAUSE_SECONDS: Final = 0.2
_CHANGES: Final = ("msg send", "bench")  # print JSON, but are not to be repeated until they say the right thing
_OF_SPARK: Final = ("spark", "pipeline")  # whose JVM has a lot to say, and is not to
_tours: Final = itertools.count(1)
_VERBS: Final = "mqadmin"  # whose verbs have tests of their own: test_mqadmin.py, tests/interop/test_our_mqadmin.py


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
        self._name_server = name_server
        self._credentials = credentials
        damaged = golden_stores.unpack("5.3.3", folder / "kept")
        (damaged / "commitlog" / "stray").write_text("put here by mistake")
        number = next(_tours)  # a test that is repeated finds what it made the first time
        names = {name: f"{name.capitalize()}OfTour{number}" for name in ("topic", "group", "copy", "user")}
        self._words = {**words, **names, "damaged": str(damaged), "credentials": repr(credentials)}
        self._environment = {**os.environ, "NAMESRV_ADDR": name_server, "HOME": str(folder)}
        if credentials is not None:
            self._environment |= {"ORBITMQ_ACCESS_KEY": credentials[0], "ORBITMQ_SECRET_KEY": credentials[1]}

    def tell_everything(self) -> None:
        """But what is Spark's."""
        self.tell(BEFORE)
        self.visit_console()
        with self.running_app():
            self.tell(WHILE_THE_APP_RUNS)
        self.tell(AFTER)
        self.tell(MENDING)

    def tell_of_spark(self, *, in_one_process: bool = False) -> None:
        self.tell(BEFORE_SPARK)
        with self.running_app():
            self.tell(UNTIL_SPARK)
        asyncio.run(self._send_traced())
        if in_one_process:
            self.tell_in_one_process(SPARK)
        else:
            self.tell(SPARK)

    def tell_in_one_process(self, story: Sequence[Typed]) -> None:
        """Whose Spark is started once. As programs, commands are slower by that."""
        with one_process(self._folder, self._environment) as run:
            for typed in story:
                self.type(typed, run)

    def tell(self, story: Sequence[Typed]) -> None:
        for typed in story:
            self.type(typed)

    def type(
        self, typed: Typed, run: Callable[[Sequence[str]], subprocess.CompletedProcess[str]] | None = None
    ) -> None:
        """Once; what only looks is repeated until it sees what it should, for what others do takes its time."""
        words = [word.format(**self._words) for word in shlex.split(typed.text)]
        schema = schema_of(words)
        wanted = typed.says.format(**self._words) if "{" in typed.says else typed.says
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            done = run(words) if run is not None else self._run(words)
            if done.returncode == typed.code and wanted in (done.stdout or done.stderr):
                break
            only_looks = schema is not None and schema not in _CHANGES and "--resend" not in words
            may_repeat = only_looks and time.monotonic() < deadline
            assert may_repeat, f"orbitmq {shlex.join(words)}: wanted {wanted!r} and {typed.code}; got {done}"
            time.sleep(_PAUSE_SECONDS)
        if typed.code and not done.stdout:
            assert re.fullmatch(r"orbitmq: [^\n]+\n", done.stderr), done
        elif words[0] in _OF_SPARK and "--yes" not in words:  # which shows what it would have asked
            assert done.stderr == "", done
        assert "Traceback" not in done.stderr, done
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
            timeout=_HUNG_SECONDS,
            check=False,
            cwd=self._folder,
            env=self._environment,
        )

    async def _send_traced(self) -> None:
        async with (
            mq.connect(self._name_server, credentials=self._credentials) as client,
            mq.Tracer(client) as tracer,
            client.producer(group="TracedOnTour", hooks=[tracer]) as producer,
        ):
            await producer.send(self._words["topic"], b"traced", tag="traced")

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
