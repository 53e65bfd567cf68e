from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import BodyError, StorageError, StoreFull
from orbitmq.fastjson import loads
from orbitmq.storage import tables
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.java_object import JavaObject, read_object, write_object
from orbitmq.storage.json_file import JsonFile, encode_table, read_table, read_table_or_backup
from orbitmq.storage.open_files import storage_error
from tests import golden_stores
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

SHAPES: dict[str, type[JavaObject]] = {
    tables.TOPICS: tables.TopicTable,
    tables.GROUPS: tables.GroupTable,
    tables.OFFSETS: tables.OffsetTable,
    tables.DELAYS: tables.DelayTable,
    tables.FILTERS: tables.FilterTable,
    tables.ORDERS: tables.OrderTable,
    tables.TIMER_COUNTS: tables.TimerCountTable,
    tables.HALF_COUNTS: tables.HalfCountTable,
}


def offsets(**table: int) -> tables.OffsetTable:
    return tables.OffsetTable(offset_table={f"{topic}@g": {0: offset} for topic, offset in table.items()})


@pytest.mark.parametrize("version", golden_stores.VERSIONS)
def test_every_table_apache_wrote_is_read_and_written_back_without_loss(version: str, tmp_path: Path) -> None:
    config = golden_stores.unpack(version, tmp_path) / "config"
    seen = 0
    for name, shape in SHAPES.items():
        if not (config / name).exists():
            continue
        table = read_table(LocalDisk(), config / name, shape)
        assert table is not None
        before, after = loads((config / name).read_bytes()), json.loads(encode_table(table))
        assert _contains(after, before), name
        assert read_object(shape, loads(encode_table(table))) == table
        seen += 1
    assert seen >= 5


def _contains(after: Any, before: Any) -> bool:
    """Every member of `before` is in `after`; a 4.9 table may gain the members 5.x has."""
    if isinstance(before, dict):
        return all(key in after and _contains(after[key], value) for key, value in before.items())
    return bool(after == before)


def test_apaches_tables_hold_what_the_run_left(tmp_path: Path) -> None:
    config = golden_stores.unpack("5.3.3", tmp_path) / "config"
    topics = JsonFile(LocalDisk(), config / tables.TOPICS, tables.TopicTable).load()
    assert topics.topic_config_table["TopicA"].read_queue_nums == 4
    assert topics.data_version.counter == 14
    groups = JsonFile(LocalDisk(), config / tables.GROUPS, tables.GroupTable).load()
    assert groups.subscription_group_table["popg"].retry_max_times == 16
    consumed = JsonFile(LocalDisk(), config / tables.OFFSETS, tables.OffsetTable).load()
    assert consumed.offset_table["TopicA@gen_c"] == {0: 8, 1: 8, 2: 9, 3: 9}
    assert "groupTopicMap" in consumed.unknown
    delays = JsonFile(LocalDisk(), config / tables.DELAYS, tables.DelayTable).load()
    assert delays.offset_table == {1: 3, 2: 1, 3: 1, 18: 0}
    orders = JsonFile(LocalDisk(), config / tables.ORDERS, tables.OrderTable).load()
    assert orders.table["TopicPop@popo"][0].offsets == [0]
    assert orders.table["TopicPop@popo"][0].attempt_id == "a1"
    timers = JsonFile(LocalDisk(), config / tables.TIMER_COUNTS, tables.TimerCountTable).load()
    assert timers.timing_count["TopicTimer"].count == 2
    halves = JsonFile(LocalDisk(), config / tables.HALF_COUNTS, tables.HalfCountTable).load()
    assert halves.transaction_count["TopicTx"].count == 1


