"""Request code -> the function that answers it, with exactly the state it may touch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from orbitmq.accelerated import compiled
from orbitmq.access import needs
from orbitmq.access.express import ExpressDoor
from orbitmq.access.gate import guarded
from orbitmq.access.handlers import access_routes
from orbitmq.access.plain_handlers import plain_routes
from orbitmq.broker.half_messages import HALF_TOPIC_BYTES, HalfMessage
from orbitmq.broker.handlers import (
    admin_clients,
    admin_config,
    admin_groups,
    admin_offsets,
    admin_stats,
    admin_store,
    admin_topics,
    assignments,
    clients,
    leases,
    lookup,
    offsets,
    pull,
    replies,
    send,
    slaves,
    timers,
    transactions,
)
from orbitmq.broker.handlers.ack_express import AckExpress
from orbitmq.broker.handlers.end_express import EndExpress
from orbitmq.broker.handlers.pull_express import PullExpress
from orbitmq.broker.handlers.send_express import SendExpress
from orbitmq.broker.leases.serving import QuickServing
from orbitmq.broker.permissions import AUDITED, needs_of_broker
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import OK_HEADER
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON
from orbitmq.protocol.headers.send import SendMessage, SendMessageV2, SignedSendV2
from orbitmq.protocol.short_send_binary import ShortSendReader
from orbitmq.protocol.whole_request import reader
from orbitmq.transport.request_times import Kind, Result

if TYPE_CHECKING:
    from collections.abc import Collection

    from orbitmq.access.gate import Door
    from orbitmq.broker.state import State
    from orbitmq.transport.connection import Handler, Routes
    from orbitmq.transport.express import ExpressRoutes, SwiftHandler, SwiftReader


# What the second port does not serve: a pull held there would starve the sends it exists for.
NOT_ON_FAST_PORT: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    }
)


def build_express(state: State) -> ExpressRoutes:
    s = state
    pulls: ExpressRoutes = {
        (RequestCode.PULL_MESSAGE, CODEC_JSON): PullExpress(s.pulling, s.times, RequestCode.PULL_MESSAGE),
        (RequestCode.LITE_PULL_MESSAGE, CODEC_JSON): PullExpress(s.pulling, s.times, RequestCode.LITE_PULL_MESSAGE),
    }
    if s.gate is not None:  # who asks has to be looked at first
        return _guarded_express(s, s.gate) if s.copying is None else {}
    if s.copying is not None:  # nothing is sent to a slave
        if not s.configuration.settings.slave_read_enable:
            return {}
        return {key: slaves.guarded_express(s.copying, pull) for key, pull in pulls.items()}
    send_with = partial(SendExpress, s.sending, s.durability, s.receipts, s.times)
    read_short = reader(SendMessageV2)
    return {
        (RequestCode.SEND_MESSAGE, CODEC_JSON): send_with(RequestCode.SEND_MESSAGE, reader(SendMessage)),
        (RequestCode.SEND_MESSAGE_V2, CODEC_JSON): send_with(RequestCode.SEND_MESSAGE_V2, read_short),
        (RequestCode.SEND_MESSAGE_V2, CODEC_BINARY): send_with(RequestCode.SEND_MESSAGE_V2, ShortSendReader()),
        (RequestCode.SEND_BATCH_MESSAGE, CODEC_JSON): send_with(RequestCode.SEND_BATCH_MESSAGE, read_short),
        (RequestCode.ACK_MESSAGE, CODEC_JSON): AckExpress(s.settling, s.topics, s.store, s.durability),
        (RequestCode.END_TRANSACTION, CODEC_JSON): EndExpress(s.half_messages, s.durability, s.times),
        **pulls,
    }


def _guarded_express(s: State, gate: Door) -> ExpressRoutes:
    """Signed sends of the kind that every client sends most."""
    code = RequestCode.SEND_MESSAGE_V2
    send = SendExpress(s.sending, s.durability, s.receipts, s.times, code, reader(SignedSendV2), ExpressDoor(gate))
    return {(code, CODEC_JSON): send}


def build_swift(state: State, codes: Collection[int]) -> tuple[SwiftHandler | None, SwiftReader | None]:
    """What takes whole runs of requests with these codes, and what reads the sockets of those who make them, where they are installed.

    For one port, and under the same conditions as the express handlers.
    """
    sockets = compiled("sockets")
    sends = _build_sends(state, codes)
    if sends is None:
        return None, None
    pulls = _build_pulls(state, sends) if RequestCode.PULL_MESSAGE in codes else None
    on_sockets = None if sockets is None else sockets.SwiftReader(sends, pulls, state.times, state.congestion)
    return pulls or sends, on_sockets


def _build_sends(state: State, codes: Collection[int]) -> SwiftHandler | None:
    sends = compiled("sends")
    if sends is None or state.copying is not None:
        return None
    served = state.times.of(Kind(RequestCode.SEND_MESSAGE_V2))
    served_batch = state.times.of(Kind(RequestCode.SEND_BATCH_MESSAGE))
    handler: SwiftHandler = sends.SwiftSends(
        state.sending,
        state.durability,
        state.receipts,
        state.clock.now_ms,
        served,
        served_batch,
        EndExpress(state.half_messages, state.durability, state.times) if state.gate is None else None,
        _swift_ends(state) if state.gate is None else None,
        None if state.gate is None else ExpressDoor(state.gate),
        _swift_acks(state, codes) if state.gate is None else None,
    )
    return handler


def _swift_ends(s: State) -> Any | None:
    """Of transactions; only for the compiled loop of sends, between which they come."""
    ends = compiled("ends")
    if ends is None:
        return None
    served = s.times.of(Kind(RequestCode.END_TRANSACTION, result=Result.ONEWAY))
    return ends.SwiftEnds(s.half_messages, HalfMessage, s.store.sending_on.copies, HALF_TOPIC_BYTES, served)


def _swift_acks(s: State, codes: Collection[int]) -> SwiftHandler | None:
    """With pops between them, where those are served."""
    acks, pops, leases = compiled("acks"), compiled("pops"), compiled("leases")
    if acks is None or pops is None or leases is None:
        return None
    book = leases.LeaseBook(s.store, s.configuration, s.lease_log, s.open_leases, s.statistics, s.clock.now_ms)
    popped = s.times.of(Kind(RequestCode.POP_MESSAGE))
    serving = QuickServing(s.pops, s.groups)
    swift_pops = pops.SwiftPops(serving, s.pops.popping, s.topics, s.groups, s.offsets, s.store, book, popped)
    handler: SwiftHandler = acks.SwiftAcks(
        AckExpress(s.settling, s.topics, s.store, s.durability).together,
        s.settling,
        s.topics,
        s.durability,
        s.times.of(Kind(RequestCode.ACK_MESSAGE)),
        OK_HEADER,
        book,
        swift_pops if RequestCode.POP_MESSAGE in codes else None,
    )
    return handler


def _build_pulls(state: State, sends: SwiftHandler) -> SwiftHandler | None:
    """It hands on what begins with something else."""
    pulls = compiled("pulls")
    if pulls is None or state.gate is not None:
        return None
    handler: SwiftHandler = pulls.SwiftPulls(
        state.pulling,
        state.store,
        state.topics,
        state.groups,
        state.offsets,
        state.configuration,
        state.compacted,
        state.times.of(Kind(RequestCode.PULL_MESSAGE)),
        state.times.of(Kind(RequestCode.LITE_PULL_MESSAGE)),
        sends,
    )
    return handler


def build_routes(state: State) -> Routes:
    s = state
    send_with = partial(send.send_message, s.sending, s.durability, s.receipts, s.registration)
    reply_with = partial(replies.send_reply, s.sending, s.clients, s.receipts, s.configuration, s.clock)
    table: dict[int, Handler] = {
        RequestCode.SEND_MESSAGE: partial(send_with, SendMessage),
        RequestCode.SEND_MESSAGE_V2: partial(send_with, SendMessageV2),
        RequestCode.SEND_BATCH_MESSAGE: partial(send_with, SendMessageV2),
        RequestCode.SEND_REPLY_MESSAGE: partial(reply_with, SendMessage),
        RequestCode.SEND_REPLY_MESSAGE_V2: partial(reply_with, SendMessageV2),
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(
            send.send_back,
            s.sending,
            s.durability,
            s.topics,
            s.groups,
            s.store,
            s.statistics,
            s.configuration,
            s.randomness,
            s.gate is not None,
        ),
        RequestCode.END_TRANSACTION: partial(
            transactions.end_transaction, s.half_messages, s.store, s.durability, s.gate
        ),
        RequestCode.RESUME_CHECK_HALF_MESSAGE: partial(
            transactions.resume_checks, s.half_messages, s.store, s.durability, s.gate is not None
        ),
        RequestCode.PULL_MESSAGE: partial(pull.pull_message, s.pulling),
        RequestCode.LITE_PULL_MESSAGE: partial(pull.pull_message, s.pulling),
        RequestCode.HEART_BEAT: partial(clients.heartbeat, s.clients, s.groups, s.topics, s.gate is not None),
        RequestCode.UNREGISTER_CLIENT: partial(clients.unregister_client, s.clients),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: partial(clients.consumer_ids, s.clients),
        RequestCode.CHECK_CLIENT_CONFIG: partial(clients.check_client, s.configuration),
        RequestCode.LOCK_BATCH_MQ: partial(clients.lock_queues, s.locks, s.topics),
        RequestCode.UNLOCK_BATCH_MQ: partial(clients.unlock_queues, s.locks),
        RequestCode.RECALL_MESSAGE: partial(
            timers.recall_message, s.sending, s.durability, s.topics, s.configuration, s.clock
        ),
        RequestCode.QUERY_CONSUMER_OFFSET: partial(offsets.query_consumer_offset, s.offsets, s.store),
        RequestCode.UPDATE_CONSUMER_OFFSET: partial(offsets.update_consumer_offset, s.offsets, s.groups, s.topics),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: partial(offsets.search_offset, s.store),
        RequestCode.GET_MAX_OFFSET: partial(offsets.max_offset, s.store),
        RequestCode.GET_MIN_OFFSET: partial(offsets.min_offset, s.store, s.compacted),
        RequestCode.GET_EARLIEST_MSG_STORETIME: partial(offsets.earliest_store_time, s.store),
        RequestCode.QUERY_MESSAGE: partial(lookup.query_message, s.store, s.configuration),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(lookup.view_message, s.store, s.gate, _need_of_all(s)),
        RequestCode.REGISTER_FILTER_SERVER: partial(
            admin_store.register_filter_server, s.filter_servers, s.configuration
        ),
    }
    table |= {**_leases(state), **_topics_groups_and_clients(state), **_figures_and_care(state)}
    table |= plain_routes(s.gate, s.configuration.settings, lambda: s.registration.address, s.clock)
    table |= access_routes(s.users, enabled=s.configuration.settings.is_guarded)
    if s.copying is not None:
        table |= slaves.held_back(s.copying, table)
        table |= slaves.refusals(s.configuration)
    settings = s.configuration.settings
    needs_of = needs_of_broker(has_light_queues=settings.enable_lmq and settings.enable_multi_dispatch)
    return guarded(table, needs_of, s.gate, AUDITED)


def _need_of_all(s: State) -> needs.Need:
    """To read where messages of all topics wait. Access files of 4.x let every account look."""
    settings = s.configuration.settings
    action = needs.Action.UPDATE if settings.is_guarded else needs.Action.GET
    return needs.Need(needs.Kind.CLUSTER, settings.broker_cluster_name, (action,))


def _leases(state: State) -> dict[int, Handler]:
    s = state
    return {
        RequestCode.POP_MESSAGE: partial(leases.pop_message, s.pops),
        RequestCode.PEEK_MESSAGE: partial(leases.peek_message, s.pops),
        RequestCode.NOTIFICATION: partial(leases.notification, s.pops),
        RequestCode.POLLING_INFO: partial(leases.polling_info, s.pops),
        RequestCode.ACK_MESSAGE: partial(leases.ack_message, s.settling, s.topics, s.store, s.compacted, s.durability),
        RequestCode.BATCH_ACK_MESSAGE: partial(leases.batch_ack_message, s.settling, s.durability),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: partial(
            leases.change_invisible_time, s.settling, s.topics, s.store, s.compacted, s.durability
        ),
        RequestCode.POP_ROLLBACK: leases.move_to_files,
        RequestCode.QUERY_ASSIGNMENT: partial(
            assignments.query_assignment, s.request_modes, s.topic_routes, s.clients, s.configuration
        ),
        RequestCode.SET_MESSAGE_REQUEST_MODE: partial(
            assignments.set_request_mode, s.request_modes, s.topics, s.groups
        ),
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: partial(assignments.all_request_modes, s.request_modes),
    }


def _topics_groups_and_clients(state: State) -> dict[int, Handler]:
    s = state
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: partial(
            admin_topics.update_topic, s.topics, s.registration, s.statistics, s.clock
        ),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: partial(
            admin_topics.update_topics, s.topics, s.registration, s.statistics, s.clock
        ),
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: admin_topics.refuse_static_topic,
        RequestCode.DELETE_TOPIC_IN_BROKER: partial(
            admin_topics.delete_topic,
            s.topics,
            s.groups,
            s.store,
            s.offsets,
            s.sending,
            s.pulling,
            s.timers,
            s.compacted,
            s.open_leases,
            s.ordered_leases,
            s.statistics,
            s.configuration,
        ),
        RequestCode.GET_ALL_TOPIC_CONFIG: partial(admin_topics.all_topics, s.topics),
        RequestCode.GET_TOPIC_CONFIG: partial(admin_topics.topic_config, s.topics),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: partial(admin_topics.system_topics, s.topics),
        RequestCode.GET_TOPIC_STATS_INFO: partial(
            admin_topics.topic_stats, s.topics, s.store, s.statistics, s.configuration
        ),
        RequestCode.CLEAN_UNUSED_TOPIC: partial(admin_topics.clean_unused_topics, s.topics, s.store),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: partial(
            admin_groups.update_group, s.groups, s.statistics, s.clock
        ),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: partial(
            admin_groups.update_groups, s.groups, s.statistics, s.clock
        ),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: partial(
            admin_groups.delete_group, s.groups, s.offsets, s.pulling, s.open_leases, s.ordered_leases, s.statistics
        ),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: partial(admin_groups.all_groups, s.groups),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: partial(admin_groups.group_config, s.groups),
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: partial(admin_groups.group_forbidden, s.groups, s.topics),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: partial(admin_groups.groups_of_topic, s.clients, s.offsets),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: partial(admin_groups.topics_of_group, s.offsets, s.registration),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: partial(admin_groups.subscription_of_group, s.clients),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: partial(admin_clients.consumer_connections, s.clients),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: partial(admin_clients.producer_connections, s.clients),
        RequestCode.GET_ALL_PRODUCER_INFO: partial(admin_clients.all_producers, s.clients),
        RequestCode.GET_CONSUMER_RUNNING_INFO: partial(admin_clients.running_info, s.clients),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: partial(
            admin_clients.consume_directly, s.clients, s.topics, s.groups, s.store, s.configuration, s.gate is not None
        ),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: partial(admin_clients.consumer_status, s.clients),
    }


def _figures_and_care(state: State) -> dict[int, Handler]:
    s = state
    return {
        RequestCode.GET_ALL_CONSUMER_OFFSET: partial(admin_offsets.all_consumer_offsets, s.offsets),
        RequestCode.GET_ALL_DELAY_OFFSET: partial(admin_offsets.all_delay_offsets, s.delayed),
        RequestCode.GET_TIMER_CHECK_POINT: partial(timers.timer_checkpoint, s.timers),
        RequestCode.GET_TIMER_METRICS: partial(timers.timer_counts, s.timers),
        RequestCode.GET_CONSUME_STATS: partial(admin_offsets.consume_stats, s.progress),
        RequestCode.GET_BROKER_CONSUME_STATS: partial(
            admin_offsets.broker_consume_stats, s.progress, s.topics, s.groups, s.registration
        ),
        RequestCode.QUERY_CONSUME_TIME_SPAN: partial(
            admin_offsets.consume_time_span, s.topics, s.offsets, s.store, s.clock, s.configuration
        ),
        RequestCode.QUERY_CORRECTION_OFFSET: partial(admin_offsets.correction_offsets, s.offsets),
        RequestCode.CLONE_GROUP_OFFSET: partial(admin_offsets.clone_offsets, s.progress, s.topics, s.groups, s.offsets),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: partial(
            admin_offsets.reset_offset, s.topics, s.groups, s.clients, s.offsets, s.store, s.pulling, s.configuration
        ),
        RequestCode.GET_BROKER_RUNTIME_INFO: partial(
            admin_stats.broker_runtime_info,
            s.store,
            s.statistics,
            s.totals,
            s.service_times,
            s.delayed,
            s.timers,
            s.configuration,
            s.clock,
        ),
        RequestCode.VIEW_BROKER_STATS_DATA: partial(admin_stats.stats_data, s.statistics),
        RequestCode.GET_BROKER_CONFIG: partial(admin_config.get_configuration, s.configuration, s.statistics),
        RequestCode.UPDATE_BROKER_CONFIG: partial(
            admin_config.update_configuration, s.configuration, s.topics, s.delayed
        ),
        RequestCode.QUERY_CONSUME_QUEUE: partial(admin_store.queue_entries, s.store, s.clients),
        RequestCode.TRIGGER_DELETE_FILES: partial(admin_store.delete_expired_files, s.cleaning),
        RequestCode.DELETE_EXPIRED_COMMITLOG: partial(admin_store.delete_expired_files, s.cleaning),
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: partial(admin_store.clean_queue_indexes, s.cleaning),
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: partial(admin_store.limit_cold_data, s.cold_data),
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: partial(admin_store.unlimit_cold_data, s.cold_data),
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: partial(admin_store.cold_data_info, s.cold_data, s.configuration),
        RequestCode.SET_COMMITLOG_READ_MODE: partial(admin_store.set_read_ahead, s.store),
        RequestCode.EXCHANGE_BROKER_HA_INFO: partial(slaves.ha_addresses, s.registration, s.store, s.copying, s.acting),
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: partial(slaves.members_changed, s.acting),
        RequestCode.RESET_MASTER_FLUSH_OFFSET: slaves.reset_master_flush_offset,
        RequestCode.GET_BROKER_HA_STATUS: partial(slaves.ha_status, s.store, s.slaves, s.copying),
    }
