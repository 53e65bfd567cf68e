"""What is wrong with a cluster, seen from here: step by step, each with what to do about it.

    name, port, language     of every name server, from this machine
    brokers                  registered, and the same at every name server
    broker                   its address reachable from here, answering, itself; its clock, disk, release
    topic                    routed, readable, writable, permitted to us
    group                    exists, enabled, members in agreement, no more of them than queues

Nothing is changed and nothing is sent. Works on Apache's clusters as on ours.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from orbitmq.admin.brokers import BrokerPlace, broker_places, broker_settings, runtime_info, up_seconds
from orbitmq.admin.group_checks import check_group
from orbitmq.admin.messages import TOOLS_GROUP
from orbitmq.admin.topics import permission_text, topic_route
from orbitmq.errors import CallTimeout, ConnectFailed, ConnectionLost, OrbitError, RequestFailed, TransportError
from orbitmq.protocol.bodies.topics import PERM_READ, PERM_WRITE
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import request
from orbitmq.protocol.headers.pull import PullMessage
from orbitmq.transport.lookup import resolve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from orbitmq.admin.session import Session
    from orbitmq.transport.address import Address

Verdict = Literal["ok", "warning", "failed"]

_SKEW_SECONDS: Final = 5.0  # beyond it, delays, expiry and lag in seconds mean something else here and there
_DISK_WARNING: Final = 0.75  # diskMaxUsedSpaceRatio: from here on old messages are deleted early
_DISK_FULL: Final = 0.90  # from here on messages are refused


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one step found."""

    step: str
    verdict: Verdict
    found: str
    cure: str = ""


async def diagnose(session: Session, *, topic: str | None = None, group: str | None = None) -> AsyncIterator[Finding]:
    """Findings as they are made. What stands on a step that failed is left out."""
    if not session.cluster.name_servers.addresses:  # a page names them
        try:
            await session.cluster.name_servers.look_up()
        except ConnectFailed as error:
            yield Finding(step="name servers", verdict="failed", found=error.message, cure=error.hint)
            return
    alive = []
    for address in session.cluster.name_servers.addresses:
        usable = False
        async for finding in check_name_server(session, address):
            yield finding
            usable = finding.step == "name server" and finding.verdict == "ok"
        if usable:
            alive.append(address)
    if not alive:
        return
    async for finding in _check_agreement(session, alive):
        yield finding
    places = await broker_places(session)
    releases: dict[str, dict[str, str]] = {}
    for place in places:
        async for finding in check_broker(session, place, releases.setdefault(place.cluster, {})):
            yield finding
    for cluster, of_brokers in releases.items():
        if len(of_brokers) > 1:
            yield releases_finding(cluster, of_brokers)
    if topic is not None:
        async for finding in check_topic(session, topic):
            yield finding
    if group is not None:
        async for step, verdict, found, cure in check_group(session, group, topic):
            yield Finding(step=step, verdict=verdict, found=found, cure=cure)


# ---- name servers


async def check_name_server(session: Session, address: Address) -> AsyncIterator[Finding]:
    try:
        resolved = await resolve(address)
    except ConnectFailed as error:
        yield Finding(step="name", verdict="failed", found=error.message, cure="check the spelling, DNS and /etc/hosts")
        return
    yield Finding(step="name", verdict="ok", found=f"{address.host} is {', '.join(one.host for one in resolved)}")
    answer = None
    try:
        answer = await session.cluster.call(
            address, request(RequestCode.GET_BROKER_CLUSTER_INFO), session.config.timeout_seconds
        )
    except ConnectFailed as error:
        yield Finding(step="port", verdict="failed", found=error.message, cure=error.hint)
        return
    except (ConnectionLost, CallTimeout) as error:
        yield Finding(step="port", verdict="ok", found=f"{address} is open")
        yield Finding(
            step="language",
            verdict="failed",
            found=error.message,
            cure=f"{error.hint} name servers usually have port 9876; --tls speaks TLS",
        )
        return
    yield Finding(step="port", verdict="ok", found=f"{address} is open")
    yield Finding(step="language", verdict="ok", found=f"{address} speaks RocketMQ remoting")
    yield _role_finding(address, answer.code, answer.remark)


def _role_finding(address: Address, code: int, remark: str | None) -> Finding:
    if code == ResponseCode.SUCCESS:
        return Finding(step="name server", verdict="ok", found=f"{address} is a name server")
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return Finding(
            step="name server",
            verdict="failed",
            found=f"{address} is a broker, not a name server",
            cure="connect to the name server; its port is usually 9876",
        )
    cure = "check the access key and secret key" if code == ResponseCode.NO_PERMISSION else "see the server's log"
    return Finding(step="name server", verdict="failed", found=f"{address} answers {code}: {remark}", cure=cure)


