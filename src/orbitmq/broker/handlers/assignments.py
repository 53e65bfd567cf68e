"""Who consumes which queues, for clients that leave it to the broker. Java: QueryAssignmentProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq import fastjson
from orbitmq.broker import names
from orbitmq.broker.clients import BROADCASTING
from orbitmq.broker.request_modes import POP, PULL
from orbitmq.errors import BodyError, RequestFailed
from orbitmq.message import QueueRef
from orbitmq.message.shares import averagely, in_a_circle
from orbitmq.protocol.bodies.groups import QueueKey
from orbitmq.protocol.bodies.leases import Assignments, QueryAssignment, QueueAssignment
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import ok
from orbitmq.protocol.headers.leases import ANY_QUEUE
from orbitmq.storage.java_object import read_sent, to_json
from orbitmq.storage.tables import RequestMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.broker.clients import Clients
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.request_modes import RequestModes
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.topic_routes import TopicRoutes
    from orbitmq.broker.topics import Topics
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection

    Strategy = Callable[[Sequence[QueueRef], Sequence[str], str], list[QueueRef]]

_STRATEGIES: Final[dict[str, Strategy]] = {"AVG": averagely, "AVG_BY_CIRCLE": in_a_circle}


async def query_assignment(
    modes: RequestModes,
    routes: TopicRoutes,
    clients: Clients,
    configuration: BrokerConfiguration,
    request: Command,
    connection: Connection,
) -> Command:
    """The queues of one client, and whether it pulls or leases from them. Without an answer it keeps what it has."""
    asked = QueryAssignment.from_json(request.body)
    mode = modes.get(asked.topic, asked.consumer_group) or _usual_mode(asked, configuration)
    queues = await routes.readable_queues(asked.topic)
    if (
        queues is not None
        and asked.message_model != BROADCASTING
        and configuration.settings.server_load_balancer_enable
    ):
        members = clients.consumers(asked.consumer_group)
        queues = _share(asked, mode, queues, sorted(members.client_ids())) if members is not None else None
    if queues is None:
        return ok(body=Assignments().to_json())
    assigned = [
        QueueAssignment(
            message_queue=QueueKey(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic),
            mode=mode.mode,
        )
        for queue in dict.fromkeys(queues)
    ]
    return ok(body=Assignments(message_queue_assignments=assigned).to_json())


async def set_request_mode(
    modes: RequestModes, topics: Topics, groups: Groups, request: Command, connection: Connection
) -> Command:
    members = fastjson.loads(request.body)
    if not isinstance(members, dict):
        raise BodyError("a request mode is no object")
    mode = read_sent(RequestMode, members)
    if mode.mode not in (PULL, POP):
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"mode {mode.mode!r} is unknown", hint="PULL or POP")
    if mode.topic.startswith(names.RETRY_PREFIX):
        raise RequestFailed(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if topics.get(mode.topic) is None:
        raise RequestFailed(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic[:300]}] not exist")
    groups.require(mode.consumer_group)
    await modes.set(mode)
    return ok()


async def all_request_modes(modes: RequestModes, request: Command, connection: Connection) -> Command:
    return ok(body=to_json(modes.table()))


def _usual_mode(asked: QueryAssignment, configuration: BrokerConfiguration) -> RequestMode:
    """Retry topics are always pulled from."""
    settings = configuration.settings
    is_retry = asked.topic.startswith(names.RETRY_PREFIX)
    return RequestMode(
        topic=asked.topic,
        consumer_group=asked.consumer_group,
        mode=PULL if is_retry else settings.default_message_request_mode,
        pop_share_queue_num=settings.default_pop_share_queue_num,
    )


def _share(
    asked: QueryAssignment, mode: RequestMode, queues: list[QueueRef], members: list[str]
) -> list[QueueRef] | None:
    strategy = _STRATEGIES.get(asked.strategy_name)
    me = asked.client_id
    if strategy is None or not queues or not members:
        return None
    if mode.mode != POP:
        return strategy(queues, members, me) if me in members else []
    shared_with = mode.pop_share_queue_num
    if shared_with <= 0 or shared_with >= len(members) - 1:
        return [QueueRef(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues]
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    # One's own, and those of the members that follow.
    sharing = [members[(index + step) % len(members)] for step in range(shared_with + 1)]
    return [queue for member in sharing for queue in strategy(queues, members, member)]
