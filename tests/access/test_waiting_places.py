"""Where messages of all topics wait: a right to topics is none to read there, or a rule about one of them would be passed by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.broker import names
from orbitmq.message.ids import offset_message_id
from orbitmq.message.record import decode_record
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.signing import Credentials
from tests.access.test_around_the_gate import MINE, THEIRS, Guarded, guarded_broker
from tests.access.test_matrix import ROOT
from tests.broker.kit import pull_header, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.protocol.command import Command

WIDE: Final = Credentials("wide", "wide-secret")  # every topic and group, but for one topic
KEEPER: Final = Credentials("keeper", "keeper-secret")  # the same, and may change the cluster
MONITOR: Final = Credentials("monitor", "monitor-secret")  # may look at the cluster
SECRET: Final = b"of theirs"
DELAYED: Final = (names.DELAY_TOPIC, 17)
TIMED: Final = (names.TIMER_TOPIC, 0)
UNDECIDED: Final = (names.HALF_TOPIC, 0)
PLACES: Final = (
    names.DELAY_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC, names.HALF_OP_TOPIC, names.DISCARDED_HALF_TOPIC,
    names.revive_topic("DefaultCluster"),
)  # fmt: skip


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """With messages of THEIRS that wait in all ways there are, which WIDE and KEEPER may not read there."""
    async with guarded_broker(tmp_path) as guarded:
        users = guarded.broker.state.users
        allowed = [
            PolicyEntry(resource="Topic:*", actions=["Pub", "Sub", "Get"], decision="Allow"),
            PolicyEntry(resource="Group:*", actions=["Sub", "Get"], decision="Allow"),
            PolicyEntry(resource=f"Topic:{THEIRS}", actions=["All"], decision="Deny"),
        ]
        of_cluster = PolicyEntry(resource="Cluster:*", actions=["Update"], decision="Allow")
        for who, entries in ((WIDE, allowed), (KEEPER, [*allowed, of_cluster])):
            users.create(User(username=who.access_key, password=who.secret_key))
            users.create_acl(Acl(subject=f"User:{who.access_key}", policies=[Policy(entries=entries)]))
        await guarded.send(THEIRS, b"delivered")
        await guarded.send(MINE, b"mine")
        for properties, flags in (
            ({"DELAY": "18"}, {}),
            ({"TIMER_DELAY_SEC": "3600"}, {}),
            ({"TRAN_MSG": "true", "PGROUP": "P"}, {"sys_flag": 4}),
        ):
            header = send_header(THEIRS, 0, {**properties, "KEYS": "k"}, flags)
            sent = await guarded.ask(ROOT, RequestCode.SEND_MESSAGE_V2, header, SECRET)
            assert sent.code == 0, sent.remark
        guarded.broker.state.store.dispatch()
        yield guarded


async def pull(guarded: Guarded, who: Credentials, topic: str, queue_id: int = 0) -> Command:
    return await guarded.ask(who, RequestCode.PULL_MESSAGE, pull_header(topic, queue_id, 0))


async def test_who_may_read_every_topic_but_one_does_not_read_that_one_while_it_waits(guarded: Guarded) -> None:
    assert (await pull(guarded, WIDE, MINE)).code == 0
    assert (await pull(guarded, WIDE, THEIRS)).code == ResponseCode.NO_PERMISSION
    for topic, queue_id in (DELAYED, TIMED, UNDECIDED):
        assert (await pull(guarded, WIDE, topic, queue_id)).code == ResponseCode.NO_PERMISSION, topic
        for who in (KEEPER, ROOT):
            found = await pull(guarded, who, topic, queue_id)
            assert (found.code, SECRET in found.body) == (0, True), topic


@pytest.mark.parametrize("topic", PLACES)
async def test_no_request_that_shows_messages_is_a_way_there(guarded: Guarded, topic: str) -> None:
    store = guarded.broker.state.store
    record = next((r for r in store.find_by_key(topic, "k").records if decode_record(r).topic == topic), None)
    offset = decode_record(record).commit_log_offset if record is not None else 0
    pop = {"queueId": -1, "maxMsgNums": 1, "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "initMode": 0}
    query = {"key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    directly = {"clientId": "c", "msgId": offset_message_id(bytes(8), offset)}
    of_topic = {"topic": topic, "consumerGroup": "G"}
    for code, fields in (
        (RequestCode.PULL_MESSAGE, pull_header(topic, 0, 0)),
        (RequestCode.LITE_PULL_MESSAGE, pull_header(topic, 0, 0)),
        (RequestCode.POP_MESSAGE, {**of_topic, **pop}),
        (RequestCode.PEEK_MESSAGE, {**of_topic, "queueId": 0, "maxMsgNums": 9}),
        (RequestCode.QUERY_MESSAGE, {**of_topic, **query}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {**of_topic, "offset": offset}),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {**of_topic, **directly}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "G", "delayLevel": -1, "originTopic": topic}),
    ):
        answer = await guarded.ask(WIDE, code, fields)
        assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b""), code
    assert store.queue_range("%DLQ%G", 0).max_offset == 0
    allowed = await guarded.ask(KEEPER, RequestCode.QUERY_MESSAGE, {**of_topic, **query})
    assert (allowed.code == 0) == (record is not None)


async def test_who_may_look_at_the_cluster_reads_nothing_there_by_its_place_in_the_log(guarded: Guarded) -> None:
    users, store = guarded.broker.state.users, guarded.broker.state.store
    users.create(User(username=MONITOR.access_key, password=MONITOR.secret_key))
    look = PolicyEntry(resource="Cluster:*", actions=["Get"], decision="Allow")
    users.create_acl(Acl(subject="User:monitor", policies=[Policy(entries=[look])]))

    async def view(who: Credentials, offset: int) -> Command:
        return await guarded.ask(who, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})

    for topic, queue_id in (DELAYED, TIMED, UNDECIDED):
        offset = decode_record(store.read(topic, queue_id, 0, 1).buffers[0]).commit_log_offset
        refused = await view(MONITOR, offset)
        assert (refused.code, refused.body) == (ResponseCode.NO_PERMISSION, b""), topic
        assert SECRET in (await view(ROOT, offset)).body
    mine = await guarded.send(MINE, b"to look at")
    assert b"to look at" in (await view(MONITOR, mine)).body


async def test_what_tools_and_consumers_read_besides_topics_needs_what_it_did(guarded: Guarded) -> None:
    """Dead letters, retries, offsets and figures, a message by its id: all as Apache's mqadmin and console ask for them."""
    mine = await guarded.send(MINE, b"to look at")
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    assert (await guarded.ask(WIDE, RequestCode.HEART_BEAT, {}, beat)).code == 0
    back = {"offset": mine, "group": "G", "delayLevel": -1, "originTopic": MINE}
    assert (await guarded.ask(WIDE, RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    guarded.broker.state.store.dispatch()
    dead = await guarded.ask(WIDE, RequestCode.PULL_MESSAGE, pull_header("%DLQ%G", 0, 0))
    assert (dead.code, b"to look at" in dead.body) == (0, True)
    retries = await guarded.ask(WIDE, RequestCode.PULL_MESSAGE, pull_header("%RETRY%G", 0, 0))
    assert retries.code == ResponseCode.PULL_NOT_FOUND
    viewed = await guarded.ask(WIDE, RequestCode.VIEW_MESSAGE_BY_ID, {"topic": MINE, "offset": mine})
    assert b"to look at" in viewed.body
    highest = await guarded.ask(WIDE, RequestCode.GET_MAX_OFFSET, {"topic": names.DELAY_TOPIC, "queueId": 17})
    assert (highest.code, highest.fields["offset"]) == (0, "1")
    assert (await guarded.ask(WIDE, RequestCode.GET_TOPIC_STATS_INFO, {"topic": names.DELAY_TOPIC})).code == 0


async def test_how_far_a_group_is_in_a_topic_needs_the_topic(guarded: Guarded) -> None:
    async def stats(who: Credentials, **named: str) -> Command:
        return await guarded.ask(who, RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", **named})

    for allowed in ({}, {"topic": MINE}, {"topicList": f"{MINE};%RETRY%G;"}):
        assert (await stats(WIDE, **allowed)).code == 0, allowed
    for refused in (THEIRS, f"{THEIRS};", f"{MINE};{THEIRS}"):
        answer = await stats(WIDE, topicList=refused)
        assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b""), refused
    assert (await stats(WIDE, topic=THEIRS)).code == ResponseCode.NO_PERMISSION
    assert THEIRS.encode() in (await stats(ROOT, topicList=THEIRS)).body
    too_many = ";".join(map(str, range(10_001)))
    for who in (WIDE, ROOT):
        answer = await stats(who, topicList=too_many)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "10,001 topics" in (answer.remark or "")
