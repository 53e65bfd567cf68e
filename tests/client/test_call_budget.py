"""What a message may cost the client, in calls: the budget stands in docs/performance.md, and time is no part of it.

Counted as tests/test_budget.py counts, without sockets: a producer that gets its answer at once, a pull answer that is there.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orbitmq import Client, ReceivedMessage, connect
from orbitmq.client.consumer_options import ConsumerOptions
from orbitmq.client.delivery import Delivered
from orbitmq.client.filters import subscription
from orbitmq.client.inbox import ConcurrentInbox
from orbitmq.client.incoming import Incoming
from orbitmq.client.offsets import RemoteOffsets
from orbitmq.client.process_queue import CacheLimits, ProcessQueue
from orbitmq.client.settling import ConcurrentSettler
from orbitmq.client.stats import ConsumerStats
from orbitmq.message import QueueRef
from orbitmq.message.record import encode_stored
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.send import SendMessageV2
from orbitmq.transport.address import Address
from tests.client.scripted import ScriptedBroker
from tests.profiling import counted_calls
from tests.test_budget import budget

BATCH, ROUNDS = 32, 8
BODY = bytes(1024)


def calls_of(action: Callable[[], object]) -> int:
    with counted_calls() as calls:
        for _ in range(ROUNDS):
            action()
    return calls.count


def run(coroutine: Coroutine[Any, Any, object]) -> None:
    """To its end, which it must reach without waiting."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class AnsweredAtOnce:
    """A delivery whose broker answers before it is asked."""

    def __init__(self, messages: int) -> None:
        ids = ",".join(f"7F00000100002A9F{number:016X}" for number in range(messages))
        self._answer = Command(0, fields={"msgId": ids, "queueId": "1", "queueOffset": "5"})

    async def deliver(self, code: int, header: SendMessageV2, body: bytes, to: object, seconds: float) -> Delivered:
        header.to_json()
        return Delivered(self._answer, "broker-a", Address("127.0.0.1", 1))

    async def until_idle(self) -> None: ...


@pytest.fixture
async def client() -> Client:
    return connect("127.0.0.1:1")


async def test_a_message_sent_by_batches_stays_within_its_budget(client: Client) -> None:
    async with client, client.producer("P") as producer:
        producer._delivery = AnsweredAtOnce(BATCH)  # type: ignore[assignment]
        bodies = [BODY] * BATCH
        run(producer.send_batch("T", bodies))  # what is made once is there
        spent = calls_of(lambda: run(producer.send_batch("T", bodies)))
    assert spent / (BATCH * ROUNDS) <= budget("message sent in a batch of 32")


async def test_a_message_sent_alone_stays_within_its_budget(client: Client) -> None:
    async with client, client.producer("P") as producer:
        producer._delivery = AnsweredAtOnce(1)  # type: ignore[assignment]
        run(producer.send("T", BODY))
        spent = calls_of(lambda: run(producer.send("T", BODY)))
    assert spent / ROUNDS <= budget("message sent alone, but for its way to the broker")


@pytest.mark.parametrize(
    ("batch_size", "name"), [(BATCH, "message consumed by 32"), (1, "message consumed one by one")]
)
async def test_a_consumed_message_stays_within_its_budget(batch_size: int, name: str) -> None:
    """From the bytes of a pull answer to the handler's argument, and from there to the offset that may be committed."""
    broker, queue = ScriptedBroker("broker-a"), QueueRef("T", "broker-a", 0)
    answer = b"".join(encode_stored(broker.put("T", 0, BODY, UNIQ_KEY=f"id-{number}")) for number in range(BATCH))
    held, inbox, everything = (
        ProcessQueue(queue, queue, 0, CacheLimits()),
        ConcurrentInbox(),
        subscription("T", None, 1),
    )
    incoming, offsets = Incoming("", "%RETRY%G"), RemoteOffsets(None, "G")  # type: ignore[arg-type]
    settler = ConcurrentSettler(
        None, "G", ConsumerOptions(), offsets, ConsumerStats(), inbox, None,  # type: ignore[arg-type]
    )  # fmt: skip
    handled: list[ReceivedMessage] = []

    def consume() -> None:
        messages = incoming.messages(answer, queue, everything, held)
        held.add(messages)
        inbox.put(held, messages)
        while taken := inbox.take_now(batch_size):
            handled.extend(taken)
            settler.ack(taken)

    consume()
    spent = calls_of(consume)
    assert len(handled) == (ROUNDS + 1) * BATCH
    assert offsets.known(queue) == BATCH
    assert spent / (BATCH * ROUNDS) <= budget(name)
