"""Changing access files of 4.x from a program: accounts, white addresses, and a version that grows with each change.

    dataVersion:
      - counter: 3
        timestamp: 1700000000000

What a change would leave is read as the gate reads it before it replaces the file, so no request can leave a file that is of no use.
Only files that are access files already are ever written, and the main one. Comments in a file are lost with its first change, as
with Apache's broker.

Java: PlainPermissionManager
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orbitmq.access.plain_file import access_files, load_content, read_accounts, white_addresses
from orbitmq.errors import ConfigError
from orbitmq.saved_file import save

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.protocol.headers.access import PlainAccount


class PlainFiles:
    """ConfigError says why a change cannot be; OSError that it could not be written."""

    def __init__(self, main: Path, clock: Clock) -> None:
        self._main = main
        self._clock = clock

    def put_account(self, changes: PlainAccount) -> None:
        """A new account goes to the main file. Of several of that name, the one that the gate goes by is changed."""
        holding = self._holding(changes.access_key)
        path, content = holding[-1] if holding else (self._main, self._content(self._main))
        accounts = [dict(item) for item in content.get("accounts") or []]
        old = next((item for item in reversed(accounts) if _is_of(item, changes.access_key)), None)
        if old is None:
            old = {"accessKey": changes.access_key}
            accounts.append(old)
        old |= _texts(changes)
        self._write(path, {**content, "accounts": accounts})

    def delete_account(self, access_key: str) -> None:
        """From every file: one that was left would count from then on."""
        holding = self._holding(access_key)
        if not holding:
            raise ConfigError(f"there is no account {access_key!r}")
        for path, content in holding:
            accounts = [item for item in content["accounts"] if not _is_of(item, access_key)]
            self._write(path, {**content, "accounts": accounts})

    def set_white_addresses(self, addresses: list[str], file: str | None) -> None:
        path = self._named(file) if file else self._main
        self._write(path, {**self._content(path), "globalWhiteRemoteAddresses": addresses})

    def versions(self) -> dict[str, dict[str, int]]:
        """Of each file, by its path."""
        return {str(path): _version(self._content(path)) for path in access_files(self._main)}

    def main_version(self) -> dict[str, int]:
        return _version(self._content(self._main))

    def _named(self, file: str) -> Path:
        """No file that is not an access file, however its path is written (Apache's broker writes below its home)."""
        for path in access_files(self._main):
            if str(path) == file:
                return path
        raise ConfigError(f"{file!r} is no access file of this broker", hint="leave it out to change the main one")

    def _holding(self, access_key: str) -> list[tuple[Path, dict[str, Any]]]:
        """In the order in which the gate reads them: what the last one says is in force."""
        contents = ((path, self._content(path)) for path in access_files(self._main))
        return [(path, content) for path, content in contents if access_key in read_accounts(content)]

    def _content(self, path: Path) -> dict[str, Any]:
        return load_content(path) if path in access_files(self._main) else {}

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        import yaml

        read_accounts(content)
        white_addresses(content)
        version = {"counter": _version(content)["counter"] + 1, "timestamp": self._clock.now_ms()}
        text = yaml.safe_dump({**content, "dataVersion": [version]}, sort_keys=False, allow_unicode=True)
        save(path, text, private=True)


def _is_of(item: dict[str, Any], access_key: str) -> bool:
    """As the gate reads it: a key of digits alone is a number to YAML."""
    return str(item.get("accessKey")) == access_key


def _texts(changes: PlainAccount) -> dict[str, Any]:
    lists = {"topicPerms": changes.topic_perms, "groupPerms": changes.group_perms}
    plain = {
        "secretKey": changes.secret_key,
        "whiteRemoteAddress": changes.white_remote_address,
        "admin": changes.admin,
        "defaultTopicPerm": changes.default_topic_perm,
        "defaultGroupPerm": changes.default_group_perm,
    }
    said = {key: value for key, value in plain.items() if value is not None}
    return said | {key: _split(text) for key, text in lists.items() if text is not None}


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _version(content: dict[str, Any]) -> dict[str, int]:
    """Files that nobody has changed from afar have none."""
    listed = content.get("dataVersion")
    version = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    return {"counter": int(version.get("counter") or 0), "timestamp": int(version.get("timestamp") or 0)}
