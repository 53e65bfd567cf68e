"""The short way in and the long way in: whatever is sent, the two store and answer the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.record import decode_records
from orbitmq.protocol import command as commands
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON
from tests.broker.kit import SEND, SEND_BATCH, SEND_V2, long_send_header, running, send_header, wire
from tests.broker.two_ways import WAYS, two_ways

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.protocol.headers.base import Header

pytestmark = pytest.mark.usefixtures("loops")

TAGGED = {"UNIQ_KEY": "7F0000010001", "TAGS": "a"}
UTF8 = {"UNIQ_KEY": "ключ", "KEYS": "k1 k2", "цвет": "красный"}
WAITS_AND_NOT = "UNIQ_KEY\x01A\x02WAIT\x01true\x02WAIT\x01false\x02"
SUBJECT_TO_CHANGE = ("msgId", "queueOffset", "transactionId", "recallHandle")

USUAL: dict[str, tuple[int, Header, bytes]] = {
    "short": (SEND_V2, send_header("T", 1, TAGGED), b"body"),
    "short, as batch of none": (SEND_BATCH, send_header("T", 1, TAGGED), b"body"),
    "long": (SEND, long_send_header("T", 1, TAGGED), b"body"),
    "flags": (SEND_V2, send_header("T", 1, TAGGED, {"flag": 7, "sys_flag": 1, "reconsume_times": 3}), b"zipped"),
    "no properties": (SEND_V2, send_header("T"), b"body"),
    "a key of other letters": (SEND_V2, send_header("T", 0, UTF8), b"body"),
    "a key to be escaped": (SEND_V2, send_header("T", 0, {"UNIQ_KEY": 'a"b\\c'}), b"body"),
    "an empty key": (SEND_V2, send_header("T", 0, {"UNIQ_KEY": ""}), b"body"),
    "two keys": (SEND_V2, send_header("T", 0, None, {"properties": "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02"}), b"body"),
    "a longer name": (SEND_V2, send_header("T", 0, {"MY_UNIQ_KEY": "no", "UNIQ_KEY": "yes", "X_UNIQ_KEY": "no"}), b"x"),
    "open end": (SEND_V2, send_header("T", 0, None, {"properties": "UNIQ_KEY\x01A"}), b"body"),
    "waits and does not": (SEND_V2, send_header("T", 0, None, {"properties": WAITS_AND_NOT}), b"body"),
    "does not wait": (SEND_V2, send_header("T", 0, {"WAIT": "false"}), b"body"),
    "a committed transaction": (SEND_V2, send_header("T", 0, None, {"sys_flag": 8}), b"body"),
    "delayed": (SEND_V2, send_header("T", 1, {**TAGGED, "DELAY": "3"}), b"body"),
    "delayed by a level above all": (SEND_V2, send_header("T", 0, {"DELAY": "99"}), b"body"),
    "delayed twice": (SEND_V2, send_header("T", 0, {"DELAY": "3", "TIMER_DELAY_MS": "1000"}), b"body"),
    "half": (SEND_V2, send_header("T", 1, {"TRAN_MSG": "true", "UNIQ_KEY": "U"}, {"sys_flag": 4}), b"body"),
    "half and delayed": (SEND_V2, send_header("T", 0, {"TRAN_MSG": "true", "DELAY": "1", "UNIQ_KEY": "U"}), b"body"),
    "timer": (SEND_V2, send_header("T", 1, {**TAGGED, "TIMER_DELAY_MS": "1000"}), b"body"),
    "timer with odd properties": (
        SEND_V2,
        send_header(
            "T",
            0,
            None,
            {"properties": "A\x01\x02\x02TIMER_DELAY_SEC\x0135\x02TIMER_DELAY_SEC\x0136\x02REAL_TOPIC\x01X"},
        ),
        b"body",
    ),
    "timer of the past": (SEND_V2, send_header("T", 0, {"TIMER_DELIVER_MS": "1"}), b"body"),
    "with a made-up handle": (SEND_V2, send_header("T", 0, {**TAGGED, "POP_CK": "0 1 2 3 0 b 0 0"}), b"body"),
}
UNUSUAL: dict[str, tuple[int, Header, bytes]] = {
    "no level": (SEND_V2, send_header("T", 0, {"DELAY": "x"}), b"body"),
    "a year's delay": (SEND_V2, send_header("T", 0, {"TIMER_DELAY_SEC": "31536000"}), b"body"),
    "half with a year's delay": (
        SEND_V2,
        send_header("T", 0, {"TRAN_MSG": "true", "TIMER_DELAY_SEC": "31536000"}),
        b"x",
    ),
    "inner batch": (SEND_V2, send_header("T", 0, None, {"sys_flag": 0x80}), b"body"),
    "batch": (SEND_BATCH, send_header("T", 0, None, {"batch": True}), encode_batch([BatchMember(b"m")])),
    "no body": (SEND_V2, send_header("T"), b""),
    "queue too high": (SEND_V2, send_header("T", 99), b"body"),
    "forbidden topic": (SEND_V2, send_header("SCHEDULE_TOPIC_XXXX"), b"body"),
    "retry": (SEND_V2, send_header("%RETRY%G"), b"body"),
    "impossible topic": (SEND_V2, send_header("no such topic!"), b"body"),
    "too large": (SEND_V2, send_header("T"), bytes((4 << 20) + 1)),
    "properties too long": (SEND_V2, send_header("T", 0, {"x": "y" * 40_000}), b"body"),
}


async def both(tmp_path: Path, code: int, header: Header, body: bytes, codec: int, **settings: Any) -> list[Any]:
    """What each way answers, and what it left in the log; what must differ is taken out."""
    results = []
    async with (
        running(tmp_path / "store", clock=ManualClock(), regionId="100%region", **settings) as broker,
        wire(broker) as client,
    ):
        await client.send("T", b"the topic is there")
        await client.heartbeat("c", "G")
        puts = broker.state.statistics.counter("TOPIC_PUT_NUMS", "T")
        async with two_ways(broker) as two:
            for way in WAYS:
                log, counted = broker.state.store.log, puts.value
                before = log.end
                answer = commands.decode(await two.frame(way, code, header.to_fields(), body, codec))
                segment = log.files.segment_of(before)
                assert segment is not None
                records = decode_records(bytes(segment.memory[before - segment.start : log.end - segment.start]))
                stored = [
                    (m.topic, m.queue_id, m.body, m.flag, m.sys_flag, m.born_at_ms, m.reconsume_times, own(m))
                    for m in records
                ]
                fields = {key: value for key, value in answer.fields.items() if key not in SUBJECT_TO_CHANGE}
                given = answer.fields.get("transactionId", "")
                key = given if given in str(header.to_fields()) else len(given)
                results.append(
                    (answer.code, answer.remark, answer.opaque, answer.flag, fields, key, stored, puts.value - counted)
                )
    return results


def own(message: Any) -> dict[str, str]:
    """A message's properties; a unique key that the broker made is another each time."""
    properties = dict(message.properties)
    if len(properties.get("UNIQ_KEY", "")) == 32:
        properties["UNIQ_KEY"] = "made"
    return properties


