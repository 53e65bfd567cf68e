"""Verbs that set many things at once, and how brokers read. Java: `tools.command.topic`, `.consumer`, `.broker`"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from orbitmq import fastjson
from orbitmq.admin.brokers import find_brokers
from orbitmq.cli.mqadmin.verb import flag, one_of, verb, whole_number
from orbitmq.protocol.bodies.admin import ColdDataInfo
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.headers.admin import MasterFlushOffset, ReadAheadMode
from orbitmq.protocol.properties_text import format_properties
from orbitmq.transport.address import parse_address

if TYPE_CHECKING:
    from orbitmq.admin.session import Session
    from orbitmq.cli.mqadmin.report import Report
    from orbitmq.transport.address import Address


def _where(what: str) -> tuple[click.Option, click.Option]:
    return (
        flag("b", "brokerAddr", "broker", f"{what} which broker"),
        flag("c", "clusterName", "cluster", f"{what} which cluster"),
    )


async def _addresses(
    session: Session, broker: str | None, cluster: str | None, *, masters_only: bool = True
) -> list[Address]:
    one_of(("-b", broker), ("-c", cluster))
    if broker is not None:
        return [parse_address(broker)]
    return [place.address for place in await find_brokers(session, cluster=cluster, masters_only=masters_only)]


# ---- many topics or groups at once


def _list_verb(name: str, code: RequestCode, field: str, what: str) -> click.Command:
    async def work(session: Session, report: Report, broker: str | None, cluster: str | None, file: IO[bytes]) -> None:
        configs: Any = fastjson.loads(file.read())
        if not isinstance(configs, list) or not configs:
            raise click.UsageError(f"-f {file.name} holds no JSON list of settings")
        for address in await _addresses(session, broker, cluster):
            await session.ask(address, code, body=msgspec.json.encode({field: configs}))
            report.fact(
                f"submit batch of {what} config to {address} success, please check the result later.",
                **{str(address): len(configs)},
            )

    work.__doc__ = f"Create or update {what}s in batch."
    source = click.Option(
        ["-f", "--filename", "file"],
        type=click.File("rb"),
        required=True,
        help="JSON list of settings, Apache's names.",
    )
    return verb(name, *_where("create to"), source)(work)


update_topic_list = _list_verb("updateTopicList", RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", "topic")
update_group_list = _list_verb(
    "updateSubGroupList", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", "group"
)


@verb(
    "setConsumeMode",
    *_where("create subscription group to"),
    flag("t", "topicName", "topic", "topic name", required=True),
    flag("g", "groupName", "group", "consumer group name", required=True),
    flag("m", "mode", "mode", "consume mode. PULL/POP", required=True),
    flag("q", "popShareQueueNum", "shared", "num of queue which share in pop mode"),
)
async def set_consume_mode(
    session: Session,
    report: Report,
    broker: str | None,
    cluster: str | None,
    topic: str,
    group: str,
    mode: str,
    shared: str | None,
) -> None:
    """Set consume message mode. pull/pop etc."""
    if mode not in ("PULL", "POP"):
        raise click.UsageError(f"-m {mode!r} is no mode: PULL or POP")
    count = whole_number("-q", shared, 0)
    body = msgspec.json.encode({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": count})
    for address in await _addresses(session, broker, cluster):
        await session.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        report.fact(f"set consume mode to {address} success.", **{str(address): mode})
    report.line(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{count}]")


# ---- how brokers read


@verb(
    "resetMasterFlushOffset",
    flag("b", "brokerAddr", "broker", "which broker to reset", required=True),
    flag("o", "offset", "offset", "the offset to reset at", required=True),
)
async def reset_master_flush_offset(session: Session, report: Report, broker: str, offset: str) -> None:
    """Reset master flush offset in slave."""
    number = whole_number("-o", offset, 0)
    header = MasterFlushOffset(master_flush_offset=number)
    await session.ask(parse_address(broker), RequestCode.RESET_MASTER_FLUSH_OFFSET, header)
    report.fact(f"reset master flush offset to {number} success", broker=broker, offset=number)


@verb("getColdDataFlowCtrInfo", *_where("get from"))
async def cold_data_info(session: Session, report: Report, broker: str | None, cluster: str | None) -> None:
    """Get cold data flow ctr info."""
    for address in await _addresses(session, broker, cluster):
        answer = await session.ask(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        info = ColdDataInfo.from_json(answer.body)
        word = "" if broker is not None else "Master: "
        report.line(f" ============{word}{address}============")
        report.line(msgspec.json.format(info.to_json(), indent=1).decode())
        report.data[str(address)] = msgspec.to_builtins(info)


@verb(
    "updateColdDataFlowCtrGroupConfig",
    *_where("update"),
    flag("g", "consumerGroup", "group", "specific consumerGroup", required=True),
    flag("v", "threshold", "threshold", "cold read threshold value", required=True),
)
async def limit_cold_data(
    session: Session, report: Report, broker: str | None, cluster: str | None, group: str, threshold: str
) -> None:
    """Add or update cold data flow ctr group config."""
    body = format_properties({group: threshold}).encode()
    for address in await _addresses(session, broker, cluster):
        await session.ask(address, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)
        report.fact(f"updateColdDataFlowCtrGroupConfig success, {address}", **{str(address): threshold})


@verb(
    "removeColdDataFlowCtrGroupConfig",
    *_where("update"),
    flag("g", "consumerGroup", "group", "the consumer group will remove from the config", required=True),
)
async def unlimit_cold_data(
    session: Session, report: Report, broker: str | None, cluster: str | None, group: str
) -> None:
    """Remove consumer from cold ctr config."""
    for address in await _addresses(session, broker, cluster):
        await session.ask(address, RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=group.encode())
        report.fact(f"remove broker cold read threshold success, {address}", **{str(address): group})


@verb(
    "setCommitLogReadAheadMode",
    *_where("set"),
    flag(
        "m",
        "commitLogReadAheadMode",
        "mode",
        "the CommitLog read ahead mode; 0 is default, 1 random read",
        required=True,
    ),
)
async def set_read_ahead(session: Session, report: Report, broker: str | None, cluster: str | None, mode: str) -> None:
    """Set read ahead mode for all commitlog files."""
    if mode not in ("0", "1"):
        raise click.UsageError("set the read mode error; 0 is default, 1 random read")
    for address in await _addresses(session, broker, cluster, masters_only=False):
        answer = await session.ask(address, RequestCode.SET_COMMITLOG_READ_MODE, ReadAheadMode(mode=int(mode)))
        word = "" if broker is not None else "Master: "
        report.line(f" ============{word}{address}============")
        report.fact(f"commitLog set readAhead mode rstStr{answer.remark}", **{str(address): mode})
