"""What `store dump` prints for programs: the fields of `msg find`, and the place in the log. `msg send --format json` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.admin.messages import MessageRow, message_row

if TYPE_CHECKING:
    from orbitmq.message.message import StoredMessage


class RecordRow(MessageRow, frozen=True, kw_only=True):
    """A message as a store keeps it. `broker` is null: a store does not name its own."""

    log_offset: int
    flag: int  # the producer's own
    system_flag: int  # compressed, part of a transaction, ...


def record_row(message: StoredMessage) -> RecordRow:
    plain = msgspec.structs.asdict(message_row(message, None))
    return RecordRow(**plain, log_offset=message.commit_log_offset, flag=message.flag, system_flag=message.sys_flag)
