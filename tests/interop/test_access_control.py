"""Access control of ours with Apache's clients and mqadmin, and Apache's with our client."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

import orbitmq as mq
from orbitmq.cli.dev_tls import certificates
from orbitmq.errors import OrbitError
from tests.cli.kit import Command
from tests.interop import apache, orbit
from tests.interop.apache import Broker, BrokerPlan
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import ClientError, JavaClient, MqAdmin
from tests.interop.java import JavaBuild
from tests.interop.marks import INTEROP
from tests.interop.processes import READY_SECONDS, eventually

pytestmark = INTEROP

ROOT: Final = ("rooted", "root-secret")
ALICE: Final = ("alice", "alice-secret")
GUARDED: Final[dict[str, str | int]] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]}),
}
PROVIDERS: Final = {
    f"{what}{part}Provider": f"org.apache.rocketmq.auth.{what}.provider.{kind}{what.capitalize()}{part}Provider"
    for what in ("authentication", "authorization")
    for part, kind in (("", "Default"), ("Metadata", "Local"))
}


def admin_of(
    java: JavaBuild, folder: Path, credentials: tuple[str, str], properties: Mapping[str, str] | None = None
) -> MqAdmin:
    admin = MqAdmin(java, folder, properties)
    (folder / "conf" / "tools.yml").write_text(f"accessKey: {credentials[0]}\nsecretKey: {credentials[1]}\n")
    return admin


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
def test_mqadmin_manages_users_and_java_clients_are_held_to_it(
    tmp_path: Path, java: JavaBuild, orbit_nameserver: StartNameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    name_server = orbit_nameserver(GUARDED).address
    broker = orbit.start_broker(tmp_path / "broker", name_server, settings=GUARDED)
    admin = admin_of(java, tmp_path / "admin", ROOT)
    stranger = MqAdmin(java, tmp_path / "stranger")
    try:
        refused = stranger.run("createUser", "-b", broker.address, "-u", "eve", "-p", "eve-secret")
        assert "username cannot be null" in str(refused)
        for server in (broker.address, name_server):
            assert "success" in str(admin.run("createUser", "-b", server, "-u", ALICE[0], "-p", ALICE[1]))
            for resource, actions in (("Topic:Allowed", "Pub,Sub"), ("Group:C_consumer", "Sub")):
                policy = ("-s", f"User:{ALICE[0]}", "-r", resource, "-a", actions, "-d", "Allow")
                assert "success" in str(admin.run("createAcl", "-b", server, *policy))
        users = str(admin.run("listUser", "-b", broker.address))
        assert ALICE[0] in users
        assert ALICE[1] not in users
        assert "Topic:Allowed" in str(admin.run("getAcl", "-b", broker.address, "-s", f"User:{ALICE[0]}"))
        created = admin.run("updateTopic", "-b", broker.address, "-t", "Allowed", "-n", name_server)
        assert "success" in str(created), created

        client = java_client(False)
        client.open_producer("producer", name_server, credentials=ALICE)
        client.open_push_consumer("consumer", name_server, "Allowed", credentials=ALICE)
        client.send("producer", "Allowed", [{"text": "hello"}])
        assert [message.body for message in client.received("consumer", 1)] == [b"hello"]
        with pytest.raises((ClientError, AssertionError), match=r"permission|No route"):
            client.send("producer", "Forbidden", [{"text": "no"}])
        client.open_producer("impostor", name_server, credentials=(ALICE[0], "guessed-it"))
        with pytest.raises((ClientError, AssertionError)):
            client.send("impostor", "Allowed", [{"text": "no"}])

        assert "success" in str(admin.run("updateUser", "-b", broker.address, "-u", ALICE[0], "-s", "disable"))
        with pytest.raises((ClientError, AssertionError), match=r"disabled|failed"):
            client.send("producer", "Allowed", [{"text": "no"}])
    finally:
        admin.close()
        stranger.close()
        broker.process.kill()


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
async def test_our_client_on_an_apache_broker_with_access_control(
    orbit_nameserver: StartNameServer, apache_broker: Callable[[BrokerPlan], Broker]
) -> None:
    name_server = orbit_nameserver().address
    # The harness makes a broker register by an unsigned change of its settings (25).
    settings = {**GUARDED, **PROVIDERS, "authenticationWhitelist": "25", "authorizationWhitelist": "25"}
    plan = BrokerPlan(name="guarded", cluster="guarded", name_servers=[name_server], settings=settings)
    await asyncio.to_thread(apache_broker, plan)
    async with mq.connect(name_server, credentials=ROOT) as client, client.producer(group="P") as producer:
        receipt = await producer.send("TBW102Made", b"signed")
        assert receipt.message_id
    async with mq.connect(name_server) as client, client.producer(group="P") as producer:
        with pytest.raises(OrbitError) as refused:
            await producer.send("TBW102Made", b"unsigned")
        assert refused.value.code == 16
    await asyncio.to_thread(_manage_users, name_server)


def _manage_users(name_server: str) -> None:
    """Our own command, on Apache's broker."""
    orbitmq = Command(name_server, ROOT)
    orbitmq.ok("acl", "user", "create", "bob", "--password", "bob-secret")
    orbitmq.ok("acl", "grant", "bob", "Topic:Bobs*", "--action", "Pub", "--action", "Sub", "--from", "127.0.0.1")
    assert [row["user"] for row in orbitmq.ok("acl", "user", "ls", "-o", "json").json] == ["bob", ROOT[0]]
    (policy,) = orbitmq.ok("acl", "ls", "bob", "-o", "json").json
    assert (policy["resource"], policy["actions"], policy["decision"]) == ("Topic:Bobs*", ["Pub", "Sub"], "Allow")
    Command(name_server, ("bob", "bob-secret")).ok("msg", "send", "BobsOwn", "hello")
    assert Command(name_server, ("bob", "bob-secret")).failure("msg", "send", "TBW102Made", "no").code == 5
    orbitmq.ok("acl", "revoke", "bob", "--yes")
    orbitmq.ok("acl", "user", "rm", "bob", "--yes")
    assert [row["user"] for row in orbitmq.ok("acl", "user", "ls", "-o", "json").json] == [ROOT[0]]


