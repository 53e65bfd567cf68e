"""Every request code of both servers, asked by everyone who might ask. The tables of the servers say which codes there are,
so a new one cannot be forgotten here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from orbitmq.access.handlers import USER_NEEDS
from orbitmq.access.needs import Action, Kind
from orbitmq.broker.broker import Broker
from orbitmq.broker.permissions import AUDITED as BROKER_AUDITED
from orbitmq.broker.permissions import NEEDS as BROKER_NEEDS
from orbitmq.broker.routes import build_routes
from orbitmq.nameserver.permissions import AUDITED as NAMESERVER_AUDITED
from orbitmq.nameserver.permissions import NEEDS as NAMESERVER_NEEDS
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.pool import Pool
from tests.broker.kit import PATIENCE_SECONDS, configuration
from tests.nameserver.running import running as running_name_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from orbitmq.access.needs import NeedsOf
    from orbitmq.access.users import Users
    from orbitmq.transport.address import Address

ROOT: Final = Credentials("root", "root-secret")
NOBODY: Final = Credentials("nobody", "nobody-secret")  # known, with no policies
MEMBER: Final = Credentials("member", "member-secret")  # with exactly the policy a case needs
GONE: Final = Credentials("gone", "gone-secret")  # disabled
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}

ELSEWHERE: Final = "10.0.0.0/8"
SOURCES: Final = {"": "from anywhere", "127.0.0.0/8": "from a white-listed address", ELSEWHERE: "from another address"}

# Fields that name what a request touches, and bodies where they stand there; the rest of a request does not matter to the gate.
FIELDS: Final = {
    "topic": "T", "b": "T", "consumerGroup": "G", "group": "G", "groupName": "G", "destGroup": "G", "srcGroup": "S", "originTopic": "T",
}  # fmt: skip
BODIES: Final = {
    RequestCode.HEART_BEAT: b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T"}]}]}',
    RequestCode.LOCK_BATCH_MQ: b'{"consumerGroup":"G","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":0}]}',
    RequestCode.UNLOCK_BATCH_MQ: b'{"consumerGroup":"G","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":0}]}',
    RequestCode.BATCH_ACK_MESSAGE: b'{"acks":[{"c":"G","t":"T","so":0,"q":0,"rq":0,"pt":0,"it":0}]}',
    RequestCode.QUERY_ASSIGNMENT: b'{"topic":"T","consumerGroup":"G","clientId":"c"}',
}


class Asker:
    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool = Pool()

    async def ask(self, code: int, who: Credentials | None = None, **changes: str) -> Command:
        request = Command(code, fields=dict(FIELDS), body=BODIES.get(RequestCode(code), b""))
        if who is not None:
            sign(request, who)
        request.add_fields(**changes)
        return await self._pool.call(self.address, request, PATIENCE_SECONDS)

    async def is_refused(self, code: int, who: Credentials | None = None, **changes: str) -> bool:
        answer = await self.ask(code, who, **changes)
        remark = answer.remark or ""
        refusals = ("username cannot", "is not found", "check signature", "is disabled", "has no permission to access")
        return answer.code == ResponseCode.NO_PERMISSION and any(text in remark for text in refusals)

    async def close(self) -> None:
        await self._pool.close()


@asynccontextmanager
async def guarded_broker(tmp_path: Path, **more: str) -> AsyncIterator[tuple[Asker, Users, set[int]]]:
    async with Broker(configuration(tmp_path / "broker", {**GUARDED, **more})) as broker:
        assert broker.address is not None
        asker = Asker(broker.address)
        yield asker, broker.state.users, set(build_routes(broker.state))
        await asker.close()


@asynccontextmanager
async def guarded_name_server(tmp_path: Path, **more: str) -> AsyncIterator[tuple[Asker, Users, set[int]]]:
    async with running_name_server(tmp_path / "names", clock=None, **GUARDED, **more) as server:
        assert server.address is not None
        asker = Asker(server.address)
        yield asker, server.users, set(NAMESERVER_NEEDS)
        await asker.close()


SERVERS: Final[dict[str, Any]] = {
    "broker": (guarded_broker, BROKER_NEEDS, "DefaultCluster"),
    "name server": (guarded_name_server, NAMESERVER_NEEDS, "DefaultCluster"),
}


@pytest.mark.parametrize("server", SERVERS)
async def test_every_code_for_everyone(tmp_path: Path, server: str) -> None:
    start, needs, cluster = SERVERS[server]
    async with start(tmp_path) as (asker, users, codes):
        for who, status in ((NOBODY, "enable"), (MEMBER, "enable"), (GONE, "disable")):
            users.create(User(username=who.access_key, password=who.secret_key, user_status=status))
        sharing: dict[str, tuple[list[Any], list[int]]] = {}  # codes by what they need
        for code in sorted(codes):
            request = Command(code, fields=dict(FIELDS), body=BODIES.get(RequestCode(code), b""))
            needed = needs[code](request, cluster)
            name = RequestCode(code).name
            assert await asker.is_refused(code), f"{name} without credentials"
            assert await asker.is_refused(code, Credentials("stranger", "x" * 8)), f"{name} of an unknown user"
            assert await asker.is_refused(code, Credentials("root", "guessed")), f"{name} with a wrong signature"
            assert await asker.is_refused(code, ROOT, topic="U", extra="1"), f"{name} changed after it was signed"
            assert await asker.is_refused(code, GONE), f"{name} of a disabled user"
            assert not await asker.is_refused(code, ROOT), f"{name} of a super user"
            assert await asker.is_refused(code, NOBODY) == bool(needed), f"{name} without the right"
            if needed:
                sharing.setdefault(str(needed), (needed, []))[1].append(code)
        for needed, alike in sharing.values():
            for source, where in SOURCES.items():
                grant(users, needed, source)
                for code in alike:
                    is_refused = await asker.is_refused(code, MEMBER)
                    assert is_refused == (source == ELSEWHERE), f"{RequestCode(code).name} with the right {where}"
                users.delete_acl("User:member", None, None)


@pytest.mark.parametrize("server", SERVERS)
async def test_every_code_replayed(tmp_path: Path, server: str) -> None:
    """A replay is a request like any other as long as its key is in force: the signature has no time in it. Then it is of no use."""
    start, _, _ = SERVERS[server]
    async with start(tmp_path) as (asker, users, codes):
        users.create(User(username="spare", password="spare-secret", user_type="Super"))
        spare = Credentials("spare", "spare-secret")
        for code in sorted(codes):
            assert [await asker.is_refused(code, spare) for _ in range(2)] == [False, False], RequestCode(code).name
        users.update(User(username="spare", password="another-secret"))
        for code in sorted(codes):
            answer = await asker.ask(code, spare)
            assert (answer.code, answer.remark) == (16, "check signature failed."), RequestCode(code).name


@pytest.mark.parametrize("server", SERVERS)
async def test_every_code_can_be_let_through_by_its_number(tmp_path: Path, server: str) -> None:
    start, needs, _ = SERVERS[server]
    every = ",".join(str(int(code)) for code in needs)
    async with start(tmp_path, authenticationWhitelist=every, authorizationWhitelist=every) as (asker, _, codes):
        for code in sorted(codes):
            assert not await asker.is_refused(code), RequestCode(code).name


NOT_FOR_OPERATORS: Final = frozenset(  # what brokers and clients say of themselves
    {
        RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT,
        RequestCode.EXCHANGE_BROKER_HA_INFO, RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)  # fmt: skip
LOOKING_NEEDS_AN_ADMIN: Final = frozenset(
    {RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG}
)
TELL_BY_THEMSELVES: Final = frozenset(USER_NEEDS) | {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
}


@pytest.mark.parametrize(("needs", "audited"), [(BROKER_NEEDS, BROKER_AUDITED), (NAMESERVER_NEEDS, NAMESERVER_AUDITED)])
def test_whatever_changes_something_is_audited(needs: Mapping[int, NeedsOf], audited: frozenset[int]) -> None:
    changing = set()
    for code, needs_of in needs.items():
        request = Command(code, fields=dict(FIELDS), body=BODIES.get(RequestCode(code), b""))
        wanted = {action for need in needs_of(request, "DefaultCluster") for action in need.actions}
        if wanted & {Action.CREATE, Action.UPDATE, Action.DELETE}:
            changing.add(code)
    assert changing - TELL_BY_THEMSELVES - NOT_FOR_OPERATORS - LOOKING_NEEDS_AN_ADMIN == audited


async def test_operators_leave_a_line_and_refusals_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "orbitmq.audit")
    async with guarded_broker(tmp_path) as (asker, _, _):
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ROOT)
        await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ROOT)  # without most of its fields
        await asker.ask(RequestCode.DELETE_TOPIC_IN_BROKER)
    lines = [record.getMessage() for record in caplog.records if record.name == "orbitmq.audit"]
    assert any(
        line.startswith("root at 127.0.0.1:") and "DELETE_TOPIC_IN_BROKER {'topic': 'T'" in line for line in lines
    )
    assert any("UPDATE_AND_CREATE_TOPIC" in line and "failed" in line for line in lines)
    assert any("refused DELETE_TOPIC_IN_BROKER from 127.0.0.1: username cannot be null." in line for line in lines)
    assert "root-secret" not in caplog.text


def grant(users: Users, needed: list[Any], source: str) -> None:
    entries = [
        PolicyEntry(
            resource=f"{need.kind}:{need.name}",
            actions=[need.actions[0]],
            source_ips=[source] if source else [],
            decision="Allow",
        )
        for need in needed
    ]
    users.create_acl(Acl(subject="User:member", policies=[Policy(entries=entries)]))


async def test_codes_and_addresses_can_be_let_through(tmp_path: Path) -> None:
    settings = {**GUARDED, "authenticationWhitelist": "28", "authorizationWhitelist": "28"}
    async with Broker(configuration(tmp_path, settings)) as broker:
        assert broker.address is not None
        asker = Asker(broker.address)
        assert not await asker.is_refused(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert await asker.is_refused(RequestCode.GET_BROKER_CONFIG)
        broker.state.users.create(User(username="member", password="member-secret"))
        here = PolicyEntry(resource="Topic:T", actions=["Get"], source_ips=["127.0.0.0/8"], decision="Allow")
        broker.state.users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[here])]))
        assert not await asker.is_refused(RequestCode.GET_TOPIC_CONFIG, MEMBER)
        there = PolicyEntry(resource="Topic:T", actions=["Get"], source_ips=["10.0.0.0/8"], decision="Allow")
        broker.state.users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[there])]))
        assert await asker.is_refused(RequestCode.GET_TOPIC_CONFIG, MEMBER)
        await asker.close()


async def test_secrets_are_given_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = {"innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}'}
    caplog.set_level(0)
    async with Broker(configuration(tmp_path, {**GUARDED, **inner})) as broker:
        assert broker.address is not None
        asker = Asker(broker.address)
        for code, changes in (
            (RequestCode.GET_BROKER_CONFIG, {}),
            (RequestCode.GET_BROKER_RUNTIME_INFO, {}),
            (RequestCode.AUTH_GET_USER, {"username": "root"}),
            (RequestCode.AUTH_LIST_USER, {}),
        ):
            request = Command(code, fields=dict(changes))
            sign(request, ROOT)
            answer = await asker._pool.call(broker.address, request, PATIENCE_SECONDS)
            assert answer.code == 0
            assert b"root-secret" not in answer.body
        await asker.close()
    assert "root-secret" not in caplog.text
    assert (tmp_path / "config" / "auth" / "users.json").stat().st_mode & 0o077 == 0


async def test_only_a_super_user_makes_super_users(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as (asker, users, _):
        users.create(User(username="member", password="member-secret"))
        everything = PolicyEntry(resource="*", actions=["All"], decision="Allow")
        users.create_acl(Acl(subject="User:member", policies=[Policy(entries=[everything])]))
        for code, body in (
            (RequestCode.AUTH_CREATE_USER, b'{"password":"12345678","userType":"Super"}'),
            (RequestCode.AUTH_UPDATE_USER, b'{"userType":"Super"}'),
        ):
            request = Command(code, fields={"username": "member"}, body=body)
            sign(request, MEMBER)
            answer = await asker._pool.call(asker.address, request, PATIENCE_SECONDS)
            assert "only a super user" in (answer.remark or "")
        request = Command(RequestCode.AUTH_DELETE_USER, fields={"username": "root"})
        sign(request, MEMBER)
        answer = await asker._pool.call(asker.address, request, PATIENCE_SECONDS)
        assert "only a super user" in (answer.remark or "")
        assert users.get("root") is not None


def test_kinds_and_actions_are_apaches() -> None:
    assert set(Kind) == {"Cluster", "Topic", "Group"}
    assert set(Action) == {"All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"}


async def test_a_broker_signs_its_registration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = {"innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}'}
    async with running_name_server(tmp_path / "names", clock=None, **GUARDED) as server:
        address = {"namesrvAddr": str(server.address)}
        async with Broker(configuration(tmp_path / "unsigned", {**address, "brokerName": "unsigned"})):
            assert "refused this broker: username cannot be null." in caplog.text
        async with Broker(configuration(tmp_path / "signed", {**address, **inner, "brokerName": "signed"})):
            assert list(server.registry.cluster_info().broker_addr_table) == ["signed"]
