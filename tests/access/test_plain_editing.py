"""Access files of 4.x changed from afar (50 to 54), and made users and policies of 5.x."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq import saved_file
from orbitmq.access import users as users_module
from orbitmq.access.migration import migrate
from orbitmq.access.plain_editing import PlainFiles
from orbitmq.access.plain_file import Permission, access_files, read_access_files
from orbitmq.access.users import Users
from orbitmq.broker.broker import Broker
from orbitmq.clock import ManualClock
from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.access import User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.headers.access import PlainAccount
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.pool import Pool
from tests.broker.kit import PATIENCE_SECONDS, SEND_V2, configuration, send_header

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from orbitmq.access.plain_file import PlainAccess

    Ask = Callable[..., Awaitable[Command]]

ADMIN: Final = Credentials("rocketmq2", "12345678")
USER: Final = Credentials("RocketMQ", "12345678")
FILE: Final = """
accounts:
- {accessKey: RocketMQ, secretKey: '12345678', defaultGroupPerm: SUB, topicPerms: [topicA=DENY, 'topicB=PUB|SUB']}
- {accessKey: rocketmq2, secretKey: '12345678', whiteRemoteAddress: 192.168.1.*, admin: true}
"""
PUT, DELETE, VERSION, WHITE, ALL = 50, 51, 52, 53, 54


@asynccontextmanager
async def plain_broker(folder: Path) -> AsyncIterator[Ask]:
    (folder / "home" / "conf" / "acl").mkdir(parents=True)
    (folder / "home" / "conf" / "plain_acl.yml").write_text(FILE)
    (folder / "home" / "conf" / "acl" / "more.yml").write_text(
        "accounts:\n- {accessKey: another, secretKey: another-secret, topicPerms: [T=SUB]}\n"
    )
    settings = {"aclEnable": "true", "rocketmqHome": str(folder / "home")}
    async with Broker(configuration(folder / "store", settings)) as broker:
        pool = Pool()

        async def ask(code: int, who: Credentials | None = ADMIN, **fields: str) -> Command:
            body = b"body" if code == SEND_V2 else b""
            request = Command(code, fields=send_header("T").to_fields() if code == SEND_V2 else fields, body=body)
            if who is not None:
                sign(request, who)
            assert broker.address is not None
            return await pool.call(broker.address, request, PATIENCE_SECONDS)

        yield ask
        await pool.close()


async def test_accounts_are_changed_where_they_are_and_count_at_once(tmp_path: Path) -> None:
    carol = Credentials("carol-key", "carol-secret")
    async with plain_broker(tmp_path) as ask:
        account = {"accessKey": carol.access_key, "secretKey": carol.secret_key, "admin": "false"}
        assert (await ask(SEND_V2, carol)).code == 1
        assert (await ask(PUT, **account, defaultTopicPerm="PUB", groupPerms="g1=SUB,g2=DENY")).code == 0
        assert (await ask(SEND_V2, carol)).code == 0
        assert (await ask(PUT, accessKey=carol.access_key, defaultTopicPerm="DENY")).code == 0  # the rest stays
        assert "No default permission" in ((await ask(SEND_V2, carol)).remark or "")
        another = Credentials("another", "another-secret")
        assert (await ask(SEND_V2, another)).code == 1
        assert (await ask(PUT, accessKey="another", topicPerms="T=PUB")).code == 0
        assert (await ask(SEND_V2, another)).code == 0
        assert "T=PUB" in (tmp_path / "home" / "conf" / "acl" / "more.yml").read_text()
        assert (await ask(DELETE, accessKey="another")).code == 0
        assert "No acl config for another" in ((await ask(SEND_V2, another)).remark or "")
        assert (await ask(DELETE, accessKey="another")).code == 210
        short = await ask(PUT, accessKey="shorty", secretKey="x")
        assert (short.code, "too short" in (short.remark or "")) == (209, True)
        assert (await ask(SEND_V2, ADMIN)).code == 0  # nothing was spoilt
        versions = (await ask(VERSION)).fields
        assert json.loads(versions["version"])["counter"] == 2
        assert {path.rpartition("/")[2]: each["counter"] for path, each in json.loads(versions["allAclFileVersion"]).items()} == {
            "plain_acl.yml": 2, "more.yml": 2,
        }  # fmt: skip


def files_of(folder: Path, **contents: str) -> tuple[PlainFiles, Callable[[], PlainAccess]]:
    main = folder / "plain_acl.yml"
    (folder / "acl").mkdir()
    for name, content in contents.items():
        (main if name == "main" else folder / "acl" / f"{name}.yml").write_text(content)
    return PlainFiles(main, ManualClock(1)), lambda: read_access_files(access_files(main))


def test_a_key_of_digits_is_the_same_key_without_quotes(tmp_path: Path) -> None:
    files, read = files_of(tmp_path, main="accounts: [{accessKey: 12345678, secretKey: 87654321}]")
    files.put_account(PlainAccount(access_key="12345678", default_topic_perm="PUB"))
    assert (tmp_path / "plain_acl.yml").read_text().count("accessKey") == 1
    assert read().accounts["12345678"].secret_key == "87654321"
    files.delete_account("12345678")
    assert not read().accounts


def test_of_an_account_in_several_files_the_one_in_force_is_changed_and_all_are_deleted(tmp_path: Path) -> None:
    twice = "accounts:\n" + "- {accessKey: somebody, secretKey: some-secret}\n" * 2
    files, read = files_of(tmp_path, main=FILE + twice[len("accounts:\n") :], a=twice, b=twice)
    files.put_account(PlainAccount(access_key="somebody", default_topic_perm="PUB"))
    assert read().accounts["somebody"].default_topic == Permission.PUB
    files.delete_account("somebody")
    assert read().accounts.keys() == {"RocketMQ", "rocketmq2"}


async def test_white_addresses_change_in_access_files_alone(tmp_path: Path) -> None:
    outside = tmp_path / "home" / "conf" / "other.yml"
    async with plain_broker(tmp_path) as ask:
        outside.write_text("accounts: []\n")
        for path in (str(outside), str(tmp_path / "x.yml"), f"{tmp_path}/home/conf/acl/../other.yml", "/etc/passwd"):
            refused = await ask(WHITE, globalWhiteAddrs="127.0.0.1", aclFileFullPath=path)
            assert (refused.code, "no access file" in (refused.remark or "")) == (211, True)
        assert outside.read_text() == "accounts: []\n"
        assert not (tmp_path / "x.yml").exists()
        assert (await ask(WHITE, globalWhiteAddrs="no address")).code == 211
        more = str(tmp_path / "home" / "conf" / "acl" / "more.yml")
        assert (await ask(WHITE, globalWhiteAddrs="10.1.1.*", aclFileFullPath=more)).code == 0
        assert (await ask(SEND_V2, None)).code == 1
        assert (await ask(WHITE, globalWhiteAddrs="127.0.0.*,10.0.0.1")).code == 0
        assert (await ask(SEND_V2, None)).code == 0  # white, so nobody asks who it is
        shown = json.loads((await ask(ALL, None)).body)
        assert shown["globalWhiteAddrs"] == ["127.0.0.*", "10.0.0.1", "10.1.1.*"]


async def test_only_admins_and_no_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with plain_broker(tmp_path) as ask:
        for code, fields in (
            (PUT, {"accessKey": "RocketMQ", "admin": "true"}),
            (DELETE, {"accessKey": "another"}),
            (VERSION, {}),
            (WHITE, {"globalWhiteAddrs": "*"}),
            (ALL, {}),
        ):
            refused = await ask(code, USER, **fields)
            assert "Need admin permission" in (refused.remark or "")
        answer = await ask(ALL)
        assert [account["accessKey"] for account in json.loads(answer.body)["plainAccessConfigs"]] == [
            "RocketMQ", "rocketmq2", "another",
        ]  # fmt: skip
        assert b"12345678" not in answer.body
        assert b"secret" not in answer.body
        await ask(PUT, accessKey="carol-key", secretKey="whisper-it")
        await ask(PUT, accessKey="carol-key", secretKey="short")
    assert "whisper-it" not in caplog.text
    assert (tmp_path / "home" / "conf" / "plain_acl.yml").stat().st_mode & 0o077 == 0


async def test_without_access_files_the_codes_say_so(tmp_path: Path) -> None:
    async with Broker(configuration(tmp_path)) as broker:
        pool = Pool()
        assert broker.address is not None
        for code in (PUT, DELETE, VERSION, WHITE, ALL):
            answer = await pool.call(broker.address, Command(code, fields={"accessKey": "x"}), PATIENCE_SECONDS)
            assert "aclEnable is off" in (answer.remark or "")
        await pool.close()


@pytest.mark.parametrize("failing", ["users.json", "acls.json"])
def test_a_migration_that_the_disk_broke_off_is_made_good_by_the_next(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    access = read_access_files([tmp_path / "plain_acl.yml"])

    def save_others(path: Path, text: str, *, private: bool) -> None:
        if path.name == failing:
            raise OSError(28, "No space left on device")
        saved_file.save(path, text, private=private)

    with monkeypatch.context() as broken:
        broken.setattr(users_module, "save", save_others)
        with pytest.raises(RequestFailed, match="No space left"):
            migrate(Users(tmp_path), access)
    assert migrate(Users(tmp_path), access) == ["RocketMQ", "rocketmq2"]
    acl = Users(tmp_path).acl("User:RocketMQ")
    assert acl is not None
    assert {entry.resource for policy in acl.policies for entry in policy.entries} == {
        "Topic:topicA", "Topic:topicB", "Group:*",
    }  # fmt: skip


def test_a_new_user_has_none_of_the_policies_that_a_broken_off_migration_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    users = Users(tmp_path)

    def fail(_users: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(users, "_write_users", fail)
        with pytest.raises(OSError, match="No space left"):
            migrate(users, read_access_files([tmp_path / "plain_acl.yml"]))
    assert users.acl("User:RocketMQ") is not None
    users.create(User(username="RocketMQ", password="12345678"))
    assert users.entries("RocketMQ") == ([], [])


async def test_accounts_become_users_and_policies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: [10.1.1.1]\n" + FILE)
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "migrateAuthFromV1Enabled": "true",
        "rocketmqHome": str(tmp_path / "home"),
    }
    for start in range(2):
        async with Broker(configuration(tmp_path / "store", settings)) as broker:
            users = broker.state.users
            assert [(user.username, user.user_type) for user in users.all()] == [
                ("RocketMQ", "Normal"), ("rocketmq2", "Super"),
            ]  # fmt: skip
            acl = users.acl("User:RocketMQ")
            assert acl is not None
            found = {e.resource: (p.policy_type, e.decision, e.actions) for p in acl.policies for e in p.entries}
            assert (
                found
                == {
                    "Topic:topicA": ("Custom", "Deny", ["All"]),
                    "Topic:topicB": ("Custom", "Allow", ["Pub", "Sub"]),
                    "Group:*": ("Default", "Allow", ["Sub"]),
                }
                if start == 0
                else found.keys() == {"Topic:topicA", "Group:*"}
            )
            if start == 0:
                users.delete_acl("User:RocketMQ", None, "Topic:topicB")  # the next start does not bring it back
                request = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
                sign(request, ADMIN)
                pool = Pool()
                assert broker.address is not None
                assert (await pool.call(broker.address, request, PATIENCE_SECONDS)).code == 0
                await pool.close()
    assert "nobody passes unasked" in caplog.text
    assert "had the white address 192.168.1.*" in caplog.text
    assert "12345678" not in caplog.text
