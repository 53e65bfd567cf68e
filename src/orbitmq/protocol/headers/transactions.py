"""Transactions. Java: EndTransactionRequestHeader, CheckTransactionStateRequestHeader"""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.integers import Int32, Int64

COMMIT: Final = 8
ROLLBACK: Final = 12
UNKNOWN: Final = 0


class EndTransaction(Header):
    producer_group: str
    tran_state_table_offset: Int64  # of the half message in its queue
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str | None = None
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionState(Header):
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
