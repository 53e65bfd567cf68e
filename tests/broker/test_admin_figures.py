"""Figures, the index of a queue, and the other small questions of tools."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from orbitmq.clock import ManualClock
from orbitmq.message.tags import tag_code
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import decode
from orbitmq.protocol.frame import FrameDecoder
from orbitmq.transport.request_times import Kind
from tests.broker.kit import Wire, running, wire
from tests.golden_frames import golden_frames

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker


async def runtime_info(client: Wire) -> dict[str, str]:
    table: dict[str, str] = json.loads((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    return table


async def test_runtime_info_has_every_key_of_apaches_broker(client: Wire) -> None:
    (recorded,) = [
        frame
        for frame in golden_frames()
        if frame.source == "5.3.3-json" and frame.is_response and frame.to_code == RequestCode.GET_BROKER_RUNTIME_INFO
    ]
    (frame,) = FrameDecoder().feed(recorded.data)
    theirs = json.loads(decode(frame).body)["table"]
    ours = await runtime_info(client)

    def usual(keys: set[str]) -> set[str]:
        return {key for key in keys if not key.startswith(("scheduleMessageOffset_", "commitLogDiskRatio_"))}

    assert usual(set(ours)) == usual(set(theirs))
    assert all(isinstance(value, str) for value in ours.values())


async def test_runtime_info_says_how_quickly_messages_were_taken(client: Wire, broker: Broker) -> None:
    for _ in range(10):
        await client.send("T", b"x")
    await client.bodies("T")
    times = broker.state.times.of(Kind(RequestCode.SEND_MESSAGE_V2))
    times.add(0.120, 89)
    times.add(2.5)
    broker.state.times.of(Kind(RequestCode.PULL_MESSAGE)).add(0.777)
    broker.state.times.of(Kind(RequestCode.PULL_MESSAGE, is_held=True)).add(30.0)
    empty = await runtime_info(client)
    assert empty["putLatency99"] == "0.00"  # the minute is not over

    broker.state.service_times.sample()
    full = await runtime_info(client)
    spread = [int(count) for count in re.findall(r":(\d+) ", full["putMessageDistributeTime"])]
    assert (len(spread), sum(spread)) == (13, 100)
    assert spread[8] >= 1
    assert full["putMessageDistributeTime"].startswith("[<=0ms]:")
    assert int(re.findall(r"\[100~200ms\]:(\d+)", full["putMessageDistributeTime"])[0]) >= 89
    assert 110 < float(full["putLatency99"]) <= 2500
    assert float(full["putLatency999"]) >= float(full["putLatency99"])
    assert int(full["putMessageEntireTimeMax"]) >= 2500
    assert 777 <= int(full["getMessageEntireTimeMax"]) < 30_000

    broker.state.service_times.sample()
    assert (await runtime_info(client))["putLatency999"] == "0.00"  # a minute without puts


async def test_tools_of_4_x_find_the_rate_under_the_name_they_know(client: Wire) -> None:
    answer = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, version=407)
    table = json.loads(answer.body)["table"]
    assert table["getTransferedTps"] == table["getTransferredTps"]
    assert "getTransferedTps" not in await runtime_info(client)


async def test_runtime_info_says_what_happened(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        for _ in range(3):
            await client.send("T", b"x" * 100)
        await client.send("SELF_TEST_TOPIC")  # not counted: refused
        await client.send("broker-a")  # not counted: a system topic
        await client.send("T", DELAY="2")
        await client.bodies("T")
        clock.advance(minutes=61)
        info = await runtime_info(client)
        assert info["msgPutTotalTodayNow"] == "3"
        assert info["msgGetTotalTodayNow"] == "3"
        assert info["putMessageTimesTotal"] == "5"
        assert info["commitLogMaxOffset"] == str(broker.state.store.log.end)
        assert info["runtime"] == "[ 0 days, 1 hours, 1 minutes, 0 seconds ]"
        assert info["scheduleMessageOffset_2"] in ("0,1", "1,1")
        assert info["dispatchBehindBytes"] == "0"


async def test_totals_of_a_day_move_on_at_midnight(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        totals = broker.state.totals
        await client.send("T")
        clock.advance(minutes=24 * 60)
        totals.sample()
        assert (totals.yesterday_morning.put, totals.this_morning.put, totals.now().put) == (0, 1, 1)
        await client.send("T")
        await client.bodies("T")
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})  # totals do not forget
        clock.advance(minutes=24 * 60)
        totals.sample()
        assert (totals.yesterday_morning.put, totals.this_morning.put) == (1, 2)
        assert totals.this_morning.transferred == 2


async def test_rates_appear_window_by_window(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        totals = broker.state.totals
        totals.sample()
        await client.send("T")
        assert totals.rates() == [None, None, None]
        for _ in range(60):
            clock.advance(seconds=1)
            totals.sample()
        ten, minute, ten_minutes = totals.rates()
        assert ten is not None
        assert ten[0] == 0
        assert minute is not None
        assert round(minute[0] * 60) == 1
        assert ten_minutes is None
        assert (await runtime_info(client))["putTps"] == f"0.0 {minute[0]} "


async def test_statistics_by_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker, wire(broker) as client:
        for _ in range(3):
            await client.send("T")
        clock.advance(seconds=10)
        broker.state.statistics.sample()
        header = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
        stats = json.loads((await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)).body)
        assert stats["statsMinute"] == {"sum": 3, "tps": 0.3, "avgpt": 1.0}
        missing = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {**header, "statsKey": "nope"})
        assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <nope> not exist")


async def test_the_index_of_a_queue(broker: Broker, client: Wire) -> None:
    receipts = [await client.send("T", b"%d" % number, TAGS="A") for number in range(4)]
    offsets = [int(receipt.fields["msgId"][-16:], 16) for receipt in receipts]
    await client.bodies("T")
    header = {"topic": "T", "queueId": 0, "index": 1, "count": 2}
    body = json.loads((await client.ask(RequestCode.QUERY_CONSUME_QUEUE, header)).body)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 4)
    assert [entry["physicOffset"] for entry in body["queueData"]] == offsets[1:3]
    assert {entry["tagsCode"] for entry in body["queueData"]} == {tag_code("A")}
    assert "subscriptionData" not in body

    for index, count in ((9, 2), (-5, 1), (0, 2**31 - 1)):
        answer = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**header, "index": index, "count": count})
        assert len(json.loads(answer.body)["queueData"]) == (4 if count > 2 else 0)

    offline = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**header, "consumerGroup": "G"})
    assert json.loads(offline.body)["filterData"] == "G@T is not online!"
    await client.heartbeat("client", "G", {"T": "A"})
    online = json.loads((await client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**header, "consumerGroup": "G"})).body)
    assert (online["filterData"], online["subscriptionData"]["subString"]) == ("null", "A")
    nowhere = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**header, "queueId": 9})
    assert (nowhere.code, nowhere.remark) == (1, "9@T is not exist!")


async def test_a_master_without_slaves(broker: Broker, client: Wire) -> None:
    await client.send("T")
    status = json.loads((await client.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
    assert status == {
        "master": True,
        "masterCommitLogMaxOffset": broker.state.store.log.end,
        "inSyncSlaveNums": 0,
        "haConnectionInfo": [],
        "haClientRuntimeInfo": {
            "activated": False,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "maxOffset": 0,
            "transferredByteInSecond": 0,
        },
    }
    asked = await client.ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert asked.fields["masterAddress"] == str(broker.address)
    assert asked.fields["masterHaAddress"] == str(broker.state.registration.ha_address)
    told = await client.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, {"masterHaAddress": "1.2.3.4:1"})
    assert (told.code, dict(told.fields)) == (0, {})
    assert (await client.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 0})).code == 0


async def test_limits_for_cold_data_are_noted_and_shown(client: Wire) -> None:
    async def limits() -> dict[str, int]:
        info = json.loads((await client.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)).body)
        assert (info["cgColdReadThreshold"], info["globalAcc"]) == (3145728, 0)
        table: dict[str, int] = info["configTable"]
        return table

    assert await limits() == {}
    assert (await client.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"G=1000\nH=5")).code == 0
    assert await limits() == {"G": 1000, "H": 5}
    for body in (b"G=many", b"a/b=1", b"\xff", b"New=1\nG=1e3", b"G=" + b"9" * 30):
        assert (await client.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)).code == 29
    assert (await client.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"G")).code == 0
    assert await limits() == {"H": 5}


async def test_the_log_is_read_ahead_or_not(client: Wire) -> None:
    await client.send("T")
    for mode in (0, 1):
        answer = await client.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode})
        assert (answer.code, answer.remark) == (0, f"set commitlog readahead mode success, mode: {mode}")
        assert await client.bodies("T") == [b"body"]
    for fields in ({"READ_AHEAD_MODE": 7}, {}):
        answer = await client.ask(RequestCode.SET_COMMITLOG_READ_MODE, fields)
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_filter_servers_are_passed_on_while_they_are_connected(broker: Broker, client: Wire) -> None:
    registration = broker.state.registration
    async with wire(broker) as other:
        answer = await other.ask(RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": "1.2.3.4:5"})
        assert dict(answer.fields) == {"brokerName": "broker-a", "brokerId": "0"}
        await client.ask(RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": "1.2.3.4:6"})
        assert registration.filter_servers == ["1.2.3.4:5", "1.2.3.4:6"]
    bad = await client.ask(RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": "nowhere"})
    assert bad.code == ResponseCode.INVALID_PARAMETER
    while len(registration.filter_servers) > 1:
        await client.ask(RequestCode.GET_BROKER_HA_STATUS)
    assert registration.filter_servers == ["1.2.3.4:6"]