def test_members_we_do_not_know_are_kept_at_every_level(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    text = b'{"new":{0:1},"topicConfigTable":{"T":{"topicName":"T","perm":4,"newer":[1,{a:2}]}},"dataVersion":{"z":1}}'
    path.write_bytes(text)
    file = JsonFile(LocalDisk(), path, tables.TopicTable)
    table = file.load()
    table.topic_config_table["T"].perm = 2
    table.topic_config_table["U"] = tables.TopicConfig(topic_name="U")
    assert file.save(table)
    written = json.loads(path.read_bytes())
    assert written["new"] == {"0": 1}
    assert written["topicConfigTable"]["T"]["newer"] == [1, {"a": 2}]
    assert written["topicConfigTable"]["T"]["perm"] == 2
    assert written["topicConfigTable"]["U"]["readQueueNums"] == 16
    assert written["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 0, "z": 1}


def test_filters_modes_and_mappings_are_read_as_java_writes_them() -> None:
    filters = read_object(
        tables.FilterTable,
        loads(
            b'{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[30,72,31]},'
            b'"bornTime":5,"clientVersion":6,"consumerGroup":"g","deadTime":0,"expression":"a > 1","expressionType":"SQL92",'
            b'"topic":"T","dead":true}},"topic":"T"}}}'
        ),
    )
    data = filters.filter_data_by_topic["T"].group_filter_data["g"]
    assert data.bloom_filter_data is not None
    assert (data.expression, data.bloom_filter_data.bit_pos, data.unknown) == ("a > 1", [30, 72, 31], {"dead": True})
    modes = read_object(
        tables.RequestModeTable,
        loads(
            b'{"messageRequestModeMap":{"T":{"g":{"consumerGroup":"g","mode":"POP","popShareQueueNum":2,"topic":"T"}}}}'
        ),
    )
    assert modes.message_request_mode_map["T"]["g"].mode == "POP"
    mapping = read_object(
        tables.QueueMappingTable,
        loads(
            b'{"topicQueueMappingInfoMap":{"T":{"topic":"T","bname":"b","totalQueues":2,"epoch":7,"currIdMap":{0:1},'
            b'"hostedQueues":{0:[{"gen":1,"queueId":1,"bname":"b","logicOffset":-1}]}}}}'
        ),
    )
    detail = mapping.topic_queue_mapping_info_map["T"]
    assert (detail.curr_id_map, detail.hosted_queues[0][0].logic_offset) == ({0: 1}, -1)
    for table in (filters, modes, mapping):
        assert read_object(type(table), loads(encode_table(table))) == table


def test_no_file_is_an_empty_table(tmp_path: Path) -> None:
    assert JsonFile(LocalDisk(), tmp_path / "config" / "x.json", tables.OffsetTable).load() == tables.OffsetTable()


def test_saving_keeps_the_version_before_and_skips_what_did_not_change(tmp_path: Path) -> None:
    file = JsonFile(LocalDisk(), tmp_path / "x.json", tables.OffsetTable)
    assert file.save(offsets(a=1))
    assert not (tmp_path / "x.json.bak").exists()
    assert file.save(offsets(a=2))
    assert not file.save(offsets(a=2))
    assert read_table(LocalDisk(), tmp_path / "x.json", tables.OffsetTable) == offsets(a=2)
    assert read_table(LocalDisk(), tmp_path / "x.json.bak", tables.OffsetTable) == offsets(a=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.json.bak"]


@pytest.mark.parametrize(
    "torn", [b"", b"\0" * 100, b"{", b'{"offsetTable":{"a@g":{0:', b"[1]", b'{"offsetTable":5}', b"\xff"]
)
def test_a_torn_file_gives_way_to_the_one_before_and_is_kept_aside(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "x.json"
    file = JsonFile(LocalDisk(), path, tables.OffsetTable)
    file.save(offsets(a=1))
    file.save(offsets(a=2))
    path.write_bytes(torn)
    assert read_table_or_backup(LocalDisk(), path, tables.OffsetTable) == offsets(a=1)
    assert path.read_bytes() == torn, "a reader touches nothing"
    again = JsonFile(LocalDisk(), path, tables.OffsetTable)
    assert again.load() == offsets(a=1)
    assert (tmp_path / "x.json.broken").read_bytes() == torn
    again.save(offsets(a=3))
    assert read_table_or_backup(LocalDisk(), tmp_path / "x.json.bak", tables.OffsetTable) == offsets(a=1)


def test_with_both_files_torn_the_table_is_empty_and_both_are_kept(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"{")
    (tmp_path / "x.json.bak").write_bytes(b"}")
    assert JsonFile(LocalDisk(), tmp_path / "x.json", tables.OffsetTable).load() == tables.OffsetTable()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json.bak.broken", "x.json.broken"]
    assert read_table_or_backup(LocalDisk(), tmp_path / "x.json", tables.OffsetTable) == tables.OffsetTable()


class _Forbidding(LocalDisk):
    def read(self, path: Path) -> bytes:
        cause = PermissionError(errno.EACCES, "Permission denied")
        raise storage_error("read", path, cause) from cause


def test_a_table_that_we_may_not_read_is_left_alone_and_nothing_is_put_in_its_place(tmp_path: Path) -> None:
    """As when it was copied by root: it may be whole, and an empty one instead would lose every topic."""
    JsonFile(LocalDisk(), tmp_path / "x.json", tables.OffsetTable).save(offsets(a=1))
    with pytest.raises(StorageError, match="Permission denied"):
        JsonFile(_Forbidding(), tmp_path / "x.json", tables.OffsetTable).load()
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(StorageError, match="a part of the path is a file"):
        JsonFile(LocalDisk(), tmp_path / "x.json" / "config" / "x.json", tables.OffsetTable).load()


def test_a_full_disk_or_a_failed_sync_leaves_the_old_table(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = JsonFile(disk, tmp_path / "x.json", tables.OffsetTable)
    file.save(offsets(a=1))
    disk.faults.space_left = 0
    with pytest.raises(StoreFull):
        file.save(offsets(a=2))
    disk.faults.space_left = None
    disk.faults.sync_fails = True
    with pytest.raises(StorageError):
        file.save(offsets(a=2))
    assert JsonFile(disk, tmp_path / "x.json", tables.OffsetTable).load() == offsets(a=1)
    disk.faults.sync_fails = False
    assert file.save(offsets(a=2)), "what could not be saved is tried again"


def test_what_was_saved_survives_a_power_cut(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    file = JsonFile(disk, tmp_path / "x.json", tables.OffsetTable)
    for number in range(5):
        file.save(offsets(a=number))
        disk.crash()
        assert JsonFile(disk, tmp_path / "x.json", tables.OffsetTable).load() == offsets(a=number)


@given(st.dictionaries(st.text(), st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5))
def test_any_offsets_survive_the_round_trip(table: dict[str, dict[int, int]]) -> None:
    written = tables.OffsetTable(offset_table=table)
    assert read_object(tables.OffsetTable, loads(encode_table(written))) == written


def test_a_member_of_another_kind_is_a_body_error() -> None:
    for members in (
        {"offsetTable": {"a@g": {"x": 1}}},
        {"offsetTable": {"a@g": 5}},
        {"dataVersion": 5},
        {"dataVersion": {"counter": "many"}},
    ):
        with pytest.raises(BodyError):
            read_object(tables.OffsetTable, members)
    with pytest.raises(BodyError, match="topic_name"):
        read_object(tables.TopicTable, {"topicConfigTable": {"T": {}}})


def test_members_are_written_in_alphabetical_order_and_none_is_left_out() -> None:
    members = write_object(tables.GroupConfig(group_name="g"))
    assert list(members) == sorted(members)
    assert "subscriptionDataSet" not in members
