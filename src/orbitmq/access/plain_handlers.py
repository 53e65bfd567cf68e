"""Access files of 4.x, looked at and changed from afar (50 to 54). Secret keys are taken, never given back.

Java: AdminBrokerProcessor of 4.x
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from orbitmq.access.gate import tell_done
from orbitmq.access.plain_editing import PlainFiles
from orbitmq.access.plain_file import access_files, load_content
from orbitmq.access.plain_gate import PlainGate
from orbitmq.errors import ConfigError, RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import ok
from orbitmq.protocol.headers.access import AccessFileVersions, OfAccount, PlainAccount, WhiteAddresses

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.access.gate import Door
    from orbitmq.clock import Clock
    from orbitmq.protocol.command import Command
    from orbitmq.transport.address import Address
    from orbitmq.transport.connection import Connection, Handler

_CODES: Final = (
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    RequestCode.DELETE_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
)


class BrokerNames(Protocol):
    @property
    def broker_name(self) -> str: ...
    @property
    def broker_cluster_name(self) -> str: ...


def plain_routes(
    gate: Door | None, names: BrokerNames, address: Callable[[], Address], clock: Clock
) -> dict[int, Handler]:
    if not isinstance(gate, PlainGate):
        return dict.fromkeys(_CODES, _refuse)
    files, changing = PlainFiles(gate.main_file, clock), asyncio.Lock()
    return {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: partial(put_account, gate, files, changing),
        RequestCode.DELETE_ACL_CONFIG: partial(delete_account, gate, files, changing),
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: partial(versions, files, names, address),
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: partial(set_white_addresses, gate, files, changing),
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: partial(all_accounts, gate),
    }


async def put_account(
    gate: PlainGate, files: PlainFiles, changing: asyncio.Lock, request: Command, connection: Connection
) -> Command:
    account = request.read(PlainAccount)
    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    await _change(gate, changing, failed, partial(files.put_account, account))
    return _done(request, connection, f"set account {account.access_key}")


async def delete_account(
    gate: PlainGate, files: PlainFiles, changing: asyncio.Lock, request: Command, connection: Connection
) -> Command:
    access_key = request.read(OfAccount).access_key
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    await _change(gate, changing, failed, partial(files.delete_account, access_key))
    return _done(request, connection, f"deleted account {access_key}")


async def set_white_addresses(
    gate: PlainGate, files: PlainFiles, changing: asyncio.Lock, request: Command, connection: Connection
) -> Command:
    header = request.read(WhiteAddresses)
    addresses = [part.strip() for part in header.global_white_addrs.split(",") if part.strip()]
    change = partial(files.set_white_addresses, addresses, header.acl_file_full_path)
    await _change(gate, changing, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, change)
    return _done(request, connection, f"set the white addresses to {', '.join(addresses) or 'none'}")


async def versions(
    files: PlainFiles, names: BrokerNames, address: Callable[[], Address], request: Command, connection: Connection
) -> Command:
    try:
        main, each = await asyncio.to_thread(lambda: (files.main_version(), files.versions()))
    except ConfigError as error:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return ok(
        AccessFileVersions(
            version=msgspec.json.encode(main).decode(),
            all_acl_file_version=msgspec.json.encode(each).decode(),
            broker_name=names.broker_name,
            broker_addr=str(address()),
            cluster_name=names.broker_cluster_name,
        )
    )


async def all_accounts(gate: PlainGate, request: Command, connection: Connection) -> Command:
    """As the files are now. Apache's broker gives the secret keys as well."""
    try:
        contents = await asyncio.to_thread(lambda: [load_content(path) for path in access_files(gate.main_file)])
    except ConfigError as error:
        raise RequestFailed(ResponseCode.SYSTEM_ERROR, str(error)) from None
    white = [str(text) for content in contents for text in content.get("globalWhiteRemoteAddresses") or []]
    accounts = [_shown(item) for content in contents for item in content.get("accounts") or []]
    return ok(body=msgspec.json.encode({"globalWhiteAddrs": white, "plainAccessConfigs": accounts}))


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    texts = ("accessKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
    shown: dict[str, Any] = {key: str(item[key]) for key in texts if item.get(key) is not None}
    lists = {key: [str(one) for one in item.get(key) or []] for key in ("topicPerms", "groupPerms")}
    return {**shown, "admin": item.get("admin") is True, **lists}


async def _change(gate: PlainGate, changing: asyncio.Lock, failed: ResponseCode, change: Callable[[], None]) -> None:
    async with changing:
        try:
            await asyncio.to_thread(change)
        except ConfigError as error:
            raise RequestFailed(failed, str(error)) from None
        except OSError as error:
            raise RequestFailed(failed, f"the access file cannot be written: {error.strerror}") from None
        gate.look_again()


def _done(request: Command, connection: Connection, what: str) -> Command:
    tell_done(request, connection, what)
    return ok()


async def _refuse(request: Command, connection: Connection) -> Command:
    raise RequestFailed(
        ResponseCode.SYSTEM_ERROR,
        "there are no access files here: aclEnable is off",
        hint="users and policies of 5.x are changed with createUser, createAcl and their like",
    )
