"""Putting a message into its group's retry topic ourselves, when the broker could not be asked to do it.

Java: DefaultMQPushConsumerImpl.sendMessageBack (the part after the failure)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.client.delivery import ANYWHERE, Delivery
from orbitmq.client.names import TEMPLATE_TOPIC, retry_topic
from orbitmq.client.outgoing import properties_text
from orbitmq.client.producer_options import ProducerOptions
from orbitmq.client.receipts import SendStatus, unconfirmed
from orbitmq.client.stats import ProducerStats
from orbitmq.message import properties as names
from orbitmq.message.sysflags import COMPRESSED, COMPRESSION_MASK
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.send import SendMessageV2

if TYPE_CHECKING:
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.received import ReceivedMessage

_GROUP: Final = "CLIENT_INNER_PRODUCER"
_SECONDS: Final = 5.0
_FIRST_LEVEL: Final = 3


class Republisher:
    """Sends to `%RETRY%<group>`."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._topic = retry_topic(group)
        self._cluster = cluster
        self._delivery = Delivery(cluster, ProducerOptions(), ProducerStats())

    async def publish(self, message: ReceivedMessage, wire_topic: str, max_retries: int) -> None:
        """`wire_topic` is where the message was first sent, as the broker names it. Past `max_retries` the broker puts it
        among the dead letters instead.

        RequestFailed also when the copy may not get to the broker's disk: who gave the message up would lose it. Slaves that are
        late or away count as they do when a broker is asked to take a message back: a copy more for each attempt, and each
        copy's attempts, for as long as a slave is away, would help nobody.
        """
        stored = message.stored
        properties = {
            **stored.properties,
            names.RETRY_TOPIC: wire_topic,
            names.DELAY: str(_FIRST_LEVEL + message.attempt - 1),
        }
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        properties.pop(names.PREPARED, None)
        header = SendMessageV2(
            producer_group=_GROUP,
            topic=self._topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=-1,
            sys_flag=stored.sys_flag & (COMPRESSED | COMPRESSION_MASK),  # the body travels as it is stored
            born_timestamp=self._cluster.config.clock.now_ms(),
            flag=stored.flag,
            properties=properties_text(properties),
            reconsume_times=message.attempt,
            max_reconsume_times=max_retries,
        )
        code = RequestCode.SEND_MESSAGE_V2
        delivered = await self._delivery.deliver(code, header, stored.body, ANYWHERE, _SECONDS)
        if delivered.answer.code == ResponseCode.FLUSH_DISK_TIMEOUT:
            raise unconfirmed(SendStatus.DISK_LATE, self._topic)
