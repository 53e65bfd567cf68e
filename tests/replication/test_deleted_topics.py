"""A topic that is deleted and made again on the master: its slave has the messages of the new one, and no position in the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.protocol.codes import RequestCode
from tests.replication.kit import copied, group_of_brokers, until, wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from tests.broker.kit import Wire

OLD = [b"old %d" % number for number in range(10)]
NEW = [b"new %d" % number for number in range(3)]


async def send(client: Wire, bodies: list[bytes]) -> list[int]:
    answers = [await client.send("T", body) for body in bodies]
    assert [answer.code for answer in answers] == [0] * len(bodies)
    return [int(answer.fields["queueOffset"]) for answer in answers]


async def told(slave: Broker, condition: Callable[[], bool], what: str) -> None:
    """Wait for it, with a slave that asks its master all the time."""
    tables = slave.state.master_tables
    assert tables is not None

    def looked() -> bool:
        tables.message_arrived("unknown")
        return condition()

    await until(looked, what)


async def served(broker: Broker) -> list[bytes]:
    client = wire(broker)
    bodies = await client.bodies("T")
    await client.close()
    return bodies


@pytest.mark.usefixtures("loops")
async def test_a_slave_and_the_master_that_it_becomes_have_the_messages_of_a_topic_made_again(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        slave = await group.slave()
        client = wire(master)
        await send(client, OLD)
        await client.heartbeat("c", "G", {"T": "*"})
        fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": len(OLD)}
        assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
        await copied(master, slave)
        await told(
            slave, lambda: slave.state.offsets.get("G", "T", 0) == len(OLD), "the slave has the group's position"
        )
        assert await served(slave) == OLD
        assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        assert await send(client, NEW) == [0, 1, 2]
        await copied(master, slave)
        await told(
            slave, lambda: slave.state.topics.version == master.state.topics.version, "the slave has the new topic"
        )
        assert await served(slave) == await served(master) == NEW
        await told(
            slave, lambda: slave.state.offsets.get("G", "T", 0) is None, "the slave has no position in the old topic"
        )
        await client.close()
        await group.stop(master)
        await group.stop(slave)
        heir = await group.master(folder="slave-1")
        assert await served(heir) == NEW
        assert heir.state.offsets.get("G", "T", 0) is None
        client = wire(heir)
        assert await send(client, [b"next"]) == [len(NEW)]
        await client.close()


async def test_a_slave_removes_no_queues_of_topics_that_it_may_not_have_heard_of_yet(tmp_path: Path) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        slave = await group.slave()
        client, asking = wire(master), wire(slave)
        await send(client, NEW)
        await copied(master, slave)
        await slave.state.topics.delete(["T"])  # as before the master's table comes
        answer = await asking.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (answer.code, "nothing was removed" in (answer.remark or "")) == (0, True)
        assert slave.state.store.queue_range("T", 0) == (0, len(NEW))
        await asking.close()
        await client.close()


@pytest.mark.parametrize("is_late", [False, True], ids=["hears of it first", "has its messages first"])
async def test_a_slave_forgets_what_it_compacted_of_a_topic_that_is_made_again(tmp_path: Path, is_late: bool) -> None:
    async with group_of_brokers(tmp_path) as group:
        master = await group.master()
        slave = await group.slave()
        client = wire(master)

        async def make() -> None:
            fields = {
                "topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": "+cleanup.policy=COMPACTION",
            }  # fmt: skip
            assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0

        async def tables_are_taken_over() -> None:
            await told(
                slave, lambda: slave.state.topics.version == master.state.topics.version, "the slave has the tables"
            )

        async def send_keyed(bodies: list[bytes]) -> None:
            for body in bodies:
                assert (await client.send("T", body, KEYS=body.decode())).code == 0
            await copied(master, slave)

        await make()
        await tables_are_taken_over()
        await send_keyed(OLD)
        assert slave.state.compacted is not None
        assert slave.state.compacted.holds("T", 0)
        assert await served(slave) == OLD
        assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await tables_are_taken_over()
        await make()
        if not is_late:
            await tables_are_taken_over()
        await send_keyed(NEW)
        await tables_are_taken_over()
        if not is_late:
            assert slave.state.compacted.holds("T", 0)
        assert await served(slave) == await served(master) == NEW
        await client.close()
