"""Options that many commands share: where the cluster is, and how what is found is shown."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from orbitmq.cli.choosing import Choice, conditions_from
from orbitmq.cli.failures import be_verbose
from orbitmq.cli.view import FORMATS, View, tell_missing
from orbitmq.errors import ConfigError, ConnectFailed, ConnectionLost

if TYPE_CHECKING:
    from orbitmq.admin.session import Session

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
_QUICKEST_SECONDS: Final = 0.1
TLS_VARIABLE: Final = "ORBITMQ_TLS"
_TLS_HINT: Final = (
    "does it speak TLS, with a certificate that this machine trusts? without --tls it is spoken to plainly"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster that a command is about."""

    name_servers: str
    access_key: str | None
    secret_key: str | None
    tls: bool
    timeout: float

    @property
    def credentials(self) -> tuple[str, str] | None:
        return credential_pair(self.access_key, self.secret_key)

    def open(self) -> Session:
        # Imported late: a wrong option, or a wish for help, should not wait for the client.
        from orbitmq.admin.session import open_session

        credentials = self.credentials
        try:
            return open_session(self.name_servers, credentials=credentials, tls=self.tls, timeout=self.timeout)
        except ConfigError as error:
            raise click.UsageError(f"--namesrv: {error}") from None

    def run(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do some work with the cluster, and leave."""
        from orbitmq.transport.loop import run

        async def whole() -> T:
            async with self.open() as session:
                result = await work(session)
                tell_missing(session)
                return result

        try:
            return run(whole())
        except (ConnectFailed, ConnectionLost) as error:
            if not self.tls:
                raise
            raise ConnectFailed(error.message, hint=_TLS_HINT) from error


def credential_pair(access_key: str | None, secret_key: str | None) -> tuple[str, str] | None:
    if (access_key is None) != (secret_key is None):
        raise click.UsageError("--access-key and --secret-key belong together")
    return (access_key, secret_key) if access_key and secret_key else None


def tls_wanted() -> bool:
    """As the environment says it, for commands that have no option for it."""
    return os.environ.get(TLS_VARIABLE, "").lower() in ("1", "true", "yes", "on")


credential_options: Final = (
    click.option("--access-key", envvar="ORBITMQ_ACCESS_KEY", show_envvar=True, help="Where the cluster has ACLs."),
    click.option("--secret-key", envvar="ORBITMQ_SECRET_KEY", show_envvar=True, help="Its secret."),
)
verbose_option: Final = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    callback=be_verbose,
    expose_value=False,
    help="Log more; failures at length.",
)


def target_options(function: F) -> F:
    """Gives the command a `target`."""

    def build(name_servers: str, access_key: str | None, secret_key: str | None, tls: bool, timeout: float) -> Target:
        return Target(name_servers=name_servers, access_key=access_key, secret_key=secret_key, tls=tls, timeout=timeout)

    options = (
        click.option(
            "-n",
            "--namesrv",
            "name_servers",
            envvar="NAMESRV_ADDR",
            default=DEFAULT_NAME_SERVER,
            show_default=True,
            show_envvar=True,
            metavar="HOST:PORT[;...]",
            help="Name servers.",
        ),
        *credential_options,
        click.option(
            "--tls",
            is_flag=True,
            envvar=TLS_VARIABLE,
            show_envvar=True,
            help="Speak TLS; certificates are checked as this machine checks them.",
        ),
        click.option(
            "--timeout", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, help="Seconds."
        ),
        verbose_option,
    )
    return bundled(function, "target", options, build)


def _watch_seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`--watch` may stand alone, so what comes behind it is taken for its value."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no number of seconds; write --watch last, or --watch 2") from None
    if not seconds >= _QUICKEST_SECONDS:
        raise click.BadParameter(f"every {seconds:g} s is too often: {_QUICKEST_SECONDS} s at least")
    return seconds


def view_options(function: F) -> F:
    """Gives the command a `view`: for commands that show rows."""

    def build(
        output: str,
        fields: str | None,
        where: tuple[str, ...],
        sort: str | None,
        limit: int | None,
        skip: int,
        watch: float | None,
    ) -> View:
        choice = Choice(
            fields=tuple(name.strip() for name in fields.split(",") if name.strip()) if fields else (),
            conditions=conditions_from(where),
            sort=sort,
            limit=limit,
            skip=skip,
        )
        return View(format=output, choice=choice, watch_seconds=watch)

    options = (
        output_option,
        click.option("--fields", metavar="A,B,...", help="Only these fields, in this order."),
        click.option(
            "--where",
            multiple=True,
            metavar="FIELD=PATTERN",
            help="Only rows for which it holds: = and != compare with a pattern (*, ?), < > <= >= numbers and times. "
            "Repeatable.",
        ),
        click.option("--sort", metavar="FIELD", help="Sort by a field; -FIELD for the largest first."),
        click.option("--limit", type=click.IntRange(min=1), help="At most so many rows."),
        click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out so many rows first."),
        click.option(
            "--watch",
            callback=_watch_seconds,
            is_flag=False,
            flag_value="2",
            metavar="[SECONDS]",
            help="Look again every so often, until Ctrl-C.  [default: 2]",
        ),
    )
    return bundled(function, "view", options, build)


def document_options(function: F) -> F:
    """Gives the command a `view`: for commands that show one thing."""
    return bundled(function, "view", (output_option,), lambda output: View(format=output))


output_option: Final = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Form of the output."
)


def where_option(function: F) -> F:
    """Which brokers a change is for."""
    function = click.option("-c", "--cluster", help="Only the brokers of this cluster.")(function)
    return click.option("-b", "--broker", help="Only this broker, by name or address.")(function)


def queue_place(text: str | None) -> tuple[str, int] | None:
    """The value of a `--queue BROKER:QUEUE`."""
    if text is None:
        return None
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdigit():
        raise click.UsageError(f"--queue {text!r} is no BROKER:QUEUE")
    return broker, int(number)


def bundled(function: F, name: str, options: tuple[Callable[[Any], Any], ...], build: Callable[..., object]) -> F:
    """A command that gets several options as one value."""
    import inspect

    keys = list(inspect.signature(build).parameters)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        taken = {key: kwargs.pop(key) for key in keys}
        return function(*args, **kwargs, **{name: build(**taken)})

    wrapped: Any = called
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
