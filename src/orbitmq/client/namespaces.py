"""Names inside a namespace: `<namespace>%<name>`, with the prefix of a retry or dead-letter topic kept in front.

    Orders          shop%Orders
    %RETRY%group    %RETRY%shop%group

System topics belong to nobody and keep their names.

Java: NamespaceUtil
"""

from __future__ import annotations

from typing import Final

from orbitmq.client.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

_SEPARATOR: Final = "%"
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def wrapped(namespace: str, name: str) -> str:
    """The name as servers know it, a plain text (members of enums, say, are more); a name that is wrapped already stays as it is."""
    if name.__class__ is not str:
        name = str.__str__(name)
    if not namespace or not name or is_system_topic(name) or name.startswith(_SYSTEM_GROUP_PREFIX):
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{bare}"


def unwrapped(namespace: str, name: str) -> str:
    """The name as the program knows it."""
    if not namespace:
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(namespace + _SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
