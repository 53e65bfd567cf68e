"""Access files of RocketMQ 4.x: `plain_acl.yml`, and every YAML file in the folder `acl` beside it.

    globalWhiteRemoteAddresses:      nobody from there is asked anything
      - 10.10.103.*
    accounts:
      - accessKey: RocketMQ          longer than 6 characters, as is the secret key
        secretKey: "12345678"
        whiteRemoteAddress:          from there this account is not asked for its signature, and may do everything
        admin: false                 an admin may do everything
        defaultTopicPerm: DENY       DENY, PUB, SUB, PUB|SUB; what is missing is DENY
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, "topicB=PUB|SUB"]
        groupPerms: [groupC=SUB]

Java: PlainPermissionManager, PlainAccessValidator
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbitmq.access.addresses import AddressPattern
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LEAST_KEY_CHARACTERS: Final = 7


class Permission(IntFlag):
    NONE = 0
    DENY = 1
    PUB = 4
    SUB = 8


class Account(NamedTuple):
    access_key: str
    secret_key: str
    from_anywhere_in: AddressPattern
    is_admin: bool
    default_topic: Permission
    default_group: Permission
    topics: Mapping[str, Permission]
    groups: Mapping[str, Permission]

    def __repr__(self) -> str:
        return f"Account({self.access_key!r})"  # a secret key is for nobody's eyes


class PlainAccess(NamedTuple):
    """What the files say, taken together."""

    white_addresses: tuple[AddressPattern, ...]
    accounts: Mapping[str, Account]


def access_files(main: Path) -> list[Path]:
    folder = main.parent / "acl"
    more = sorted(path for path in folder.rglob("*") if path.suffix in (".yml", ".yaml")) if folder.is_dir() else []
    return [main, *more] if main.exists() else more


def read_access_files(paths: list[Path]) -> PlainAccess:
    """ConfigError names the file and what is wrong in it."""
    white: list[AddressPattern] = []
    accounts: dict[str, Account] = {}
    for path in paths:
        try:
            content = load_content(path)
            white += white_addresses(content)
            accounts |= read_accounts(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None
    return PlainAccess(tuple(white), accounts)


def white_addresses(content: dict[str, Any]) -> list[AddressPattern]:
    return [AddressPattern(str(text)) for text in _listed(content, "globalWhiteRemoteAddresses")]


def read_accounts(content: dict[str, Any]) -> dict[str, Account]:
    accounts = [_account(item) for item in _listed(content, "accounts")]
    return {account.access_key: account for account in accounts}


def load_content(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading it needs PyYAML", hint="pip install 'orbitmq[server]'") from None
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # What the error says quotes the line, and it may be that of a secret key.
        raise ConfigError(f"is no YAML{f', at line {mark.line + 1}' if mark is not None else ''}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError("holds no settings", hint="globalWhiteRemoteAddresses: and accounts:")
    return content


def _account(item: Any) -> Account:
    if not isinstance(item, dict):
        raise ConfigError("one of the accounts is none", hint="accessKey, secretKey and permissions")
    access_key, secret_key = str(item.get("accessKey") or ""), str(item.get("secretKey") or "")
    if len(access_key) < _LEAST_KEY_CHARACTERS or len(secret_key) < _LEAST_KEY_CHARACTERS:
        raise ConfigError(f"the keys of account {access_key!r} are too short", hint="both need more than 6 characters")
    return Account(
        access_key,
        secret_key,
        AddressPattern(str(item.get("whiteRemoteAddress") or "")),
        item.get("admin") is True,
        read_permission(item.get("defaultTopicPerm")),
        read_permission(item.get("defaultGroupPerm")),
        _permissions(_listed(item, "topicPerms")),
        _permissions(_listed(item, "groupPerms")),
    )


def _listed(content: dict[str, Any], key: str) -> list[Any]:
    items = content.get(key) or []
    if not isinstance(items, list):
        raise ConfigError(f"{key} is no list", hint="each in a line of its own, behind a dash")
    return items


def _permissions(items: list[Any]) -> dict[str, Permission]:
    found = {}
    for item in items:
        name, separator, permission = str(item).partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{item!r} is no permission", hint="such as orders=PUB|SUB")
        found[name.strip()] = read_permission(permission)
    return found


def read_permission(text: Any) -> Permission:
    """What is not understood is DENY."""
    words = {"PUB": Permission.PUB, "SUB": Permission.SUB}
    parts = [words.get(part.strip()) for part in str(text or "").split("|")]
    if not parts or None in parts:
        return Permission.DENY
    granted = Permission.NONE
    for part in parts:
        granted |= part or Permission.NONE
    return granted