async def _check_agreement(session: Session, alive: list[Address]) -> AsyncIterator[Finding]:
    answers = [await session.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO) for address in alive]
    places = await broker_places(session)
    if not places:
        yield Finding(
            step="brokers",
            verdict="failed",
            found="no broker is registered",
            cure=f"start a broker with namesrvAddr={alive[0]}; a running one registers every 30 s",
        )
        return
    names = ", ".join(sorted({place.broker for place in places}))
    yield Finding(step="brokers", verdict="ok", found=f"{len(places)} registered: {names}")
    if len({frozenset(_addresses(answer.body)) for answer in answers}) > 1:
        yield Finding(
            step="brokers",
            verdict="warning",
            found="the name servers know different brokers",
            cure="give every broker all name servers in namesrvAddr",
        )


def _addresses(body: bytes) -> set[str]:
    from orbitmq.protocol.bodies.route import ClusterInfo

    info = ClusterInfo.from_json(body)
    return {address for data in info.broker_addr_table.values() for address in data.broker_addrs.values()}


# ---- brokers


async def check_broker(session: Session, place: BrokerPlace, releases: dict[str, str]) -> AsyncIterator[Finding]:
    """Notes in `releases` which one it is."""
    step = _step_of(place)
    try:
        asked_ms = session.now_ms()
        table = await runtime_info(session, place.address)
    except (ConnectFailed, ConnectionLost, CallTimeout) as error:
        yield _silence_finding(step, place.address, error)
        return
    except RequestFailed as error:
        cure = error.hint or "check the access key and secret key, and the broker's log"
        yield Finding(step=step, verdict="failed", found=f"it refuses to answer: {error.message}", cure=cure)
        return
    release = releases[str(place.address)] = table.get("brokerVersionDesc", "unknown")
    yield Finding(step=step, verdict="ok", found=f"{place.address} answers, release {release}")
    if (loopback := _loopback_finding(session, place)) is not None:
        yield loopback
    yield clock_finding(step, table, asked_ms, session.now_ms())
    yield disk_finding(step, table)
    async for finding in _settings_findings(session, place, step):
        yield finding


def _silence_finding(step: str, address: Address, error: TransportError) -> Finding:
    if isinstance(error, ConnectFailed):
        return Finding(
            step=step,
            verdict="failed",
            found=f"it is registered as {address}, which cannot be reached from here: {error.message}",
            cure=f"if it runs, set brokerIP1 in its configuration to an address that clients reach, or open port "
            f"{address.port}",
        )
    return Finding(
        step=step,
        verdict="failed",
        found=f"connections to {address} are taken, but no broker answers there: {error.message}",
        cure="does its process hang, or have too much to do? see its log"
        if isinstance(error, CallTimeout)
        else f"is brokerIP1 the address of that broker, and does {address} want TLS? --tls speaks it",
    )


def releases_finding(cluster: str, releases: Mapping[str, str]) -> Finding:
    """`releases` of a cluster's brokers by their addresses."""
    step = f"cluster {cluster}, releases"
    if len(set(releases.values())) == 1:
        return Finding(step=step, verdict="ok", found=f"all brokers are {next(iter(releases.values()))}")
    return Finding(
        step=step,
        verdict="warning",
        found="brokers differ: " + ", ".join(f"{address} is {release}" for address, release in releases.items()),
        cure="while upgrading one after the other that is as it should be; else bring them to one release",
    )


def _step_of(place: BrokerPlace) -> str:
    return f"broker {place.broker}" if place.is_master else f"broker {place.broker}, slave {place.id}"


