"""What name servers keep for others: items by namespace and key, and their own settings. Java: `tools.command.namesrv`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.headers.nameserver import (
    BrokerName,
    KvConfigKey,
    KvConfigValue,
    PutKvConfig,
    WritePermissionAdded,
    WritePermissionWiped,
)
from orbitmq.protocol.properties_text import format_properties, parse_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.admin.session import Session
    from orbitmq.transport.address import Address


async def put_key_value(session: Session, namespace: str, key: str, value: str) -> None:
    header = PutKvConfig(namespace=namespace, key=key, value=value)
    await session.tell_name_servers(RequestCode.PUT_KV_CONFIG, header)


async def delete_key_value(session: Session, namespace: str, key: str) -> None:
    """One that is not there is no error."""
    await session.tell_name_servers(RequestCode.DELETE_KV_CONFIG, KvConfigKey(namespace=namespace, key=key))


async def key_value(session: Session, namespace: str, key: str) -> str | None:
    try:
        answer = await session.ask_name_server(RequestCode.GET_KV_CONFIG, KvConfigKey(namespace=namespace, key=key))
    except RequestFailed as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    return answer.read(KvConfigValue).value


async def name_server_settings(session: Session) -> dict[Address, dict[str, str]]:
    """What each name server is set to, under Apache's names."""

    async def settings(address: Address) -> dict[str, str]:
        return parse_properties((await session.ask(address, RequestCode.GET_NAMESRV_CONFIG)).body.decode())

    return await session.each_name_server(settings)


async def update_name_server_settings(session: Session, changes: Mapping[str, str]) -> list[Address]:
    """Where they were changed: at every name server."""
    body = format_properties(dict(changes)).encode()
    return list(
        await session.each_name_server(
            lambda address: session.ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        )
    )


async def wipe_write_permission(session: Session, broker: str) -> dict[Address, int]:
    """Let nobody send to a broker any more; the number of topics it concerns at each name server."""

    async def wipe(address: Address) -> int:
        answer = await session.ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker))
        return answer.read(WritePermissionWiped).wipe_topic_count

    return await session.each_name_server(wipe)


async def add_write_permission(session: Session, broker: str) -> dict[Address, int]:
    async def add(address: Address) -> int:
        answer = await session.ask(address, RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerName(broker_name=broker))
        return answer.read(WritePermissionAdded).add_topic_count

    return await session.each_name_server(add)
