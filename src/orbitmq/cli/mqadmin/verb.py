"""How a verb becomes a command: Apache's flags, the name server, the form of the output."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from orbitmq.cli.mqadmin.report import Report
from orbitmq.cli.options import Target, tls_wanted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_SECONDS: Final = 5.0
# Names and messages are anybody's, and a terminal must not obey them; what turns the direction of writing around is among it.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def flag(short: str, name: str, into: str, text: str, *, required: bool = False) -> click.Option:
    """One that takes a value, as nearly all of mqadmin's do."""
    words = [f"-{short}", f"--{name}"] if short else [f"--{name}"]
    return click.Option([*words, into], required=required, help=text)


def switch(short: str, name: str, into: str, text: str) -> click.Option:
    return click.Option([f"-{short}", f"--{name}", into], is_flag=True, help=text)


def verb(name: str, *options: click.Option) -> Callable[[Callable[..., Awaitable[None]]], click.Command]:
    """Makes a command of `async def f(session, report, **values)`; its docstring is the help."""
    short = {word for option in options for word in option.opts}
    output = ["--output"] if "-o" in short else ["-o", "--output"]

    def decorate(work: Callable[..., Awaitable[None]]) -> click.Command:
        def run(namesrv: str, output: str, **values: Any) -> None:
            target = Target(
                name_servers=namesrv,
                access_key=os.environ.get("ORBITMQ_ACCESS_KEY"),
                secret_key=os.environ.get("ORBITMQ_SECRET_KEY"),
                tls=tls_wanted(),
                timeout=_SECONDS,
            )
            report = Report()
            stripped = {key: value.strip() if isinstance(value, str) else value for key, value in values.items()}
            try:
                target.run(lambda session: work(session, report, **stripped))
            finally:  # what was done before a failure stays done
                if output == "text":
                    for line in report.lines:
                        click.echo(_UNPRINTABLE.sub(".", line))
            if output == "json":
                click.echo(msgspec.json.format(msgspec.json.encode(report.data), indent=2))

        return click.Command(
            name,
            callback=run,
            help=work.__doc__,
            params=[
                *options,
                click.Option(
                    ["-n", "--namesrvAddr", "namesrv"],
                    envvar="NAMESRV_ADDR",
                    default="127.0.0.1:9876",
                    show_default=True,
                    help="Name server address list, eg: '192.168.0.1:9876;192.168.0.2:9876'",
                ),
                click.Option(
                    [*output, "output"],
                    type=click.Choice(["text", "json"]),
                    default="text",
                    show_default=True,
                    help="As the original prints it, or as JSON.",
                ),
            ],
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    return decorate


def is_true(text: str | None) -> bool:
    """Java: Boolean.parseBoolean"""
    return text is not None and text.lower() == "true"


def whole_number(flag_name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{flag_name} {text!r} is no number") from None


def one_of(first: tuple[str, object], second: tuple[str, object]) -> None:
    """Where mqadmin wants one of two flags."""
    if (first[1] is None) == (second[1] is None):
        raise click.UsageError(f"give {first[0]} or {second[0]}, one of the two")
