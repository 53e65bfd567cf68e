"""Which messages of a topic a group wants: all, some tags, or those for which an expression holds.

    "*"  ""  None        everything
    "new || paid"        messages with one of these tags
    Sql("price > 10")    by properties, where the broker has enablePropertyFilter=true

The broker compares hashes of tags, so the client compares the tags themselves again.

Java: FilterAPI, SubscriptionData, MessageSelector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.message.tags import tag_code
from orbitmq.protocol.bodies.groups import Subscription as SubscriptionBody

if TYPE_CHECKING:
    from orbitmq.message import StoredMessage

ALL: Final = "*"
_TAG: Final = "TAG"
_SQL92: Final = "SQL92"
_OR: Final = "||"


class Sql(msgspec.Struct, frozen=True):
    """A filter in SQL92: `Sql("region = 'eu' AND price > 10")`."""

    expression: str


class Subscription(msgspec.Struct, frozen=True):
    """One topic and what is wanted of it."""

    topic: str
    expression: str
    expression_type: str
    tags: frozenset[str]
    version: int

    @property
    def is_sql(self) -> bool:
        return self.expression_type == _SQL92

    def wants(self, message: StoredMessage) -> bool:
        return not self.tags or message.tags in self.tags

    def body(self) -> SubscriptionBody:
        tags = sorted(self.tags)
        return SubscriptionBody(
            topic=self.topic,
            sub_string=self.expression,
            tags_set=tags,
            code_set=[tag_code(tag) for tag in tags],
            sub_version=self.version,
            expression_type=self.expression_type,
        )


def subscription(topic: str, wanted: str | Sql | None, version: int = 0) -> Subscription:
    """`version` is the time it was made, for one that brokers hear of: they let the newest win."""
    if isinstance(wanted, Sql):
        if not isinstance(wanted.expression, str) or not wanted.expression.strip():
            raise ConfigError("an SQL filter needs an expression", hint="leave the filter out to get everything")
        return Subscription(topic, str.__str__(wanted.expression), _SQL92, frozenset(), version)
    if wanted is not None and not isinstance(wanted, str):
        raise ConfigError(f"filter {wanted!r} is no text", hint='"one || another", or Sql("price > 10")')
    expression = (wanted or ALL).strip() or ALL
    if expression == ALL:
        return Subscription(topic, ALL, _TAG, frozenset(), version)
    tags = frozenset(part.strip() for part in expression.split(_OR)) - {""}
    if not tags:
        raise ConfigError(f"filter {wanted!r} names no tag", hint='write "one || another", or "*" for all')
    return Subscription(topic, expression, _TAG, tags, version)