@pytest.mark.parametrize("release", ["4.9.7"], indirect=True)
def test_old_java_clients_and_their_access_file(
    tmp_path: Path, orbit_nameserver: StartNameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    name_server = orbit_nameserver().address
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n"
        "- accessKey: old-client\n"
        "  secretKey: old-secret\n"
        "  defaultGroupPerm: SUB\n"
        "  topicPerms: [Allowed=PUB|SUB]\n"
    )
    settings: dict[str, str | int] = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    broker = orbit.start_broker(tmp_path / "broker", name_server, settings=settings)
    try:
        client = java_client(False)
        who = ("old-client", "old-secret")
        client.open_producer("producer", name_server, credentials=who)
        client.send("producer", "Allowed", [{"text": "hello"}])  # first: it makes the topic
        client.open_push_consumer("consumer", name_server, "Allowed", credentials=who)
        assert [message.body for message in client.received("consumer", 1)] == [b"hello"]
        with pytest.raises((ClientError, AssertionError), match=r"AclException|failed"):
            client.send("producer", "Forbidden", [{"text": "no"}])
        client.open_producer("nobody", name_server)
        with pytest.raises((ClientError, AssertionError), match=r"AclException|failed"):
            client.send("nobody", "Allowed", [{"text": "no"}])
    finally:
        broker.process.kill()


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"], indirect=True)
def test_java_clients_and_mqadmin_with_credentials_over_tls(tmp_path: Path, java: JavaBuild) -> None:
    files = certificates(tmp_path / "tls", "127.0.0.1")
    behind_tls: dict[str, str | int] = {
        **GUARDED,
        **files.settings,
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.client.trustCertPath": str(files.authority),
    }
    trusting = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(files.authority),
    }
    name_server = orbit.start_name_server(tmp_path / "names", behind_tls)
    broker = orbit.start_broker(tmp_path / "broker", name_server.address, settings=behind_tls)
    admin = admin_of(java, tmp_path / "admin", ROOT, trusting)
    client = JavaClient(java, tmp_path / "client", properties=trusting)
    try:
        create = ("updateTopic", "-b", broker.address, "-t", "Allowed", "-n", name_server.address)
        # A JVM's first handshake takes longer than its patience where many of them start at once.
        eventually(lambda: str(admin.run(*create)), lambda said: "success" in said, READY_SECONDS, "a topic by mqadmin")
        assert broker.address in str(admin.run("clusterList", "-n", name_server.address))
        client.open_producer("producer", name_server.address, credentials=ROOT)
        client.open_push_consumer("consumer", name_server.address, "Allowed", credentials=ROOT)
        client.send("producer", "Allowed", [{"text": "hello"}])
        assert [message.body for message in client.received("consumer", 1)] == [b"hello"]
        client.open_producer("nobody", name_server.address)
        with pytest.raises((ClientError, AssertionError)):
            client.send("nobody", "Allowed", [{"text": "no"}])
        assert Command(name_server.address, ROOT).failure("topic", "ls").code == 3  # plainly, nobody is served
    finally:
        admin.close()
        client.close()
        broker.process.kill()
        name_server.process.kill()


