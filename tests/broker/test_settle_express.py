"""Acks and ends of transactions: the short way and the long way change and answer the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker.handlers.leases import ack_message
from orbitmq.errors import StoreFull
from orbitmq.message.record import decode_records
from orbitmq.protocol.command import Command, encode
from orbitmq.storage.health import RunningFlags
from tests.broker.kit import running, wire
from tests.broker.lease_kit import ACK, LeaseClient
from tests.broker.two_ways import EXPRESS, ORDINARY, WAYS, two_ways
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from tests.broker.lease_kit import Leased

pytestmark = pytest.mark.usefixtures("loops")

END_TRANSACTION, COMMIT, ROLL_BACK = 37, 8, 12
TIMERS = "rmq_sys_wheel_timer"


def ack_fields(leased: Leased, **changes: Any) -> dict[str, str]:
    fields = {
        "consumerGroup": leased.group, "topic": leased.real_topic, "queueId": leased.handle.queue_id,
        "extraInfo": leased.handle.text(), "offset": leased.handle.offset, **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


def entries(broker: Broker, topic: str) -> list[tuple[str | None, bytes]]:
    """Tag and body of all messages of a queue of the broker's own."""
    broker.state.store.dispatch()
    found = []
    for offset in range(broker.state.store.queue_range(topic, 0).max_offset):
        for buffer in broker.state.store.read(topic, 0, offset, 1).buffers:
            found += [(message.properties.get("TAGS"), message.body) for message in decode_records(buffer)]
    return found


WRONG_ACKS: dict[str, dict[str, Any]] = {
    "another group": {"consumerGroup": "Thieves"},
    "no such topic": {"topic": "Nowhere"},
    "no such queue": {"queueId": 99},
    "an offset behind the end": {"offset": 1000},
    "no handle": {"extraInfo": "x"},
    "a made-up handle": {"extraInfo": "0 1 60000 0 0 broker-a 0 0"},
}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_both_ways_acknowledge_alike(tmp_path: Path, flush: str) -> None:
    async with running(tmp_path, flushDiskType=flush) as broker, wire(broker) as client, two_ways(broker) as ways:
        consumer = LeaseClient(client)
        for number in range(4):
            await client.send("T", b"%d" % number)
        leased = await consumer.pop("T")
        assert len(leased) == 4
        frames = {}
        for way, mine in zip(WAYS, leased, strict=False):
            frames[way] = [await ways.frame(way, ACK, ack_fields(mine)) for _ in range(2)]  # once more changes nothing
            for name, changes in WRONG_ACKS.items():
                frame = await ways.frame(way, ACK, ack_fields(leased[3], **changes))
                assert b'"code":0' not in frame.header, name
                frames[way].append(frame)
        assert frames[EXPRESS] == frames[ORDINARY]
        assert broker.state.open_leases.in_flight("T", "LG", 0) == 2
        tags = [tag for tag, _ in entries(broker, TIMERS)]
        assert tags == ["ck", "ack", "ack"]


async def test_acks_of_one_lease_that_come_together_are_one_entry_and_all_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        for number in range(6):
            await client.send("T", b"%d" % number)
        leased = await consumer.pop("T")
        wrong = ack_fields(leased[0], consumerGroup="Thieves")
        acks = [*(ack_fields(each) for each in leased[:5]), ack_fields(leased[0]), wrong]
        async with raw_client(broker.address) as raw:
            raw.send(b"".join(encode(Command(ACK, opaque=n, fields=fields)) for n, fields in enumerate(acks, 1)))
            answers = [await raw.answer() for _ in acks]
        assert {answer.opaque: answer.code for answer in answers} == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 13}
        (_, _), (tag, body) = entries(broker, TIMERS)
        assert tag == "bAck"
        assert b'"aol":[0,1,2,3,4]' in body
        assert broker.state.open_leases.in_flight("T", "LG", 0) == 1


