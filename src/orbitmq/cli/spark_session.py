"""What the commands of `orbitmq spark` share: where Spark runs, progress on one line, errors in one sentence."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from orbitmq.cli.failures import verbosity
from orbitmq.cli.options import bundled
from orbitmq.errors import OrbitError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

_GATEWAY: Final = "py4j"
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)")
_CHAINED: Final = re.compile(r"\s*(?:The above exception was the direct cause|During handling of the above exception)")
_EXTRA: Final = 'Spark is not installed here: pip install "orbitmq[spark]"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """Where Spark is to run."""

    master: str | None
    conf: tuple[str, ...]

    @contextmanager
    def session(self, name: str, words: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        """A session, stopped at the end unless it was there before; failures leave as one sentence, in the command's own `words`."""
        require_spark()
        from pyspark.sql import SparkSession

        from orbitmq.spark.registration import register
        from orbitmq.spark.session import parse_conf, start_session

        status("starting Spark")
        borrowed = SparkSession.getActiveSession() is not None
        session: SparkSession | None = None
        with self.plain_failures(words), _quiet_gateway():
            try:
                conf = parse_conf(self.conf)
                with _interrupts_held():
                    session = start_session(f"orbitmq {name}", master=self.master, conf=conf)
                register(session)
                status("")
                yield session
            finally:
                status("")
                if session is not None and not borrowed:
                    session.stop()

    @contextmanager
    def plain_failures(self, words: Mapping[str, str] | None = None) -> Iterator[None]:
        """What Spark fails with leaves as one sentence; an error of ours inside it as itself, with its exit code.

        `words`: what source and sink say -> what the command's user can do about it, who gives flags and not their options.
        """
        from orbitmq.spark.failures import own_error

        try:
            yield
        except click.ClickException:
            raise
        except OrbitError as error:
            _reword(error, words)
            raise
        except Exception as error:
            ours = own_error(error)
            if ours is not None:
                _reword(ours, words)
                raise ours from error
            reason = _of_spark(error)
            if reason is None:
                raise
            raise click.ClickException(_in_words(reason, words)) from error
        finally:
            status("")


def _reword(error: OrbitError, words: Mapping[str, str] | None) -> None:
    error.message, error.hint = _in_words(str(error), words), ""


def _in_words(sentence: str, words: Mapping[str, str] | None) -> str:
    for theirs, ours in (words or {}).items():
        sentence = sentence.replace(theirs, ours)
    return sentence


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C counts when Spark has started: a JVM that is left alone while it starts says so with a page of frames, later than we
    end. A second Ctrl-C is not held.
    """
    if threading.current_thread() is not threading.main_thread():  # who else has no signals
        yield
        return
    asked = False

    def hold(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        status("ending, once Spark has started")

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:  # Spark has one of its own, in a session that it made
            signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


@contextmanager
def _quiet_gateway() -> Iterator[None]:
    """py4j writes frames into the log for whatever ends a call to the JVM, Ctrl-C too, and then raises it all the same."""
    root = logging.getLogger()

    def is_news(record: logging.LogRecord) -> bool:
        return verbosity.verbose or _GATEWAY not in record.pathname

    root.addFilter(is_news)
    try:
        yield
    finally:
        root.removeFilter(is_news)


def require_spark() -> None:
    """Before anything of orbitmq.spark is imported: it comes with an extra."""
    missing = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"{_EXTRA} ({', '.join(missing)} missing)")


def spark_options(function: F) -> F:
    """Gives the command a `place`."""
    options = (
        click.option(
            "--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077, yarn. Default: here."
        ),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting for Spark. Repeatable."),
    )
    return bundled(function, "place", options, lambda master, conf: SparkPlace(master=master, conf=conf))


def continuous_options(seconds: float) -> Callable[[F], F]:
    """Gives the command `continuous` and `seconds`, of which so many are the default."""

    def add(function: F) -> F:
        every = click.option(
            "--every",
            "seconds",
            type=click.FloatRange(min=0.1),
            default=seconds,
            show_default=True,
            help="Seconds, with --continuous.",
        )
        going_on = click.option(
            "--continuous", is_flag=True, help="Go on until interrupted, instead of ending with the messages there are."
        )
        return going_on(every(function))

    return add


def credential_settings(credentials: tuple[str, str] | None) -> dict[str, str]:
    """As options of source and sink."""
    return {} if credentials is None else {"accessKey": credentials[0], "secretKey": credentials[1]}


def status(text: str) -> None:
    """Progress, on one line that is written over; nothing where nobody looks."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def tasks_done(what: str) -> Callable[[int, int], None]:
    """For `run_tasks`."""
    return lambda done, total: status(f"{what}: {done} of {total} tasks done")


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _of_spark(error: Exception) -> str | None:
    """The line of what Spark says that names the cause, and where Python code raised it, what that said: the rest is plans and frames."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JError):
        return None
    raised = _raised_in_python(str(error))
    if raised:
        return f"a worker failed: {raised}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [
        line.removeprefix(": ") for line in lines if line.startswith(": ")
    ]  # behind "An error occurred while calling"
    return (causes or lines or [type(error).__name__])[0]


def _raised_in_python(text: str) -> str:
    """By a worker's code, as its traceback ends: of a chain of exceptions the last, which is what the code wanted to say."""
    raised = ""
    for found in _RAISED.finditer(text):
        raised = found[1].strip()
        if _CHAINED.match(text, found.end()) is None:
            break  # what follows is the same once more, below frames of the JVM
    return raised
