"""Settings kept for operators: saved on every change, in Apache's file, whole whatever happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from orbitmq import saved_file
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.nameserver.kv_config import KvConfig
from orbitmq.protocol.codes import RequestCode
from tests.nameserver.running import running
from tests.raw_client import raw_client


def loaded(path: Path) -> KvConfig:
    kept = KvConfig(path)
    kept.load()
    return kept


async def test_what_was_kept_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kvConfig.json"
    kept = loaded(path)
    await kept.put("ns", "k", "v")
    await kept.put("ns", "ünï", 'quotes " and\nlines')
    await kept.put("other", "k", "")
    again = loaded(path)
    assert again.namespace("ns") == {"k": "v", "ünï": 'quotes " and\nlines'}
    assert again.get("other", "k") == ""
    assert again.summary().startswith("ns/k, ")


async def test_the_file_has_apaches_form_and_the_one_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kept = loaded(path)
    await kept.put("ns", "k", "1")
    await kept.put("ns", "k", "2")
    assert json.loads(path.read_text()) == {"configTable": {"ns": {"k": "2"}}}
    assert json.loads((tmp_path / "kvConfig.json.bak").read_text()) == {"configTable": {"ns": {"k": "1"}}}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]


async def test_an_emptied_namespace_is_not_one_that_never_was(tmp_path: Path) -> None:
    kept = loaded(tmp_path / "kv.json")
    assert kept.namespace("ns") is None
    await kept.put("ns", "k", "v")
    await kept.delete("ns", "k")
    assert kept.namespace("ns") == {}
    assert loaded(tmp_path / "kv.json").namespace("ns") == {}
    await kept.delete("ns", "k")
    await kept.delete("never", "k")
    assert kept.namespace("never") is None


def test_reads_files_of_apaches_name_server(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:8;b:8"\n\t\t}\n\t}\n}')
    assert loaded(path).namespace("ORDER_TOPIC_CONFIG") == {"T": "a:8;b:8"}


@pytest.mark.parametrize("torn", ["", '{"configTable":{"ns":{"k"', "[]", '{"configTable":{"ns":5}}', "\x00" * 50])
async def test_a_torn_file_gives_way_to_the_one_before(
    torn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, backup = tmp_path / "kv.json", tmp_path / "kv.json.bak"
    path.write_text(torn)
    backup.write_text('{"configTable":{"ns":{"k":"v"}}}')
    kept = loaded(path)
    assert kept.get("ns", "k") == "v"
    assert len(caplog.records) == 1
    await kept.put("ns", "k2", "v2")
    # Until that was saved, the backup was the only good copy: it may not be overwritten with the torn file.
    assert json.loads(backup.read_text()) == {"configTable": {"ns": {"k": "v"}}}
    await kept.put("ns", "k3", "v3")
    assert json.loads(backup.read_text()) == {"configTable": {"ns": {"k": "v", "k2": "v2"}}}


def test_with_both_files_torn_the_table_is_empty_and_both_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kv.json").write_text("torn")
    (tmp_path / "kv.json.bak").write_text("torn")
    assert loaded(tmp_path / "kv.json").summary() == "none"
    assert len(caplog.records) == 2


def test_a_file_that_cannot_be_read_stops_the_start_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "kv.json").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*kv\.json"):
        loaded(tmp_path / "kv.json")


async def test_a_change_that_cannot_be_saved_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kv.json"
    kept = loaded(path)
    await kept.put("ns", "k", "before")

    def full(path: Path, content: bytes, *, private: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_file, "_replace", full)
    with pytest.raises(RequestFailed, match=r"No space left on device; nothing was changed"):
        await kept.put("ns", "k", "after")
    with pytest.raises(RequestFailed):
        await kept.delete("ns", "k")
    assert kept.get("ns", "k") == "before"
    assert loaded(path).get("ns", "k") == "before"
    monkeypatch.undo()
    await kept.put("ns", "k", "after")
    assert loaded(path).get("ns", "k") == "after"


async def test_a_crash_in_the_middle_of_saving_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kv.json"
    kept = loaded(path)
    await kept.put("ns", "k", "before")

    def crash(self: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(RequestFailed):
        await kept.put("ns", "k", "after")
    assert json.loads(path.read_text()) == {"configTable": {"ns": {"k": "before"}}}
    assert [file.name for file in tmp_path.iterdir()] == ["kv.json"]  # no debris


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    kept = loaded(path)
    await asyncio.gather(*(kept.put("ns", f"k{i}", str(i)) for i in range(20)))
    assert loaded(path).namespace("ns") == {f"k{i}": str(i) for i in range(20)}


# ---- over the wire


async def test_kept_put_listed_and_deleted_over_the_wire(tmp_path: Path) -> None:
    item = {"namespace": "ns", "key": "k"}
    async with running(tmp_path) as server, raw_client(server.address) as client:
        absent = await client.ask(RequestCode.GET_KV_CONFIG, item)
        assert (absent.code, absent.remark) == (22, "No config item, Namespace: ns Key: k")
        assert (await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"})).code == 22
        assert (await client.ask(RequestCode.PUT_KV_CONFIG, item | {"value": "v"})).code == 0
        assert (await client.ask(RequestCode.GET_KV_CONFIG, item)).fields == {"value": "v"}
        assert (
            await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"})
        ).body == b'{"table":{"k":"v"}}'
        assert (await client.ask(RequestCode.DELETE_KV_CONFIG, item)).code == 0
        assert (await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"})).body == b'{"table":{}}'
    async with running(tmp_path) as server, raw_client(server.address) as client:
        assert (await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ns"})).code == 0


async def test_a_folder_that_cannot_be_written_is_told_to_the_asker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    async with (
        running(tmp_path, kvConfigPath=tmp_path / "file" / "kv.json") as server,
        raw_client(server.address) as client,
    ):
        item = {"namespace": "ns", "key": "k", "value": "v"}
        answer = await client.ask(RequestCode.PUT_KV_CONFIG, item)
        assert answer.code == 1
        assert "nothing was changed" in (answer.remark or "")
        assert (await client.ask(RequestCode.GET_KV_CONFIG, item)).code == 22


async def test_values_are_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "orbitmq")
    kept = loaded(tmp_path / "kvConfig.json")
    await kept.put("ns", "token", "hunter2")
    assert "kept token in ns" in caplog.text
    assert kept.summary() == "ns/token"
    assert "hunter2" not in caplog.text
