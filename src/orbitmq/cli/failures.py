"""What went wrong, in one line with cause and cure, and the exit code that says so to scripts.

0    done
1    it failed: refused, or something is wrong here
2    wrong use of the command
3    a server cannot be reached, or does not answer
4    there is no such topic, group, broker or message
5    not permitted
6    you were asked, and said no: nothing was changed
130  interrupted
"""

from __future__ import annotations

import traceback
from typing import Final

import click

from orbitmq.errors import CallTimeout, ConnectFailed, ConnectionLost, OrbitError, RequestFailed

FAILED: Final = 1
WRONG_USE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
NOT_PERMITTED: Final = 5
DECLINED: Final = 6
INTERRUPTED: Final = 130

_NO_PERMISSION: Final = 16
_OLD_REFUSAL: Final = "AclException"  # how brokers with access files of 4.x say it, under the code for anything
# TOPIC_NOT_EXIST, QUERY_NOT_FOUND, SUBSCRIPTION_GROUP_NOT_EXIST, CONSUMER_NOT_ONLINE, NO_MESSAGE, BROKER_NOT_EXIST; as numbers,
# because every start of the command would pay for loading the protocol
_MISSING: Final = frozenset({17, 22, 26, 206, 208, 211})
_TIMEOUT_HINT: Final = "--timeout gives it longer; `orbitmq doctor` looks closer"
_NOT_OURS: Final = "does it belong to another user? give it to the one who runs this, or name another folder"
_LOST_HINT: Final = "`orbitmq doctor` looks closer"


class Declined(click.ClickException):
    """The user was asked and said no."""

    exit_code = DECLINED

    def __init__(self) -> None:
        super().__init__("nothing was changed")


class _Verbosity:
    """Whether failures are to be shown at length, as the running command was told."""

    verbose = False


verbosity: Final = _Verbosity()


def be_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """The callback of every `-v`."""
    if value:
        from orbitmq.cli.logs import log_to_stderr

        verbosity.verbose = True
        log_to_stderr(verbose=True)
    return value


def exit_code(error: BaseException) -> int:
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, ConnectFailed | ConnectionLost | CallTimeout):
        return UNREACHABLE
    if isinstance(error, RequestFailed) and error.code in _MISSING:
        return NOT_FOUND
    if isinstance(error, RequestFailed) and (error.code == _NO_PERMISSION or _OLD_REFUSAL in error.message):
        return NOT_PERMITTED
    return FAILED


def one_line(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        context = error.ctx
        where = f" (see `{context.command_path} --help`)" if context is not None else ""
        return _joined(error.format_message()) + where
    if isinstance(error, click.ClickException):
        return _joined(error.format_message())
    if isinstance(error, OrbitError):
        hint = error.hint
        if isinstance(error, CallTimeout):
            hint += f" {_TIMEOUT_HINT}"
        if isinstance(error, ConnectionLost):
            hint += f" {_LOST_HINT}"
        return _joined(f"{error.message} ({hint})" if hint else error.message)
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        cure = f" ({_NOT_OURS})" if isinstance(error, PermissionError) else ""
        return _joined(f"{error.filename}: {what}{cure}" if error.filename else f"{what}{cure}")
    return _joined(f"internal error: {error!r} (`orbitmq -v ...` shows where; please report it)")


def report(error: BaseException) -> int:
    """Print it, at length if so asked; the exit code."""
    if verbosity.verbose:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
        if isinstance(error, RequestFailed):
            click.echo(f"response code: {error.code}", err=True)
    click.echo(f"orbitmq: {one_line(error)}", err=True)
    return exit_code(error)


def _joined(text: str) -> str:
    """Remarks of servers come with line breaks, and Apache's with an address that is no help."""
    lines = (line.strip() for line in text.splitlines())
    kept = (line for line in lines if line and not line.startswith(("See http", "For more information, please visit")))
    return " ".join("".join(c if c.isprintable() else "." for c in line) for line in kept)
