"""Just enough of the protocol to ask a server a question, written apart from orbitmq's own so that neither hides the other's faults."""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

UPDATE_BROKER_CONFIG: Final = 25
GET_ROUTEINFO_BY_TOPIC: Final = 105
REQUEST_CODE_NOT_SUPPORTED: Final = 3
TOPIC_NOT_EXIST: Final = 17
_SECONDS: Final = 5.0
_BINARY: Final = 1
_CODES: Final = (*range(1, 1020), *range(2000, 2020), *range(3000, 3020), *range(200_000, 200_200))


@dataclass(frozen=True, slots=True)
class Command:
    """A request or an answer, of either header codec."""

    code: int
    opaque: int
    flag: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes
    binary: bool

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & 1)


def encode(code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request with JSON header, length word included."""
    header = {
        "code": code,
        "extFields": dict(fields or {}),
        "flag": 0,
        "language": "OTHER",
        "opaque": 1,
        "version": 495,
    }
    encoded = json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def decode(frame: bytes) -> Command:
    """A frame without its length word."""
    (word,) = struct.unpack_from(">I", frame)
    codec, header_end = word >> 24, 4 + (word & 0xFFFFFF)
    header, body = frame[4:header_end], frame[header_end:]
    return _decode_binary(header, body) if codec == _BINARY else _decode_json(header, body)


def ask(address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
    """One request over a connection of its own; OSError when nobody answers."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _SECONDS) as connection:
        connection.sendall(encode(code, fields, body))
        frame = read_frame(connection)
    if frame is None:
        raise ConnectionError("closed without an answer")
    return decode(frame)


def served(address: str) -> set[int]:
    """The request codes that a server knows. Each is sent bare: who serves it finds something wrong with it, but does not say that
    there is no such code. (4.9's name server says nothing at all to codes it does not know.)"""
    return {code for code in _CODES if ask(address, code).code != REQUEST_CODE_NOT_SUPPORTED}


def read_frame(connection: socket.socket) -> bytes | None:
    """The next frame without its length word; None at the end of the stream."""
    length = _read(connection, 4)
    return None if length is None else _read(connection, int.from_bytes(length, "big"))


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return data


def _decode_json(header: bytes, body: bytes) -> Command:
    decoded: dict[str, Any] = json.loads(header)
    return Command(
        code=decoded["code"],
        opaque=decoded["opaque"],
        flag=decoded["flag"],
        remark=decoded.get("remark"),
        fields=decoded.get("extFields") or {},
        body=body,
        binary=False,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    code, _language, _version, opaque, flag, remark_size = struct.unpack_from(">hbhiii", header)
    at = struct.calcsize(">hbhiii") + remark_size
    remark = header[at - remark_size : at].decode() or None
    fields: dict[str, str] = {}
    at += 4  # the size of all fields together
    while at < len(header):
        (key_size,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + key_size].decode()
        at += 2 + key_size
        (value_size,) = struct.unpack_from(">i", header, at)
        fields[key] = header[at + 4 : at + 4 + value_size].decode()
        at += 4 + value_size
    return Command(code, opaque, flag, remark, fields, body, binary=True)


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
