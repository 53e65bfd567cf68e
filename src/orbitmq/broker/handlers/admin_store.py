"""Looking into the store, cleaning it up, and what a master says to slaves. Java: AdminBrokerProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker import names
from orbitmq.errors import BodyError, ConfigError, RequestFailed
from orbitmq.protocol.bodies.admin import ColdDataInfo, QueueEntries, QueueEntry
from orbitmq.protocol.codes import ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.admin import (
    FilterServerRegistered,
    QueryConsumeQueue,
    ReadAheadMode,
    RegisterFilterServer,
)
from orbitmq.protocol.properties_text import parse_properties
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from orbitmq.broker.cleaning import Cleaning
    from orbitmq.broker.clients import Clients
    from orbitmq.broker.cold_data import ColdDataLimits
    from orbitmq.broker.filter_servers import FilterServers
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.storage.store import Store
    from orbitmq.transport.connection import Connection

_MOST_ENTRIES: Final = 10_000  # a wish for more is a mistake, and would be a long answer
_MOST_DIGITS: Final = 18  # fits Java's long
_NORMAL: Final = 0  # Linux: MADV_NORMAL
_RANDOM: Final = 1  # Linux: MADV_RANDOM


async def queue_entries(store: Store, clients: Clients, request: Command, connection: Connection) -> Command:
    """The index of a queue as it stands, and what a group subscribes to in it."""
    header = request.read(QueryConsumeQueue)
    found = store.queue_entries(header.topic, header.queue_id, header.index, min(header.count, _MOST_ENTRIES))
    if found is None:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic[:300]} is not exist!")
    low, high = store.queue_range(header.topic, header.queue_id)
    body = QueueEntries(min_queue_index=low, max_queue_index=high)
    if header.consumer_group is not None:
        members = clients.consumers(header.consumer_group)
        body.subscription_data = members.subscriptions.get(header.topic) if members is not None else None
        offline = f"{header.consumer_group}@{header.topic} is not online!"
        body.filter_data = offline if body.subscription_data is None else "null"
    body.queue_data = [QueueEntry(physic_offset=at, physic_size=size, tags_code=tag) for at, size, tag in found]
    return ok(body=body.to_json())


async def delete_expired_files(cleaning: Cleaning, request: Command, connection: Connection) -> Command:
    cleaning.ask()
    return ok()


async def clean_queue_indexes(cleaning: Cleaning, request: Command, connection: Connection) -> Command:
    """Queues keep their last file, unlike Java's: with it would go their numbering, and groups would miss messages."""
    await cleaning.follow()
    return ok()


async def register_filter_server(
    filter_servers: FilterServers, configuration: BrokerConfiguration, request: Command, connection: Connection
) -> Command:
    address = request.read(RegisterFilterServer).filter_server_addr
    try:
        filter_servers.register(str(parse_address(address)), connection)
    except ConfigError as error:
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, str(error)) from None
    settings = configuration.settings
    return ok(FilterServerRegistered(broker_name=settings.broker_name, broker_id=settings.broker_id))


# ---- cold data


async def limit_cold_data(limits: ColdDataLimits, request: Command, connection: Connection) -> Command:
    wanted = parse_properties(_utf8(request.body))
    for group, threshold in wanted.items():
        names.check_group_name(group)
        if not threshold.isascii() or not threshold.isdigit() or len(threshold) > _MOST_DIGITS:
            raise RequestFailed(ResponseCode.INVALID_PARAMETER, f"{group}={threshold[:40]} is no number of bytes")
    for group, threshold in wanted.items():
        limits.set(group, int(threshold))
    return ok()


async def unlimit_cold_data(limits: ColdDataLimits, request: Command, connection: Connection) -> Command:
    limits.remove(_utf8(request.body))
    return ok()


async def cold_data_info(
    limits: ColdDataLimits, configuration: BrokerConfiguration, request: Command, connection: Connection
) -> Command:
    shown = configuration.as_properties()
    info = ColdDataInfo(
        config_table=limits.by_group(),
        cg_cold_read_threshold=int(shown["cgColdReadThreshold"]),
        global_cold_read_threshold=int(shown["globalColdReadThreshold"]),
    )
    return ok(body=info.to_json())


async def set_read_ahead(store: Store, request: Command, connection: Connection) -> Command:
    mode = request.read(ReadAheadMode).mode
    if mode not in (_NORMAL, _RANDOM):
        raise RequestFailed(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
    for segment in store.log.files.segments:
        segment.file.read_ahead(enabled=mode == _NORMAL)
    return answer(ResponseCode.SUCCESS, f"set commitlog readahead mode success, mode: {mode}")


def _utf8(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"the body is not UTF-8: {error}") from None
