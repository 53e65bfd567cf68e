"""Forms that change something. Refused unless the console was started with `--allow-changes`."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from orbitmq.admin.dead_letters import dead_letters_by_id, letter_again
from orbitmq.admin.resets import apply_reset, plan_reset
from orbitmq.admin.sending import Outgoing, send_all
from orbitmq.admin.topics import TopicPlan, create_topic, delete_topic
from orbitmq.console.answers import page, wants_json
from orbitmq.console.doors import checked_form
from orbitmq.console.looking import open_session
from orbitmq.errors import ConfigError
from orbitmq.message import Message

if TYPE_CHECKING:
    from starlette.requests import Request

    from orbitmq.admin.resets import Goal


_MOST_DIGITS: Final = 9
_SHOWN: Final = 40  # characters of what makes no sense


async def new_topic(request: Request) -> Response:
    form = await _form(request)
    name = _needed(form, "topic")
    queues = _whole(form, "queues", 8)
    async with open_session(request) as session:
        await create_topic(session, TopicPlan(topic=name, read_queues=queues, write_queues=queues))
    return _done(request, f"/topics/{quote(name, safe='')}", {"created": name})


async def remove_topic(request: Request) -> Response:
    name = request.path_params["topic"]
    form = await _form(request)
    if form.get("confirmed") != name:
        raise ConfigError(f"topic {name!r} was not deleted: its name was not typed", hint="type the name to confirm")
    async with open_session(request) as session:
        await delete_topic(session, name)
    return _done(request, "/topics", {"deleted": name})


async def send(request: Request) -> Response:
    name = request.path_params["topic"]
    form = await _form(request)
    letter = Message(name, form.get("body", "").encode(), tag=form.get("tag", ""), keys=form.get("keys", "").split())
    async with open_session(request) as session:
        (receipt,) = await send_all(session, [Outgoing(letter)])
    return _done(request, f"/messages/{quote(receipt.id, safe='')}?topic={quote(name, safe='')}", {"receipt": receipt})


async def reset(request: Request) -> Response:
    """First the plan, queue by queue; the plan's own form then does it."""
    name = request.path_params["group"]
    form = await _form(request)
    topic = form.get("topic", "").strip() or None
    goal_text = _needed(form, "goal")
    goal = _goal(goal_text)
    async with open_session(request) as session:
        steps = await plan_reset(session, name, goal, topic=topic)
        if form.get("confirmed") == "yes":
            await apply_reset(session, steps, goal)
            return _done(request, f"/groups/{quote(name, safe='')}", {"reset": steps})
    return page(request, "reset.html", {"group": name, "topic": topic or "", "goal": goal_text, "steps": steps})


async def resend(request: Request) -> Response:
    """The dead letters with these offset ids, separated by blanks: one, or all that the page showed."""
    name = request.path_params["group"]
    form = await _form(request)
    wanted = _needed(form, "id").split()
    async with open_session(request) as session:
        chosen = await dead_letters_by_id(session, name, wanted)
        await send_all(session, [Outgoing(letter_again(row, name, "group")) for row in chosen])
    return _done(request, f"/dead-letters/{quote(name, safe='')}", {"sent": len(chosen)})


# ---- what forms say


async def _form(request: Request) -> dict[str, str]:
    if not request.app.state.allow_changes:
        raise ConfigError("this console only shows", hint="start it with --allow-changes")
    return await checked_form(request)


def _needed(form: dict[str, str], name: str) -> str:
    value = form.get(name, "").strip()
    if not value:
        raise ConfigError(f"the form has no {name}", hint="fill it in")
    return value


def _whole(form: dict[str, str], name: str, otherwise: int) -> int:
    text = form.get(name, "").strip() or str(otherwise)
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) <= 1024:
        raise ConfigError(f"{name} cannot be {text[:_SHOWN]!r}", hint="write a number from 1 to 1024")
    return int(text)


def _goal(text: str) -> Goal:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # of the first and the last day there is, elsewhere it may be none
        raise ConfigError(
            f"{text[:_SHOWN]!r} is no place to go to",
            hint="write earliest, latest or a time such as 2026-01-31T12:00:00+00:00",
        ) from None


def _done(request: Request, where: str, what: dict[str, object]) -> Response:
    if wants_json(request):
        return page(request, "", what)
    return RedirectResponse(where, HTTPStatus.SEE_OTHER)
