"""The client on OrbitMQ's own servers, as processes of their own: the suite, and what outlives a process that dies.

Faults one by one: test_faults_of_processes.py.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from orbitmq import Client, ReceivedMessage, connect
from orbitmq.errors import OrbitError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.transport.address import parse_address
from orbitmq.transport.pool import Pool
from tests.client.scripted import eventually
from tests.client.suite import (  # noqa: F401 - tests that every server must pass
    collecting,
    test_a_failed_message_comes_again_and_then_goes_to_the_dead_letters,
    test_a_request_gets_its_reply,
    test_any_delay_is_kept_and_can_be_recalled,
    test_broadcasting_members_each_get_everything,
    test_every_way_of_sending_arrives,
    test_leased_messages_end_with_their_ack_and_come_again_without,
    test_members_share_a_topic_and_take_over_when_one_leaves,
    test_offsets_by_time_and_by_hand,
    test_only_what_a_transaction_commits_is_consumed,
    test_orderly_members_see_each_queue_in_order,
    test_the_first_message_comes_within_a_second,
    until_routed,
)
from tests.interop import orbit
from tests.interop.processes import free_port
from tests.topic_names import fresh_name

pytestmark = pytest.mark.xdist_group("client-servers")

SETTINGS: dict[str, str | int] = {
    "registerNameServerPeriod": 10_000,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 500,
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}
_BESIDE = (-2, 1)  # a broker listens there, too: for old clients, and for slaves


class Servers:
    """A name server and a broker, each on a port it keeps when it is started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = {"orderMessageEnable": "true"}
        self.name_server = orbit.start_name_server(folder / "nameserver", settings, port=free_port())
        self._broker_port = free_port(*_BESIDE)
        self.start_broker()

    @property
    def address(self) -> str:
        return self.name_server.address

    def move_broker(self) -> None:
        """Kill it and start it again at another address."""
        self.broker.process.kill()
        self._broker_port = free_port(*_BESIDE)
        self.start_broker()

    def start_broker(self) -> None:
        (self._folder / "broker" / "broker.out").unlink(missing_ok=True)  # its old word that it is ready
        self.broker = orbit.start_broker(
            self._folder / "broker", self.address, settings=SETTINGS, port=self._broker_port
        )

    async def create_topic(self, name: str) -> None:
        """With eight queues."""
        pool = Pool()
        header = CreateTopic(topic=name, read_queue_nums=8, write_queue_nums=8, perm=6, topic_filter_type="SINGLE_TAG")
        command = request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        answer = await pool.call(parse_address(self.broker.address), command, 5)
        assert answer.code == 0, answer
        await pool.close()

    def kill(self) -> None:
        self.broker.process.kill()
        self.name_server.process.kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.kill()


@pytest.fixture
async def client(servers: Servers) -> AsyncIterator[Client]:
    async with connect(servers.address) as client:
        yield client


