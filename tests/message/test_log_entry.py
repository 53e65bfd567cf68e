from __future__ import annotations

import pytest

from orbitmq.message.log_entry import entries_at
from orbitmq.message.record import decode_entry
from tests.golden_stores import VERSIONS, commit_log, manifest


@pytest.mark.parametrize("start", [0, 1 << 30])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_entries_of_many_records_are_those_of_each(version: str, start: int) -> None:
    """Apache's logs hold IPv6 hosts and long topics as well."""
    log = memoryview(commit_log(version))
    positions = [message["commitLogOffset"] for message in manifest(version)["messages"]]
    wanted = []
    for at in positions:
        entry = decode_entry(log, at, start + at)
        queue = (entry.topic, entry.queue_id)
        place = (entry.commit_log_offset, entry.size, entry.queue_offset)
        wanted.append((queue, *place, entry.sys_flag, entry.stored_at_ms, entry.properties))
    assert entries_at(log, positions, start) == wanted
    assert len({entry[0] for entry in wanted}) > 1
