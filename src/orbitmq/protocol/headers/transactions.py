"""Transactions. Java: EndTransactionRequestHeader, CheckTransactionStateRequestHeader"""

from __future__ import annotations

from typing import Final

from orbitmq.protocol.headers.base import Header

COMMIT: Final = 8
ROLLBACK: Final = 12
UNKNOWN: Final = 0


class EndTransaction(Header):
    producer_group: str
    tran_state_table_offset: int  # of the half message in its queue
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionState(Header):
    tran_state_table_offset: int
    commit_log_offset: int
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None
