"""Exactly the rights that docs/security.md asks for are enough, on a cluster whose broker and name server are both guarded."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import orbitmq as mq
from orbitmq.broker.broker import Broker
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.signing import sign
from orbitmq.testing.clock import MovableClock
from orbitmq.transport.pool import Pool
from tests.access.test_matrix import GUARDED, MEMBER, NOBODY, ROOT, guarded_name_server
from tests.broker.kit import PATIENCE_SECONDS, configuration
from tests.nameserver.running import running as running_name_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.access.users import Users

INNER: Final = {"innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}'}


def let_in(users: Users) -> None:
    users.create(User(username=MEMBER.access_key, password=MEMBER.secret_key))
    rights = [
        PolicyEntry(resource="Topic:Orders", actions=["Pub", "Sub"], decision="Allow"),
        PolicyEntry(resource="Group:workers", actions=["Sub"], decision="Allow"),
    ]
    users.create_acl(Acl(subject="User:member", policies=[Policy(entries=rights)]))


@asynccontextmanager
async def member_of_guarded_cluster(folder: Path, clock: MovableClock) -> AsyncIterator[mq.Client]:
    """A client that may use the topic Orders and the group workers; there is a message."""
    async with running_name_server(folder / "names", clock=None, **GUARDED) as names:
        settings = {**GUARDED, **INNER, "namesrvAddr": names.address}
        async with Broker(configuration(folder / "store", settings), clock=clock) as broker:
            let_in(names.users)
            let_in(broker.state.users)
            async with (
                mq.connect(str(names.address), credentials=(ROOT.access_key, ROOT.secret_key)) as root,
                root.producer("P") as producer,
            ):
                await producer.send("Orders", b"one")
            config = mq.connect(str(names.address), credentials=(MEMBER.access_key, MEMBER.secret_key)).config
            async with mq.Client(dataclasses.replace(config, clock=clock)) as client:
                yield client


async def test_a_leased_message_that_came_again_can_be_extended_and_acked(tmp_path: Path) -> None:
    clock = MovableClock()
    async with (
        member_of_guarded_cluster(tmp_path, clock) as client,
        client.lease_consumer("Orders", group="workers", start="earliest", lease=timedelta(seconds=2)) as consumer,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        (first,) = await consumer.fetch(wait=5)
        again: list[mq.LeasedMessage] = []
        while not again:
            clock.advance(seconds=2)
            again = await consumer.fetch(wait=0.5)
        assert (first.attempt, again[0].attempt) == (1, 2)
        await again[0].extend(timedelta(seconds=30))
        await again[0].ack()


async def test_who_may_consume_questions_may_answer_them(tmp_path: Path) -> None:
    async with member_of_guarded_cluster(tmp_path, MovableClock()) as client, client.producer("P") as producer:

        async def answer(message: mq.ReceivedMessage) -> None:
            if message.body == b"how much?":
                await producer.reply(message, b"42")

        async with client.consumer("Orders", group="workers", handler=answer, start="earliest"):
            reply = await producer.request("Orders", b"how much?", timeout=PATIENCE_SECONDS)
        assert reply.body == b"42"


async def test_the_route_of_no_topic_but_where_replies_go_is_told_to_everyone(tmp_path: Path) -> None:
    pool = Pool()
    async with guarded_name_server(tmp_path) as (asker, users, _):
        users.create(User(username=NOBODY.access_key, password=NOBODY.secret_key))

        async def code_for(topic: str) -> int:
            request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})
            sign(request, NOBODY)
            return (await pool.call(asker.address, request, PATIENCE_SECONDS)).code

        assert await code_for("DefaultCluster_REPLY_TOPIC") == ResponseCode.TOPIC_NOT_EXIST
        for topic in ("Orders", "DefaultCluster_REPLY_TOPIC2", "REPLY_TOPIC", "%RETRY%G"):
            assert await code_for(topic) == ResponseCode.NO_PERMISSION, topic
    await pool.close()
