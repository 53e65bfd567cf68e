"""The test server that users get: it must be real, quick to start, and fail on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import CallTimeout, ConfigError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.testing import Cluster, Server
from orbitmq.transport.address import parse_address
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]


def _send(topic: str = "Orders", properties: str = "") -> Command:
    header = SendMessageV2(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=properties,
    )
    return request(RequestCode.SEND_MESSAGE_V2, header, b"hello")


def _pull(topic: str = "Orders", *, wait_ms: int = 0) -> Command:
    header = PullMessage(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
        suspend_timeout_millis=wait_ms,
    )
    return request(RequestCode.PULL_MESSAGE, header)


def _ask(server: Server, *commands: Command, timeout_seconds: float = 5.0) -> list[Command]:
    async def ask() -> list[Command]:
        pool = Pool()
        try:
            broker = parse_address(server.broker_address)
            return [await pool.call(broker, command, timeout_seconds) for command in commands]
        finally:
            await pool.close()

    return asyncio.run(ask())


def test_a_message_sent_is_pulled_and_has_a_route(mq_server: Server) -> None:
    sent, pulled = _ask(mq_server, _send(), _pull())
    assert (sent.code, pulled.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
    assert b"hello" in pulled.body

    async def route() -> Command:
        """The first message made the topic; the name server hears of it a moment later."""
        pool = Pool()
        try:
            async with asyncio.timeout(20):
                while True:
                    query = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic="Orders"))
                    answer = await pool.call(parse_address(mq_server.address), query, 5)
                    if answer.code == ResponseCode.SUCCESS:
                        return answer
                    await asyncio.sleep(0.01)
        finally:
            await pool.close()

    answer = asyncio.run(route())
    assert answer.code == ResponseCode.SUCCESS
    assert mq_server.broker_address.encode() in answer.body


def test_a_delay_passes_without_waiting(mq_server: Server) -> None:
    two_hours = "DELAY\x0118\x02"
    _, before = _ask(mq_server, _send(properties=two_hours), _pull())
    mq_server.clock.advance(days=1 / 12)
    (after,) = _ask(mq_server, _pull(wait_ms=20_000), timeout_seconds=30)
    assert (before.code, after.code) == (ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS)


def test_a_paused_server_answers_nothing_until_it_goes_on(mq_server: Server) -> None:
    mq_server.pause()
    with pytest.raises(CallTimeout):
        _ask(mq_server, _send(), timeout_seconds=0.2)
    mq_server.resume()
    (answer,) = _ask(mq_server, _send())
    assert answer.code == ResponseCode.SUCCESS


def test_sends_are_refused_while_the_test_wants_it(mq_server: Server) -> None:
    mq_server.refuse_sends("maintenance")
    (refused,) = _ask(mq_server, _send())
    mq_server.accept_sends()
    (taken,) = _ask(mq_server, _send())
    assert (refused.code, taken.code) == (ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS)
    assert "maintenance" in str(refused.remark)


def test_what_is_missing_is_told_with_what_is_there(mq_server: Server) -> None:
    _ask(mq_server, _send(properties="TAGS\x01new\x02KEYS\x01k1\x02color\x01red\x02"))
    with pytest.raises(AssertionError) as caught:
        mq_server.expect("Orders", body=b"other", tag="new", timeout=0)
    asked, there = str(caught.value).splitlines()
    assert asked == "0 of 1 expected messages in Orders with body=b'other', tag='new'; there are 1:"
    assert there == "  body=b'hello', tag='new', keys=['k1'], properties={'color': 'red'} at test/0@0"


def test_a_folder_of_ones_own_is_kept(tmp_path: Path) -> None:
    from orbitmq.testing import Server

    with Server(data=tmp_path) as server:
        _ask(server, _send())
    with Server(data=tmp_path) as server:
        (pulled,) = _ask(server, _pull())
    assert b"hello" in pulled.body


@pytest.mark.parametrize("kind", [Server, Cluster])
def test_a_misspelt_setting_is_refused(kind: type[Server] | type[Cluster]) -> None:
    """The test would run all the same, and prove nothing."""
    with (
        pytest.raises(
            ConfigError, match="autoCreateTopicEnabel is no setting of a broker; did you mean autoCreateTopicEnable"
        ) as caught,
        kind(settings={"autoCreateTopicEnabel": "false", "sendMessageThreadPoolNums": "4"}),
    ):
        pass
    assert "--explain" in caught.value.hint
    with (
        pytest.raises(ConfigError, match=r"tls\.server\.mod is no TLS setting"),
        kind(settings={"tls.server.mod": "enforcing"}),
    ):
        pass


def test_users_find_the_fixture_without_an_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(mq_server): assert mq_server.address.startswith('127.0.0.1:')")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
