from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from orbitmq.message.tags import tag_code
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS, ExtensionUnit, QueueExtensions
from orbitmq.storage.queue_index import QueueIndex
from tests.storage.store_kit import bodies, open_store, put, small_config

if TYPE_CHECKING:
    from pathlib import Path

FILE_BYTES = 400
BASE = -(2**63)


def unit(tags_code: int, stored_at_ms: int, bitmap: bytes) -> bytes:
    return struct.pack(">hqqh", 20 + len(bitmap), tags_code, stored_at_ms, len(bitmap)) + bitmap


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two units in the first file, one in the second, as Apache's broker lays them out."""
    queue = tmp_path / "consumequeue_ext" / "T" / "0"
    queue.mkdir(parents=True)
    first = unit(tag_code("a"), 1000, b"\x01" * 14) + unit(tag_code("b"), 2000, b"") + struct.pack(">h", -1)
    (queue / "00000000000000000000").write_bytes(first.ljust(FILE_BYTES, b"\0"))
    (queue / "00000000000000000400").write_bytes(unit(tag_code("c"), 3000, b"").ljust(FILE_BYTES, b"\0"))
    return tmp_path


def test_an_address_leads_to_its_unit(directory: Path) -> None:
    extensions = QueueExtensions(LocalDisk(), small_config(directory, queue_extension_file_bytes=FILE_BYTES))
    assert extensions.read("T", 0, BASE) == ExtensionUnit(tag_code("a"), 1000, b"\x01" * 14)
    assert extensions.read("T", 0, BASE + 34) == ExtensionUnit(tag_code("b"), 2000, b"")
    assert extensions.read("T", 0, BASE + 400) == ExtensionUnit(tag_code("c"), 3000, b"")
    extensions.close()


@pytest.mark.parametrize("offset", [54, 60, 100, 395, 800, 1 << 40])
def test_an_address_that_leads_to_no_unit_gives_none(directory: Path, offset: int) -> None:
    extensions = QueueExtensions(LocalDisk(), small_config(directory, queue_extension_file_bytes=FILE_BYTES))
    assert extensions.read("T", 0, BASE + offset) is None
    assert extensions.read("Other", 0, BASE) is None
    extensions.close()


def test_a_tag_filter_follows_the_address_to_the_tag(directory: Path) -> None:
    store = open_store(directory, queue_extension_file_bytes=FILE_BYTES)
    for number in range(4):
        put(store, body=b"%d" % number, TAGS="d")
    store.dispatch()
    queue = store.queues.queues[("T", 0)]
    assert isinstance(queue, QueueIndex)
    for number, address in enumerate((BASE, BASE + 34, BASE + 54)):  # the last leads to no unit
        physical, size, _ = queue.entry(number)
        queue.log.overwrite(number, struct.pack(">qiq", physical, size, address))
    assert tag_code("d") > LAST_EXTENSION_ADDRESS

    def matching(tag: str) -> list[int]:
        return list(store.read("T", 0, 0, tag_codes={tag_code(tag)}).queue_offsets)

    assert matching("a") == [0, 2], "an unknown tag is left to the consumer to compare"
    assert matching("b") == [1, 2]
    assert matching("d") == [2, 3]
    assert len(bodies(store)) == 4
    store.close()
