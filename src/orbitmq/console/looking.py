"""Pages that show something. Each asks `admin/` anew, with a session of its own, so what is shown is what is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from orbitmq.admin.brokers import describe_broker, list_brokers, reachable_brokers
from orbitmq.admin.clusters import list_clusters
from orbitmq.admin.dead_letters import list_dead_letters, newest_dead_letters
from orbitmq.admin.diagnosis import diagnose
from orbitmq.admin.groups import describe_group, list_groups, with_figures
from orbitmq.admin.messages import TopicReader, message_by_id, messages_by_key
from orbitmq.admin.offsets import queue_lags
from orbitmq.admin.statistics import traffic
from orbitmq.admin.topics import counted, describe_topic, list_topics
from orbitmq.admin.traces import trace_message
from orbitmq.console.answers import page
from orbitmq.errors import RequestFailed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from orbitmq.admin.session import Session

T = TypeVar("T")

_ROWS: Final = 50
_NEWEST: Final = 20
_LETTERS: Final = 100
_NOBODY_READS: Final = frozenset(
    {16, 17}
)  # a topic that cannot be read has no newest messages, and is a topic all the same


def open_session(request: Request) -> Session:
    session: Session = request.app.state.open_session()
    return session


def paged(request: Request, rows: list[T]) -> tuple[list[T], dict[str, Any]]:
    """The rows of the page that was asked for, and what the page says about it."""
    asked = request.query_params.get("page", "1")
    pages = max(1, -(-len(rows) // _ROWS))
    number = min(max(1, int(asked) if asked.isdecimal() and len(asked) < 10 else 1), pages)
    begin = (number - 1) * _ROWS
    return rows[begin : begin + _ROWS], {"page": number, "pages": pages, "total": len(rows)}


def _shown(request: Request, session: Session, template: str, values: dict[str, Any]) -> Response:
    """The page, and which brokers' part is not in it."""
    missing = [{"address": str(address), "problem": problem} for address, problem in session.silent.items()]
    return page(request, template, {**values, "missing": missing})


def _searched(request: Request) -> str:
    return request.query_params.get("search", "").strip()


async def overview(request: Request) -> Response:
    async with open_session(request) as session:
        clusters = await list_clusters(session)
        brokers = await list_brokers(session)
    return _shown(request, session, "overview.html", {"clusters": clusters, "brokers": brokers})


async def broker(request: Request) -> Response:
    async with open_session(request) as session:
        found = await describe_broker(session, request.path_params["broker"])
    return _shown(request, session, "broker.html", {"broker": found})


async def topics(request: Request) -> Response:
    search, kind = _searched(request), request.query_params.get("kind", "normal")
    async with open_session(request) as session:
        every = await list_topics(session)
        wanted = [row for row in every if search.lower() in row.topic.lower() and kind in ("all", row.kind)]
        rows, paging = paged(request, wanted)
        rows = await counted(session, rows, await reachable_brokers(session))
    return _shown(request, session, "topics.html", {"topics": rows, "paging": paging, "search": search, "kind": kind})


async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    async with open_session(request) as session:
        detail = await describe_topic(session, name)
        readers = [row for row in await traffic(session, name) if row.group is not None]
        try:
            newest = await TopicReader(session).newest(name, _NEWEST)
        except RequestFailed as error:
            if error.code not in _NOBODY_READS:
                raise
            newest = []
    return _shown(request, session, "topic.html", {"topic": detail, "readers": readers, "newest": newest})


async def groups(request: Request) -> Response:
    search, kind = _searched(request), request.query_params.get("kind", "normal")
    async with open_session(request) as session:
        every = await list_groups(session, quick=True)
        wanted = [row for row in every if search.lower() in row.group.lower() and kind in ("all", row.kind)]
        rows, paging = paged(request, wanted)
        rows = await with_figures(session, rows, await reachable_brokers(session))
    return _shown(request, session, "groups.html", {"groups": rows, "paging": paging, "search": search, "kind": kind})


async def group(request: Request) -> Response:
    name = request.path_params["group"]
    async with open_session(request) as session:
        detail = await describe_group(session, name)
        queues = await queue_lags(session, name)
    return _shown(request, session, "group.html", {"group": detail, "queues": queues})


async def messages(request: Request) -> Response:
    """A look for messages: by id in all topics or one, by key in one."""
    asked = {name: request.query_params.get(name, "").strip() for name in ("topic", "key", "id")}
    rows = None
    async with open_session(request) as session:
        if asked["id"]:
            rows = [await message_by_id(session, asked["id"], asked["topic"] or None)]
        elif asked["topic"] and asked["key"]:
            rows = await messages_by_key(session, asked["topic"], asked["key"])
        elif asked["topic"]:
            rows = await TopicReader(session).newest(asked["topic"], _LETTERS)
    return _shown(request, session, "messages.html", {"asked": asked, "messages": rows})


async def message(request: Request) -> Response:
    topic_name = request.query_params.get("topic") or None
    async with open_session(request) as session:
        trace = await trace_message(session, request.path_params["id"], topic=topic_name)
    return _shown(request, session, "message.html", {"trace": trace})


async def dead_letters(request: Request) -> Response:
    async with open_session(request) as session:
        rows, paging = paged(request, await list_dead_letters(session))
    return _shown(request, session, "dead_letters.html", {"groups": rows, "paging": paging})


async def dead_letters_of(request: Request) -> Response:
    name = request.path_params["group"]
    async with open_session(request) as session:
        letters = await newest_dead_letters(session, name, _LETTERS)
    return _shown(request, session, "dead_letters_of.html", {"group": name, "letters": letters})


async def doctor(request: Request) -> Response:
    async with open_session(request) as session:
        findings = [finding async for finding in diagnose(session)]
    return _shown(request, session, "doctor.html", {"findings": findings})
