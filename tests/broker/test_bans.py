"""What an operator forbids a group: it holds for whoever reads as that group, however it asks, and also for those who wait already.

Apache's broker looks at these bans only where a pull comes without a filter of its own.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.pull import PULL_LITE, PULL_SUBSCRIPTION
from tests.broker.kit import LITE_PULL, PULL, pull_header
from tests.broker.lease_kit import NOTIFICATION, PEEK, LeaseClient
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command
    from tests.broker.kit import Wire

pytestmark = pytest.mark.usefixtures("loops")

TOPIC_BAN = (ResponseCode.NO_PERMISSION, "the consumer group[G] is forbidden for topic[T]")
BROADCAST_BAN = (ResponseCode.NO_PERMISSION, "the consumer group[G] can not consume by broadcast way")


def told(answer: Command) -> tuple[int, str | None]:
    return answer.code, answer.remark


async def let_read(client: Wire, readable: bool) -> None:
    fields = {"group": "G", "topic": "T", "readable": str(readable).lower()}
    assert (await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)).code == 0


@asynccontextmanager
async def forbidden(client: Wire) -> AsyncIterator[None]:
    await let_read(client, False)
    yield
    await let_read(client, True)


async def test_a_group_that_may_not_read_a_topic_gets_nothing_by_a_filter_of_its_own(client: Wire) -> None:
    await client.send("T")
    usual = pull_header("T", 0, 0)
    lite = pull_header("T", 0, 0, {"sys_flag": PULL_SUBSCRIPTION | PULL_LITE})
    assert [(await client.ask(PULL, usual)).code for _ in range(3)] == [0, 0, 0]

    async with forbidden(client):
        for code, header in ((PULL, usual), (LITE_PULL, lite)):
            refused = await client.ask(code, header)
            assert (told(refused), refused.fields["forbiddenType"]) == (TOPIC_BAN, "5")
        assert (await client.pull("T", consumer_group="Others")).code == 0

    assert (await client.ask(PULL, usual)).code == 0


async def test_a_group_that_may_not_broadcast_gets_nothing_by_a_filter_of_its_own(client: Wire, broker: Broker) -> None:
    await client.send("T")
    config = broker.state.groups.find("G")
    assert config is not None
    config.consume_broadcast_enable = False
    await client.heartbeat("c", "G", {"T": "*"})
    assert [(await client.pull("T")).code for _ in range(3)] == [0, 0, 0]

    await client.heartbeat("c", "G", {"T": "*"}, model="BROADCASTING")
    refused = await client.pull("T")
    assert (told(refused), refused.fields["forbiddenType"]) == (BROADCAST_BAN, "4")

    await client.heartbeat("c", "G", {"T": "*"})
    assert (await client.pull("T")).code == 0


async def test_a_pull_that_waits_when_it_is_forbidden_gets_nothing_that_comes_later(
    client: Wire, broker: Broker
) -> None:
    await client.send("T")
    held = await client.hold("T", 0, 1)
    await until(lambda: len(broker.state.pulling.held) == 1)

    async with forbidden(client):
        await client.send("T")
        refused = await held
        assert (told(refused), refused.fields["forbiddenType"]) == (TOPIC_BAN, "5")


async def test_a_group_that_may_not_read_a_topic_leases_and_peeks_at_nothing(client: Wire) -> None:
    await client.send("T")
    leases = LeaseClient(client, "G")
    assert len(await leases.pop("T")) == 1  # from here on it has a position, as usual pops need
    await client.send("T")
    place = {"consumerGroup": "G", "topic": "T", "queueId": -1}

    async with forbidden(client):
        assert told(await leases.ask_pop("T")) == TOPIC_BAN
        assert told(await client.ask(PEEK, {**place, "maxMsgNums": 32})) == TOPIC_BAN
        assert told(await client.ask(NOTIFICATION, {**place, "pollTime": 0, "bornTime": 0})) == TOPIC_BAN

    assert len(await leases.pop("T")) == 1


async def test_a_pop_that_waits_when_it_is_forbidden_gets_nothing_that_comes_later(
    client: Wire, broker: Broker
) -> None:
    await client.send("T")
    leases = LeaseClient(client, "G")
    assert len(await leases.pop("T")) == 1
    held = await leases.hold_pop("T")
    await until(lambda: len(broker.state.pops.pops) == 1)

    async with forbidden(client):
        await client.send("T")
        assert told(await held) == TOPIC_BAN

    assert len(await leases.pop("T")) == 1


async def test_a_notification_that_waits_when_it_is_forbidden_tells_of_nothing_that_comes_later(
    client: Wire, broker: Broker
) -> None:
    await client.send("T")
    leases = LeaseClient(client, "G")
    assert len(await leases.pop("T")) == 1
    place = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 60_000, "bornTime": 0}
    held = await client.start(NOTIFICATION, place)
    await until(lambda: len(broker.state.pops.notifications) == 1)

    async with forbidden(client):
        await client.send("T")
        assert told(await held) == TOPIC_BAN
