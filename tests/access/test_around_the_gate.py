"""Ways around the gate: requests that touch what they do not name."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.access.settings import AccessSettings
from orbitmq.access.users import Users
from orbitmq.broker.broker import Broker
from orbitmq.errors import ConfigError
from orbitmq.message.ids import offset_message_id
from orbitmq.message.properties import encode_properties
from orbitmq.message.record import USUAL_HEAD_BYTES, crc31, encode_record, topic_field
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request as new_request
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.testing.clock import MovableClock
from orbitmq.transport.pool import Pool
from tests.access.test_matrix import GUARDED, MEMBER, ROOT
from tests.broker.kit import PATIENCE_SECONDS, configuration, long_send_header, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.clock import Clock
    from orbitmq.protocol.command import Command

# Java's hash of both is the same, so that of each with the same key is too.
MINE: Final = "ordersAa"
THEIRS: Final = "ordersBB"


class Guarded:
    """A broker with a message of each topic; `member` may use MINE and the group G, nothing else."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._pool = Pool()

    async def ask(self, who: Credentials, code: int, fields: Any, body: bytes = b"") -> Command:
        request = new_request(code, None if isinstance(fields, dict) else fields, body)
        if isinstance(fields, dict):
            request.add_fields(**{name: str(value) for name, value in fields.items()})
        sign(request, who)
        assert self.broker.address is not None
        return await self._pool.call(self.broker.address, request, PATIENCE_SECONDS)

    async def send(self, topic: str, body: bytes) -> int:
        """Where it lies in the log."""
        end = self.broker.state.store.log.end
        sent = await self.ask(ROOT, RequestCode.SEND_MESSAGE_V2, send_header(topic, properties={"KEYS": "k"}), body)
        assert sent.code == 0, sent.remark
        return end

    async def close(self) -> None:
        await self._pool.close()


@asynccontextmanager
async def guarded_broker(folder: Path, clock: Clock | None = None) -> AsyncIterator[Guarded]:
    async with Broker(configuration(folder, GUARDED), clock=clock) as broker:
        users = broker.state.users
        users.create(User(username=MEMBER.access_key, password=MEMBER.secret_key))
        rights = [
            PolicyEntry(resource=f"Topic:{MINE}", actions=["Pub", "Sub", "Get"], decision="Allow"),
            PolicyEntry(resource="Group:G", actions=["Sub"], decision="Allow"),
        ]
        users.create_acl(Acl(subject="User:member", policies=[Policy(entries=rights)]))
        guarded = Guarded(broker)
        try:
            yield guarded
        finally:
            await guarded.close()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_broker(tmp_path) as guarded:
        yield guarded


async def test_a_reply_is_no_way_to_send_to_any_topic(guarded: Guarded) -> None:
    await guarded.send(THEIRS, b"theirs")
    for code, header in (
        (RequestCode.SEND_REPLY_MESSAGE, long_send_header),
        (RequestCode.SEND_REPLY_MESSAGE_V2, send_header),
    ):
        assert (await guarded.ask(MEMBER, code, header(THEIRS), b"x")).code == ResponseCode.NO_PERMISSION
        reply = await guarded.ask(MEMBER, code, header("DefaultCluster_REPLY_TOPIC"), b"x")
        assert "channel of <> not found" in (reply.remark or ""), "nobody waits for it, but it was let through"
    assert guarded.broker.state.store.queue_range(THEIRS, 0).max_offset == 1


