"""Tables of parts that this broker does not have, or has no use for now, are left as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.kit import running, wire

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "topicQueueMapping.json": b'{"dataVersion":{},"topicQueueMappingInfoMap":{}}',
    "lmqConsumerOffset.json": b'{"lmqOffsetTable":{"%LMQ%a":3}}',
}


@pytest.mark.parametrize("name", FILES)
async def test_it_is_the_same_after_a_run(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config" / name
    file.parent.mkdir()
    file.write_bytes(FILES[name])
    async with running(tmp_path) as broker, wire(broker) as client:
        await client.send("T")
        await client.heartbeat("client", "G", {"T": "*"})
    assert file.read_bytes() == FILES[name]
