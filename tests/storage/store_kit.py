"""What the tests of the store share: small files, short calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orbitmq.clock import ManualClock
from orbitmq.message.hosts import pack_host
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import decode_records
from orbitmq.storage.config import StorageConfig
from orbitmq.storage.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.message.message import StoredMessage
    from orbitmq.storage.appended import Appended
    from orbitmq.storage.files import Disk

STORE_HOST = pack_host("127.0.0.1", 10_911)
BORN_HOST = pack_host("10.0.0.1", 50_000)
BORN_AT_MS = 1_700_000_000_000


def small_config(directory: Path, **changes: Any) -> StorageConfig:
    """Files small enough that a few messages roll them: about ten records a segment, ten entries a queue file."""
    settings: dict[str, Any] = {
        "directory": directory,
        "segment_bytes": 4096,
        "queue_file_bytes": 200,
        "batch_queue_file_bytes": 460,
        "index_slots": 50,
        "index_entries": 40,
        "prepare_next_segment": False,
    }
    return StorageConfig(**settings | changes)


def open_store(directory: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **changes: Any) -> Store:
    kinds = changes.pop("is_batch_topic", lambda _topic: False)
    return Store(
        small_config(directory, **changes), STORE_HOST, clock=clock or ManualClock(), disk=disk, is_batch_topic=kinds
    )


def put(
    store: Store, topic: str = "T", queue_id: int = 0, body: bytes = b"body", *, properties: bytes = b"", **named: str
) -> Appended:
    """Append one message; `named` are its properties."""
    return store.append(topic, queue_id, body, properties or encode_properties(named), BORN_AT_MS, BORN_HOST)


def messages(store: Store, topic: str = "T", queue_id: int = 0, offset: int | None = None) -> list[StoredMessage]:
    """All messages of a queue, read in as many rounds as it takes."""
    store.dispatch()
    at = store.queue_range(topic, queue_id).min_offset if offset is None else offset
    found: list[StoredMessage] = []
    while True:
        result = store.read(topic, queue_id, at)
        for buffer in result.buffers:
            found += decode_records(buffer)
        if result.next_offset <= at:
            return found
        at = result.next_offset


def bodies(store: Store, topic: str = "T", queue_id: int = 0, offset: int | None = None) -> list[bytes]:
    return [message.body for message in messages(store, topic, queue_id, offset)]
