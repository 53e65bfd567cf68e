"""`orbitmq run module:app`: run an App, as one process or several, again when its source changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from orbitmq.cli.failures import be_verbose
from orbitmq.cli.logs import log_to_stderr
from orbitmq.client.app import App
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from types import FrameType

_LOOK_SECONDS: Final = 0.5
_SOON_SECONDS: Final = 60.0  # a worker that ends sooner than that after its start is not started again at once
_LONGEST_PAUSE_SECONDS: Final = 30.0
_NOT_SOURCE: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes; the group's queues are shared among them.",
)
@click.option("--reload", is_flag=True, help="Start again when a Python file in this folder changes.")
@click.option("-v", "--verbose", is_flag=True, callback=be_verbose, help="Log more; failures at length.")
def run(target: str, workers: int, reload: bool, verbose: bool) -> None:
    """Run the App found at MODULE:APP, such as shop.main:app, until it is told to stop; handlers that run may end first.

    It logs to stderr, unless the module sets up logging of its own. Name servers are those that the app names, else $NAMESRV_ADDR.
    """
    app = load_app(target)  # a wrong name shows here, once
    log_to_stderr(verbose=verbose)
    if workers == 1 and not reload:
        app.run()
        return
    command = [sys.executable, "-m", "orbitmq", "run", target, *(["-v"] if verbose else [])]
    _Workers(command, workers).supervise(Path.cwd() if reload else None)


def load_app(target: str) -> App:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{target!r} names no app", hint="write module:attribute, for example shop.main:app")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        hint = "is this the right folder?" if error.name and module_name.startswith(error.name) else _where(error)
        raise ConfigError(f"cannot load {target!r}: {error}", hint=hint) from error
    except Exception as error:  # whatever a module may do when it is loaded
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"cannot load {target!r}: {what}", hint=f"{_where(error)}; -v shows the way there") from error
    found = getattr(module, attribute, None)
    if found is None:
        apps = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
        there = f"there is {', '.join(apps)}" if apps else "an App has to be there under that name"
        raise ConfigError(f"cannot load {target!r}: {module_name} has no {attribute}", hint=there)
    if not isinstance(found, App):
        raise ConfigError(f"{target!r} is a {type(found).__name__}, not an App", hint="name an orbitmq.App")
    return found


def _where(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    # the last of them, but for the import machinery, which has no file
    last = next((frame for frame in reversed(frames) if not frame.filename.startswith("<")), frames[-1])
    return f"{last.filename}, line {last.lineno}"


class _Workers:
    """Child processes, all alike. One that ends by itself is started again, at first at once, then with growing pauses as long as
    they end soon; a signal to us goes to all of them.
    """

    def __init__(self, command: list[str], count: int) -> None:
        self._command = command
        self._count = count
        self._children: dict[subprocess.Popen[bytes], float] = {}  # -> when it was started
        self._pause = 0.0
        self._not_before = 0.0
        self._stopping = False

    def supervise(self, watched: Path | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        seen = source_stamps(watched)
        while not self._stopping:
            self._take_leave(time.monotonic())
            if time.monotonic() >= self._not_before:
                self._fill_up()
            time.sleep(_LOOK_SECONDS)
            now = source_stamps(watched)
            if now != seen:
                click.echo("source changed: starting again", err=True)
                seen = now
                self._end_children()
                self._pause = self._not_before = 0.0
        self._end_children()

    def _take_leave(self, now: float) -> None:
        """Of those that ended by themselves."""
        for child, started in list(self._children.items()):
            if child.poll() is None:
                continue
            del self._children[child]
            ended_soon = now - started < _SOON_SECONDS
            self._pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause or _LOOK_SECONDS) if ended_soon else 0.0
            self._not_before = now + self._pause
            again = f"in {self._pause:g} s" if self._pause else "at once"
            click.echo(f"orbitmq: worker {child.pid} ended with {_how(child)}; another starts {again}", err=True)

    def _fill_up(self) -> None:
        while len(self._children) < self._count:
            self._children[subprocess.Popen(self._command)] = time.monotonic()  # noqa: S603 - our own command

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _end_children(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait()
        self._children.clear()


def _how(child: subprocess.Popen[bytes]) -> str:
    code = child.returncode
    return f"signal {-code}" if code < 0 else f"code {code}"


def source_stamps(folder: Path | None) -> dict[Path, float]:
    """When each Python file of the folder was written. Environments and hidden folders are not looked through."""
    found: dict[Path, float] = {}
    if folder is None:
        return found
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _may_hold_source(Path(place, name))]
        for name in files:
            if name.endswith(".py"):
                with contextlib.suppress(FileNotFoundError):  # an editor's own, gone again
                    found[Path(place, name)] = Path(place, name).stat().st_mtime
    return found


def _may_hold_source(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _NOT_SOURCE and not (folder / "pyvenv.cfg").exists()