@pytest.fixture
async def topic(servers: Servers, client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of its own for each test, with eight queues."""
    name = fresh_name(request)
    await servers.create_topic(name)
    await until_routed(client, name)
    return name


async def test_transactions_and_leases_outlive_a_broker_that_is_killed(
    servers: Servers, client: Client, topic: str
) -> None:
    visible: list[bytes] = []
    leased_topic = topic[:60] + "Leased"
    await servers.create_topic(leased_topic)
    await until_routed(client, leased_topic)

    async def check(body: bytes) -> bool | None:
        return int(body) % 2 == 0

    async def handler(message: ReceivedMessage) -> None:
        visible.append(message.body)

    async with (
        client.producer("PythonProducer") as producer,
        client.transaction_producer(f"Payers{topic}", check=check) as payer,
        client.lease_consumer(
            leased_topic, group=f"Workers{topic}", start="earliest", lease=timedelta(seconds=5)
        ) as workers,
        client.consumer(topic, group=f"Payees{topic}", start="earliest", handler=handler),
    ):
        for number in range(5):
            await producer.send(leased_topic, str(number), order_key="one queue")
        leased = await workers.fetch(max=5, wait=10)
        await workers.ack(leased[:2])
        for number in range(30):
            async with payer.begin(topic, str(number)) as transaction:
                if number % 3 == 0:
                    transaction.commit()
                elif number % 3 == 1:
                    transaction.roll_back()
        await asyncio.to_thread(servers.broker.process.kill)
        await asyncio.to_thread(servers.start_broker)
        committed = {str(number).encode() for number in range(30) if number % 3 == 0}
        decided_later = {str(number).encode() for number in range(30) if number % 3 == 2 and number % 2 == 0}
        await eventually(lambda: set(visible) >= committed | decided_later, 60)
        again: set[bytes] = set()
        async with asyncio.timeout(60):
            while len(again) < 3:
                try:
                    found = await workers.fetch(wait=2)
                except OrbitError:
                    await asyncio.sleep(0.2)
                    continue
                again |= {message.body for message in found}
                await workers.ack(found)
    assert set(visible) == committed | decided_later
    assert len(leased) == 5
    assert again == {message.body for message in leased[2:]}


async def test_a_consumer_that_is_killed_loses_nothing(
    servers: Servers, client: Client, topic: str, tmp_path: Path
) -> None:
    group = f"Killed{topic}"
    async with client.producer("PythonProducer") as producer:
        await asyncio.gather(*(producer.send(topic, str(number)) for number in range(200)))
    program = f"""
import asyncio, orbitmq as mq
async def main():
    async with mq.connect({servers.address!r}) as client:
        async with client.consumer({topic!r}, group={group!r}, start="earliest") as sub:
            n = 0
            async for m in sub:
                async with m.process():
                    n += 1
                    if n == 50:
                        print("half way", flush=True)
                        await asyncio.sleep(60)
asyncio.run(main())
"""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    async with asyncio.timeout(30):
        assert await child.stdout.readline() == b"half way\n"
    child.send_signal(signal.SIGKILL)
    await child.wait()
    seen: list[ReceivedMessage] = []
    async with client.consumer(topic, group=group, start="earliest", handler=collecting(seen)):
        await eventually(lambda: len(seen) >= 150, 30)
        await asyncio.sleep(0.1)
    assert len({message.body for message in seen}) >= 150


async def test_a_broker_that_comes_back_elsewhere_is_found_there(servers: Servers, client: Client, topic: str) -> None:
    seen: list[ReceivedMessage] = []
    async with (
        client.producer("PythonProducer") as producer,
        connect(servers.address, instance_name="ItsOwn") as another,  # which learns nothing from the producer
        another.consumer(topic, group=f"Follows{topic}", start="earliest", handler=collecting(seen)),
    ):
        await producer.send(topic, b"before")
        await eventually(lambda: len(seen) == 1, 20)
        old = servers.broker.address
        await asyncio.to_thread(servers.move_broker)
        assert servers.broker.address != old
        async with asyncio.timeout(25):  # less than the 30 s after which every route is asked for anyway
            while True:
                try:
                    await producer.send(topic, b"after", timeout=2)
                    break
                except OrbitError:
                    await asyncio.sleep(0.2)
            await eventually(lambda: b"after" in {message.body for message in seen}, 25)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_of_a_forked_process_send_and_consume_on_their_own(servers: Servers) -> None:
    """As gunicorn and celery do: what was made before the fork is used after it, by parent and children."""
    program = f"""
import os, sys
from orbitmq.sync import connect
client = connect({servers.address!r})
producer = client.producer("Forked")
producer.send("ForkedTopic", b"parent, before")
children = []
for number in range(3):
    pid = os.fork()
    if pid == 0:
        producer.send("ForkedTopic", f"child {{number}}".encode())
        client.close()
        os._exit(0)
    children.append(pid)
producer.send("ForkedTopic", b"parent, after")
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
bodies = set()
with client.consumer("ForkedTopic", group="ForkedGroup", start="earliest") as consumer:
    for message in consumer:
        with message.process():
            bodies.add(message.body)
        if len(bodies) == 5:
            break
client.close()
print(sorted(bodies))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == str([b"child 0", b"child 1", b"child 2", b"parent, after", b"parent, before"]) + "\n"
