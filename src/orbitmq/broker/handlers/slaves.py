"""What master and slave say to each other and about each other. Java: AdminBrokerProcessor"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from orbitmq.errors import RequestFailed
from orbitmq.protocol.bodies.admin import HaClientStatus, HaConnection, HaStatus
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.admin import HaAddresses, MasterFlushOffset
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orbitmq.broker.registration import Registration
    from orbitmq.broker.replication.acting import ActingMaster
    from orbitmq.broker.replication.master import Slaves
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection, Handler
    from orbitmq.transport.express import ExpressHandler

_WRITES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
)
_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
)
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
# What shows messages, or where queues begin and end.
_OF_THE_LOG: Final = (
    *_PULLS,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_TOPIC_STATS_INFO,
)
# What shows how far groups are in it, or sends them elsewhere.
_OF_POSITIONS: Final = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CORRECTION_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
)
# What a master that comes back asks for. It has just told the slave of itself, so the logs are not compared then.
_TABLES: Final = (
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)


def refusals(configuration: BrokerConfiguration) -> dict[int, Handler]:
    """What a slave does not do: its log and its tables are its master's."""
    to_the_master = partial(
        _refuse,
        RequestFailed(
            ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]this broker is a slave", hint="send to its master, brokerId 0"
        ),
    )
    change = partial(
        _refuse,
        RequestFailed(
            ResponseCode.SYSTEM_ERROR,
            "topics and groups of a slave are its master's",
            hint="make this change on the master; it is here a few seconds later",
        ),
    )
    end = partial(_refuse, RequestFailed(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave decides no transactions"))
    table: dict[int, Handler] = dict.fromkeys(_WRITES, to_the_master)
    table |= dict.fromkeys(_CHANGES, change)
    table[RequestCode.END_TRANSACTION] = end
    table[RequestCode.CLEAN_UNUSED_TOPIC] = _remove_nothing
    if not configuration.settings.slave_read_enable:
        read = RequestFailed(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]this broker is a slave that is not read from",
            hint="start it with slaveReadEnable=true",
        )
        table |= dict.fromkeys(_PULLS, partial(_refuse, read))
    return table


def held_back(copying: Copying, table: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers that answer only once this slave is sure of its log, and of its groups' positions in it.

    One that comes back may have messages that nobody acknowledged, where its master has others, and groups that are done with
    them. What operators choose a master by (runtime information, haStatus) is always answered.
    """

    def has_the_log() -> bool:
        return copying.may_serve

    def has_the_positions() -> bool:
        return not copying.was_master

    def has_both() -> bool:
        return copying.may_serve and not copying.was_master

    kinds = ((_OF_THE_LOG, has_the_log), (_OF_POSITIONS, has_both), (_TABLES, has_the_positions))
    return {code: partial(_once_sure, is_sure, copying, table[code]) for codes, is_sure in kinds for code in codes}


async def _once_sure(
    is_sure: Callable[[], bool], copying: Copying, handler: Handler, request: Command, connection: Connection
) -> Command | None:
    if is_sure():
        return await handler(request, connection)
    if copying.was_master:
        raise RequestFailed(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]this slave was a master, and does not follow its successor yet",
            hint="ask the master or another slave; if there is none, start this broker as the master",
        )
    raise RequestFailed(
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]this slave has not compared its log with its master's yet",
        hint="ask the master; it takes a second",
    )


def guarded_express(copying: Copying, pull: ExpressHandler) -> ExpressHandler:
    def express(connection: Connection, header: bytes, body: bytes) -> bytes | None:
        return pull(connection, header, body) if copying.may_serve else None

    return express


async def _refuse(refusal: RequestFailed, request: Command, connection: Connection) -> Command:
    # A new one each time: an exception that is raised again keeps every frame it passed through.
    raise RequestFailed(ResponseCode(refusal.code), refusal.message, hint=refusal.hint)


async def _remove_nothing(request: Command, connection: Connection) -> Command:
    """A topic that is unknown here may be a new one of the master's: its messages come before its name does.

    No refusal: tools ask every broker of a cluster, and would stop at the first slave.
    """
    return answer(ResponseCode.SUCCESS, "the topics of a slave are its master's: nothing was removed here")


async def members_changed(acting: ActingMaster | None, request: Command, connection: Connection) -> Command:
    """A name server's notice that another broker of this name is the one with the smallest id; nothing to one that never acts."""
    if acting is not None:
        acting.members_changed()
    return ok()


async def ha_addresses(
    registration: Registration,
    store: Store,
    copying: Copying | None,
    acting: ActingMaster | None,
    request: Command,
    connection: Connection,
) -> Command:
    """A slave asks where its master is. A request that names one comes from a master that is back, to slaves that may act for it."""
    named = request.read(HaAddresses)
    if named.master_ha_address is not None:
        if copying is not None and acting is not None and named.master_address:
            await acting.step_down()
            copying.follow(parse_address(named.master_address), parse_address(named.master_ha_address))
        return ok()
    return ok(
        HaAddresses(
            master_ha_address=str(registration.ha_address),
            master_flush_offset=store.flushed_offset,
            master_address=str(registration.address),
        )
    )


async def reset_master_flush_offset(request: Command, connection: Connection) -> Command:
    """What a slave should believe its master has flushed. Ours compares the logs themselves, so it changes nothing."""
    request.read(MasterFlushOffset)
    return ok()


async def ha_status(
    store: Store, slaves: Slaves, copying: Copying | None, request: Command, connection: Connection
) -> Command:
    if copying is not None:
        return ok(body=HaStatus(master=False, ha_client_runtime_info=_as_client(store, copying)).to_json())
    in_sync = {state.address for state in slaves.in_sync()}
    connections = [
        HaConnection(
            addr=state.address,
            slave_ack_offset=state.acked,
            diff=store.log.end - state.acked,
            in_sync=state.address in in_sync,
            transferred_byte_in_second=state.bytes_per_second,
            transfer_from_where=state.next_offset,
        )
        for state in slaves.states()
    ]
    status = HaStatus(
        master_commit_log_max_offset=store.log.end, in_sync_slave_nums=len(in_sync), ha_connection_info=connections
    )
    return ok(body=status.to_json())


def _as_client(store: Store, copying: Copying) -> HaClientStatus:
    return HaClientStatus(
        master_addr=str(copying.ha_address) if copying.ha_address is not None else None,
        last_read_timestamp=copying.heard_at_ms,
        last_write_timestamp=copying.told_at_ms,
        max_offset=store.log.end,
        transferred_byte_in_second=copying.bytes_per_second,
        activated=copying.is_connected,
    )
