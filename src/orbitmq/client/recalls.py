"""Asking a broker to give a delayed message back. Java: DefaultMQProducerImpl.recallMessage"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orbitmq.client.hooks import Recall
from orbitmq.errors import MessageError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.send import MessageRecalled, RecallMessage
from orbitmq.protocol.recall_handles import read_handle

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster


async def take_back(cluster: Cluster, group: str, wire_topic: str, handle: str, deadline: float) -> tuple[Recall, str]:
    """What the broker said, also when it refused; and the message's id. The route of its topic is known."""
    if not isinstance(handle, str):
        raise MessageError(f"{handle!r} is no recall handle", hint="give the `recall_handle` of the message's receipt")
    wanted = read_handle(handle)
    address = cluster.master(wanted.broker_name)
    if address is None:
        raise TransportError(
            f"broker {wanted.broker_name!r} has no master now", hint="only it can take the message back"
        )
    header = RecallMessage(producer_group=group, topic=wire_topic, recall_handle=handle)
    command = request(RequestCode.RECALL_MESSAGE, header)
    try:
        answer = await cluster.ask(cluster.vip(address), command, deadline - asyncio.get_running_loop().time())
    except RequestFailed as refused:
        return Recall(group, wire_topic, wanted.unique_key, "", refused), ""
    recalled = answer.read(MessageRecalled)
    return Recall(group, wire_topic, wanted.unique_key, recalled.region or "", None), recalled.msg_id
