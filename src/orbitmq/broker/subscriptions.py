"""What a consumer wants of a topic: all of it, or messages with certain tags. Java: FilterAPI, SubscriptionData"""

from __future__ import annotations

from typing import Final

from orbitmq.errors import RequestFailed
from orbitmq.message.tags import tag_code
from orbitmq.protocol.codes import ResponseCode

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


def is_tag_expression(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """The hashes of the tags in `A || B`; None means every message."""
    if not expression or expression == ALL:
        return None
    tags = [tag.strip() for tag in expression.split("||")]
    codes = frozenset(tag_code(tag) for tag in tags if tag)
    if not codes:
        raise RequestFailed(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"subscription {expression!r} names no tag",
            hint="write `*` for all messages, or tags as `A || B`",
        )
    return codes
