"""The server's own settings: read from Apache's file, shown, changed from afar, and never a way to another file."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from orbitmq.errors import ConfigError
from orbitmq.nameserver import settings
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.protocol.properties_text import parse_properties
from orbitmq.transport.tls import ClientAuth, TlsMode
from tests.golden_frames import golden_frames
from tests.nameserver.running import running, write_settings
from tests.raw_client import RawClient, raw_client

UPDATE, GET = RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG


def snapshot(*folders: Path) -> dict[str, str]:
    """Every file below the folders, and what is in it."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for folder in folders
        for path in folder.rglob("*")
    }


async def shown(client: RawClient) -> dict[str, str]:
    return parse_properties((await client.ask(GET)).body.decode())


# ---- the file


def test_apaches_keys_are_taken_and_unknown_ones_kept(tmp_path: Path) -> None:
    path = write_settings(
        tmp_path, scanNotActiveBrokerInterval=700, clusterTest=True, mystery="x y", scanNotActiveBroker=1
    )
    configuration = settings.load(path)
    assert configuration.settings.scan_not_active_broker_interval == 700
    assert configuration.settings.cluster_test is True
    assert configuration.settings.config_store_path == str(path)
    assert configuration.unknown == {"mystery": "x y", "scanNotActiveBroker": "1"}
    assert configuration.as_properties()["mystery"] == "x y"
    assert configuration.unknown_told("name server") == [
        "mystery is no setting of a name server",
        "scanNotActiveBroker is no setting of a name server; did you mean scanNotActiveBrokerInterval?",
    ]


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = write_settings(tmp_path, listenPort=1111)
    assert settings.load(path, listen_port=2222).settings.listen_port == 2222
    assert settings.load(path, listen_port=None).settings.listen_port == 1111


