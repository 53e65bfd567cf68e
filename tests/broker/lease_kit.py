"""A lease consumer that speaks the bare protocol: pops, and settles by the handles that Java's client would make."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from orbitmq.message import properties as keys
from orbitmq.protocol.bodies.leases import encode_bits
from orbitmq.protocol.lease_texts import Handle, parse_handle, real_topic
from tests.broker.kit import messages_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from orbitmq.message.message import StoredMessage
    from orbitmq.protocol.command import Command
    from tests.broker.kit import Wire

POP, ACK, PEEK, CHANGE_INVISIBLE, NOTIFICATION, POLLING_INFO = 200050, 200051, 200052, 200053, 200054, 200055
BATCH_ACK, QUERY_ASSIGNMENT, SET_REQUEST_MODE, ALL_REQUEST_MODES = 200151, 400, 401, 402


class Leased(NamedTuple):
    message: StoredMessage
    handle: Handle
    topic: str
    group: str

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def real_topic(self) -> str:
        return real_topic(self.topic, self.group, self.handle.kind)


def ack_fields(leased: Leased, **changes: object) -> dict[str, str]:
    handle = leased.handle
    fields = {
        "consumerGroup": leased.group, "topic": leased.real_topic, "queueId": handle.queue_id,
        "extraInfo": handle.text(), "offset": handle.offset, "bname": "broker-a", **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


class LeaseClient:
    def __init__(self, wire: Wire, group: str = "LG", broker_name: str = "broker-a") -> None:
        self.wire = wire
        self.group = group
        self.broker_name = broker_name

    def _header(self, topic: str, changes: dict[str, Any]) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            **changes,
        }

    def pop_fields(self, topic: str, **changes: Any) -> dict[str, str]:
        """As a frame has them."""
        return {name: str(value) for name, value in self._header(topic, changes).items()}

    async def ask_pop(self, topic: str, **changes: Any) -> Command:
        return await self.wire.ask(POP, self._header(topic, changes))

    async def hold_pop(self, topic: str, **changes: Any) -> asyncio.Future[Command]:
        return await self.wire.start(POP, self._header(topic, {"pollTime": 60_000, **changes}))

    async def pop(self, topic: str, **changes: Any) -> list[Leased]:
        """What is leased; nothing when there is nothing."""
        answer = await self.ask_pop(topic, **changes)
        assert answer.code in (0, 210), answer
        return self.leased(topic, answer) if answer.code == 0 else []

    def leased(self, topic: str, answer: Command) -> list[Leased]:
        """Java: MQClientAPIImpl.processPopResponse"""
        starts = {
            tuple(entry.split()[:2]): int(entry.split()[2]) for entry in answer.fields["startOffsetInfo"].split(";")
        }
        found = []
        for message in messages_of(answer):
            handle = message.properties.get(keys.POP_CHECK_POINT)
            if handle is None:
                parts = (
                    starts["0", str(message.queue_id)],
                    answer.fields["popTime"],
                    answer.fields["invisibleTime"],
                    answer.fields["reviveQid"],
                    0,
                    self.broker_name,
                    message.queue_id,
                    message.queue_offset,
                )
                handle = " ".join(map(str, parts))
            found.append(Leased(message, parse_handle(handle), topic, self.group))
        return found

    def _settled(self, leased: Leased, changes: dict[str, Any]) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "topic": leased.real_topic,
            "queueId": leased.handle.queue_id,
            "extraInfo": leased.handle.text(),
            "offset": leased.handle.offset,
            **changes,
        }

    async def ack(self, leased: Leased, **changes: Any) -> Command:
        return await self.wire.ask(ACK, self._settled(leased, changes))

    async def extend(self, leased: Leased, invisible_ms: int, **changes: Any) -> Command:
        return await self.wire.ask(CHANGE_INVISIBLE, self._settled(leased, {"invisibleTime": invisible_ms, **changes}))

    async def extended(self, leased: Leased, invisible_ms: int) -> Leased:
        """The lease by its new handle."""
        answer = await self.extend(leased, invisible_ms)
        assert answer.code == 0, answer
        old = leased.handle
        new = Handle(
            old.offset, int(answer.fields["popTime"]), int(answer.fields["invisibleTime"]),
            int(answer.fields["reviveQid"]), old.kind, old.broker_name, old.queue_id, old.offset,
        )  # fmt: skip
        return leased._replace(handle=new)

    async def ack_batch(self, leased: Iterable[Leased], **changes: Any) -> Command:
        """All of one batch and queue in one ack."""
        some = list(leased)
        first = some[0].handle
        bits = sum(1 << (each.handle.offset - first.start_offset) for each in some)
        ack = {
            "c": self.group, "t": some[0].topic, "r": first.kind, "so": first.start_offset, "q": first.queue_id,
            "rq": first.revive_queue, "pt": first.pop_time_ms, "it": first.invisible_ms, "b": encode_bits(bits), **changes,
        }  # fmt: skip
        return await self.wire.ask(
            BATCH_ACK, None, json.dumps({"brokerName": self.broker_name, "acks": [ack]}).encode()
        )
