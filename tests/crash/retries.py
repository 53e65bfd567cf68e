"""A group that pulls, and sends back what it could not handle, while its broker is killed: a ledger of retries and dead letters.

A message is fine, fails once, or is poison. What fails is sent back and comes again a second later; poison is a dead letter after
`RETRIES` more attempts. Exactly those: nothing that is fine or fails once ever is. Where a kill took the answer to a send-back, it may
have been carried out or not, and is asked for again: only then may a message come, or die, once more for each such question.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from tests.broker.kit import SEND_BACK, Wire, messages_of

if TYPE_CHECKING:
    from orbitmq.message.message import StoredMessage
    from orbitmq.transport.address import Address

TOPIC, GROUP = "Retried", "Retriers"
RETRIES: Final = 2
QUEUES: Final = 2
FATES: Final = ("fine", "fails once", "poison")
LEAST_SENT: Final = 60  # however slow the machine is
NO_SUCH_TOPIC: Final = 17
CREATE_GROUP: Final = 200
_PAUSE_SECONDS: Final = 0.05
_PLACES: Final = (*((TOPIC, queue_id) for queue_id in range(QUEUES)), (f"%RETRY%{GROUP}", 0))


class RetryLedger:
    def __init__(self, address: Address) -> None:
        self.over = False
        self._address = address
        self._sent: dict[str, str] = {}  # text -> its fate, of those that were acknowledged
        self._handled: Counter[str] = Counter()
        self._unanswered: Counter[str] = Counter()  # send-backs
        self._letters: Counter[str] = Counter()
        self._offsets = dict.fromkeys(_PLACES, 0)

    async def create_group(self) -> None:
        client = Wire(self._address)
        group = {"groupName": GROUP, "retryMaxTimes": RETRIES, "retryQueueNums": 1, "consumeEnable": True}
        assert (await client.ask(CREATE_GROUP, None, json.dumps(group).encode())).code == 0
        await client.close()

    async def produce(self) -> None:
        client = Wire(self._address)
        number = 0
        while not self.over or len(self._sent) < LEAST_SENT:
            fate = FATES[number % len(FATES)]
            text = f"{fate} {number}"
            try:
                if (await client.send(TOPIC, text.encode(), number % QUEUES)).code == 0:
                    self._sent[text] = fate
            except OrbitError:
                await asyncio.sleep(_PAUSE_SECONDS)
            number += 1
            await asyncio.sleep(0.01)
        await client.close()

    async def consume(self) -> None:
        """For ever. Positions are kept here, so each message is handled once, kills or not."""
        client = Wire(self._address)
        while True:
            found = 0
            for topic, queue_id in _PLACES:
                try:
                    answer = await client.pull(topic, queue_id, self._offsets[topic, queue_id], consumer_group=GROUP)
                except OrbitError:
                    continue
                for message in messages_of(answer) if answer.code == 0 else []:
                    await self._handle(client, message)
                    self._offsets[topic, queue_id] = message.queue_offset + 1
                    found += 1
            if not found:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def look(self) -> None:
        """At the dead letters."""
        client = Wire(self._address)
        dead = f"%DLQ%{GROUP}"
        if (await client.pull(dead)).code != NO_SUCH_TOPIC:
            self._letters = Counter(body.decode() for body in await client.bodies(dead))
        await client.close()

    def missing(self) -> list[str]:
        """What was acknowledged and has neither been handled nor died."""
        return [
            text
            for text, fate in self._sent.items()
            if not (self._letters[text] if fate == "poison" else self._handled[text])
        ]

    def broken(self, kills: int) -> list[str]:
        """A kill between a delivery and the note of it may repeat one message, and no more."""
        found = [f"{text} was acknowledged and is neither handled nor a dead letter" for text in self.missing()]
        found += [
            f"{text} is a dead letter and was not exhausted" for text in self._letters if not text.startswith("poison")
        ]
        repeats = [
            f"{text} {what} {count} times with {self._unanswered[text]} questions unanswered"
            for what, counts in (("died", self._letters), ("came", self._handled))
            for text, count in counts.items()
            if count > 1 + self._unanswered[text]
        ]
        return found if len(repeats) <= kills else found + repeats

    def figures(self) -> dict[str, int]:
        return {"retried messages": len(self._sent), "dead letters of retries": self._letters.total()}

    async def _handle(self, client: Wire, message: StoredMessage) -> None:
        text = message.body.decode()
        fails = text.startswith("poison") or (text.startswith("fails once") and message.reconsume_times == 0)
        if not fails:
            self._handled[text] += 1
            return
        question = {
            "offset": message.commit_log_offset, "group": GROUP, "delayLevel": 1, "originMsgId": message.offset_id,
            "originTopic": TOPIC, "unitMode": "false",
        }  # fmt: skip
        while True:
            try:
                answer = await client.ask(SEND_BACK, question)
            except OrbitError:
                self._unanswered[text] += 1
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            assert answer.code == 0, answer
            return