OLD_ADMIN: Final = ("old-admin", "admin-secret")


def write_access_file(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain_acl.yml").write_text(
        "accounts:\n"
        f"- {{accessKey: {OLD_ADMIN[0]}, secretKey: {OLD_ADMIN[1]}, admin: true}}\n"
        "- {accessKey: old-client, secretKey: old-secret, defaultGroupPerm: SUB, topicPerms: ['Allowed=PUB|SUB']}\n"
    )


@pytest.mark.parametrize("release", ["4.9.7"], indirect=True)
def test_mqadmin_of_4x_changes_our_access_files(
    tmp_path: Path, java: JavaBuild, orbit_nameserver: StartNameServer
) -> None:
    name_server = orbit_nameserver().address
    write_access_file(tmp_path / "home" / "conf")
    settings: dict[str, str | int] = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    broker = orbit.start_broker(tmp_path / "broker", name_server, settings=settings)
    admin, member = (
        admin_of(java, tmp_path / "admin", OLD_ADMIN),
        admin_of(java, tmp_path / "member", ("old-client", "old-secret")),
    )
    server = ("-n", name_server, "-b", broker.address)
    try:
        account = ("-a", "carol-key", "-s", "carol-secret", "-t", "Hers=PUB,Others=DENY", "-g", "hers=SUB")
        assert "Need admin permission" in str(member.run("updateAclConfig", *server, *account))
        assert "success" in str(admin.run("updateAclConfig", *server, *account))
        carol = Command(name_server, ("carol-key", "carol-secret"))
        carol.ok("msg", "send", "Hers", "hello")
        assert carol.failure("msg", "send", "Others", "no").code == 5
        shown = str(admin.run("getAclConfig", *server))
        assert "carol-key" in shown
        assert "Hers=PUB" in shown
        assert "carol-secret" not in shown
        assert broker.name in str(admin.run("clusterAclConfigVersion", *server))
        assert "success" in str(admin.run("deleteAclConfig", *server, "-a", "carol-key"))
        assert carol.failure("msg", "send", "Hers", "no").code == 5
        assert "success" in str(admin.run("updateGlobalWhiteAddr", *server, "-g", "127.0.0.1,10.1.1.*"))
        Command(name_server).ok("msg", "send", "Hers", "from a white address")
    finally:
        admin.close()
        member.close()
        broker.process.kill()


@pytest.mark.parametrize("release", ["4.9.7"], indirect=True)
async def test_our_client_and_commands_on_an_apache_broker_with_an_access_file(
    tmp_path: Path, java: JavaBuild, orbit_nameserver: StartNameServer
) -> None:
    name_server = orbit_nameserver().address
    folder = tmp_path / "apache"
    write_access_file(folder / "conf")
    plan = BrokerPlan(name="old", cluster="old", name_servers=[name_server], settings={"aclEnable": "true"})
    broker = await asyncio.to_thread(apache.start_broker, java, folder, plan)
    try:
        async with mq.connect(name_server, credentials=("old-client", "old-secret")) as client:
            async with client.producer(group="P") as producer:
                assert (await producer.send("Allowed", b"signed")).message_id
                with pytest.raises(OrbitError) as refused:
                    await producer.send("Forbidden", b"no")
                assert "AclException" in str(refused.value)
            async with client.consumer("Allowed", group="G", start="earliest") as consumer:
                async with asyncio.timeout(60):
                    async for message in consumer:
                        assert message.body == b"signed"
                        break
        async with mq.connect(name_server) as client, client.producer(group="P") as producer:
            with pytest.raises(OrbitError, match="AclException"):
                await producer.send("Allowed", b"unsigned")
        command = Command(name_server, OLD_ADMIN)
        await asyncio.to_thread(command.ok, "topic", "create", "Made")
        listed = await asyncio.to_thread(command.ok, "topic", "ls", "-o", "json")
        assert "Made" in listed.out
        member = Command(name_server, ("old-client", "old-secret"))
        refused_command = await asyncio.to_thread(member.failure, "topic", "create", "Other")
        assert "admin" in refused_command.err
    finally:
        broker.process.kill()
