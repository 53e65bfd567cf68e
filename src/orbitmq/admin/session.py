"""A session: the connections of one tool to name servers and brokers, and how to ask them something.

Java: DefaultMQAdminExtImpl
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self, TypeVar

from orbitmq.client.cluster import Cluster, refusal
from orbitmq.client.config import ClientConfig, credentials_from, name_server_source, tls_from
from orbitmq.errors import ConnectFailed, OrbitError, RequestFailed, TransportError
from orbitmq.protocol.codes import RequestCode, ResponseCode, name_of
from orbitmq.protocol.command import request

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from orbitmq.protocol.command import Command
    from orbitmq.protocol.headers.base import Header
    from orbitmq.protocol.signing import Credentials
    from orbitmq.transport.address import Address

T = TypeVar("T")
A = TypeVar("A")

_BELIEVED_SECONDS: Final = 2.0  # that a broker which answered is there
_AT_ONCE: Final = 32  # questions on their way at the same time, so that a thousand topics neither wait nor flood


def open_session(
    name_servers: str | Iterable[str] | None = None,
    *,
    credentials: Credentials | tuple[str, str] | tuple[str, str, str] | None = None,
    tls: ssl.SSLContext | bool | None = None,
    timeout: float = 5.0,
) -> Session:
    """A session with the cluster behind `name_servers`, as `orbitmq.connect` takes them; use it in `async with`."""
    addresses, lookup_url = name_server_source(name_servers)
    return Session(
        ClientConfig(
            name_servers=addresses,
            lookup_url=lookup_url,
            credentials=credentials_from(credentials),
            tls=tls_from(tls),
            timeout_seconds=timeout,
        )
    )


class Session:
    """Asks, and keeps the connections it needed. Nothing is contacted before the first question."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.cluster = Cluster(config)
        self.silent: dict[Address, str] = {}
        """Brokers that could not be reached when something was read, and why: what they have is missing from the answers."""
        self._answered: dict[Address, float] = {}  # brokers, and the loop's time when

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cluster.close()

    def now_ms(self) -> int:
        return self.config.clock.now_ms()

    async def is_reachable(self, address: Address) -> bool:
        """Whether it answers, whatever it says: the connections of a process that hangs are open. Noted in `silent` if it does
        not, and not tried again.
        """
        if address in self.silent:
            return False
        now = asyncio.get_running_loop().time()
        if now - self._answered.get(address, -_BELIEVED_SECONDS) < _BELIEVED_SECONDS:
            return True
        try:
            await self.cluster.call(address, request(RequestCode.GET_BROKER_RUNTIME_INFO), self.config.timeout_seconds)
        except TransportError as error:
            self.silent[address] = error.message
            return False
        self._answered[address] = now
        return True

    async def ask(
        self, address: Address, code: RequestCode, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """What the server at `address` answers; RequestFailed when it is not success."""
        answer = await self.cluster.call(address, request(code, header, body), self.config.timeout_seconds)
        return _successful(answer, code, str(address))

    async def ask_name_server(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> Command:
        """What any name server answers: they all know the same."""
        answer = await self.cluster.name_servers.call(request(code, header, body), self.config.timeout_seconds)
        return _successful(answer, code, "the name server")

    async def tell_name_servers(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> None:
        """Ask the same of every name server: they do not tell each other."""
        await self.each_name_server(lambda address: self.ask(address, code, header, body))

    async def each_name_server(self, question: Callable[[Address], Awaitable[T]]) -> dict[Address, T]:
        """`question` asked of every name server, whatever becomes of it at one of them; then the first failure is raised."""
        servers = self.cluster.name_servers

        def is_told_otherwise(address: Address, error: OrbitError, told: Iterable[Address]) -> bool:
            return isinstance(error, ConnectFailed) and any(servers.may_be_one(address, other) for other in told)

        return await done_at_each(question, await servers.everyone(), is_told_otherwise)


async def done_at_each(
    change: Callable[[Address], Awaitable[T]],
    servers: Iterable[Address],
    is_excused: Callable[[Address, OrbitError, Iterable[Address]], bool] = lambda address, error, done: False,
) -> dict[Address, T]:
    """`change` done at all servers, whatever becomes of it at one of them; then the first failure is raised, and says where it was
    done. `is_excused` is asked about a failure, with those where it was.
    """
    done: dict[Address, T] = {}
    failures: dict[Address, OrbitError] = {}
    for address in servers:
        try:
            done[address] = await change(address)
        except OrbitError as error:
            failures[address] = error
    for address, failure in failures.items():
        if not is_excused(address, failure, done):
            if done:
                failure.message += f"; done at {', '.join(map(str, done))}"
            raise failure
    return done


async def gathered(question: Callable[[A], Awaitable[T]], about: Iterable[A]) -> list[T]:
    """`question` asked about each, many at once; answers in the order of `about`. The first failure fails all."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(one: A) -> T:
        async with turns:
            return await question(one)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(one)) for one in about]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _successful(answer: Command, code: RequestCode, who: str) -> Command:
    if answer.code == ResponseCode.SUCCESS:
        return answer
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise RequestFailed(
            answer.code,
            f"{who} does not serve {name_of(code, RequestCode)}",
            hint="is it a broker where a name server is meant, the other way round, or an older release?",
        )
    raise refusal(answer, otherwise="")  # whoever asked may know better
