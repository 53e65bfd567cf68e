"""Requests and replies on a server in this process."""

import asyncio
import logging

import pytest

from orbitmq import App, CallTimeout, Client, ReceivedMessage, connect, sync
from orbitmq.errors import AlreadyClosed, ConfigError, ConnectFailed, MessageError, RequestFailed
from orbitmq.testing.server import Server
from tests.client.scripted import eventually


async def test_an_app_answers_with_what_its_responder_returns(mq_session_server: Server) -> None:
    app = App(mq_session_server.address)

    @app.responder("Prices", group="pricing", start="earliest")
    async def price(article: dict[str, int]) -> dict[str, int]:
        return {"price": article["id"] * 2}

    @app.responder("Names", group="naming", start="earliest")
    def name(text: str) -> str:
        return text.upper()

    async with app:
        assert (await app.request("Prices", {"id": 21}, timeout=20)).body == b'{"price":42}'
        assert (await app.request("Names", "blå", timeout=20)).body.decode() == "BLÅ"
        await app.publish("Names", "no request: nobody gets what the responder returns")
    with pytest.raises(ConfigError, match="one request at a time"):
        app.responder("Prices", group="pricing", batch_size=2)


async def test_a_request_that_nobody_answers_ends_by_its_timeout(mq_session_server: Server) -> None:
    async with connect(mq_session_server.address) as client, client.producer("Asker") as asker:
        with pytest.raises(CallTimeout, match="was sent, but no reply came"):
            await asker.request("Unanswered", b"?", timeout=0.3)
    async with connect("127.0.0.1:1") as client, client.producer("Asker") as asker:
        with pytest.raises(ConnectFailed, match="no name server answers"):
            await asker.request("Unanswered", b"?", timeout=0.3)


async def test_who_waits_for_a_reply_hears_that_the_client_was_closed(mq_session_server: Server) -> None:
    # Also while another client of the process goes on over the same connections, and waits for replies of its own.
    async with connect(mq_session_server.address) as other, other.producer("Other") as others:
        waiting = asyncio.create_task(others.request("Unanswered", b"?", timeout=2))
        client = connect(mq_session_server.address)
        asker = await client.producer("Asker").start()
        asking = asyncio.create_task(asker.request("Unanswered", b"?", timeout=300))
        await eventually(lambda: asker.stats.sent == others.stats.sent == 1, 20)
        await client.close()
        with pytest.raises(AlreadyClosed, match="before a reply to request"):
            await asyncio.wait_for(asking, 20)
        with pytest.raises(CallTimeout):
            await waiting


async def test_a_late_reply_is_dropped_and_one_to_somebody_gone_is_refused(
    mq_session_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "orbitmq.client")
    async with connect(mq_session_server.address) as client, client.producer("Responder") as responder:
        asked: list[ReceivedMessage] = []

        async def keep(message: ReceivedMessage) -> None:
            asked.append(message)

        async with client.consumer("Late", group="late", start="earliest", handler=keep):
            await _ask_in_vain(client)
            async with connect(mq_session_server.address, instance_name="another") as other:
                await _ask_in_vain(other)
            await eventually(lambda: len(asked) == 2, 20)
        late, gone = sorted(asked, key=lambda message: message.stored.born_at_ms)
        await responder.reply(late, b"too late")
        await eventually(lambda: "came too late" in caplog.text, 20)
        with pytest.raises(RequestFailed, match="not found"):
            await responder.reply(gone, b"to whom?")
        no_request = await _any_message(client)
        with pytest.raises(MessageError, match="no request"):
            await responder.reply(no_request, b"?")


async def _ask_in_vain(client: Client) -> None:
    async with client.producer("Asker") as asker:
        with pytest.raises(CallTimeout):
            await asker.request("Late", b"?", timeout=0.3)


async def _any_message(client: Client) -> ReceivedMessage:
    async with client.producer("P") as producer, client.pull_consumer("R") as reader:
        receipt = await producer.send("Plain", b"x")
        fetched = await reader.fetch(receipt.queue, offset=receipt.queue_offset)
        return fetched.messages[0]


def test_asking_and_answering_without_asyncio(mq_session_server: Server) -> None:
    with sync.connect(mq_session_server.address) as client, client.producer("P") as producer:

        def answer(message: ReceivedMessage) -> None:
            producer.reply(message, b"re: " + message.body)

        with client.consumer("Blocking", group="blocking", start="earliest", handler=answer):
            assert producer.request("Blocking", b"x", timeout=20).body == b"re: x"


async def test_many_requests_at_once_each_get_their_own_reply(mq_session_server: Server) -> None:
    app = App(mq_session_server.address)

    @app.responder("Many", group="many", start="earliest")
    async def same(body: bytes) -> bytes:
        return body

    async with app:
        replies = await asyncio.gather(*(app.request("Many", str(n), timeout=30) for n in range(100)))
    assert [reply.body for reply in replies] == [str(n).encode() for n in range(100)]