async def test_sending_back_is_no_way_to_read_any_message(guarded: Guarded) -> None:
    theirs, mine = await guarded.send(THEIRS, b"theirs"), await guarded.send(MINE, b"mine")

    async def send_back(offset: int, **origin: str) -> Command:
        header = {"offset": offset, "group": "G", "delayLevel": -1, **origin}
        return await guarded.ask(MEMBER, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    assert (await guarded.ask(MEMBER, RequestCode.HEART_BEAT, {}, beat)).code == 0
    assert (await send_back(theirs, originTopic=THEIRS)).code == ResponseCode.NO_PERMISSION
    for lie in ({"originTopic": MINE}, {}):
        assert "look message by offset failed" in ((await send_back(theirs, **lie)).remark or "")
    assert guarded.broker.state.store.queue_range("%DLQ%G", 0).max_offset == 0
    assert (await send_back(mine, originTopic=MINE)).code == 0
    assert guarded.broker.state.store.queue_range("%DLQ%G", 0).max_offset == 1


async def test_handing_a_message_over_is_no_way_to_read_any(guarded: Guarded) -> None:
    theirs, mine = await guarded.send(THEIRS, b"theirs"), await guarded.send(MINE, b"mine")

    async def hand_over(offset: int, **topic: str) -> Command:
        header = {"consumerGroup": "G", "clientId": "c", "msgId": offset_message_id(bytes(8), offset), **topic}
        return await guarded.ask(MEMBER, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)

    assert (await hand_over(theirs)).code == ResponseCode.NO_PERMISSION, "without a topic it needs the cluster"
    assert (await hand_over(theirs, topic=THEIRS)).code == ResponseCode.NO_PERMISSION
    assert "can not find message" in ((await hand_over(theirs, topic=MINE)).remark or "")
    assert "can not find message" not in ((await hand_over(mine, topic=MINE)).remark or "")


async def test_taking_up_a_transaction_needs_the_topic_that_it_is_for(guarded: Guarded) -> None:
    keeper = Credentials("keeper", "keeper-secret")
    users, store = guarded.broker.state.users, guarded.broker.state.store
    users.create(User(username=keeper.access_key, password=keeper.secret_key))
    right = PolicyEntry(resource=f"Topic:{MINE}", actions=["Update"], decision="Allow")
    users.create_acl(Acl(subject="User:keeper", policies=[Policy(entries=[right])]))

    async def take_up(goal: str, **named: str) -> int:
        properties = encode_properties({"REAL_TOPIC": goal, "REAL_QID": "0", "PGROUP": "P"})
        given_up = store.append("TRANS_CHECK_MAX_TIME_TOPIC", 0, b"x", properties, 0, bytes(8))
        header = {"msgId": offset_message_id(bytes(8), given_up.commit_log_offset), **named}
        return (await guarded.ask(keeper, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code

    assert await take_up(THEIRS) == ResponseCode.NO_PERMISSION, "without a topic it needs the cluster"
    assert await take_up(THEIRS, topic=THEIRS) == ResponseCode.NO_PERMISSION
    assert await take_up(THEIRS, topic=MINE) == ResponseCode.NO_PERMISSION
    assert await take_up(MINE, topic=MINE) == 0
    assert guarded.broker.state.half_messages.by_topic() == {MINE: 1}


async def test_the_end_of_a_transaction_is_no_way_to_send_to_any_topic(guarded: Guarded) -> None:
    await guarded.send(THEIRS, b"theirs")
    await guarded.send(MINE, b"mine")
    store = guarded.broker.state.store
    begun = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "u"}
    header = send_header(MINE, 0, begun, {"sys_flag": 4})
    half = await guarded.ask(MEMBER, RequestCode.SEND_MESSAGE_V2, header, b"half")
    number, place = int(half.fields["queueOffset"]), store.log.end + USUAL_HEAD_BYTES
    properties = encode_properties({**begun, "REAL_TOPIC": THEIRS, "REAL_QID": "0"})
    half_topic = topic_field("RMQ_SYS_TRANS_HALF_TOPIC")
    forged = encode_record(
        half_topic, 0, 0, number, place, 0, 1, bytes(8), 1, bytes(8), 0, 0, b"forged", crc31(b"forged"), properties
    )
    sent = await guarded.ask(MEMBER, RequestCode.SEND_MESSAGE_V2, send_header(MINE), bytes(forged))
    assert int(sent.fields["msgId"][16:], 16) + USUAL_HEAD_BYTES == place
    commit = {"producerGroup": "P", "tranStateTableOffset": number, "commitLogOffset": place, "commitOrRollback": 8}
    ended = await guarded.ask(MEMBER, RequestCode.END_TRANSACTION, {**commit, "msgId": "u", "topic": MINE})
    assert ended.code == ResponseCode.SYSTEM_ERROR
    store.dispatch()
    assert store.queue_range(THEIRS, 0).max_offset == 1


async def test_a_key_with_the_hash_of_another_topics_finds_nothing_of_it(guarded: Guarded) -> None:
    await guarded.send(THEIRS, b"theirs")
    query = {"topic": MINE, "key": "k", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert len(guarded.broker.state.store.find_by_key(MINE, "k").records) == 1, "the hashes are the same"
    found = await guarded.ask(MEMBER, RequestCode.QUERY_MESSAGE, query)
    assert (found.code, found.body) == (ResponseCode.QUERY_NOT_FOUND, b"")
    await guarded.send(MINE, b"mine")
    found = await guarded.ask(MEMBER, RequestCode.QUERY_MESSAGE, query)
    assert b"mine" in found.body
    assert b"theirs" not in found.body


async def test_whoever_may_consume_may_not_delete_the_retry_topic(guarded: Guarded) -> None:
    refused = await guarded.ask(MEMBER, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%RETRY%G"})
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "Group:G" in (refused.remark or "")
    route = await guarded.ask(MEMBER, RequestCode.SEND_MESSAGE_V2, send_header("%RETRY%G"), b"x")
    assert route.code != ResponseCode.NO_PERMISSION, "but send to it, as consumers do"


async def test_a_stranger_cannot_fill_the_disk_with_the_log(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    refused = await guarded.ask(Credentials("x" * 50_000, "secret"), RequestCode.GET_BROKER_CONFIG, {})
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "refused GET_BROKER_CONFIG from 127.0.0.1: User:xxx" in caplog.text
    assert "x" * 1000 not in caplog.text


def test_rights_of_whoever_one_says_to_be_are_none() -> None:
    with pytest.raises(ConfigError, match="anyone could say to be anyone"):
        AccessSettings(authorization_enabled=True).check_access()


def test_users_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    users = Users(tmp_path)
    failed: list[Exception] = []

    def make(first: int) -> None:
        try:
            for number in range(first, first + 10):
                users.create(User(username=f"user-{number}", password="secret"))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=make, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(users.all()) == len(Users(tmp_path).all()) == 40


async def test_a_lease_is_no_way_to_the_retries_of_a_group_with_a_longer_name(tmp_path: Path) -> None:
    """The older name of the retry topic of G's leases of MINE is that of the retry topic of the group G_MINE."""
    clock, victims = MovableClock(), f"G_{MINE}"
    retries = f"%RETRY%{victims}"
    pop = {
        "consumerGroup": "G", "topic": MINE, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 2000, "pollTime": 0,
        "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    async with guarded_broker(tmp_path, clock) as guarded:
        beat = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"{victims}","subscriptionDataSet":[]}}]}}'.encode()
        assert (await guarded.ask(ROOT, RequestCode.HEART_BEAT, {}, beat)).code == 0
        await guarded.send(MINE, b"mine")
        forged = send_header(MINE, properties={"RETRY_TOPIC": THEIRS, "1ST_POP_TIME": "1"})
        assert (await guarded.ask(MEMBER, RequestCode.SEND_MESSAGE_V2, forged, b"forged")).code == 0
        theirs = guarded.broker.state.store.log.end
        for origin in (MINE, THEIRS):
            header = send_header(retries, properties={"RETRY_TOPIC": origin})
            assert (await guarded.ask(ROOT, RequestCode.SEND_MESSAGE_V2, header, b"theirs")).code == 0

        given = [(await guarded.ask(MEMBER, RequestCode.POP_MESSAGE, pop)).body for _ in range(8)]
        given.append((await guarded.ask(MEMBER, RequestCode.PEEK_MESSAGE, pop)).body)
        back = {"offset": theirs, "group": "G", "delayLevel": -1, "originTopic": MINE}
        refused = await guarded.ask(MEMBER, RequestCode.CONSUMER_SEND_MSG_BACK, back)
        clock.advance(seconds=7)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while b"forged" not in given[-1]:
                given.append((await guarded.ask(MEMBER, RequestCode.POP_MESSAGE, pop)).body)
                await asyncio.sleep(0.02)

        assert b"mine" in b"".join(given[:8])
        assert b"theirs" not in b"".join(given)
        assert "look message by offset failed" in (refused.remark or "")
        assert guarded.broker.state.store.queue_range(retries, 0).max_offset == 2, "what came back did not go there"


@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
async def test_leases_are_settled_under_no_retry_topic_but_the_own(guarded: Guarded, code: int) -> None:
    async def needed(topic: str, group: str = "G") -> str:
        header = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "offset": 0,
            "extraInfo": "",
            "invisibleTime": 1,
        }
        answer = await guarded.ask(MEMBER, code, header)
        return (answer.remark or "").partition("access ")[2].partition(" ")[0] if answer.code == 16 else ""

    for own in (MINE, f"%RETRY%G_{MINE}", f"%RETRY%G+{MINE}", "%RETRY%G"):
        assert await needed(own) == ""
    assert await needed(f"%RETRY%G_{THEIRS}") == f"Topic:{THEIRS}"
    assert await needed(f"%RETRY%G+{THEIRS}") == f"Topic:{THEIRS}"
    assert await needed(f"%RETRY%H_{MINE}") == f"Group:H_{MINE}"
    assert await needed(f"%RETRY%H_{MINE}", group="H") == "Group:H"
    assert await needed(f"%RETRY%G_{MINE}", group=f"G_{MINE}") == f"Group:G_{MINE}"
    assert await needed("%RETRY%G_%RETRY%H") == "Group:H"
    assert await needed("%RETRY%G_") == "Group:G_"
    assert await needed("%RETRY%G_SCHEDULE_TOPIC_XXXX") == "Cluster:DefaultCluster"
