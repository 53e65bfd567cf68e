"""Pictures of the terminal, made by running the real program: `python -m tests.website.shots` renews those in docs/pictures.

Each shot is a command as a user types it and what it printed, drawn by rich. Addresses, ids and times are those of the moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

import orbitmq as mq
from tests.child import child
from tests.website.pictures import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COLUMNS: Final = 110
_PATIENCE_SECONDS: Final = 120
# As rich's own, but with fonts that are there: nothing is fetched by whoever looks at it.
_FORMAT: Final = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; \
line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Shot(NamedTuple):
    name: str
    title: str
    command: Sequence[str]
    exit_code: int = 0


SHOTS: Final = (
    Shot("topic-ls", "Topics", ("topic", "ls")),
    Shot("group-lag", "How far a group is behind", ("group", "lag", "billing", "--queues")),
    Shot("group-reset", "What a reset would do", ("group", "reset", "billing", "--to-earliest", "--dry-run")),
    Shot("msg-trace", "The life of a message", ("msg", "trace", "{message_id}")),
    Shot("doctor", "The doctor", ("doctor", "--topic", "Orders", "--group", "billing")),
    Shot("failure", "A failure: cause and cure", ("topic", "describe", "Oders"), 4),
)


@contextmanager
def development_server(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """`orbitmq dev`, with its word that it is ready, and what it says to a person."""
    command = [sys.executable, "-m", "orbitmq", "dev", "--ephemeral", "--port", "0", "--broker-port", "0"]
    with child(command, stdout=subprocess.PIPE, cwd=folder) as greeting:
        assert greeting.stdout is not None
        lines: list[str] = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(greeting.stdout.readline())
            assert lines[-1], "it did not start"
        greeting.send_signal(signal.SIGINT)
    with child([*command, "--json-ready"], stdout=subprocess.PIPE, cwd=folder) as serving:
        assert serving.stdout is not None
        try:
            yield json.loads(serving.stdout.readline()), "".join(lines)
        finally:
            serving.send_signal(signal.SIGINT)


async def prepare(name_server: str) -> str:
    """Something to look at: messages, and a group that has read some of them. The id of a message that was consumed."""
    async with mq.connect(name_server, timeout=30) as client:
        async with mq.Tracer(client) as tracer:
            async with client.producer(group="orders", hooks=[tracer]) as producer:
                receipts = [await producer.send("Orders", b"order %d" % number, tag="paid") for number in range(12)]
            unread = {receipt.message_id for receipt in receipts}
            all_read = asyncio.Event()

            async def handle(message: mq.ReceivedMessage) -> None:
                unread.discard(message.message_id)
                if not unread:
                    all_read.set()

            async with client.consumer("Orders", group="billing", start="earliest", handler=handle, hooks=[tracer]):
                await all_read.wait()
        async with client.producer(group="orders") as producer:
            for number in range(5):
                await producer.send("Orders", b"late order %d" % number, tag="new")
    return receipts[0].message_id


def picture(shot: Shot, typed: str, printed: str) -> str:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ {typed}", style="bold green"), soft_wrap=True)
        console.print(Text.from_ansi(printed.rstrip("\n")))
        return console.export_svg(
            title=shot.title, theme=MONOKAI, code_format=_FORMAT, unique_id=f"orbitmq-{shot.name}"
        )


def take(folder: Path = FOLDER) -> list[Path]:
    """All of them, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory() as scratch, development_server(Path(scratch)) as (ready, greeting):
        message_id = asyncio.run(prepare(ready["nameServer"]))
        environment = {**os.environ, "NAMESRV_ADDR": ready["nameServer"], "COLUMNS": str(_COLUMNS)}
        dev = Shot("dev", "A server for development", ())
        drawn = {dev.name: picture(dev, "orbitmq dev --ephemeral", greeting.strip("\n"))}
        for shot in SHOTS:
            arguments = [word.format(message_id=message_id) for word in shot.command]
            done = subprocess.run(
                [sys.executable, "-m", "orbitmq", *arguments, "--timeout", "60"],  # not shown: for busy machines
                capture_output=True,
                text=True,
                timeout=_PATIENCE_SECONDS,
                check=False,
                env=environment,
            )
            if done.returncode != shot.exit_code:
                raise RuntimeError(f"orbitmq {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
            drawn[shot.name] = picture(shot, f"orbitmq {' '.join(arguments)}", done.stdout + done.stderr)
        for name, svg in drawn.items():
            path = folder / f"shot-{name}.svg"
            path.write_text(svg)
            made.append(path)
    return made


if __name__ == "__main__":
    take()
