"""Settings that operators keep in the name server: namespace -> key -> value, saved on every change.

The file is Apache's `kvConfig.json`: {"configTable":{"ORDER_TOPIC_CONFIG":{"MyTopic":"broker-a:8;broker-b:8"}}}

Java: KVConfigManager
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq import fastjson
from orbitmq.errors import BodyError, ConfigError, RequestFailed
from orbitmq.protocol.codes import ResponseCode
from orbitmq.saved_file import save

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"  # the namespace that says which topics are ordered, and over which queues

Table = dict[str, dict[str, str]]


class _SavedForm(msgspec.Struct):
    configTable: Table = {}  # noqa: N815 - Java's spelling; msgspec copies empty defaults


class KvConfig:
    def __init__(self, path: Path) -> None:
        self.generation = 0
        self._path = path
        self._table: Table = {}
        self._came_from_backup = False
        self._saving = asyncio.Lock()

    def load(self) -> None:
        """Read the file, or what was there before it if it is torn. Nothing to read is an empty table."""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            if not path.exists():
                continue
            try:
                self._table = msgspec.convert(fastjson.loads(path.read_bytes()), _SavedForm).configTable
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}", hint="see kvConfigPath") from None
            except (BodyError, msgspec.ValidationError) as error:
                logger.warning("cannot read %s, trying what was saved before it: %s", path, error)
            else:
                self._came_from_backup = path is not self._path
                return

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """None if nothing was ever put there; empty if all of it was deleted."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        async with self._saving:
            await self._save({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})
        logger.info("kept %s in %s", key, namespace)  # its value may be a secret

    async def delete(self, namespace: str, key: str) -> None:
        async with self._saving:
            items = self._table.get(namespace)
            if items is None or key not in items:
                return
            await self._save({**self._table, namespace: {k: v for k, v in items.items() if k != key}})
        logger.info("forgot %s in %s", key, namespace)

    def summary(self) -> str:
        items = [f"{namespace}/{key}" for namespace, table in self._table.items() for key in table]
        return ", ".join(items) or "none"

    async def _save(self, table: Table) -> None:
        """The change counts only once it is on disk."""
        text = msgspec.json.encode({"configTable": table}).decode()
        try:
            # The backup is the only good copy while the file itself is torn: then leave it alone.
            await asyncio.to_thread(save, self._path, text, keep_old=not self._came_from_backup)
        except OSError as error:
            raise RequestFailed(
                ResponseCode.SYSTEM_ERROR,
                f"cannot save {self._path}: {error.strerror}; nothing was changed",
                hint="make room, or make the folder writable",
            ) from None
        self._came_from_backup = False
        self._table = table
        self.generation += 1
