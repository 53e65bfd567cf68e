"""Copying beside sends: a slave far behind is sent its share and no more, and one whose connection breaks all the time loses nothing.

How fast that is, `python -m benchmarks catch_up` and `flapping` measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.replication.pace import Allowance
from tests.broker.kit import Wire
from tests.replication.kit import copied, group_of_brokers, log_bytes, until

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


@pytest.mark.parametrize(("role", "copies", "is_paced"), [("ASYNC_MASTER", 1, True), ("SYNC_MASTER", 2, False)])
async def test_only_where_sends_do_not_wait_for_slaves_are_these_slowed_down_for_them(
    tmp_path: Path, role: str, copies: int, is_paced: bool
) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master(brokerRole=role, inSyncReplicas=copies, slaveTimeout=1)
        slaves, store = master.state.slaves, master.state.store
        slaves.set_pace()
        assert slaves.pace == 0  # nothing comes in
        for _ in range(3):
            store.append("T", 0, b"x" * (MB // 2), b"", 0, bytes(8))
        slaves.set_pace()
        assert (slaves.pace > 0) is is_paced
        slaves.set_pace()
        assert slaves.pace == 0


def test_what_could_not_be_sent_in_time_is_still_due_within_reason() -> None:
    allowance, now, sent = Allowance(), 1000.0, 0
    allowance.sent(allowance.due(8 * MB, now))
    for seconds, is_busy in ((0.01, False), (0.2, False), (0.03, True), (0.005, False), (0.255, False)):
        now += seconds
        due = allowance.due(8 * MB, now)
        if not is_busy:
            allowance.sent(due)
            sent += due
    assert abs(sent - 4 * MB) <= 1  # half a second's, whenever it was asked
    assert allowance.due(8 * MB, now) == 0
    assert allowance.due(8 * MB, now + 100) == 4 * MB


async def test_a_slave_far_behind_gets_everything_at_the_pace_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        for _ in range(24):  # most of it further back than what is copied at once
            master.state.store.append("T", 0, b"x" * (MB // 2), b"", 0, bytes(8))
        monkeypatch.setattr(master.state.slaves, "set_pace", lambda: None)
        master.state.slaves.pace = 64 * MB
        slave = await group.slave()
        await copied(master, slave)
        assert log_bytes(slave) == log_bytes(master)


async def test_a_slave_that_flaps_hurts_no_send_and_loses_nothing(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        slave = await group.slave()
        assert master.address is not None
        assert slave.state.copying is not None
        copying = slave.state.copying
        client = Wire(master.address)
        for turn in range(4):
            await until(lambda: copying.is_connected, "the slave is connected again")
            for number in range(50):
                assert (await client.send("T", b"%d-%d " % (turn, number) + b"x" * 2000)).code == 0
                if number == 25:
                    master.state.slaves.drop_connections()  # in the middle of what is being copied
        await client.close()
        await copied(master, slave)
        assert log_bytes(slave) == log_bytes(master)
