"""Every request that Apache's tools and clients were seen to make of a broker's operators' side is understood, in either codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.frame import FrameDecoder
from tests.golden_frames import GoldenFrame, golden_frames
from tests.raw_client import raw_client

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

R = RequestCode
FOR_OPERATORS: Final = frozenset(
    {
        R.UPDATE_AND_CREATE_TOPIC, R.UPDATE_AND_CREATE_TOPIC_LIST, R.GET_ALL_TOPIC_CONFIG, R.UPDATE_BROKER_CONFIG,
        R.GET_BROKER_CONFIG, R.GET_BROKER_RUNTIME_INFO, R.GET_ALL_CONSUMER_OFFSET, R.GET_ALL_DELAY_OFFSET,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, R.GET_TOPIC_STATS_INFO,
        R.GET_CONSUMER_CONNECTION_LIST, R.GET_PRODUCER_CONNECTION_LIST, R.DELETE_SUBSCRIPTIONGROUP, R.GET_CONSUME_STATS,
        R.DELETE_TOPIC_IN_BROKER, R.INVOKE_BROKER_TO_RESET_OFFSET, R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, R.QUERY_TOPIC_CONSUME_BY_WHO, R.QUERY_CONSUME_TIME_SPAN,
        R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, R.CLEAN_EXPIRED_CONSUMEQUEUE, R.GET_CONSUMER_RUNNING_INFO,
        R.QUERY_CORRECTION_OFFSET, R.CONSUME_MESSAGE_DIRECTLY, R.CLONE_GROUP_OFFSET, R.VIEW_BROKER_STATS_DATA,
        R.CLEAN_UNUSED_TOPIC, R.GET_BROKER_CONSUME_STATS, R.QUERY_CONSUME_QUEUE, R.GET_ALL_PRODUCER_INFO,
        R.DELETE_EXPIRED_COMMITLOG, R.QUERY_TOPICS_BY_CONSUMER, R.QUERY_SUBSCRIPTION_BY_CONSUMER, R.GET_TOPIC_CONFIG,
        R.GET_SUBSCRIPTIONGROUP_CONFIG, R.UPDATE_AND_GET_GROUP_FORBIDDEN, R.GET_BROKER_HA_STATUS,
        R.GET_COLD_DATA_FLOW_CTR_INFO,
    }
)  # fmt: skip
NOT_UNDERSTOOD: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.INVALID_PARAMETER)


def recorded(source: str) -> list[GoldenFrame]:
    return [f for f in golden_frames() if f.source == source and not f.is_response and f.code in FOR_OPERATORS]


@pytest.mark.parametrize("source", ["5.3.3-json", "5.3.3-binary", "4.9.7-json", "4.9.7-binary"])
async def test_recorded_requests_are_understood(broker: Broker, source: str) -> None:
    frames = recorded(source)
    assert len({frame.code for frame in frames}) > 25
    async with raw_client(broker.address) as client:
        for golden in frames:
            (frame,) = FrameDecoder().feed(golden.data)
            request = commands.decode(frame)
            request.flag = 0  # one was recorded one-way
            client.send(commands.encode(request, frame[0]))
            answer = await client.answer()
            assert answer.opaque == request.opaque
            assert answer.code not in NOT_UNDERSTOOD, f"{golden}: {answer.remark}"


def test_every_recorded_kind_is_covered() -> None:
    assert {f.code for source in ("5.3.3-json", "4.9.7-json") for f in recorded(source)} >= FOR_OPERATORS - {
        R.GET_SUBSCRIPTIONGROUP_CONFIG
    }
