"""What a consumer tells about itself, laid out as mqadmin does. Java: ConsumerRunningInfo.formatString"""

from __future__ import annotations

from typing import Any

from orbitmq import fastjson
from orbitmq.cli.mqadmin.report import java_text


def running_info_text(info: dict[str, Any]) -> str:
    parts = ["#Consumer Properties#\n"]
    parts += [f"{name:<40}: {java_text(value)}\n" for name, value in info.get("properties", {}).items()]
    parts.append("\n\n#Consumer Subscription#\n")
    for number, one in enumerate(info.get("subscriptionSet", []), 1):
        parts.append(
            f"{number:03d} Topic: {one.get('topic'):<40} ClassFilter: {java_text(one.get('classFilterMode', False)):<8} "
            f"SubExpression: {one.get('subString')}\n"
        )
    queues = [(_queue(key), value) for key, value in info.get("mqTable", {}).items()]
    parts.append("\n\n#Consumer Offset#\n")
    parts.append(f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#Consumer Offset':<20}\n")
    parts += [
        f"{key['topic']:<32}  {key['brokerName']:<32}  {key['queueId']:<4}  {value.get('commitOffset'):<20}\n"
        for key, value in queues
    ]
    parts.append("\n\n#Consumer MQ Detail#\n")
    parts.append(f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  {'#ProcessQueueInfo':<20}\n")
    parts += [
        f"{key['topic']:<64}  {key['brokerName']:<32}  {key['queueId']:<4}  {_details(value)}\n"
        for key, value in queues
    ]
    parts.append("\n\n#Consumer RT&TPS#\n")
    parts.append(
        f"{'#Topic':<64}  {'#Pull RT':>14} {'#Pull TPS':>14} {'#Consume RT':>14} {'#ConsumeOK TPS':>14} "
        f"{'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}\n"
    )
    for topic, one in info.get("statusTable", {}).items():
        figures = [float(one.get(name, 0.0)) for name in ("pullRT", "pullTPS", "consumeRT", "consumeOKTPS")]
        texts = " ".join(f"{figure:14.2f}" for figure in figures)
        failed = f"{float(one.get('consumeFailedTPS', 0.0)):18.2f} {int(one.get('consumeFailedMsgs', 0)):25d}"
        parts.append(f"{topic:<32}  {texts} {failed}\n")
    if info.get("jstack") is not None:
        parts.append(f"\n\n#Consumer jstack#\n{info['jstack']}")
    return "".join(parts)


def _queue(key: Any) -> dict[str, Any]:
    return dict(fastjson.loads(key.encode()) if isinstance(key, str) else key)


def _details(value: dict[str, Any]) -> str:
    return "ProcessQueueInfo [" + ", ".join(f"{name}={java_text(item)}" for name, item in value.items()) + "]"
