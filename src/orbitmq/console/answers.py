"""A value as a page or as JSON, and a failure as a page that names cause and cure."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from orbitmq import __version__
from orbitmq.errors import (
    CallTimeout,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    MessageError,
    OrbitError,
    RequestFailed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from starlette.requests import Request

_NO_PERMISSION: Final = 16
_MISSING: Final = frozenset(
    {17, 22, 26, 206, 208, 211}
)  # topics, offsets, groups, members, messages, brokers: as in the command


def wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def page(request: Request, template: str, values: Mapping[str, Any], *, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """`values` are all that JSON shows; the page knows the console's own state as well."""
    if wants_json(request):
        return Response(msgspec.json.encode(values), status, media_type="application/json")
    state = request.app.state
    text = _TEMPLATES.get_template(template).render(
        values,
        path=request.scope["path"],
        query=request.query_params,
        name_servers=state.name_servers,
        allow_changes=state.allow_changes,
        form_token=state.keys.form,
        version=__version__,
    )
    return Response(text, status, media_type="text/html; charset=utf-8")


async def failure(request: Request, error: Exception) -> Response:
    """The page for what went wrong."""
    assert isinstance(error, OrbitError)
    return page(request, "error.html", {"problem": error.message, "cure": error.hint}, status=_status(error))


def _status(error: OrbitError) -> HTTPStatus:
    if isinstance(error, ConnectFailed | ConnectionLost):
        return HTTPStatus.BAD_GATEWAY
    if isinstance(error, CallTimeout):
        return HTTPStatus.GATEWAY_TIMEOUT
    if isinstance(error, RequestFailed) and error.code in _MISSING:
        return HTTPStatus.NOT_FOUND
    if isinstance(error, RequestFailed) and error.code == _NO_PERMISSION:
        return HTTPStatus.FORBIDDEN
    if isinstance(error, ConfigError | MessageError | RequestFailed):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.INTERNAL_SERVER_ERROR


# ---- words


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def moment(value: datetime | None) -> str:
    return value.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00") + " UTC" if value is not None else "-"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("orbitmq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, moment=moment, duration=duration)
    return environment


_TEMPLATES: Final = _environment()
