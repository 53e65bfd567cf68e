"""Sending, and sending back. Java: SendMessageRequestHeader(V2), SendMessageResponseHeader, ConsumerSendMsgBackRequestHeader"""

from __future__ import annotations

import msgspec

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64

_quoted = msgspec.json.Encoder().encode


class SendMessage(Header):
    """Code 10 and 324, long names. Go's client speaks it."""

    producer_group: str
    topic: str
    default_topic: str  # the template for a topic that does not exist yet
    default_topic_queue_nums: Int32
    queue_id: Int32  # negative: the broker chooses
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


class SendMessageV2(Header):
    """Codes 310, 320 and 325: the same, one letter a name."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str = msgspec.field(name="i", default="")
    reconsume_times: Int32 = msgspec.field(name="j", default=0)
    unit_mode: bool = msgspec.field(name="k", default=False)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    batch: bool = msgspec.field(name="m", default=False)
    bname: str | None = msgspec.field(name="n", default=None)

    def to_json(self) -> bytes:
        """The texts to send as JSON, which `to_fields` and an encoder would take three times as long for."""
        return (
            b'{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%d","f":"%d","g":"%d","h":"%d","i":%b,"j":"%d","k":"%b",%b"m":"%b"%b}'
        ) % (
            _quoted(self.producer_group),
            _quoted(self.topic),
            _quoted(self.default_topic),
            self.default_topic_queue_nums,
            self.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
            _quoted(self.properties),
            self.reconsume_times,
            b"true" if self.unit_mode else b"false",
            b"" if self.max_reconsume_times is None else b'"l":"%d",' % self.max_reconsume_times,
            b"true" if self.batch else b"false",
            b"" if self.bname is None else b',"n":%b' % _quoted(self.bname),
        )


class SignedSendV2(SendMessageV2, kw_only=True, forbid_unknown_fields=True):
    """Code 310 with the fields of a signature and no others: every other field would be signed as well."""

    access_key: str = msgspec.field(name="AccessKey")
    signature: str = msgspec.field(name="Signature")
    security_token: str | None = msgspec.field(name="SecurityToken", default=None)

    def signed_text(self) -> str:
        """What is signed besides the body, if the sender wrote every value as we would: 8, not 08 (protocol/signing.py)."""
        return (
            f"{self.access_key}{self.security_token or ''}{self.producer_group}{self.topic}{self.default_topic}"
            f"{self.default_topic_queue_nums}{self.queue_id}{self.sys_flag}{self.born_timestamp}{self.flag}{self.properties}"
            f"{self.reconsume_times}{'true' if self.unit_mode else 'false'}"
            f"{'' if self.max_reconsume_times is None else self.max_reconsume_times}"
            f"{'true' if self.batch else 'false'}{self.bname or ''}"
        )


class SendReceipt(Header):
    """Java: SendMessageResponseHeader"""

    msg_id: str  # where the record lies; comma-separated for a batch
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)


class SendRefused(Header):
    """What even a refused send carries."""

    region: str = msgspec.field(name="MSG_REGION")
    trace_on: str = msgspec.field(name="TRACE_ON")


class SendBack(Header):
    """A consumer could not handle a message. Java: ConsumerSendMsgBackRequestHeader"""

    offset: Int64  # in the commit log
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessage(Header):
    """Take a timer message back. Java: RecallMessageRequestHeader"""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class MessageRecalled(Header):
    msg_id: str
    region: str | None = msgspec.field(name="MSG_REGION", default=None)


class RecallRefused(Header):
    """What even a refused recall carries."""

    region: str = msgspec.field(name="MSG_REGION")


class PushReply(Header):
    """A reply on its way to who asked. Java: ReplyMessageRequestHeader"""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
