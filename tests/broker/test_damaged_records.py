"""A record that the disk has damaged costs its message: nothing behind it, and not the broker's next start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from orbitmq.testing.clock import MovableClock
from tests.broker.kit import PATIENCE_SECONDS, SEND_V2, running, send_header, wire
from tests.broker.lease_kit import LeaseClient

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from orbitmq.broker.broker import Broker
    from tests.broker.kit import Wire

TOPIC, GROUP, LEASE_MS = "Leases", "LG", 10_000
HALVES, DECISIONS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RETRIES, REVIVALS = f"%RETRY%{GROUP}_{TOPIC}", "rmq_sys_REVIVE_LOG_DefaultCluster"
BODY_LENGTH_AT = 84
SMALL_FILES: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 16}
BY_HAND: dict[str, Any] = {**SMALL_FILES, "reviveQueueNum": 1, "reviveInterval": 3_600_000}


def spoil(broker: Broker, topic: str, queue_offset: int) -> None:
    """Its lengths contradict each other from now on."""
    entries = broker.state.store.queue_entries(topic, 0, queue_offset, 1)
    assert entries, f"nothing at {queue_offset} of {topic}"
    physical = entries[0][0]
    segment = broker.state.store.log.files.segment_of(physical)
    assert segment is not None
    at = physical - segment.start + BODY_LENGTH_AT
    segment.memory[at : at + 4] = b"\x7f\xff\xff\xff"


async def make_old(client: Wire) -> None:
    """What is in the log is in files that a start does not look at any more."""
    for _ in range(100):
        assert (await client.send("Filling", bytes(3000))).code == 0


async def until_stored(broker: Broker, topic: str, messages: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while broker.state.store.queue_range(topic, 0).max_offset < messages:
            await asyncio.sleep(0.02)


async def pop_each(client: Wire, count: int) -> list[bytes]:
    """One lease for each message."""
    consumer = LeaseClient(client)
    leased = [(await consumer.pop(TOPIC, invisibleTime=LEASE_MS, maxMsgNums=1))[0] for _ in range(count)]
    return [each.body for each in leased]


async def hand_out_again(broker: Broker, clock: MovableClock, leases: int) -> None:
    """`leases` is how many have been written in all."""
    clock.advance(ms=LEASE_MS + 4000)
    await until_stored(broker, REVIVALS, leases)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert broker.state.timers is not None
        while broker.state.timers.done_until_ms() < clock.now_ms() - 1000:
            await asyncio.sleep(0.02)
    for _ in range(2):
        await broker.state.reviving.round()


async def test_damaged_leases_and_what_they_lease_are_skipped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovableClock()
    async with running(tmp_path, clock=clock, **BY_HAND) as broker, wire(broker) as client:
        for body in (b"its lease", b"itself", b"sound", b"when retried"):
            assert (await client.send(TOPIC, body, 0, header={"default_topic_queue_nums": 1})).code == 0
        assert len(await pop_each(client, 4)) == 4
        clock.advance(ms=LEASE_MS + 4000)
        await until_stored(broker, REVIVALS, 4)
        spoil(broker, REVIVALS, 0)
        spoil(broker, TOPIC, 1)
        await hand_out_again(broker, clock, 4)
        spoil(broker, RETRIES, 1)
        again = await LeaseClient(client).pop(TOPIC, invisibleTime=LEASE_MS)
        assert [each.body for each in again] == [b"sound"]
        assert (await LeaseClient(client).ack(again[0])).code == 0
        await make_old(client)
    told = caplog.text
    assert f"skipped message 0 of queue 0 of {REVIVALS}, which cannot be read" in told
    assert f"gave up message 1 of {TOPIC}, which cannot be handed out again" in told
    assert f"skipped message 1 of queue 0 of {RETRIES}, which cannot be read" in told

    async with running(tmp_path, clock=clock, **BY_HAND) as broker, wire(broker) as client:
        await hand_out_again(broker, clock, 5)
        assert await LeaseClient(client).pop(TOPIC) == []


async def test_damaged_half_messages_and_decisions_do_not_stop_a_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, **SMALL_FILES) as broker, wire(broker) as client:
        receipts = []
        for name in ("spoilt", "sound", "decided"):
            half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": name}
            receipts.append(await client.ask(SEND_V2, send_header("Pay", 0, half, {"sys_flag": 4}), name.encode()))
        assert await end(client, receipts[2].fields) == 0
        await until_stored(broker, DECISIONS, 1)
        await make_old(client)
        spoil(broker, HALVES, 0)
        spoil(broker, DECISIONS, 0)

    async with running(tmp_path, **SMALL_FILES) as broker, wire(broker) as client:
        assert len(broker.state.half_messages) == 2  # nobody knows any more that one was decided: its producer is asked
        assert await end(client, receipts[1].fields) == 0
        assert sorted(await client.bodies("Pay")) == [b"decided", b"sound"]
    assert f"skipped message 0 of queue 0 of {HALVES}, which cannot be read" in caplog.text
    assert f"skipped message 0 of queue 0 of {DECISIONS}, which cannot be read" in caplog.text


async def end(client: Wire, receipt: Any) -> int:
    decision = {
        "producerGroup": "P", "tranStateTableOffset": receipt["queueOffset"], "commitOrRollback": 8,
        "commitLogOffset": int(receipt["msgId"][16:], 16), "msgId": receipt["transactionId"],
    }  # fmt: skip
    return (await client.ask(37, decision)).code
