"""The suite inside a namespace, on our broker: programs see their own names, brokers see wrapped ones, whatever the kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from orbitmq import Client, connect
from orbitmq.testing.server import Server
from tests.client.suite import (  # noqa: F401 - tests that must pass inside a namespace, too
    test_a_failed_message_comes_again_and_then_goes_to_the_dead_letters,
    test_a_request_gets_its_reply,
    test_any_delay_is_kept_and_can_be_recalled,
    test_broadcasting_members_each_get_everything,
    test_every_way_of_sending_arrives,
    test_leased_messages_end_with_their_ack_and_come_again_without,
    test_members_share_a_topic_and_take_over_when_one_leaves,
    test_offsets_by_time_and_by_hand,
    test_only_what_a_transaction_commits_is_consumed,
    test_orderly_members_see_each_queue_in_order,
)
from tests.topic_names import fresh_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NAMESPACE: Final = "shop"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = {"transactionTimeOut": "1000", "transactionCheckInterval": "500", "recallMessageEnable": "true"}
    with Server(settings=settings) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with connect(server.address, namespace=NAMESPACE) as client:
        yield client


@pytest.fixture
async def topic(server: Server, request: pytest.FixtureRequest) -> str:
    name = fresh_name(request)
    server.create_topic(f"{NAMESPACE}%{name}", queues=8)
    return name
