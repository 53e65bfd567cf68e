"""What a consumer wants of a topic: all of it, messages with certain tags, or those that a SQL92 filter matches.

Tags are compared by their hash, in the queue's index; a consumer compares the text again. A filter looks at a record's
properties.

Java: FilterAPI, SubscriptionData, ExpressionMessageFilter
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.sql_filter import SqlFilter, compile_filter
from orbitmq.errors import RequestFailed
from orbitmq.message.properties import decode_properties
from orbitmq.message.record import decode_entry
from orbitmq.message.tags import tag_code
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.storage.queue_extension import ExtensionUnit

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
_MOST_TAGS: Final = 10_000  # all are hashed for each pull, and where they fall in a set can be foreseen


class Wanted(NamedTuple):
    """How to tell which messages a consumer wants; both None: all of them."""

    tag_codes: frozenset[int] | None = None
    accept: Callable[[memoryview], bool] | None = None
    may_want: Callable[[ExtensionUnit], bool] | None = (
        None  # by what stands beside a queue entry, without reading the record
    )


def wanted(expression: str | None, expression_type: str | None, *, filters_enabled: bool) -> Wanted:
    """RequestFailed when the expression cannot be understood, or is of a kind that is not served."""
    if not expression_type or expression_type == TAG:
        return Wanted(tag_codes=tag_codes(expression))
    if expression_type != SQL92 or not filters_enabled:
        raise RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}",
            hint="filters are TAG, or SQL92 with enablePropertyFilter=true",
        )
    return Wanted(accept=_accepts(compile_filter(expression or "")))


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """The hashes of the tags in `A || B`; None means every message."""
    if not expression or expression == ALL:
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    if len(tags) > _MOST_TAGS:
        raise RequestFailed(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"[LIMIT] a subscription to {len(tags):,} tags: at most {_MOST_TAGS:,}",
            hint="subscribe to `*`, or give the messages a tag that they share",
        )
    codes = frozenset(tag_code(tag) for tag in tags if tag)
    if not codes:
        raise RequestFailed(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"subscription {expression!r} names no tag",
            hint="write `*` for all messages, or tags as `A || B`",
        )
    return codes


def _accepts(sql_filter: SqlFilter) -> Callable[[memoryview], bool]:
    def accept(record: memoryview) -> bool:
        return sql_filter.matches(decode_properties(decode_entry(record, 0, 0).properties))

    return accept
