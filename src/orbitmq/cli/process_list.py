"""Secrets that were given as arguments, made unreadable where `ps` and /proc show them to every user of the machine.

    orbitmq broker --set initAuthenticationUser={"username":"root","password":"..."}     what follows the = is starred
    orbitmq topic list --access-key me --secret-key ...                                  so is a secret or a password

Linux alone lets a process change what is shown of it. Elsewhere, and until Python has started, arguments are what they are: the environment
(ORBITMQ_SECRET_KEY) and files are seen by nobody else at any time.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECRET: Final = re.compile(r"secret|password|credentials|authenticationuser", re.IGNORECASE)
_USER_VERBS: Final = frozenset({"createUser", "updateUser"})  # of mqadmin, whose -p is a password
_STAT: Final = Path("/proc/self/stat")
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # fields of it, counted behind the name of the process


def hide_secrets(arguments: Sequence[str]) -> None:
    """Of this process. Does what can be done, and never fails."""
    found = secrets_in(arguments)
    if not found:
        return
    try:
        fields = _STAT.read_text(errors="replace").rpartition(")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    except (OSError, ValueError, IndexError):
        return
    if not 0 < begin < end:  # a kernel that does not tell
        return
    import ctypes

    shown = ctypes.string_at(begin, end - begin)
    starred = b"\0".join(_starred(one, found) for one in shown.split(b"\0"))
    ctypes.memmove(begin, starred, len(starred))


def secrets_in(arguments: Sequence[str]) -> list[str]:
    found = []
    is_user_verb = not _USER_VERBS.isdisjoint(arguments)
    for argument, following in pairwise([*arguments, ""]):
        name, _, value = argument.partition("=")
        if name == "--set":
            name, _, value = (value or following).partition("=")
            found.append(value if _SECRET.search(name) else "")
        elif name.startswith("--") and _SECRET.search(name):
            found.append(value or following)
        elif argument == "-p" and is_user_verb:
            found.append(following)
    return [secret for secret in found if secret]


def _starred(argument: bytes, secrets: Sequence[str]) -> bytes:
    for secret in secrets:
        hidden = secret.encode(errors="surrogateescape")
        if argument == hidden or argument.endswith(b"=" + hidden):
            return argument.removesuffix(hidden) + b"*" * len(hidden)
    return argument
