"""Just enough of the protocol to ask a server a question, written apart from orbitmq's own so that neither hides the other's faults."""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

UPDATE_BROKER_CONFIG: Final = 25
GET_ROUTEINFO_BY_TOPIC: Final = 105
TOPIC_NOT_EXIST: Final = 17
_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes


def ask(address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
    """One request over a connection of its own; OSError when nobody answers."""
    header = {
        "code": code,
        "extFields": dict(fields or {}),
        "flag": 0,
        "language": "OTHER",
        "opaque": 1,
        "version": 495,
    }
    encoded = json.dumps(header).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        (length,) = struct.unpack(">i", _read(connection, 4))
        frame = _read(connection, length)
    (header_length,) = struct.unpack_from(">i", frame)
    answer: dict[str, Any] = json.loads(frame[4 : 4 + header_length])
    return Answer(answer["code"], answer.get("remark"), answer.get("extFields") or {}, frame[4 + header_length :])


def brokers_of(name_server: str, topic: str) -> dict[str, dict[str, str]]:
    """Who serves a topic, as a name server has it: broker name -> id -> address; empty when it has no route."""
    answer = ask(name_server, GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if answer.code == TOPIC_NOT_EXIST:
        return {}
    assert answer.code == 0, answer
    return {broker["brokerName"]: broker["brokerAddrs"] for broker in json.loads(answer.body)["brokerDatas"]}


def is_answering(name_server: str) -> bool:
    try:
        brokers_of(name_server, "any")
    except OSError:
        return False
    return True


def register_now(broker: str) -> None:
    """Make an Apache broker register with its name servers at once: it does when its permission is set, to whatever value."""
    answer = ask(broker, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")
    assert answer.code == 0, answer


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed in the middle of an answer")
        data += piece
    return data
