"""Access files of 4.x: what they allow, and what happens when they change."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.access.needs import Action, cluster, group, nothing, topic
from orbitmq.access.plain_file import Permission, access_files, read_access_files, read_permission
from orbitmq.access.plain_gate import PlainGate
from orbitmq.broker.broker import Broker
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.testing.clock import MovableClock
from orbitmq.transport.pool import Pool
from tests.broker.kit import PATIENCE_SECONDS, configuration

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.access.needs import NeedsOf


FILE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: "12345678"
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
  - accessKey: rocketmq2
    secretKey: "12345678"
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""
USER = Credentials("RocketMQ", "12345678")
ADMIN = Credentials("rocketmq2", "12345678")
CHANGE = cluster(Action.UPDATE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def ask(gate: PlainGate, who: Credentials | None, needs: NeedsOf, source: str = "127.0.0.1", **fields: str) -> None:
    request = Command(RequestCode.PULL_MESSAGE, fields=dict(fields))
    if who is not None:
        sign(request, who)
    gate.check(request, source, needs)


@pytest.mark.parametrize(
    ("who", "needs", "fields", "refusal"),
    [
        (None, nothing, {}, "No accessKey is configured"),
        (Credentials("stranger", "12345678"), nothing, {}, "No acl config for stranger"),
        (Credentials("RocketMQ", "guessed!"), nothing, {}, "Check signature failed"),
        (USER, nothing, {}, None),
        (USER, topic(Action.PUB), {"topic": "topicB"}, None),
        (USER, topic(Action.SUB), {"topic": "topicB"}, None),
        (USER, topic(Action.SUB), {"topic": "topicC"}, None),
        (USER, topic(Action.PUB), {"topic": "topicC"}, "No permission for Topic:topicC"),
        (USER, topic(Action.PUB), {"topic": "topicA"}, "No permission for Topic:topicA"),
        (USER, topic(Action.PUB), {"topic": "other"}, "No default permission for Topic:other"),
        (USER, topic(Action.PUB), {"topic": "RMQ_SYS_TRACE_TOPIC"}, None),
        (USER, topic(Action.SUB), {"topic": "RMQ_SYS_TRACE_TOPIC"}, "No default permission"),
        (USER, topic(Action.GET), {"topic": "other"}, None),
        (USER, topic(Action.PUB, Action.SUB, Action.GET), {"topic": "topicC"}, None),
        (USER, group(Action.SUB), {"consumerGroup": "any"}, None),
        (USER, group(Action.SUB), {"consumerGroup": "groupA"}, "No permission for Group:groupA"),
        (USER, topic(Action.SUB), {"topic": "%RETRY%groupA"}, "No permission for Group:groupA"),
        (USER, CHANGE, {}, "Need admin permission"),
        (USER, topic(Action.CREATE), {"topic": "topicB"}, "Need admin permission"),
        (ADMIN, CHANGE, {}, None),
        (ADMIN, topic(Action.PUB), {"topic": "topicA"}, None),
        (Credentials("rocketmq2", "guessed!"), CHANGE, {}, "Check signature failed"),
    ],
)
def test_who_may_do_what(
    file: Path, who: Credentials | None, needs: NeedsOf, fields: dict[str, str], refusal: str | None
) -> None:
    gate = PlainGate(file, "c", MovableClock())
    if refusal is None:
        ask(gate, who, needs, **fields)
    else:
        with pytest.raises(RequestFailed, match=refusal) as refused:
            ask(gate, who, needs, **fields)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_addresses_on_the_white_lists_are_not_asked(file: Path) -> None:
    gate = PlainGate(file, "c", MovableClock())
    ask(gate, None, CHANGE, "10.10.103.7")
    ask(gate, Credentials("rocketmq2", "guessed!"), CHANGE, "192.168.1.9")
    with pytest.raises(RequestFailed):
        ask(gate, Credentials("RocketMQ", "guessed!"), nothing, "192.168.1.9")


def test_a_link_that_leads_nowhere_changes_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = MovableClock()
    gate = PlainGate(file, "c", clock)
    (file.parent / "acl").mkdir()
    (file.parent / "acl" / "more.yml").symlink_to("nowhere.yml")
    clock.advance(seconds=1)
    ask(gate, USER, topic(Action.PUB), topic="topicB")
    assert "more.yml cannot be read: No such file or directory" in caplog.text
    with pytest.raises(ConfigError, match=r"more\.yml cannot be read"):
        PlainGate(file, "c", clock)


def test_a_change_of_the_files_counts_and_a_broken_one_does_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = MovableClock()
    gate = PlainGate(file, "c", clock)
    with pytest.raises(RequestFailed):
        ask(gate, USER, topic(Action.PUB), topic="topicC")
    change(file, FILE.replace("topicC=SUB", "topicC=PUB"))
    clock.advance(seconds=1)
    ask(gate, USER, topic(Action.PUB), topic="topicC")
    change(file, "accounts: [{accessKey: short")
    clock.advance(seconds=1)
    ask(gate, USER, topic(Action.PUB), topic="topicC")
    assert "those before stay in force" in caplog.text
    more = file.parent / "acl" / "team.yaml"
    more.parent.mkdir()
    more.write_text('accounts: [{accessKey: newcomer, secretKey: "12345678", defaultTopicPerm: PUB}]')
    change(file, FILE)
    clock.advance(seconds=1)
    ask(gate, Credentials("newcomer", "12345678"), topic(Action.PUB), topic="any")


def change(file: Path, text: str) -> None:
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))  # whatever the clock of the file system thinks


@pytest.mark.parametrize(
    "text",
    [
        "just words", "accounts: [1]", "accounts: [{accessKey: short, secretKey: short}]", "{",
        "accounts: 5", "globalWhiteRemoteAddresses: 5", "accounts: [{accessKey: longenough, secretKey: longenough, groupPerms: 5}]",
        "globalWhiteRemoteAddresses: [nowhere]", "accounts: [{accessKey: longenough, secretKey: longenough, topicPerms: [x]}]",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
        read_access_files(access_files(file))


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        ("PUB", Permission.PUB), ("SUB|PUB", Permission.PUB | Permission.SUB), ("DENY", Permission.DENY),
        (None, Permission.DENY), ("", Permission.DENY), ("ALL", Permission.DENY), ("PUB|x", Permission.DENY),
    ],
)  # fmt: skip
def test_permissions(text: Any, permission: Permission) -> None:
    assert read_permission(text) == permission


async def test_a_broker_with_access_files(tmp_path: Path, file: Path) -> None:
    settings = {"aclEnable": "true", "rocketmqHome": str(file.parent.parent)}
    async with Broker(configuration(tmp_path / "store", settings)) as broker:
        assert broker.address is not None
        pool = Pool()
        unsigned = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        answer = await pool.call(broker.address, unsigned, PATIENCE_SECONDS)
        assert (answer.code, "No accessKey" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        signed = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        sign(signed, USER)
        assert (await pool.call(broker.address, signed, PATIENCE_SECONDS)).code == ResponseCode.SUCCESS
        await pool.close()


def test_two_kinds_of_access_control_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which of the two"):
        configuration(tmp_path, {"aclEnable": "true", "authenticationEnabled": "true"})


async def test_access_control_without_its_file_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*plain_acl\.yml"):
        await Broker(configuration(tmp_path, {"aclEnable": "true"})).start()


@pytest.mark.parametrize(
    "broken",
    [
        'accounts:\n  - accessKey: RocketMQ\n    secretKey: "very-secret\n',
        "accounts:\n  - accessKey: RocketMQ\n    secretKey: very: secret\n",
        "accounts:\n  - RocketMQ very-secret\n",
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_secrets(file: Path, broken: str) -> None:
    file.write_text(broken)
    with pytest.raises(ConfigError) as raised:
        read_access_files([file])
    assert str(file) in str(raised.value)
    assert "secret" not in str(raised.value).replace("secretKey and permissions", "")
