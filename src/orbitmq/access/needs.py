"""What a request needs to be allowed: which resources it touches, and what it does to them.

A server declares for each request code a function of the request; `nothing` needs no more than a known sender. A request that
names nothing of what its code is about needs nothing either: the handler refuses it for what is missing.

Java: RocketMQAction, RocketMQResource, DefaultAuthorizationContextBuilder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.groups import Heartbeat, LockQueues
from orbitmq.protocol.bodies.leases import BatchAcks, QueryAssignment
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from orbitmq.protocol.command import Command

_RETRY_PREFIX: Final = "%RETRY%"
_TOPIC_SEPARATOR: Final = ";"
_MOST_TOPICS_NAMED: Final = 10_000  # each is decided on, and then looked at


class Kind(StrEnum):
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Need(NamedTuple):
    kind: Kind
    name: str
    actions: tuple[Action, ...]  # any of them will do

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


NeedsOf = Callable[["Command", str], Sequence[Need]]  # of a request, in the cluster of this name


def nothing(_request: Command, _cluster: str) -> Sequence[Need]:
    return ()


def cluster(*actions: Action) -> NeedsOf:
    """The cluster as a whole: what operators do."""
    return lambda _request, name: (Need(Kind.CLUSTER, name, actions),)


def topic(*actions: Action, field: str = "topic") -> NeedsOf:
    """The topic that a field names; a retry topic stands for its group."""

    def needs(request: Command, _cluster: str) -> Sequence[Need]:
        name = request.fields.get(field)
        return (topic_need(name, actions),) if name else ()

    return needs


def topic_list(*actions: Action, field: str) -> NeedsOf:
    """Every topic that a field names, parted by semicolons."""

    def needs(request: Command, _cluster: str) -> Sequence[Need]:
        return [topic_need(name, actions) for name in named_topics(request.fields.get(field))]

    return needs


def named_topics(text: str | None) -> list[str]:
    """The topics of a list in a header, each once. RequestFailed for more than anybody asks about."""
    names = [name for name in dict.fromkeys((text or "").split(_TOPIC_SEPARATOR)) if name]
    if len(names) > _MOST_TOPICS_NAMED:
        raise RequestFailed(
            ResponseCode.INVALID_PARAMETER,
            f"[LIMIT] {len(names):,} topics in one request: at most {_MOST_TOPICS_NAMED:,}",
            hint="ask about fewer at a time",
        )
    return names


def group(*actions: Action, field: str = "consumerGroup") -> NeedsOf:
    def needs(request: Command, _cluster: str) -> Sequence[Need]:
        name = request.fields.get(field)
        return (Need(Kind.GROUP, name.removeprefix(_RETRY_PREFIX), actions),) if name else ()

    return needs


def reply(*, field: str = "topic") -> NeedsOf:
    """Replies go to a topic that is the cluster's own, where everyone may; under any other name they are messages like others."""

    def needs(request: Command, cluster: str) -> Sequence[Need]:
        name = request.fields.get(field)
        return (topic_need(name, (Action.PUB,)),) if name and name != f"{cluster}_REPLY_TOPIC" else ()

    return needs


def all_of(*parts: NeedsOf) -> NeedsOf:
    return lambda request, cluster: [need for part in parts for need in part(request, cluster)]


def or_cluster(part: NeedsOf, *actions: Action) -> NeedsOf:
    """A request that names no resource is about all of them, so it needs the cluster."""
    whole = cluster(*actions)
    return lambda request, cluster: part(request, cluster) or whole(request, cluster)


def heartbeat(request: Command, _cluster: str) -> Sequence[Need]:
    needs: list[Need] = []
    for consumer in Heartbeat.from_json(request.body).consumer_data_set:
        needs.append(Need(Kind.GROUP, consumer.group_name, (Action.SUB,)))
        topics = [subscription.topic for subscription in consumer.subscription_data_set]
        needs += [topic_need(name, (Action.SUB,)) for name in topics if not name.startswith(_RETRY_PREFIX)]
    return needs


def batch_ack(request: Command, _cluster: str) -> Sequence[Need]:
    acks = BatchAcks.from_json(request.body).acks
    needs = {Need(Kind.GROUP, ack.group, (Action.SUB,)) for ack in acks}
    return [*needs, *{topic_need(ack.topic, (Action.SUB,)) for ack in acks if not ack.topic.startswith(_RETRY_PREFIX)}]


def assignment(request: Command, _cluster: str) -> Sequence[Need]:
    body = QueryAssignment.from_json(request.body)
    return [Need(Kind.GROUP, body.consumer_group, (Action.SUB,)), topic_need(body.topic, (Action.SUB,))]


def queue_locks(request: Command, _cluster: str) -> Sequence[Need]:
    body = LockQueues.from_json(request.body)
    topics = sorted({queue.topic for queue in body.mq_set if not queue.topic.startswith(_RETRY_PREFIX)})
    needs = [Need(Kind.GROUP, body.consumer_group, (Action.SUB,))] if body.consumer_group else []
    return [*needs, *(topic_need(name, (Action.SUB,)) for name in topics)]


def topic_need(name: str, actions: tuple[Action, ...]) -> Need:
    """A retry topic stands for its group, whose members send to it as well."""
    if name.startswith(_RETRY_PREFIX):
        of_group = tuple(Action.SUB if action is Action.PUB else action for action in actions)
        return Need(Kind.GROUP, name.removeprefix(_RETRY_PREFIX), of_group)
    return Need(Kind.TOPIC, name, actions)