def test_every_setting_of_apaches_name_server_is_shown() -> None:
    ours = set(settings.load(None).as_properties())
    for golden in golden_frames():
        if golden.to_code == GET and golden.source.startswith("5."):
            theirs = set(parse_properties(commands.decode(FrameDecoder().feed(golden.data)[0]).body.decode()))
            assert theirs - ours == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listenPort", "many"),
        ("listenPort", "65536"),
        ("listenPort", "-1"),
        ("clusterTest", "perhaps"),
        ("enableControllerInNamesrv", "true"),
        ("orbitmq.clusterTestNamesrvAddr", "nowhere"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_the_start(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere" if "orbitmq" in key else key):
        settings.load(write_settings(tmp_path, **{key: value}))


def test_a_number_of_a_file_that_is_out_of_bounds_is_brought_into_them(tmp_path: Path) -> None:
    """Apache's name server starts with any."""
    given = {"scanNotActiveBrokerInterval": "0", "waitSecondsForService": "4000"}
    configuration = settings.load(write_settings(tmp_path, **given))
    assert configuration.settings.scan_not_active_broker_interval == 10
    assert configuration.settings.wait_seconds_for_service == 3600
    assert configuration.adjusted == (
        "scanNotActiveBrokerInterval=0 is out of range, from 10 to 3600000: 10 is used",
        "waitSecondsForService=4000 is out of range, from 0 to 3600: 3600 is used",
    )


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        settings.load(tmp_path / "absent")
    (tmp_path / "bad").write_text("a=\\uXX")
    with pytest.raises(ConfigError, match="is not a properties file"):
        settings.load(tmp_path / "bad")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a properties file"):
        settings.load(tmp_path / "binary")


def test_tls_is_set_in_the_same_file(tmp_path: Path) -> None:
    path = write_settings(
        tmp_path,
        **{"tls.server.mode": "disabled", "tls.server.need.client.auth": "require", "tls.server.trustCertPath": "/ca"},
    )
    tls = settings.load(path).tls
    assert (tls.mode, tls.client_auth, tls.trusted) == (TlsMode.DISABLED, ClientAuth.REQUIRE, Path("/ca"))
    with pytest.raises(ConfigError, match="TLS"):
        settings.load(write_settings(tmp_path, **{"tls.server.mode": "sometimes"}))


# ---- shown and changed


async def test_settings_are_shown_sorted_and_without_secrets(tmp_path: Path) -> None:
    secret: dict[str, Any] = {"tls.server.keyPassword": "hush"}
    async with running(tmp_path, mystery="x", **secret) as server, raw_client(server.address) as client:
        body = (await client.ask(GET)).body.decode()
        assert body.splitlines() == sorted(body.splitlines())
        assert "mystery=x" in body
        assert "orderMessageEnable=false" in body
        assert "hush" not in body


async def test_a_change_counts_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, mystery="x") as server, raw_client(server.address) as client:
        assert (await client.ask(UPDATE, body=b"enableTopicList=false\nproductEnvName=back\\\\slash")).code == 0
        assert (await client.ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"})).remark == "disable"
        assert (await shown(client))["enableTopicList"] == "false"
    again = settings.load(tmp_path / "nameserver.conf")
    assert again.settings.enable_topic_list is False
    assert again.settings.product_env_name == "back\\slash"
    assert again.unknown == {"mystery": "x"}
    assert (tmp_path / "nameserver.conf.bak").exists()


async def test_a_change_keeps_what_the_file_says_about_tls(tmp_path: Path) -> None:
    about_tls: dict[str, Any] = {
        "tls.server.mode": "disabled",
        "tls.client.keyPassword": "p\\w",
        "tls.test.mode.enable": "false",
    }
    async with running(tmp_path, **about_tls) as server, raw_client(server.address) as client:
        for _ in range(2):
            assert (await client.ask(UPDATE, body=b"waitSecondsForService=7")).code == 0
    kept = parse_properties((tmp_path / "nameserver.conf").read_text())
    assert {key: kept[key] for key in about_tls} == about_tls
    assert settings.load(tmp_path / "nameserver.conf").tls.mode is TlsMode.DISABLED


@pytest.mark.parametrize("body", [b"", b"# nothing", b"unheardOf=1", b"unheardOf=1\nalso=2"])
async def test_nothing_and_unknown_keys_are_accepted_as_apache_does(
    body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as client:
        before = await shown(client)
        assert (await client.ask(UPDATE, body=body)).code == 0
        assert await shown(client) == before
    assert "unheardOf" not in (tmp_path / "nameserver.conf").read_text()
    assert len(caplog.records) <= 1


async def test_changes_at_the_same_time_are_all_made(tmp_path: Path) -> None:
    bodies = [b"waitSecondsForService=7", b"enableTopicList=false", b"productEnvName=x", b"orderMessageEnable=true"]
    async with running(tmp_path) as server, raw_client(server.address) as client:
        client.send(b"".join(client.request(UPDATE, body=body) for body in bodies))
        assert [(await client.answer()).code for _ in bodies] == [0] * len(bodies)
        now = await shown(client)
    for body in bodies:
        key, _, value = body.decode().partition("=")
        assert now[key] == value
        assert parse_properties((tmp_path / "nameserver.conf").read_text())[key] == value


REFUSED = [
    (b"waitSecondsForService=many", 29),
    (b"scanNotActiveBrokerInterval=0", 29),
    (b"waitSecondsForService=7\nclusterTest=perhaps", 29),
    (b"productEnvName=a\\u000akvConfigPath=/tmp/evil", 29),
    (b"productEnvName=a\\nkvConfigPath=/tmp/evil", 29),
    (b"productEnvName=a\\u2028b", 29),
    (b"productEnvName=\\u001b[31m", 29),
    (b"orbitmq.clusterTestNamesrvAddr=nowhere", 29),
    (b"productEnvName=\\uXYZW", 29),
    (b"productEnvName=\xff\xfe", 29),
    (b"kvConfigPath=/tmp/evil", 16),
    (b"configStorePath=/tmp/evil", 16),
    (b"rocketmqHome=/tmp/evil", 16),
    (b"configBlackList=nothing", 16),
    (b"\\u006bvConfigPath=/tmp/evil", 16),
    (b"kvConfigPath : /tmp/evil", 16),
    (b"waitSecondsForService=7\nconfigStorePath=/tmp/evil", 16),
    (b"productEnvName=secret", 16),
]


@pytest.mark.parametrize(("body", "code"), REFUSED, ids=[repr(body) for body, _ in REFUSED])
async def test_a_change_that_may_not_be_changes_nothing_in_memory_or_on_disk(
    body: bytes, code: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    black_list = "productEnvName; other" if body == b"productEnvName=secret" else "configBlackList"
    async with running(tmp_path, configBlackList=black_list) as server, raw_client(server.address) as client:
        before, files = await shown(client), snapshot(tmp_path)
        caplog.clear()
        answer = await client.ask(UPDATE, body=body)
        assert answer.code == code
        if code == 16:
            assert answer.remark == "Can not update config in black list."
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is None
        assert await shown(client) == before
        assert snapshot(tmp_path) == files


async def test_cve_2023_37582_the_replayed_attack_writes_and_moves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: point configStorePath at a file worth having, then let a change of settings write it."""
    home, target = tmp_path / "home", tmp_path / "victim"
    home.mkdir()
    target.mkdir()
    (target / "authorized_keys").write_text("only mine")
    monkeypatch.setenv("HOME", str(home))
    async with running(tmp_path / "server") as server, raw_client(server.address) as client:
        before = snapshot(home, target)
        for place in (target / "authorized_keys", target / "new", home / ".bashrc"):
            for body in (
                f"configStorePath={place}\nproductEnvName=test/path\\nssh-rsa AAAA",
                f"configStorePath={place}",
                f"kvConfigPath={place}",
                f"rocketmqHome={place}",
                f"configStorePathName={place}",
                f"productEnvName=x\\u000aconfigStorePath={place}",
                f"unknown=x\nconfigStorePath\\u0020={place}",
            ):
                answer = await client.ask(UPDATE, body=body.encode())
                assert answer.code in (0, 16, 29)
            # A harmless change, to make the server save.
            assert (await client.ask(UPDATE, body=b"waitSecondsForService=9")).code == 0
            item = {"namespace": "n", "key": "k", "value": "ssh-rsa AAAA"}
            assert (await client.ask(RequestCode.PUT_KV_CONFIG, item)).code == 0
        assert snapshot(home, target) == before
        written = {path.name for path in (tmp_path / "server").iterdir()}
        assert written == {"nameserver.conf", "nameserver.conf.bak", "kvConfig.json", "kvConfig.json.bak"}
    restarted = settings.load(tmp_path / "server" / "nameserver.conf")
    assert restarted.settings.config_store_path == str(tmp_path / "server" / "nameserver.conf")
    assert restarted.settings.kv_config_path == str(tmp_path / "server" / "kvConfig.json")


async def test_a_change_that_cannot_be_saved_did_not_happen(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.address) as client:
        before = await shown(client)
        (tmp_path / "nameserver.conf").unlink()
        (tmp_path / "nameserver.conf").mkdir()
        answer = await client.ask(UPDATE, body=b"waitSecondsForService=7")
        assert answer.code != 0
        assert await shown(client) == before


async def test_a_large_change_of_unknown_keys_is_one_line_and_quick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"".join(b"unheard%d=x\n" % i for i in range(100_000))
    async with running(tmp_path) as server, raw_client(server.address) as client:
        async with asyncio.timeout(15):
            assert (await client.ask(UPDATE, body=body)).code == 0
    assert len(caplog.records) <= 1
