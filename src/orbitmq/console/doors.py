"""Who may come in: whoever knows the token. There is no way to run the console without one.

The command prints an address that carries the token; opening it leaves a cookie that is derived from the token and no use without
this console. Forms carry a second value derived from it, which another site cannot know. Programs send `Authorization: Bearer`.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from orbitmq.console.answers import page
from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE: Final = "orbitmq_console"
MIN_TOKEN: Final = 16
_MAX_FORM_BYTES: Final = 5 << 20  # a message of 4 MB, quoted where it must be
_MAX_TOKEN_FORM_BYTES: Final = 4 << 10  # of somebody who is not let in yet
_MAX_FIELDS: Final = 32
_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Keys:
    """What is derived from the token."""

    def __init__(self, token: str) -> None:
        if len(token) < MIN_TOKEN:
            raise ConfigError(
                f"a console token of {len(token)} characters can be guessed",
                hint=f"give at least {MIN_TOKEN}, or none: then one is made",
            )
        self._token = token.encode()
        self.cookie = self._derived(b"visitor")
        self.form = self._derived(b"form")

    def is_token(self, text: str) -> bool:
        return hmac.compare_digest(self._token, text.encode())

    def is_cookie(self, text: str) -> bool:
        return hmac.compare_digest(self.cookie.encode(), text.encode())

    def is_form(self, text: str) -> bool:
        return hmac.compare_digest(self.form.encode(), text.encode())

    def _derived(self, use: bytes) -> str:
        return hmac.new(self._token, use, hashlib.sha256).hexdigest()


class Doors:
    """Lets in, or shows the door; and adds the headers that every answer carries."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)

        async def send_guarded(message: object) -> None:
            if isinstance(message, dict) and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)  # type: ignore[arg-type]

        if _is_open(scope["path"]) or self._is_known(request):
            await self._app(scope, receive, send_guarded)
        else:
            await _shut(request)(scope, receive, send_guarded)

    def _is_known(self, request: Request) -> bool:
        shown = _shown_token(request)
        if shown is not None:
            return self._keys.is_token(shown)
        return self._keys.is_cookie(request.cookies.get(COOKIE, ""))


def _is_open(path: str) -> bool:
    """Of the path that routes are chosen by: `request.url` is put together with the Host header, which the visitor chooses."""
    return path == "/enter" or path.startswith("/static/")


async def no_page(request: Request, error: Exception) -> Response:
    """What there is no page for, or not by this method. Strangers come to an open path only, and see no more than that."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if _is_open(path):
        return Response(error.detail, error.status_code, error.headers, media_type="text/plain")
    values = {"problem": f"{path}: {error.detail}", "cure": "the pages that there are stand at the top"}
    answer = page(request, "error.html", values, status=HTTPStatus(error.status_code))
    answer.headers.update(error.headers or {})  # by which methods there is one
    return answer


def _shown_token(request: Request) -> str | None:
    """That a program shows with each request; None of a browser."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _shut(request: Request) -> Response:
    return page(
        request,
        "enter.html",
        {"problem": "this console wants its token; `orbitmq console` printed it when it started"},
        status=HTTPStatus.UNAUTHORIZED,
    )


async def enter(request: Request) -> Response:
    """With the token in the address, or typed into the form."""
    keys: Keys = request.app.state.keys
    if request.method == "POST":
        try:
            token = (await form_values(request, _MAX_TOKEN_FORM_BYTES)).get("token", "")
        except ConfigError as error:  # said at the door: pages of failures show more than a stranger should see
            return page(request, "enter.html", {"problem": error.message}, status=HTTPStatus.BAD_REQUEST)
    else:
        token = request.query_params.get("token", "")
    if not keys.is_token(token):
        problem = "that is not the token" if token else ""
        return page(request, "enter.html", {"problem": problem}, status=HTTPStatus.UNAUTHORIZED)
    answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
    answer.set_cookie(COOKIE, keys.cookie, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https")
    return answer


async def form_values(request: Request, max_bytes: int = _MAX_FORM_BYTES) -> dict[str, str]:
    """Of a form as browsers send it. Refused while it grows beyond what a message can be, or `max_bytes`."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > max_bytes:
            raise ConfigError(
                f"a form of more than {max_bytes} bytes", hint="`orbitmq msg send --file` sends large ones"
            )
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, strict_parsing=bool(data), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise ConfigError(
            "the form cannot be read",
            hint=f"send it as application/x-www-form-urlencoded, in UTF-8, with {_MAX_FIELDS} fields at most",
        ) from None
    return dict(pairs)


async def checked_form(request: Request) -> dict[str, str]:
    """Of a form that our own page made, or of a program that showed the token itself."""
    values = await form_values(request)
    keys: Keys = request.app.state.keys
    shown = _shown_token(request)
    by_program = shown is not None and keys.is_token(shown)
    if not by_program and not keys.is_form(values.pop("form_token", "")):
        raise ConfigError("the form is not from this console, or it was started anew", hint="load the page again")
    return values