async def test_an_ack_that_cannot_be_stored_is_refused_and_may_come_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        consumer = LeaseClient(client)
        await client.send("T", b"x")
        (leased,) = await consumer.pop("T")
        health = broker.state.store.health
        health.report(RunningFlags.NOT_WRITABLE, StoreFull("no room"))
        assert (await consumer.ack(leased)).code == 14
        health.clear(RunningFlags.NOT_WRITABLE)
        assert broker.state.open_leases.in_flight("T", "LG", 0) == 1
        assert (await consumer.ack(leased)).code == 0
        assert broker.state.open_leases.in_flight("T", "LG", 0) == 0


async def test_an_ack_whose_asker_is_gone_counts_and_holds_up_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        state, consumers = broker.state, [LeaseClient(client, "LG"), LeaseClient(client, "Others")]
        await client.send("T", b"x")
        (gone,), (other,) = [await consumer.pop("T") for consumer in consumers]
        asking = asyncio.ensure_future(
            ack_message(
                state.settling, state.topics, state.store, None, state.durability,
                Command(ACK, fields=ack_fields(gone)), None,  # type: ignore[arg-type]
            )
        )  # fmt: skip
        asyncio.get_running_loop().call_soon(asking.cancel)  # when it has asked, and before anything is written
        told: list[object] = []
        asyncio.get_running_loop().call_soon(lambda: state.settling.ack("Others", "T", 0, 0, other.handle, told.append))
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: bool(told), what="the other ack")
        assert all(isinstance(end, int) and end for end in told)
        assert [state.open_leases.in_flight("T", group, 0) for group in ("LG", "Others")] == [0, 0]


async def test_both_ways_end_transactions_alike(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client, two_ways(broker) as ways:
        frames: dict[str, list[Any]] = {way: [] for way in WAYS}
        for number, way in enumerate(WAYS):
            kinds: tuple[tuple[int, dict[str, Any]], ...]
            kinds = ((COMMIT, {}), (ROLL_BACK, {}), (COMMIT, {"DELAY": "18"}), (7, {}))
            for decision, delay in kinds:
                half = await client.send("T", b"half", number, TRAN_MSG="true", PGROUP="P", **delay)
                fields = {
                    "producerGroup": "P", "tranStateTableOffset": half.fields["queueOffset"], "msgId": "x",
                    "commitLogOffset": str(int(half.fields["msgId"][16:], 16)), "commitOrRollback": str(decision),
                }  # fmt: skip
                frames[way].append(await ways.frame(way, END_TRANSACTION, fields))
                frames[way].append(await ways.frame(way, END_TRANSACTION, fields))  # once is enough
                wrong = [{"producerGroup": "Q"}, {"tranStateTableOffset": "99"}, {"commitOrRollback": "x"}]
                for change in wrong:
                    frame = await ways.frame(way, END_TRANSACTION, {**fields, **change})
                    assert b'"code":0' not in frame.header, change
                    frames[way].append(frame)
        assert frames[EXPRESS] == frames[ORDINARY]
        assert [await client.bodies("T", number) for number in (0, 1)] == [[b"half"], [b"half"]]
        assert broker.state.store.queue_range("SCHEDULE_TOPIC_XXXX", 17).max_offset == 2
        assert len(broker.state.half_messages) == 2  # 7 is no decision


async def test_an_end_that_wants_no_answer_gets_none(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client, raw_client(broker.address) as raw:
        half = await client.send("T", b"half", TRAN_MSG="true", PGROUP="P")
        fields = {
            "producerGroup": "P", "tranStateTableOffset": half.fields["queueOffset"], "msgId": "x",
            "commitLogOffset": str(int(half.fields["msgId"][16:], 16)), "commitOrRollback": str(COMMIT),
        }  # fmt: skip
        raw.send(encode(Command(END_TRANSACTION, opaque=5, flag=2, fields=fields)))
        await until(lambda: not len(broker.state.half_messages), what="the commit")
        raw.send(encode(Command(END_TRANSACTION, opaque=6, fields=fields)))
        assert (await raw.answer()).opaque == 6
