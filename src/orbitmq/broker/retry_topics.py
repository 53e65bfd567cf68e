"""Whose a retry topic is, and which of its messages.

    %RETRY%a      what group a sent back
    %RETRY%a+b    what came back of topic b, which was leased to group a
    %RETRY%a_b    the same as Java's broker calls it by default; or what group a_b sent back; or, of names like a and b_c, another's leases

Of the third:

- Where there is a group a_b, what comes back to group a goes to the second: whoever pulls takes all that is there.
- A pop takes from it what came back from a lease. Both brokers write into such a message when it was first leased (`1ST_POP_TIME`);
  what is sent back does not say so.
- Where it may be of several, a pop takes what came back from its own topic. This broker writes that (`RETRY_TOPIC`); messages of
  Java's, and of before, do not say, and are taken.

So whatever names come to be later, nobody gets what is another's, and what once went to the older name is found there.

Java: KeyBuilder
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker import names
from orbitmq.errors import MessageError
from orbitmq.message import properties as keys
from orbitmq.message.properties import decode_properties
from orbitmq.message.record import decode_entry
from orbitmq.protocol.lease_texts import retry_topic_v1, retry_topic_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orbitmq.broker.groups import Groups
    from orbitmq.broker.subscriptions import Wanted
    from orbitmq.broker.topics import Topics


def is_of_group(groups: Groups, retry_topic: str) -> bool:
    """Whether there is a group whose own it is."""
    return retry_topic.removeprefix(names.RETRY_PREFIX) in groups.all()


def goal(groups: Groups, group: str, topic: str, *, prefers_newer: bool) -> str:
    """Where a group's leased messages of a topic come back."""
    older = retry_topic_v1(group, topic)
    return retry_topic_v2(group, topic) if prefers_newer or is_of_group(groups, older) else older


def lessees(groups: Groups, topics: Topics, retry_topic: str) -> Iterator[tuple[str, str]]:
    """Groups, and topics, that there are and whose leases could come back there, by its older name."""
    name = retry_topic.removeprefix(names.RETRY_PREFIX)
    at = name.find("_")
    while at >= 0:
        group, topic = name[:at], name[at + 1 :]
        if group in groups.all() and topics.get(topic) is not None:
            yield group, topic
        at = name.find("_", at + 1)


def is_shared(groups: Groups, topics: Topics, group: str, topic: str) -> bool:
    """Whether the older name could be that of others, too."""
    older = retry_topic_v1(group, topic)
    return is_of_group(groups, older) or any(pair != (group, topic) for pair in lessees(groups, topics, older))


def group_of(groups: Groups, topics: Topics, retry_topic: str, properties: str) -> str:
    """Whose a message is that is sent to a retry topic. Another master sends what came back from leases: no group a_b is made for that."""
    group = names.group_of_retry_topic(retry_topic)
    if group in groups.all():
        return group
    told = decode_properties(properties)
    if keys.FIRST_POP_TIME not in told:
        return group
    pairs = list(lessees(groups, topics, retry_topic))
    of_topic = [lessee for lessee, topic in pairs if topic == told.get(keys.RETRY_TOPIC)]
    return next(iter(of_topic or [lessee for lessee, _ in pairs]), group)


def own_test(groups: Groups, topics: Topics, group: str, topic: str) -> Callable[[Mapping[str, str]], bool]:
    """Tells by its properties whether a message under the older name came back from a lease of this group and topic."""
    is_anyones = not is_shared(groups, topics, group, topic)

    def is_own(told: Mapping[str, str]) -> bool:
        return keys.FIRST_POP_TIME in told and (is_anyones or told.get(keys.RETRY_TOPIC, topic) == topic)

    return is_own


def own_only(groups: Groups, topics: Topics, group: str, topic: str, retry_topic: str, wishes: Wanted) -> Wanted:
    """What the group wants of one of its retry topics."""
    if retry_topic != retry_topic_v1(group, topic):
        return wishes
    is_own, accept = own_test(groups, topics, group, topic), wishes.accept

    def is_wanted(record: memoryview) -> bool:
        try:
            told = decode_properties(decode_entry(record, 0, 0).properties)
        except MessageError:
            return True  # passed over, and said so, by who takes it apart
        return is_own(told) and (accept is None or accept(record))

    return wishes._replace(accept=is_wanted)
