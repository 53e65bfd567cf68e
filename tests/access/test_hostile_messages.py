"""One message, filter or request that would hurt everybody else: what it costs is its sender's."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.broker import names
from orbitmq.broker.leases.checkpoints import MOST_MESSAGES, Checkpoint
from orbitmq.broker.sql_filter import SqlFilter, compile_filter
from orbitmq.broker.sql_filter.values import Incomparable, as_double
from orbitmq.clock import ManualClock
from orbitmq.errors import BodyError, RequestFailed
from orbitmq.fastjson import loads
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.record import decode_record
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.storage import key_index
from orbitmq.transport.pool import Pool
from tests.access.test_around_the_gate import MINE, THEIRS, Guarded, guarded_broker
from tests.access.test_known_attacks import little_memory
from tests.access.test_matrix import MEMBER, ROOT
from tests.broker.kit import (
    HEART_BEAT,
    LOCK,
    PATIENCE_SECONDS,
    SEND_BATCH,
    SEND_V2,
    UPDATE_OFFSET,
    running,
    send_header,
    wire,
)
from tests.broker.lease_kit import LeaseClient
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.transport.connection import Connection


# ---- properties


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("name", ["KEYS", "TAGS", "UNIQ_KEY"])
async def test_thousands_of_empty_properties_keep_nothing_from_anybody(tmp_path: Path, name: str) -> None:
    """Each was a call inside the other: nothing was indexed behind such a message, and no broker started with it."""
    nothings = {"properties": f"{name}\x01\x02" * (30_000 // (len(name) + 2))}
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await client.send("T", b"hostile", header=nothings)).code == 0
        assert (await client.send("T", b"next")).code == 0
        assert await client.bodies("T") == [b"hostile", b"next"]
    (tmp_path / "abort").touch()
    async with running(tmp_path) as broker, wire(broker) as client:
        assert await client.bodies("T") == [b"hostile", b"next"]


@pytest.mark.usefixtures("loops")
async def test_of_texts_that_anyone_can_write_only_short_ones_are_remembered(tmp_path: Path) -> None:
    """Of each kind of message a broker remembers thousands, to be quicker with the next one of its kind."""
    async with running(tmp_path, mappedFileSizeCommitLog=64 << 20) as broker, wire(broker) as client:
        assert broker.address is not None
        async with raw_client(broker.address) as binary:
            before, long = 0, "x" * 5_000
            for number in range(32):
                if number == 2:  # what is remembered in any case
                    tracemalloc.start()
                    before, _ = tracemalloc.get_traced_memory()
                assert (await client.send("T", TAGS=f"{long}{number}")).code == 0
                header = send_header("T", 0, {"UNIQ_KEY": "U"}, {"producer_group": f"{long}{number}"})
                fields = {**header.to_fields(), "n": f"{long}{number}"}
                assert (await binary.ask(SEND_V2, fields, b"x", codec=CODEC_BINARY)).code == 0
            broker.state.store.dispatch()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
    assert grown < 30 * len(long)  # once; there are eight places that would keep it


# ---- leases


async def test_nobody_writes_into_the_log_of_leases(tmp_path: Path) -> None:
    """It would be a lease of anybody's messages: acknowledged for others, or handed to a group of one's own."""
    async with running(tmp_path) as broker, wire(broker) as client:
        own = names.revive_topic(broker.configuration.settings.broker_cluster_name)
        members = encode_batch([BatchMember(b"x")])
        header = send_header(own, 0, None, {"batch": True})
        assert (await client.send(own, b"{}", TAGS="ck")).code == ResponseCode.NO_PERMISSION
        assert (await client.ask(SEND_BATCH, header, members)).code == ResponseCode.NO_PERMISSION
        assert broker.state.store.queue_range(own, 0).max_offset == 0


def test_a_lease_has_no_more_messages_than_can_be_leased_at_once() -> None:
    fields: dict[str, Any] = {"group": "G", "invisible_ms": 1, "pop_time_ms": 1, "queue_id": 0, "topic": "T"}
    lying = Checkpoint(count=10**15, start_offset=7, **fields)
    assert lying.offsets() == list(range(7, 7 + MOST_MESSAGES))
    assert Checkpoint(count=2, start_offset=7, differences=[0, 3, 5], **fields).offsets() == [7, 10]
    assert Checkpoint(count=-1, start_offset=7, **fields).offsets() == []


# ---- filters


def test_a_filter_of_hundreds_of_terms_is_no_deeper_than_one_of_two() -> None:
    alternatives = " OR ".join(f"a = {number}" for number in range(250))
    assert SqlFilter(alternatives).matches({"a": "249"})
    assert not SqlFilter(alternatives).matches({"a": "250"})
    exclusions = " AND ".join(f"a <> {number}" for number in range(250))
    assert SqlFilter(exclusions).matches({"a": "250"})
    assert not SqlFilter(exclusions).matches({})
    texts = ", ".join(f"'{number}'" for number in range(900))
    assert SqlFilter(f"a IN ({texts})").matches({"a": "899"})
    assert not SqlFilter(f"a IN ({texts})").matches({"a": "900"})


class Counted(dict[str, str]):
    """Properties, and how often they were looked at."""

    looks = 0

    def get(self, *arguments: Any) -> Any:
        self.looks += 1
        return super().get(*arguments)


def test_a_value_between_two_others_is_looked_at_once() -> None:
    """As two comparisons, each BETWEEN inside another doubled the work: a filter of 1 KB took for ever."""
    text = "a"
    for _ in range(15):
        text = f"-({text} BETWEEN 1 AND 2)"
    properties = Counted(a="1")
    assert not SqlFilter(f"{text} BETWEEN 1 AND 2 OR b = 1").matches(properties)
    assert properties.looks <= 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a BETWEEN 1 AND 3", "yes yes no no no"),
        ("a NOT BETWEEN 1 AND 3", "no no yes yes no"),
        ("NOT (a BETWEEN 1 AND 3)", "no no yes yes no"),
        ("a BETWEEN b AND 3", "no no no yes no"),
        ("a NOT BETWEEN b AND 3", "no no yes no no"),
        ("a BETWEEN 1 AND 3 AND a = 3", "no yes no no no"),
    ],
)
def test_between_is_what_two_comparisons_are(text: str, wanted: str) -> None:
    """Without a `b` the one comparison may still say no, and then that is the answer."""
    given = [{"a": "1"}, {"a": "3"}, {"a": "4"}, {"a": "0", "b": "0"}, {}]
    assert ["yes" if SqlFilter(text).matches(properties) else "no" for properties in given] == wanted.split()


@pytest.mark.parametrize(
    "text",
    [
        "a = b" + " = b" * 1_000,
        "a" + " IS NULL" * 1_000,
        "a > 1" + " CONTAINS 'x'" * 1_000,
        "a = 1 OR " * 10_000 + "a = 2",
        " OR ".join(["a = 1"] * 251),
        "NOT " * 90 + "(" + " OR ".join(["a"] * 420) + ")",
        f"a IN ('{'x' * 17_000}')",
    ],
    ids=[
        "a row of comparisons",
        "a row of IS NULL",
        "a row of tests",
        "much too long",
        "comparisons",
        "values",
        "too long",
    ],
)
def test_a_filter_that_would_take_too_much_is_refused(text: str) -> None:
    with pytest.raises(RequestFailed) as refused:
        compile_filter(text)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert len(refused.value.message) < 1_000


def test_a_long_text_that_is_nearly_a_number_is_looked_at_once() -> None:
    """Before, every way to part it was tried: for this one, hours."""
    for text in ("1" * 300_000 + "x", "0x" + "1" * 300_000 + "x", "1e" + "1" * 300_000 + "x"):
        with pytest.raises(Incomparable):
            as_double(text)


def test_numbers_beyond_all_numbers_are_compared_all_the_same() -> None:
    assert as_double("0x1p99999") == float("inf")
    assert as_double("-0x1p99999") == float("-inf")
    assert as_double("0x1.8p1") == as_double("3.") == as_double("3.0d") == as_double("30e-1") == 3.0
    assert as_double(".5") == as_double("+0x.8p0") == 0.5
    assert as_double("0x1p" + "9" * 10_000) == float("inf")
    assert SqlFilter("a > 1.5").matches({"a": "0x1p99999"})


@pytest.mark.parametrize("by_lease", [False, True], ids=["a pull", "a pop"])
async def test_a_filter_that_fails_is_the_trouble_of_who_waits_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_lease: bool
) -> None:
    def fail(_filter: SqlFilter, _properties: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(SqlFilter, "matches", fail)
    async with running(tmp_path, enablePropertyFilter="true") as broker, wire(broker) as client:
        await client.send("T", b"first", 1)
        if by_lease:
            await client.heartbeat("c", "LG", {"T": "*"})
            held = await LeaseClient(client).hold_pop("T", queueId=0, exp="a > 1", expType="SQL92")
        else:
            flags = PULL_SUBSCRIPTION | PULL_SUSPEND
            held = await client.hold("T", sys_flag=flags, subscription="a > 1", expression_type="SQL92")
        other = await client.hold("T")
        assert (await client.send("T", b"for all")).code == 0
        assert (await held).code == ResponseCode.SYSTEM_ERROR
        assert b"for all" in (await other).body


# ---- tables that a request makes grow


async def test_a_small_batch_is_not_a_gigabyte_of_records(tmp_path: Path) -> None:
    members = encode_batch([BatchMember(b"")] * 20_000)
    header = send_header("T", 0, {"p": "x" * 32_000}, {"batch": True})
    async with running(tmp_path) as broker, wire(broker) as client:
        async with little_memory():
            refused = await client.ask(SEND_BATCH, header, members)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "a batch of 20000 messages" in (refused.remark or "")
        assert broker.state.store.queue_range("T", 0).max_offset == 0


async def test_a_batch_larger_than_a_message_may_be_is_refused_before_it_is_taken_apart(tmp_path: Path) -> None:
    """As in Java. What its members' bodies come to is another question: here they are empty."""
    async with running(tmp_path, maxMessageSize=1_000) as broker, wire(broker) as client:
        members = encode_batch([BatchMember(b"")] * 50)
        refused = await client.ask(SEND_BATCH, send_header("T", 0, None, {"batch": True}), members)
        assert (refused.code, "the batch has 1100 bytes" in (refused.remark or "")) == (13, True)


