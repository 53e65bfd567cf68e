"""Verbs about name servers. Java: `tools.command.namesrv`"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.admin.key_values import (
    add_write_permission,
    delete_key_value,
    name_server_settings,
    put_key_value,
    update_name_server_settings,
    wipe_write_permission,
)
from orbitmq.cli.mqadmin.verb import flag, verb

if TYPE_CHECKING:
    from orbitmq.admin.session import Session
    from orbitmq.cli.mqadmin.report import Report


@verb(
    "updateKvConfig",
    flag("s", "namespace", "namespace", "set the namespace", required=True),
    flag("k", "key", "key", "set the key name", required=True),
    flag("v", "value", "value", "set the key value", required=True),
)
async def update_kv_config(session: Session, report: Report, namespace: str, key: str, value: str) -> None:
    """Create or update KV config."""
    await put_key_value(session, namespace, key, value)
    report.fact("create or update kv config to namespace success.", namespace=namespace, key=key, value=value)


@verb(
    "deleteKvConfig",
    flag("s", "namespace", "namespace", "set the namespace", required=True),
    flag("k", "key", "key", "set the key name", required=True),
)
async def delete_kv_config(session: Session, report: Report, namespace: str, key: str) -> None:
    """Delete KV config."""
    await delete_key_value(session, namespace, key)
    report.fact("delete kv config from namespace success.", namespace=namespace, key=key)


@verb("getNamesrvConfig")
async def get_name_server_config(session: Session, report: Report) -> None:
    """Get configs of name server."""
    for address, settings in (await name_server_settings(session)).items():
        report.data[str(address)] = settings
        report.line(f"============{address}============")
        for key, value in settings.items():
            report.line(f"{key:<50}=  {value}")


@verb(
    "updateNamesrvConfig",
    flag("k", "key", "key", "config key", required=True),
    flag("v", "value", "value", "config value", required=True),
)
async def update_name_server_config(session: Session, report: Report, key: str, value: str) -> None:
    """Update configs of name server."""
    servers = ", ".join(map(str, await update_name_server_settings(session, {key: value})))
    report.fact(f"update name server config success![{servers}]", key=key, value=value)
    report.line(f"{key} : {value}")


@verb("wipeWritePerm", flag("b", "brokerName", "broker", "broker name", required=True))
async def wipe_write_perm(session: Session, report: Report, broker: str) -> None:
    """Wipe write perm of broker in all name server you defined in the -n param."""
    for address, topics in (await wipe_write_permission(session, broker)).items():
        report.fact(
            f"wipe write perm of broker[{broker}] in name server[{address}] OK, {topics}", **{str(address): topics}
        )


@verb("addWritePerm", flag("b", "brokerName", "broker", "broker name", required=True))
async def add_write_perm(session: Session, report: Report, broker: str) -> None:
    """Add write perm of broker in all name server you defined in the -n param."""
    for address, topics in (await add_write_permission(session, broker)).items():
        report.fact(
            f"add write perm of broker[{broker}] in name server[{address}] OK, {topics}", **{str(address): topics}
        )
