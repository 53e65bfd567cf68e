"""Request code -> the function that answers it, with exactly the state it may touch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.broker.handlers import clients, lookup, offsets, pull, send
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.send import SendMessage, SendMessageV2

if TYPE_CHECKING:
    import random

    from orbitmq.broker.clients import Clients
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.durability import Durability
    from orbitmq.broker.groups import Groups
    from orbitmq.broker.handlers.send import Receipts
    from orbitmq.broker.pulling import Pulling
    from orbitmq.broker.queue_locks import QueueLocks
    from orbitmq.broker.registration import Registration
    from orbitmq.broker.sending import Sending
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.broker.statistics import Statistics
    from orbitmq.broker.topics import Topics
    from orbitmq.clock import Clock
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Handler, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The parts of a broker, for the table below to hand out one by one. Handlers never see it whole."""

    configuration: BrokerConfiguration
    clock: Clock
    randomness: random.Random
    store: Store
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    clients: Clients
    locks: QueueLocks
    statistics: Statistics
    sending: Sending
    receipts: Receipts
    durability: Durability
    pulling: Pulling
    delayed: DelayedMessages
    registration: Registration


# What the second port does not serve: a pull held there would starve the sends it exists for.
NOT_ON_FAST_PORT: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


def build_routes(state: State) -> Routes:
    s = state
    send_with = partial(send.send_message, s.sending, s.durability, s.receipts)
    table: dict[int, Handler] = {
        RequestCode.SEND_MESSAGE: partial(send_with, SendMessage),
        RequestCode.SEND_MESSAGE_V2: partial(send_with, SendMessageV2),
        RequestCode.SEND_BATCH_MESSAGE: partial(send_with, SendMessageV2),
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(
            send.send_back, s.sending, s.topics, s.groups, s.store, s.statistics, s.configuration, s.randomness
        ),
        RequestCode.PULL_MESSAGE: partial(pull.pull_message, s.pulling),
        RequestCode.LITE_PULL_MESSAGE: partial(pull.pull_message, s.pulling),
        RequestCode.HEART_BEAT: partial(clients.heartbeat, s.clients, s.groups, s.topics),
        RequestCode.UNREGISTER_CLIENT: partial(clients.unregister_client, s.clients),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(clients.consumer_ids, s.clients),
        RequestCode.CHECK_CLIENT_CONFIG: clients.check_client,
        RequestCode.LOCK_BATCH_MQ: partial(clients.lock_queues, s.locks),
        RequestCode.UNLOCK_BATCH_MQ: partial(clients.unlock_queues, s.locks),
        RequestCode.QUERY_CONSUMER_OFFSET: partial(offsets.query_consumer_offset, s.offsets, s.store),
        RequestCode.UPDATE_CONSUMER_OFFSET: partial(offsets.update_consumer_offset, s.offsets, s.groups, s.topics),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: partial(offsets.search_offset, s.store),
        RequestCode.GET_MAX_OFFSET: partial(offsets.max_offset, s.store),
        RequestCode.GET_MIN_OFFSET: partial(offsets.min_offset, s.store),
        RequestCode.GET_EARLIEST_MSG_STORETIME: partial(offsets.earliest_store_time, s.store),
        RequestCode.QUERY_MESSAGE: partial(lookup.query_message, s.store, s.configuration),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(lookup.view_message, s.store),
    }
    return table