@pytest.mark.parametrize(
    "beat",
    [
        {"producerDataSet": [{"groupName": f"p{number}"} for number in range(10_001)]},
        {"consumerDataSet": [{"groupName": f"c{number}"} for number in range(10_001)]},
        {
            "consumerDataSet": [
                {"groupName": "c", "subscriptionDataSet": [{"topic": f"t{number}"} for number in range(10_001)]}
            ]
        },
    ],
    ids=["producer groups", "consumer groups", "subscriptions"],
)
async def test_a_heartbeat_with_more_than_any_client_has_is_refused_whole(tmp_path: Path, beat: dict[str, Any]) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        refused = await client.ask(HEART_BEAT, None, json.dumps({"clientID": "c", **beat}).encode())
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "[LIMIT]" in (refused.remark or "")
        assert (broker.state.clients.producer_groups(), broker.state.clients.consumer_groups()) == ({}, {})


async def test_offsets_and_locks_are_kept_of_queues_that_there_are(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        await client.send("T")
        await client.heartbeat("c", "G", {"T": "*"})
        for queue_id in (-1, 4, 2**31 - 1):
            header = {"consumerGroup": "G", "topic": "T", "queueId": queue_id, "commitOffset": 1}
            assert (await client.ask(UPDATE_OFFSET, header)).code == ResponseCode.INVALID_PARAMETER
        assert broker.state.offsets.queues("G", "T") == {}
        places = [("T", 3), ("T", 4), ("T", -1), ("Other", 0)]
        queues = [{"topic": topic, "brokerName": "broker-a", "queueId": queue_id} for topic, queue_id in places]
        wanted = {"consumerGroup": "G", "clientId": "c", "mqSet": queues}
        locked = json.loads((await client.ask(LOCK, None, json.dumps(wanted).encode())).body)
        assert [(queue["topic"], queue["queueId"]) for queue in locked["lockOKMQSet"]] == [("T", 3)]


async def test_a_key_that_too_many_messages_have_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message can have its key thousands of times, and who asks for an earlier one passes over all of them."""
    monkeypatch.setattr(key_index, "_MOST_LOOKS", 1_000)
    clock = ManualClock()
    async with running(tmp_path, clock=clock, maxIndexNum=10_000) as broker, wire(broker) as client:
        assert (await client.send("T", b"first", KEYS="k rare")).code == 0
        then_ms = clock.now_ms()
        clock.advance(seconds=10)
        assert (await client.send("T", b"flood", KEYS="k " * 2_000)).code == 0

        async def ask(key: str, end_ms: int) -> Command:
            query = {"topic": "T", "key": key, "maxNum": 9, "beginTimestamp": 0, "endTimestamp": end_ms}
            return await client.ask(RequestCode.QUERY_MESSAGE, query)

        refused = await ask("k", then_ms)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "too many messages have this key" in (refused.remark or "")
        assert b"flood" in (await ask("k", 1 << 60)).body, "the newest are found"
        assert b"first" in (await ask("rare", then_ms)).body
        assert (await ask("none", then_ms)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_subscription_to_more_tags_than_anybody_has_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        await client.send("T", b"x", TAGS="t9999")
        tags = [f"t{number}" for number in range(10_001)]
        assert (await client.pull("T", subscription="||".join(tags[:-1]))).code == 0
        refused = await client.pull("T", subscription="||".join(tags))
        assert (refused.code, "10,001 tags" in (refused.remark or "")) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)


def test_a_reference_by_a_number_that_is_none_is_a_broken_body() -> None:
    with pytest.raises(BodyError):
        loads(b'{"a":[1],"b":{"$ref":"$.a[' + b"1" * 5_000 + b']"}}')


# ---- transactions of others


class Producer:
    """Says that it is of a group, and hears what the broker asks it."""

    def __init__(self, broker: Broker, who: Credentials) -> None:
        self.asked: list[bytes] = []
        self._broker = broker
        self._who = who
        self._pool = Pool({RequestCode.CHECK_TRANSACTION_STATE: self._note})

    async def _note(self, request: Command, connection: Connection) -> None:
        self.asked.append(decode_record(request.body).body)

    async def join(self, group: str) -> None:
        beat = Command(
            HEART_BEAT, body=json.dumps({"clientID": "c", "producerDataSet": [{"groupName": group}]}).encode()
        )
        sign(beat, self._who)
        assert self._broker.address is not None
        assert (await self._pool.call(self._broker.address, beat, PATIENCE_SECONDS)).code == 0

    async def close(self) -> None:
        await self._pool.close()


async def _begun(guarded: Guarded, topic: str) -> dict[str, Any]:
    """What decides on a transaction that the super user began."""
    half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U"}
    receipt = await guarded.ask(
        ROOT, RequestCode.SEND_MESSAGE_V2, send_header(topic, 0, half, {"sys_flag": 4}), topic.encode()
    )
    assert receipt.code == 0, receipt.remark
    return {
        "producerGroup": "P",
        "tranStateTableOffset": receipt.fields["queueOffset"],
        "commitLogOffset": int(receipt.fields["msgId"][16:], 16),
        "msgId": "U",
    }


async def test_nobody_is_asked_about_messages_that_they_may_not_send(tmp_path: Path) -> None:
    """The question has the message in it, and whoever has an account can say to be of a group."""
    clock = ManualClock()
    async with guarded_broker(tmp_path, clock) as guarded:
        for topic in (THEIRS, MINE):
            await _begun(guarded, topic)
        member, root = Producer(guarded.broker, MEMBER), Producer(guarded.broker, ROOT)
        try:
            await member.join("P")
            clock.advance(ms=10_000)
            await guarded.broker.state.half_messages.check_round()
            await until(lambda: bool(member.asked))
            assert member.asked == [MINE.encode()]
            await root.join("P")
            for _ in range(4):
                await guarded.broker.state.half_messages.check_round()
            await until(lambda: THEIRS.encode() in root.asked)
            assert set(member.asked) == {MINE.encode()}
        finally:
            await member.close()
            await root.close()


async def test_nobody_decides_on_messages_that_they_may_not_send(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path, ManualClock()) as guarded:
        theirs, mine = await _begun(guarded, THEIRS), await _begun(guarded, MINE)
        for decision in (8, 12):
            for named in ({}, {"topic": MINE}, {"topic": THEIRS}):
                header = {**theirs, **named, "commitOrRollback": decision}
                refused = await guarded.ask(MEMBER, RequestCode.END_TRANSACTION, header)
                assert refused.code == ResponseCode.NO_PERMISSION, (decision, named)
        assert len(guarded.broker.state.half_messages) == 2
        for who, header in ((MEMBER, mine), (ROOT, theirs)):
            ended = await guarded.ask(who, RequestCode.END_TRANSACTION, {**header, "commitOrRollback": 8})
            assert ended.code == 0, ended.remark
        assert len(guarded.broker.state.half_messages) == 0
