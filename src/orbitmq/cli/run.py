"""`orbitmq run module:app`: run an App, as one process or several, again when its source changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from orbitmq.client.app import App
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType

_LOOK_SECONDS: Final = 0.5


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--workers", default=1, show_default=True, help="Processes; the group's queues are shared among them.")
@click.option("--reload", is_flag=True, help="Start again when a Python file in this folder changes.")
def run(target: str, workers: int, reload: bool) -> None:
    """Run the App found at MODULE:APP until it is told to stop; handlers that run may end first."""
    if workers < 1:
        raise click.BadParameter("at least 1", param_hint="--workers")
    if workers == 1 and not reload:
        load_app(target).run()
        return
    load_app(target)  # a wrong name shows here, once
    _Workers([sys.executable, "-m", "orbitmq", "run", target], workers).supervise(Path.cwd() if reload else None)


def load_app(target: str) -> App:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{target!r} names no app", hint="write module:attribute, for example shop.main:app")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    try:
        found = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {target!r}: {error}", hint="is this the right folder?") from error
    if not isinstance(found, App):
        raise ConfigError(f"{target!r} is a {type(found).__name__}, not an App")
    return found


class _Workers:
    """Child processes, all alike. One that ends by itself is started again; a signal to us goes to all of them."""

    def __init__(self, command: list[str], count: int) -> None:
        self._command = command
        self._count = count
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def supervise(self, watched: Path | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        seen = _stamps(watched)
        while not self._stopping:
            self._children = [child for child in self._children if child.poll() is None]
            while len(self._children) < self._count:
                self._children.append(subprocess.Popen(self._command))  # noqa: S603 - our own command
            time.sleep(_LOOK_SECONDS)
            now = _stamps(watched)
            if now != seen:
                click.echo("source changed: starting again", err=True)
                seen = now
                self._end_children()
        self._end_children()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _end_children(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait()


def _stamps(folder: Path | None) -> dict[Path, float]:
    if folder is None:
        return {}
    return {path: path.stat().st_mtime for path in folder.rglob("*.py")}
