"""SQL92 filters told by bits beside the queue entries: nothing is missed, and records nobody wants are not read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orbitmq.broker import consumer_filters
from orbitmq.broker.settings_bounds import RANGES
from orbitmq.broker.sql_filter.bloom import BloomFilter, murmur3_128
from orbitmq.clock import ManualClock
from orbitmq.storage.queue_extension import LAST_EXTENSION_ADDRESS
from tests.broker.kit import HEART_BEAT, UNREGISTER, Wire, messages_of, running, wire
from tests.broker.test_admin_topics import make

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from orbitmq.broker.broker import Broker

DELETE_TOPIC = 215
SETTINGS: dict[str, Any] = {
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": 34 * 10 + 4,  # ten units a file
}


async def join(client: Wire, group: str, expression: str, version: int = 1, topics: Iterable[str] = ("T",)) -> None:
    wanted = [
        {"topic": topic, "subString": expression, "subVersion": version, "expressionType": "SQL92"} for topic in topics
    ]
    consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": wanted}
    beat = {"clientID": group, "consumerDataSet": [consumer], "producerDataSet": []}
    assert (await client.ask(HEART_BEAT, None, json.dumps(beat).encode())).code == 0


async def pulled(client: Wire, group: str, offset: int = 0) -> list[bytes]:
    """With the group's own subscription, in as many rounds as it takes."""
    found: list[bytes] = []
    while (answer := await client.pull("T", 0, offset, consumer_group=group, sys_flag=0)).code in (0, 20):
        found += [message.body for message in messages_of(answer)]
        offset = int(answer.fields["nextBeginOffset"])
    return found


