"""What is wrong with a consumer group: members that disagree, members without work, messages given up.

Java: ConsumerRunningInfo.analyzeSubscription
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from orbitmq import fastjson
from orbitmq.admin.brokers import reachable_brokers
from orbitmq.admin.groups import ConnectionRow, describe_group
from orbitmq.admin.topics import topic_queues, topic_route
from orbitmq.client.names import DLQ_PREFIX
from orbitmq.errors import OrbitError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.groups import ConsumerRunningInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.admin.session import Session

Step = tuple[str, Literal["ok", "warning", "failed"], str, str]


async def running_info(session: Session, group: str, client_id: str, *, with_stacks: bool = False) -> dict[str, Any]:
    """What a member says about itself: properties, subscriptions, queues, stacks. By way of a broker that sees it."""
    failure: OrbitError | None = None
    for place in await reachable_brokers(session):
        header = ConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=with_stacks)
        try:
            answer = await session.ask(place.address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        except (RequestFailed, TransportError) as error:
            failure = error
            continue
        info = fastjson.loads(answer.body, max_tokens=fastjson.MAX_TOKENS_ASKED_FOR)
        return info if isinstance(info, dict) else {}
    assert failure is not None
    raise failure


def subscriptions_of(info: dict[str, Any]) -> frozenset[tuple[str, str]]:
    """Topic and filter of each subscription, the group's own retry topic excepted."""
    return frozenset(
        (str(one.get("topic")), str(one.get("subString")))
        for one in info.get("subscriptionSet", [])
        if not str(one.get("topic")).startswith("%RETRY%")
    )


async def _members_step(session: Session, step: str, group: str, members: list[ConnectionRow]) -> Step:
    """Whether all subscribe to the same, of those who say what they subscribe to."""
    said: dict[str, frozenset[tuple[str, str]]] = {}
    mute: dict[str, OrbitError] = {}
    for member in members:
        try:
            said[member.client_id] = subscriptions_of(await running_info(session, group, member.client_id))
        except OrbitError as error:
            mute[member.client_id] = error
    if len(set(said.values())) > 1:
        texts = "; ".join(f"{client}: {_text(subscriptions)}" for client, subscriptions in said.items())
        cure = "give all members of a group the same topics and filters, or a group of their own: messages get lost"
        return step, "failed", f"they subscribe to different things: {texts}", cure
    if mute:
        texts = "; ".join(f"{client}: {error.message}" for client, error in mute.items())
        found = f"{len(mute)} of {len(members)} did not say what they subscribe to: {texts}"
        return step, "warning", found, "ask again; if it stays so, are these members still alive?"
    return step, "ok", "they subscribe to the same", ""


async def check_group(session: Session, group: str, topic: str | None) -> AsyncIterator[Step]:
    """Step, verdict, what was found, what to do."""
    step = f"group {group}"
    try:
        found = await describe_group(session, group)
    except RequestFailed as error:
        yield step, "failed", error.message, error.hint
        return
    if not found.enabled:
        yield (
            step,
            "failed",
            "it is disabled: nobody gets anything",
            f"`orbitmq group update {group} --enabled` lets it go on",
        )
    if not found.online:
        yield step, "warning", f"nobody is connected; it is {found.lag} messages behind", "start its consumers"
    else:
        yield (
            step,
            "ok",
            f"{len(found.members)} members, {found.lag} messages and {found.lag_seconds:,.0f} s behind",
            "",
        )
        yield await _members_step(session, f"{step}, members", group, found.members)
    if topic is not None and found.online:
        async for one in _topic_steps(
            session, step, topic, [sub.topic for sub in found.subscriptions], len(found.members)
        ):
            yield one
    dead = await _dead_letters(session, group)
    if dead:
        yield (
            f"{step}, dead letters",
            "warning",
            f"{dead} messages were given up",
            f"`orbitmq dlq ls {group}` shows them",
        )


async def _topic_steps(
    session: Session, step: str, topic: str, subscribed: list[str], members: int
) -> AsyncIterator[Step]:
    if topic not in subscribed:
        yield f"{step}, topic", "failed", f"it does not subscribe to {topic}", "check the consumers' code"
        return
    queues = sum(data.read_queue_nums for data in (await topic_route(session, topic)).queue_datas)
    if members > queues:
        cure = f"`orbitmq topic update {topic} --queues {members}` gives each one"
        yield (
            f"{step}, topic",
            "warning",
            f"{members} members share {queues} queues: {members - queues} have none",
            cure,
        )


async def _dead_letters(session: Session, group: str) -> int:
    try:
        return sum(queue.messages for queue in await topic_queues(session, DLQ_PREFIX + group))
    except RequestFailed as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return 0
        raise


def _text(subscriptions: frozenset[tuple[str, str]]) -> str:
    return ", ".join(f"{topic} [{wanted}]" for topic, wanted in sorted(subscriptions)) or "nothing"
