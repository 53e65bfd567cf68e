"""The broker's settings, shown and changed while it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from orbitmq.access.settings import ACCESS_SETTINGS
from orbitmq.broker.java_settings import WITHOUT_EFFECT
from orbitmq.broker.settings import AT_NEXT_START, NEVER_CHANGEABLE, Settings
from orbitmq.configuration import known_keys
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.properties_text import parse_properties
from tests.broker.kit import Wire, running, wire
from tests.broker.test_admin_topics import make

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command


async def shown(client: Wire) -> dict[str, str]:
    return parse_properties((await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode())


async def change(client: Wire, text: str) -> Command:
    return await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def test_every_setting_is_shown_also_those_without_effect_here(client: Wire) -> None:
    answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
    settings = parse_properties(answer.body.decode())
    assert (known_keys(Settings) - ACCESS_SETTINGS) | WITHOUT_EFFECT.keys() <= settings.keys()
    assert not ACCESS_SETTINGS & settings.keys()
    assert settings["brokerName"] == "broker-a"
    assert json.loads(answer.fields["version"])["counter"] == 0


async def test_a_change_counts_at_once_is_saved_and_counts_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await client.send("Before")).code == 0
        assert (await change(client, "autoCreateTopicEnable=false\nfileReservedTime=50\n")).code == 0
        assert (await client.send("After")).code == ResponseCode.TOPIC_NOT_EXIST
        answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
        assert json.loads(answer.fields["version"])["counter"] == 1
        file = broker.configuration.file
    saved = parse_properties(file.read_text())
    assert (saved["autoCreateTopicEnable"], saved["fileReservedTime"]) == ("false", "50")


async def test_a_setting_without_effect_is_kept_and_shown_as_it_was_given(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, wire(broker) as client:
        assert (await change(client, "sendMessageThreadPoolNums=32")).code == 0
        assert (await shown(client))["sendMessageThreadPoolNums"] == "32"
        assert (await change(client, "sendMessageThreadPoolNums=a\\nlistenPort=1")).code == 29
        assert parse_properties(broker.configuration.file.read_text())["sendMessageThreadPoolNums"] == "32"


async def test_a_new_permission_is_told_to_the_name_servers(broker: Broker, client: Wire) -> None:
    await make(client, "T")
    heard: list[str] = []
    broker.state.topics.when_changed(lambda topics: heard.extend(topic.topic_name for topic in topics))
    version = broker.state.topics.version
    assert (await change(client, "brokerPermission=4")).code == 0
    assert "T" in heard
    assert broker.state.topics.version.counter == version.counter + 1
    assert (await client.send("T")).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("key", sorted(NEVER_CHANGEABLE))
async def test_what_could_reach_other_files_be_another_broker_or_not_start_cannot_be_changed(
    client: Wire, key: str
) -> None:
    before = await shown(client)
    answer = await change(client, f"{key}=../elsewhere\nfileReservedTime=50")
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    assert await shown(client) == before


@pytest.mark.parametrize(
    "text",
    [
        "fileReservedTime=soon",
        "autoCreateTopicEnable=maybe",
        "brokerPermission=8",
        "flushDiskType=NEVER",
        "deleteWhen=25",
        "messageDelayLevel=1s soon",
        "fileReservedTime=-1",
        "cleanResourceInterval=0",
        "regionId=a\\nlistenPort=1",
    ],
)
async def test_a_value_that_does_not_fit_changes_nothing(client: Wire, text: str) -> None:
    before = await shown(client)
    answer = await change(client, f"maxMsgsNumBatch=99\n{text}")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert await shown(client) == before


async def test_unknown_keys_and_empty_requests_are_no_error(client: Wire) -> None:
    before = await shown(client)
    for text in ("", "noSuchSetting=1", "# only a comment"):
        assert (await change(client, text)).code == 0
    assert await shown(client) == before
    assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff=1")).code == 29


def test_settings_that_wait_for_the_next_start_exist() -> None:
    assert known_keys(Settings) >= AT_NEXT_START