def records_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Log offsets of the records that are looked at from now on."""
    log, seen = broker.state.store.log, []
    read = log.read

    def noted(offset: int, size: int) -> memoryview | None:
        seen.append(offset)
        return read(offset, size)

    monkeypatch.setattr(log, "read", noted)
    return seen


def test_the_hash_and_the_bits_are_apaches() -> None:
    bloom = BloomFilter(20, 32)
    assert (bloom.bits, bloom.hashes) == (112, 3)
    assert bloom.positions("sqlg#XT") == [30, 72, 31]
    assert murmur3_128(b"") == 0
    assert f"{murmur3_128(b'hello'):016x}" == "cbd8a7b341bd9b02"
    assert f"{murmur3_128(b'The quick brown fox jumps over the lazy dog'):016x}" == "e34bbc7bbc071b6c"


async def test_what_a_filter_does_not_match_is_not_even_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, **SETTINGS) as broker, wire(broker) as client:
        await client.send("T", b"before", price="7")  # not marked for anybody
        await join(client, "G", "price > 5")
        await join(client, "H", "price > 90")
        clock.advance(ms=1)
        for price in range(100):
            await client.send("T", b"%d" % price, price=str(price))
        seen = records_read(broker, monkeypatch)

        assert await pulled(client, "G") == [b"before", *(b"%d" % price for price in range(6, 100))]
        seen.clear()
        assert await pulled(client, "H") == [b"%d" % price for price in range(91, 100)]
        assert len(seen) < 40  # nine wanted, one older than the filter, and a few that share their bits
        (_, _, code) = (broker.state.store.queue_entries("T", 0, 50, 1) or [])[0]
        assert code <= LAST_EXTENSION_ADDRESS
    table = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
    saved = table["filterDataByTopic"]["T"]["groupFilterData"]["H"]
    assert (saved["expression"], saved["bloomFilterData"]["bitNum"]) == ("price > 90", 112)
    assert saved["bloomFilterData"]["bitPos"] == BloomFilter(20, 32).positions("H#T")


async def test_filters_and_bits_survive_a_restart_and_a_change(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock, **SETTINGS) as broker, wire(broker) as client:
        await make(client, "T")
        await join(client, "G", "a = 1")
        clock.advance(ms=1)
        for number in range(30):
            await client.send("T", b"%d" % number, a=str(number % 3))
    clock.advance(seconds=60)
    async with running(tmp_path, clock=clock, **SETTINGS) as broker, wire(broker) as client:
        await join(client, "G", "a = 1")
        wanted = [b"%d" % number for number in range(30) if number % 3 == 1]
        assert await pulled(client, "G") == wanted
        await client.send("T", b"more", a="1")
        assert await pulled(client, "G") == [*wanted, b"more"]
        clock.advance(ms=1)
        await join(client, "G", "a = 2", version=2)  # marks of before say nothing about it
        clock.advance(ms=1)
        await client.send("T", b"last", a="2")
        assert await pulled(client, "G") == [*(b"%d" % number for number in range(30) if number % 3 == 2), b"last"]


async def test_tags_are_found_through_the_extension_too(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as broker, wire(broker) as client:
        for number in range(25):
            await client.send("T", b"%d" % number, TAGS=f"t{number % 2}")

        found = messages_of(await client.pull("T", subscription="t1"))

        assert [message.body for message in found] == [b"%d" % number for number in range(25) if number % 2]
        assert len(list((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())) == 2
        await client.ask(DELETE_TOPIC, {"topic": "../consumequeue_ext/T"})
        assert (tmp_path / "consumequeue_ext" / "T" / "0").exists()
        await client.ask(DELETE_TOPIC, {"topic": "T"})
        assert not (tmp_path / "consumequeue_ext" / "T").exists()


async def test_a_file_of_another_geometry_is_not_believed(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS) as broker, wire(broker) as client:
        await make(client, "T")
        await join(client, "G", "a = 1")
        assert broker.state.filters.may_want("T", "G", "a = 1") is not None
    async with running(tmp_path, **SETTINGS, expectConsumerNumUseFilter=64) as broker, wire(broker) as client:
        assert broker.state.filters.may_want("T", "G", "a = 1") is None
        await join(client, "G", "a = 1")
        await client.send("T", b"x", a="1")
        assert await pulled(client, "G") == [b"x"]


# ---- what is kept of them


async def kept(broker: Broker) -> set[tuple[str, str]]:
    """Topic and group of each filter in the file."""
    await broker.state.filters.save()
    path = broker.configuration.settings.storage_config().config_path / "consumerFilter.json"
    table = json.loads(path.read_text())["filterDataByTopic"] if path.exists() else {}
    return {(topic, group) for topic, filters in table.items() for group in filters["groupFilterData"]}


async def test_filters_are_kept_of_topics_that_exist_and_where_bits_are_made(tmp_path: Path) -> None:
    made_up = [f"none{number}" for number in range(1000)]
    for enabled, wanted in (
        ({}, set()),
        ({"enablePropertyFilter": "true"}, set()),
        (SETTINGS, {("T", "G")}),
    ):
        folder = tmp_path / str(len(enabled))
        async with running(folder, **enabled) as broker, wire(broker) as client:
            await make(client, "T")
            await join(client, "G", "a = 1", topics=[*made_up, "T"])
            assert await kept(broker) == wanted


async def test_as_many_filters_are_read_in_a_second_as_hold_nobody_up(tmp_path: Path) -> None:
    clock = ManualClock()
    topics = [f"T{number}" for number in range(5)]
    long = f"a IN ('{'x' * 7000}', '1')"
    async with running(tmp_path, clock=clock, **SETTINGS) as broker, wire(broker) as client:
        for topic in topics:
            await make(client, topic)
        await join(client, "G", long, topics=topics)
        assert await kept(broker) == {("T0", "G"), ("T1", "G")}
        clock.advance(seconds=1)
        await join(client, "G", long, topics=topics)
        assert await kept(broker) == {(topic, "G") for topic in topics[:4]}
        assert broker.state.filters.may_want("T4", "G", long) is None, "its messages are read"
        clock.advance(seconds=1)
        await join(client, "G", long, topics=topics)
        assert await kept(broker) == {(topic, "G") for topic in topics}


async def test_a_group_too_many_has_its_messages_read_and_takes_the_place_of_one_that_left(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        running(tmp_path, clock=clock, **SETTINGS, expectConsumerNumUseFilter=2) as broker,
        wire(broker) as client,
        wire(broker) as leaving,
    ):
        await make(client, "T")
        await join(leaving, "One", "a = 1")
        await join(client, "Two", "a = 1")
        await join(client, "Three", "a = 2")
        assert await kept(broker) == {("T", "One"), ("T", "Two")}
        for number in range(9):
            await client.send("T", b"%d" % number, a=str(number % 3))
        assert await pulled(client, "Three") == [b"2", b"5", b"8"]
        left = {"clientID": "One", "consumerGroup": "One"}
        assert (await leaving.ask(UNREGISTER, left)).code == 0
        await join(client, "Three", "a = 2")
        assert await kept(broker) == {("T", "Two"), ("T", "Three")}
        clock.advance(ms=1)
        await client.send("T", b"more", a="2")
        assert await pulled(client, "Three") == [b"2", b"5", b"8", b"more"]


async def test_no_more_text_of_filters_is_kept_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "_MOST_KEPT", 2000)
    async with running(tmp_path, **SETTINGS) as broker, wire(broker) as client:
        await make(client, "T")
        for group in ("One", "Two", "Three"):
            await join(client, group, f"a = '{'x' * 500}'")
        assert await kept(broker) == {("T", "One"), ("T", "Two")}
        await join(client, "One", "a = 1", version=2)
        await join(client, "Three", f"a = '{'x' * 500}'")
        assert await kept(broker) == {("T", "One"), ("T", "Two"), ("T", "Three")}
    monkeypatch.setattr(consumer_filters, "_MOST_KEPT", 1000)
    async with running(tmp_path, **SETTINGS) as broker:
        assert len(await kept(broker)) == 1, "of the file, too"


async def test_messages_are_entered_however_many_consumers_are_expected(tmp_path: Path) -> None:
    bounds = {name: (least, most) for name, least, most in RANGES}
    settings = {
        **SETTINGS,
        "mappedFileSizeConsumeQueueExt": 1 << 20,
        "expectConsumerNumUseFilter": bounds["expect_consumer_num_use_filter"][1],
        "maxErrorRateOfBloomFilter": bounds["max_error_rate_of_bloom_filter"][0],
    }
    async with running(tmp_path, **settings) as broker, wire(broker) as client:
        await client.send("T", b"before", a="5")
        await join(client, "G", "a > 1")
        answer = await client.send("T", b"after", a="5")
        assert answer.code == 0, answer.remark
        assert (await client.send("Other", b"x")).code == 0
        assert await pulled(client, "G") == [b"before", b"after"]