def _loopback_finding(session: Session, place: BrokerPlace) -> Finding | None:
    if not _is_loopback(place.address.host) or all(
        _is_loopback(one.host) for one in session.cluster.name_servers.addresses
    ):
        return None
    return Finding(
        step=_step_of(place),
        verdict="warning",
        found=f"it is registered as {place.address}, which means something else on every machine",
        cure="set brokerIP1 to its address in the network",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def clock_finding(step: str, table: Mapping[str, str], asked_ms: int, answered_ms: int) -> Finding:
    up = up_seconds(table)
    if up is None or not table.get("bootTimestamp", "").isdigit():
        return Finding(step=f"{step}, clock", verdict="warning", found="it does not say when it was started")
    # It tells whole seconds, rounded down: the truth lies between this and one second more.
    there_ms = int(table["bootTimestamp"]) + up * 1000
    behind = (asked_ms - there_ms - 1000) / 1000
    ahead = (there_ms - answered_ms) / 1000
    skew = max(behind, ahead)
    if skew <= _SKEW_SECONDS:
        return Finding(step=f"{step}, clock", verdict="ok", found=f"agrees with ours within {_SKEW_SECONDS:g} s")
    which = "behind" if behind > ahead else "ahead of"
    return Finding(
        step=f"{step}, clock",
        verdict="warning",
        found=f"it is {skew:.0f} s {which} ours: delays, expiry and lag in seconds will be off",
        cure="let NTP set the clocks of both machines",
    )


def disk_finding(step: str, table: Mapping[str, str]) -> Finding:
    try:
        used = float(table.get("commitLogDiskRatio", ""))
    except ValueError:
        return Finding(step=f"{step}, disk", verdict="warning", found="it does not say how full its disk is")
    found = f"{used:.0%} used"
    if used >= _DISK_FULL:
        cure = "make room or lower fileReservedTime: from 90 % on it refuses messages (SERVICE_NOT_AVAILABLE)"
        return Finding(step=f"{step}, disk", verdict="failed", found=found, cure=cure)
    if used >= _DISK_WARNING:
        cure = "make room: from diskMaxUsedSpaceRatio on it deletes old messages before their time"
        return Finding(step=f"{step}, disk", verdict="warning", found=found, cure=cure)
    return Finding(step=f"{step}, disk", verdict="ok", found=found)


async def _settings_findings(session: Session, place: BrokerPlace, step: str) -> AsyncIterator[Finding]:
    try:
        settings = await broker_settings(session, place.address)
    except OrbitError as error:
        yield Finding(
            step=f"{step}, settings", verdict="warning", found=f"it does not show its settings: {error.message}"
        )
        return
    if settings.get("brokerName", place.broker) != place.broker:
        yield Finding(
            step=f"{step}, settings",
            verdict="failed",
            found=f"at {place.address} answers broker {settings['brokerName']}",
            cure="two brokers are registered with one address: check brokerIP1 and listenPort of both",
        )
    permission = int(settings.get("brokerPermission", "6"))
    if permission != PERM_READ | PERM_WRITE:
        yield Finding(
            step=f"{step}, settings",
            verdict="warning",
            found=f"brokerPermission is {permission} ({permission_text(permission)})",
            cure=f"`orbitmq broker config {place.broker} brokerPermission=6` allows reading and writing",
        )


# ---- topics


async def check_topic(session: Session, topic: str) -> AsyncIterator[Finding]:
    step = f"topic {topic}"
    try:
        route = await topic_route(session, topic)
    except RequestFailed as error:
        yield Finding(step=step, verdict="failed", found=error.message, cure=error.hint)
        return
    for data in route.queue_datas:
        where = f"on {data.broker_name}: {data.write_queue_nums} queues to write, {data.read_queue_nums} to read"
        missing = [word for word, bit in (("read", PERM_READ), ("written", PERM_WRITE)) if not data.perm & bit]
        if missing:
            cure = f"`orbitmq topic update {topic} --permission rw` allows it"
            yield Finding(
                step=step, verdict="warning", found=f"{where}, but may not be {' or '.join(missing)}", cure=cure
            )
        elif data.read_queue_nums != data.write_queue_nums:
            cure = "if queues are not just being added or taken away, make the two numbers equal"
            yield Finding(step=step, verdict="warning", found=where, cure=cure)
        else:
            yield Finding(step=step, verdict="ok", found=where)
    async for finding in _permission_findings(session, topic):
        yield finding


async def _permission_findings(session: Session, topic: str) -> AsyncIterator[Finding]:
    """Whether we may read it: a pull that asks for nothing."""
    route = await session.cluster.fetch_route(topic)
    for queue in (route.readable if route is not None else ())[:1]:
        header = PullMessage(
            consumer_group=TOOLS_GROUP,
            topic=topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=1,
            sys_flag=0,
            subscription="*",
            bname=queue.broker_name,
        )
        replica = session.cluster.replica(queue.broker_name)
        assert replica is not None
        try:
            answer = await session.cluster.call(
                replica[0], request(RequestCode.PULL_MESSAGE, header), session.config.timeout_seconds
            )
        except OrbitError as error:
            yield Finding(step=f"topic {topic}, permission", verdict="failed", found=error.message)
            return
        if answer.code == ResponseCode.NO_PERMISSION:
            yield Finding(
                step=f"topic {topic}, permission",
                verdict="failed",
                found=f"we may not read it: {answer.remark}",
                cure="give --access-key and --secret-key of a user who may, or change the ACL",
            )
        else:
            yield Finding(step=f"topic {topic}, permission", verdict="ok", found="we may read it")
