"""Nobody comes in without the token, nothing is changed without a form of ours, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest
from starlette.datastructures import URL
from starlette.requests import HTTPConnection, Request

from orbitmq.console.app import ConsoleSettings, build_app
from orbitmq.console.doors import checked_form
from orbitmq.errors import ConfigError
from orbitmq.testing import Server
from tests.console.visitor import TOKEN, Visitor, console_of

if TYPE_CHECKING:
    from orbitmq.admin.session import Session


def asked_raw(url: str, request: str) -> str:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def paths_and_methods() -> list[tuple[str, str]]:
    """Of every route there is, so that a new one cannot be forgotten."""

    def no_session() -> Session:
        raise AssertionError("nothing is asked")

    routes = build_app(ConsoleSettings(no_session, "", TOKEN)).routes
    found = []
    for route in routes:
        methods = getattr(route, "methods", None)
        path = re.sub(r"\{[\w:]+\}", "x", getattr(route, "path", ""))
        found += [(path, method) for method in sorted((methods or set()) - {"HEAD"}) if path != "/enter"]
    return found


@pytest.mark.parametrize(("path", "method"), paths_and_methods())
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "orbitmq_console=wrong"}])
def test_every_page_and_form_is_shut_without_the_token(
    url: str, path: str, method: str, headers: dict[str, str]
) -> None:
    stranger = Visitor(url, headers)
    page = stranger.get(path) if method == "GET" else stranger.post(path, {"topic": "x"})
    assert page.status == 401
    assert "token" in page.words


@pytest.mark.parametrize("path", ["/topics", "/entered", "/enter/", "/enter/topics", "/statics"])
@pytest.mark.parametrize("built_in", ["as it is", "as it was"])
def test_the_host_header_opens_no_door(url: str, monkeypatch: pytest.MonkeyPatch, path: str, built_in: str) -> None:
    """Starlette before 1.0.1 put it into the address unread: the path of a/enter?/topics is /enter."""
    if built_in == "as it was":

        def unread(self: HTTPConnection) -> URL:
            return URL(f"http://{self.headers['host']}{self.scope['path']}")

        monkeypatch.setattr(HTTPConnection, "url", property(unread))
    for host in ("a/enter?", "a/static/?", "a/enter#"):
        answer = asked_raw(url, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert answer.startswith("HTTP/1.1 401 ")


def test_a_wrong_token_opens_nothing_and_the_right_one_does_by_form_too(url: str) -> None:
    stranger = Visitor(url)
    assert stranger.get("/enter?token=wrong").status == 401
    assert stranger.post("/enter", {"token": "wrong"}).status == 401
    assert stranger.get("/").status == 401
    assert stranger.post("/enter", {"token": TOKEN}).status == 200
    assert stranger.get("/").status == 200


def test_a_program_shows_the_token_itself(url: str) -> None:
    program = Visitor(url, {"Authorization": f"Bearer {TOKEN}"})
    assert program.json("/topics")["topics"] is not None
    created = program.post("/topics", {"topic": "ByProgram"})
    assert created.status == 200


def test_the_cookie_is_not_the_token_and_scripts_cannot_read_it(url: str) -> None:
    answer = asked_raw(url, f"GET /enter?token={TOKEN} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    (cookie,) = re.findall(r"(?im)^set-cookie: (.*?)\r?$", answer)
    assert TOKEN not in cookie
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()


async def test_a_form_with_a_wrong_token_is_not_that_of_a_program() -> None:
    """Should the doors ever let one in."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"topic=Forged"}

    app = build_app(ConsoleSettings(lambda: None, "", TOKEN))  # type: ignore[arg-type,return-value]
    for token, allowed in (("wrong", False), (TOKEN, True)):
        headers = [(b"authorization", f"Bearer {token}".encode())]
        request = Request(
            {"type": "http", "method": "POST", "path": "/topics", "headers": headers, "app": app}, receive
        )
        if allowed:
            assert await checked_form(request) == {"topic": "Forged"}
        else:
            with pytest.raises(ConfigError, match="not from this console"):
                await checked_form(request)


@pytest.mark.parametrize("form", [{}, {"form_token": "0" * 64}])
def test_a_form_of_another_site_changes_nothing(visitor: Visitor, form: dict[str, str]) -> None:
    page = visitor.post("/topics", {"topic": "Forged", "queues": "4", **form})
    assert page.status == 400
    assert "not from this console" in page.words
    assert visitor.json("/topics?search=Forged")["topics"] == []


def test_a_console_that_only_shows_refuses_every_form_and_offers_none(server: Server) -> None:
    with console_of(server.address) as url:
        visitor = Visitor(url)
        assert visitor.get(f"/enter?token={TOKEN}").status == 200
        assert 'method="post"' not in visitor.get("/topics").text
        for path, method in paths_and_methods():
            if method == "POST":
                page = visitor.post(path, {"topic": "x", "confirmed": "x"})
                assert page.status == 400
                assert "--allow-changes" in page.words


def test_pages_let_the_browser_load_nothing_from_elsewhere(visitor: Visitor) -> None:
    page = visitor.get("/")
    headers = {name.lower(): value for name, value in page.headers.items()}
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert re.findall(r'(?:src|href)="(?!/)[^"?]', page.text) == []
    assert visitor.get("/static/live.js").status == 200
    assert visitor.get("/static/../app.py").status in (401, 404)


def test_a_stranger_whose_address_leads_nowhere_is_told_no_more_than_that(url: str, server: Server) -> None:
    for path in ("/static/nothing-here", "/static/%2e%2e/app.py"):
        page = Visitor(url).get(path)
        assert page.status == 404
        assert server.address not in page.text
        assert "OrbitMQ" not in page.text


def test_who_asks_by_another_method_is_told_which_there_are(url: str) -> None:
    host = url.removeprefix("http://")
    answer = asked_raw(
        url,
        f"POST /groups HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    head = answer.partition("\r\n\r\n")[0].lower()
    assert head.startswith("http/1.1 405")
    assert "get" in head.partition("\r\nallow: ")[2].partition("\r\n")[0]


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="can be guessed"):
        build_app(ConsoleSettings(lambda: None, "", "short"))  # type: ignore[arg-type,return-value]


def test_a_cluster_that_is_down_is_named_with_a_cure(url: str) -> None:
    with Server() as gone:
        address = gone.address
    with console_of(address) as empty:
        visitor = Visitor(empty, {"Authorization": f"Bearer {TOKEN}"})
        page = visitor.get("/")
    assert page.status == 502
    assert address in page.words


def test_a_form_without_end_is_refused(visitor: Visitor) -> None:
    page = visitor.post("/topics/Orders/send", {"body": "x" * (6 << 20)})
    assert page.status == 400
    assert "a form of more than" in page.words


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"token": TOKEN, "more": "x" * 5000}, "a form of more than 4096 bytes"),
        ({"token": TOKEN, **{f"field{number}": "" for number in range(40)}}, "the form cannot be read"),
    ],
)
def test_a_stranger_sends_no_more_than_a_token(url: str, values: dict[str, str], cause: str) -> None:
    page = Visitor(url).post("/enter", values)
    assert page.status == 400
    assert cause in page.words
    assert "Overview" not in page.words, "a page for those who are let in"