@pytest.mark.parametrize("name", [*USUAL, *UNUSUAL])
async def test_both_ways_store_and_answer_the_same(tmp_path: Path, name: str) -> None:
    express, ordinary = await both(tmp_path, *{**USUAL, **UNUSUAL}[name], CODEC_JSON)

    assert express == ordinary


@pytest.mark.parametrize("name", ["short", "flags", "a key of other letters", "no properties", "delayed", "no body"])
async def test_both_ways_read_binary_headers_alike(tmp_path: Path, name: str) -> None:
    express, ordinary = await both(tmp_path, *{**USUAL, **UNUSUAL}[name], CODEC_BINARY)

    assert express == ordinary


@pytest.mark.parametrize("name", ["short", "does not wait", "waits and does not", "half"])
async def test_both_ways_wait_for_the_disk_alike(tmp_path: Path, name: str) -> None:
    express, ordinary = await both(tmp_path, *{**USUAL, **UNUSUAL}[name], CODEC_JSON, flushDiskType="SYNC_FLUSH")

    assert express == ordinary


@pytest.mark.parametrize("name", USUAL)
async def test_a_usual_send_does_not_reach_the_ordinary_handler(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        await client.send("T", b"the topic is there")
        monkeypatch.setattr(broker.state.sending, "topic_for", None)
        code, header, body = USUAL[name]
        assert (await client.ask(code, header, body)).code == 0


async def test_a_topic_that_changes_is_looked_at_anew(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as broker, wire(broker) as client:
        assert (await client.send("T", queue_id=3)).code == 0
        config = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        rest = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        assert (await client.ask(17, {**config, **rest})).code == 0
        assert (await client.send("T", queue_id=3)).code == 29
        assert (await client.send("T", queue_id=1)).code == 0
        assert (await client.ask(17, {**config, **rest, "perm": 4})).code == 0
        assert (await client.send("T", queue_id=1)).code == 16
        assert (await client.ask(17, {**config, **rest})).code == 0
        assert (await client.ask(25, None, b"brokerPermission=4\n")).code == 0
        assert (await client.send("T", queue_id=1)).code == 16
