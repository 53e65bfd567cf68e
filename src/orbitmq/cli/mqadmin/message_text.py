"""Messages as Java's classes print themselves. Java: MessageExt.toString, QueryMsgByIdSubCommand.printMsg"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.admin.messages import message_body
from orbitmq.cli.mqadmin.report import human_time, java_map, java_text
from orbitmq.message import properties as names

if TYPE_CHECKING:
    from orbitmq.cli.mqadmin.report import Report
    from orbitmq.message import StoredMessage


def message_ext(stored: StoredMessage, broker: str | None) -> str:
    """`MessageExt [...]`: the id in it is the broker's, as in a message that was not pulled."""
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message_body(stored))
    transaction = stored.properties.get(names.TRANSACTION_ID)
    quoted = f"'{transaction}'" if transaction is not None else "'null'"
    return (
        f"MessageExt [brokerName={java_text(broker)}, queueId={stored.queue_id}, storeSize={stored.size}, "
        f"queueOffset={stored.queue_offset}, sysFlag={stored.sys_flag}, bornTimestamp={stored.born_at_ms}, "
        f"bornHost=/{stored.born_address}, storeTimestamp={stored.stored_at_ms}, storeHost=/{stored.store_address}, "
        f"msgId={stored.offset_id}, commitLogOffset={stored.commit_log_offset}, bodyCRC={stored.body_crc}, "
        f"reconsumeTimes={stored.reconsume_times}, preparedTransactionOffset={stored.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{stored.topic}', flag={stored.flag}, properties={java_map(stored.properties)}, "
        f"body=[{body}], transactionId={quoted}}}]"
    )


def pulled_line(stored: StoredMessage, broker: str, charset: str, *, with_body: bool) -> str:
    body = message_body(stored).decode(charset, "replace") if with_body else "NOT PRINT BODY"
    return f"MSGID: {stored.message_id} {message_ext(stored, broker)} BODY: {body}"


def print_message(report: Report, stored: StoredMessage, *, with_offset_id: bool, charset: str | None) -> None:
    """Field by field. The original writes the body to a file; here it is printed when asked for, and in the JSON."""
    rows: list[tuple[str, object]] = [("OffsetID", stored.offset_id)] if with_offset_id else []
    rows += [
        ("Topic", stored.topic),
        ("Tags", f"[{stored.tags or 'null'}]"),
        ("Keys", f"[{stored.properties.get(names.KEYS, 'null')}]"),
        ("Queue ID", stored.queue_id),
        ("Queue Offset", stored.queue_offset),
        ("CommitLog Offset", stored.commit_log_offset),
        ("Reconsume Times", stored.reconsume_times),
        ("Born Timestamp", human_time(stored.born_at_ms)),
        ("Store Timestamp", human_time(stored.stored_at_ms)),
        ("Born Host", stored.born_address),
        ("Store Host", stored.store_address),
        ("System Flag", stored.sys_flag),
        ("Properties", java_map(stored.properties)),
        ("Message Body Path", "not written; -f UTF-8 prints the body"),
    ]
    if charset is not None:
        rows.append(("Message Body", message_body(stored).decode(charset, "replace")))
    for name, value in rows:
        label = f"{name}:"
        report.line(f"{label:<20} {value}")
    report.items("messages").append(
        {
            "offsetMsgId": stored.offset_id,
            "msgId": stored.message_id,
            "topic": stored.topic,
            "tags": stored.tags,
            "keys": stored.keys,
            "queueId": stored.queue_id,
            "queueOffset": stored.queue_offset,
            "commitLogOffset": stored.commit_log_offset,
            "reconsumeTimes": stored.reconsume_times,
            "bornTimestamp": stored.born_at_ms,
            "storeTimestamp": stored.stored_at_ms,
            "bornHost": stored.born_address,
            "storeHost": stored.store_address,
            "sysFlag": stored.sys_flag,
            "properties": stored.properties,
            "body": message_body(stored).decode("utf-8", "backslashreplace"),
        }
    )
