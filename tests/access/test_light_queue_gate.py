"""A message goes into the light queues that it names as well as into its topic: each takes the right to send there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.broker.broker import Broker
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.properties import encode_properties
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from tests.access.test_around_the_gate import MINE, Guarded
from tests.access.test_matrix import GUARDED, MEMBER
from tests.broker.kit import configuration, long_send_header, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIGHT: Final = {"enableLmq": "true", "enableMultiDispatch": "true"}
REPLIES: Final = "DefaultCluster_REPLY_TOPIC"
OWN: Final = {"INNER_MULTI_DISPATCH": "%LMQ%own"}
ANOTHERS: Final = {"INNER_MULTI_DISPATCH": "%LMQ%own,%LMQ%theirs"}
BATCH: Final = {"batch": True}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """`member` may send to MINE, and to the light queue `own`."""
    async with Broker(configuration(tmp_path, {**GUARDED, **LIGHT})) as broker:
        users = broker.state.users
        users.create(User(username=MEMBER.access_key, password=MEMBER.secret_key))
        rights = [
            PolicyEntry(resource=f"Topic:{name}", actions=["Pub"], decision="Allow") for name in (MINE, "%LMQ%own")
        ]
        users.create_acl(Acl(subject="User:member", policies=[Policy(entries=rights)]))
        guarded = Guarded(broker)
        await guarded.send(MINE, b"makes the topic")
        try:
            yield guarded
        finally:
            await guarded.close()


def ways_in(properties: dict[str, str]) -> list[tuple[int, Any, bytes]]:
    """Every request that stores a message with these properties."""
    plain, naming = (encode_batch([BatchMember(b"x", encode_properties(told))]) for told in ({}, properties))
    half = {**properties, "TRAN_MSG": "true", "PGROUP": "P"}
    return [
        (RequestCode.SEND_MESSAGE, long_send_header(MINE, 0, properties), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_header(MINE, 0, properties), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_header(MINE, 0, half, {"sys_flag": 4}), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_header(MINE, 0, {**properties, "DELAY": "1"}), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_header(MINE, 0, None, BATCH), naming),
        (RequestCode.SEND_BATCH_MESSAGE, send_header(MINE, 0, None, BATCH), naming),
        (RequestCode.SEND_BATCH_MESSAGE, send_header(MINE, 0, properties, BATCH), plain),
        (RequestCode.SEND_REPLY_MESSAGE, long_send_header(REPLIES, 0, properties), b"x"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, send_header(REPLIES, 0, properties), b"x"),
    ]


async def test_who_may_not_send_to_a_light_queue_does_not_by_way_of_a_topic(guarded: Guarded) -> None:
    store = guarded.broker.state.store
    end = store.log.end
    for code, header, body in ways_in(ANOTHERS):
        refused = await guarded.ask(MEMBER, code, header, body)
        assert refused.code == ResponseCode.NO_PERMISSION, (code, header)
        assert "Topic:%LMQ%theirs" in (refused.remark or "")
    assert store.log.end == end


async def test_who_may_send_to_a_light_queue_does(guarded: Guarded) -> None:
    for code, header, body in ways_in(OWN):
        taken = await guarded.ask(MEMBER, code, header, body)
        assert taken.code != ResponseCode.NO_PERMISSION, (code, header, taken.remark)
    guarded.broker.state.store.dispatch()
    assert guarded.broker.state.store.queue_range("%LMQ%own", 0).max_offset > 0
