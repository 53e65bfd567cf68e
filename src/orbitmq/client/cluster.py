"""The cluster as a client sees it: where topics are, where brokers are, and how to ask either something.

Routes are fetched when first needed and kept: a name server that is gone, or has forgotten, takes nothing away from what is
known. `refresh` asks again for every topic in use and reports what changed.

Java: MQClientInstance (route table, broker addresses), MQClientAPIImpl
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from orbitmq.client.names import TEMPLATE_TOPIC
from orbitmq.client.nameservers import NameServers
from orbitmq.client.routes import MASTER, Route, route_from_template, route_of
from orbitmq.errors import AlreadyClosed, ConnectFailed, OrbitError, RequestFailed
from orbitmq.protocol.bodies.route import TopicRoute
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, request
from orbitmq.protocol.headers.nameserver import GetRoute
from orbitmq.protocol.signing import sign
from orbitmq.tasks import shared
from orbitmq.transport.address import Address
from orbitmq.transport.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.client.config import ClientConfig
    from orbitmq.transport.connection import Connection, Routes

logger = logging.getLogger(__name__)

_VIP_PORT_STEP: Final = 2
_ROUTE_SECONDS: Final = 3.0
_PASSED_OVER_SECONDS: Final = 5.0


class Cluster:
    """Connections, routes and broker addresses, shared by everything that one client does."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        answers: Routes | None = None,
        on_open: Callable[[Address, Connection], None] | None = None,
    ) -> None:
        """`answers` serve what brokers ask their clients; `on_open` hears of each new connection."""
        self.config = config
        self.brokers: dict[str, dict[int, Address]] = {}
        self.name_servers = NameServers(
            config.name_servers, config.lookup_url, config.randomness, self.call, resolve_names=config.tls is None
        )
        tls = config.tls
        self._pool = Pool(
            answers,
            tls=None if tls is None else lambda: tls,
            randomness=config.randomness,
            network=config.network,
            on_open=on_open,
        )
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Task[Route | None]] = {}
        self._templates: dict[tuple[str, int], Route] = {}
        self._passed_over: dict[Address, float] = {}  # slaves, and the loop's time until when

    async def close(self) -> None:
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
        await self._pool.close()

    # ---- asking

    async def call(self, address: Address, command: Command, timeout_seconds: float) -> Command:
        """The answer, whatever its code. A server that says goodbye is asked once more, over a new connection.

        `timeout_seconds` spans everything: connecting, the answer, the second try.
        """
        if self.config.credentials is not None:
            sign(command, self.config.credentials)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        connection = self._pool.open_connection(address)
        if connection is not None:
            answer = await connection.start_call(command, timeout_seconds)
            if answer.code != ResponseCode.GO_AWAY:
                return answer
            self._pool.retire(connection)
            timeout_seconds = max(0.0, deadline - loop.time())
        connection = await self._connect(address, timeout_seconds)
        return await connection.call(command, max(0.0, deadline - loop.time()))

    def start_call(self, address: Address, command: Command, timeout_seconds: float) -> asyncio.Future[Command] | None:
        """As `call`, begun at once and without a task; None when there is no open connection. GO_AWAY is the caller's to see."""
        connection = self._pool.open_connection(address)
        if connection is None:
            return None
        if self.config.credentials is not None:
            sign(command, self.config.credentials)
        return connection.start_call(command, timeout_seconds)

    async def ask(self, address: Address, command: Command, timeout_seconds: float) -> Command:
        """As `call`, for questions to which only success is an answer: RequestFailed otherwise."""
        answer = await self.call(address, command, timeout_seconds)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        return answer

    async def notify(self, address: Address, command: Command) -> None:
        """Send a one-way request; whether it arrives is not known."""
        if self.config.credentials is not None:
            sign(command, self.config.credentials)
        connection = self._pool.open_connection(address) or await self._pool.connection(address)
        connection.notify(command)

    def open_connection(self, address: Address) -> Connection | None:
        return self._pool.open_connection(address)

    async def _connect(self, address: Address, timeout_seconds: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._pool.connection(address)
        except TimeoutError:
            raise ConnectFailed(
                f"no connection to {address} within {timeout_seconds:g} s", hint="is the host reachable from here?"
            ) from None

    # ---- routes

    def known_route(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    async def route(self, topic: str) -> Route | None:
        """The topic's route; None when it has none. Known ones are answered at once."""
        return self._routes.get(topic) or await self.fetch_route(topic)

    async def publish_route(self, topic: str, queues: int) -> Route | None:
        """As `route`; a topic without one gets the route of the template topic, after which sending will create it."""
        route = await self.route(topic)
        if route is not None:
            return route
        # Until the topic is there this would ask twice per send; the template's route changes as rarely as any.
        template = self._templates.get((topic, queues))
        if template is None:
            found = await self._ask_name_server(TEMPLATE_TOPIC)
            if found is None:
                return None
            template = self._templates[topic, queues] = route_from_template(topic, found, queues)
            self._learn_brokers(template)
        return template

    async def fetch_route(self, topic: str) -> Route | None:
        """Ask a name server now. Many who ask at once share one request."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch(topic), name=f"route of {topic}")
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return await shared(
            task,
            lambda: AlreadyClosed(f"closed before the route of {topic} was known", hint="connect() makes a new one"),
        )

    async def refresh(self) -> list[str]:
        """Fetch every known route again; the topics whose route changed. Raises the first failure, after trying all."""
        changed: list[str] = []
        failure: OrbitError | None = None
        for topic in list(self._routes):
            before = self._routes[topic]
            try:
                after = await self.fetch_route(topic)
            except OrbitError as error:
                failure = failure or error
                continue
            if after != before:
                changed.append(topic)
        self._templates.clear()
        self._drop_offline_brokers()
        if failure is not None:
            raise failure
        return changed

    async def _fetch(self, topic: str) -> Route | None:
        found = await self._ask_name_server(topic)
        if found is None:
            return self._routes.get(topic)  # a name server that has just started knows nothing yet
        route = route_of(topic, found)
        if route != self._routes.get(topic):
            self._routes[topic] = route
        self._learn_brokers(route)  # also one that has not changed: it is newer than what other topics' said
        return route

    def _fetched(self, topic: str, task: asyncio.Task[Route | None]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; with nobody waiting it is nobody's concern

    async def _ask_name_server(self, topic: str) -> TopicRoute | None:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute(topic=topic, accept_standard_json_only=True))
        answer = await self.name_servers.call(command, _ROUTE_SECONDS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer)
        return TopicRoute.from_json(answer.body)

    # ---- brokers

    def master(self, broker_name: str) -> Address | None:
        """Who takes messages, commits and locks."""
        return self.brokers.get(broker_name, {}).get(MASTER)

    def replica(self, broker_name: str, broker_id: int = MASTER) -> tuple[Address, int] | None:
        """Who serves reads: the replica that was suggested, else the next one, else any; with its id."""
        replicas = self.brokers.get(broker_name)
        if not replicas:
            return None
        if self._passed_over:
            replicas = self._willing(replicas) or replicas
        for candidate in (broker_id, broker_id + 1):
            if candidate in replicas:
                return replicas[candidate], candidate
        broker_id = min(replicas)
        return replicas[broker_id], broker_id

    def pass_over(self, broker_name: str, address: Address) -> bool:
        """A slave there refuses reads: for some seconds others are asked. False: there is nobody else to ask.

        So do slaves that are not sure yet that they have what their master has. Java's client asks the same one again.
        """
        replicas = self.brokers.get(broker_name, {})
        if replicas.get(MASTER) == address:
            return False
        self._passed_over[address] = asyncio.get_running_loop().time() + _PASSED_OVER_SECONDS
        return bool(self._willing(replicas))

    def _willing(self, replicas: dict[int, Address]) -> dict[int, Address]:
        now = asyncio.get_running_loop().time()
        self._passed_over = {address: until for address, until in self._passed_over.items() if until > now}
        return {broker_id: address for broker_id, address in replicas.items() if address not in self._passed_over}

    def vip(self, address: Address) -> Address:
        """Where requests go that are not reads: the broker's second port, if the client was told to use it."""
        return Address(address.host, address.port - _VIP_PORT_STEP) if self.config.vip_channel else address

    def addresses(self, *, masters_only: bool) -> list[Address]:
        return [
            address
            for replicas in self.brokers.values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER or not masters_only
        ]

    def _learn_brokers(self, route: Route) -> None:
        for name, replicas in route.brokers.items():
            self.brokers[name] = dict(replicas)

    def _drop_offline_brokers(self) -> None:
        """A broker that no route names any more is forgotten, its connections closed.

        Routes only take away. Where a broker is, the last answer of a name server has said: the route of a topic that was deleted
        stays as it was, whatever became of its brokers.
        """
        named = {
            address
            for route in self._routes.values()
            for replicas in route.brokers.values()
            for address in replicas.values()
        }
        known = set(self.addresses(masters_only=False))
        for name, replicas in list(self.brokers.items()):
            left = {broker_id: address for broker_id, address in replicas.items() if address in named}
            if left:
                self.brokers[name] = left
            else:
                del self.brokers[name]
        for address in known - named:
            logger.info("broker %s is offline: no route names it any more", address)
            self._pool.drop(address)
            self._pool.drop(Address(address.host, address.port - _VIP_PORT_STEP))


def refusal(answer: Command, *, otherwise: str = "the server's log may say more") -> RequestFailed:
    """The exception for an answer other than success, with what can be done about it; `otherwise` where that is not known."""
    remark = answer.remark or f"the server answered {answer.code} without saying why"
    # Our servers say in brackets what to do: they know more than the code says, of which one may have many reasons.
    is_told = remark.endswith(")") and " (" in remark
    return RequestFailed(answer.code, remark, hint="" if is_told else _HINTS.get(answer.code, otherwise))


_HINTS: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "the broker is overloaded: send less at once, or try again",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker cannot store now: is its disk full, or is it a slave?",
    ResponseCode.NO_PERMISSION: "check credentials=, the ACL of topic and group, and brokerPermission",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or start the broker with autoCreateTopicEnable=true",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or start the broker with "
    "autoCreateSubscriptionGroup=true",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "do all members of the group subscribe to the same topics?",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "do all members of the group use the same filter?",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "check the filter expression",
    ResponseCode.MESSAGE_ILLEGAL: "the broker's maxMessageSize bounds body and properties",
}
