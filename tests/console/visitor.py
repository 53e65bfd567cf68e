"""A browser as far as a test needs one, and a console that runs on a thread."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from http.cookiejar import CookieJar
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

from orbitmq.admin.session import open_session
from orbitmq.console.app import ConsoleSettings, running_console
from orbitmq.errors import RetryLater
from orbitmq.transport.loop import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orbitmq.sync import Client, ReceivedMessage

TOKEN = "a-token-for-tests-long-enough"
_SECONDS = 60.0


@dataclass(frozen=True)
class Page:
    status: int
    text: str
    url: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def words(self) -> str:
        """What a reader sees."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    @property
    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="(\w+)"', self.text)
        assert found is not None, "the page has no form"
        return found[1]


class Visitor:
    """Keeps cookies, follows redirects."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def get(self, path: str, *, accept: str = "text/html") -> Page:
        return self._open(Request(self._url + path, headers={**self._headers, "Accept": accept}))

    def json(self, path: str) -> Any:
        page = self.get(path, accept="application/json")
        assert page.status == 200, page.text
        return page.json

    def post(self, path: str, values: Mapping[str, str]) -> Page:
        return self._open(Request(self._url + path, urlencode(values).encode(), headers=self._headers))

    def _open(self, request: Request) -> Page:
        try:
            answer = self._opener.open(request, timeout=_SECONDS)
        except HTTPError as error:
            answer = error
        with answer:
            return Page(answer.status or 0, answer.read().decode(), answer.url or "", dict(answer.headers.items()))


@contextmanager
def console_of(name_server: str, *, allow_changes: bool = False, timeout: float = 5.0) -> Iterator[str]:
    """The address of a console, as long as it runs."""
    ready = threading.Event()
    started: dict[str, Any] = {}

    async def serve() -> None:
        settings = ConsoleSettings(
            lambda: open_session(name_server, timeout=timeout), name_server, TOKEN, allow_changes
        )
        started["loop"], started["stop"] = asyncio.get_running_loop(), asyncio.Event()
        async with running_console(settings) as console:
            started["url"] = console.url
            ready.set()
            await started["stop"].wait()

    thread = threading.Thread(target=lambda: run(serve()), daemon=True)
    thread.start()
    assert ready.wait(_SECONDS), "the console did not start"
    loop: asyncio.AbstractEventLoop = started["loop"]
    try:
        yield started["url"]
    finally:
        loop.call_soon_threadsafe(started["stop"].set)
        thread.join(_SECONDS)


def read(client: Client, topic: str, group: str, count: int) -> None:
    """Let a group read so many messages of a topic."""
    with client.consumer(topic, group=group, start="earliest") as consumer:
        for message in islice(consumer, count):
            with message.process():
                pass


def give_up(client: Client, topic: str, group: str, count: int = 1) -> None:
    """Let a group fail at so many messages, as often as it may."""

    def refuse(message: ReceivedMessage) -> None:
        tried.add(message.message_id)
        if len(tried) >= count:
            enough.set()
        raise RetryLater("not today")

    tried: set[str] = set()
    enough = threading.Event()
    with client.consumer(topic, group=group, start="earliest", max_retries=0, handler=refuse):
        assert enough.wait(_SECONDS)
