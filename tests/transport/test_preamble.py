"""A connection's first bytes: PROXY headers of both versions, TLS or frames, cut wherever they may be."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import FrameError
from orbitmq.protocol import command as commands
from orbitmq.transport.address import Address
from orbitmq.transport.preamble import Preamble
from tests.raw_client import raw_client
from tests.transport.serving import ECHO, echo, serving

if TYPE_CHECKING:
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = bytes([10, 0, 0, 7, 10, 0, 0, 1]) + struct.pack(">HH", 5555, 9876)
V6 = bytes(15) + b"\x07" + bytes(15) + b"\x01" + struct.pack(">HH", 5555, 9876)


def v2(addresses: bytes, *, version_command: int = 0x21, family: int = 0x11) -> bytes:
    return SIGNATURE + struct.pack(">BBH", version_command, family, len(addresses)) + addresses


HEADERS: dict[str, tuple[bytes, Address | None]] = {
    "v1 IPv4": (b"PROXY TCP4 10.0.0.7 10.0.0.1 5555 9876\r\n", Address("10.0.0.7", 5555)),
    "v1 IPv6": (b"PROXY TCP6 2001:db8::7 2001:db8::1 5555 9876\r\n", Address("2001:db8::7", 5555)),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown with rest": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v2 IPv4": (v2(V4), Address("10.0.0.7", 5555)),
    "v2 IPv6": (v2(V6, family=0x21), Address("::7", 5555)),
    "v2 with extras": (v2(V4 + b"\x04\x00\x03abc"), Address("10.0.0.7", 5555)),
    "v2 local": (v2(b"", version_command=0x20, family=0), None),
    "v2 unix socket": (v2(bytes(216), family=0x31), None),
    "none": (b"", None),
}
FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x02{}"
HELLO = b"\x16\x03\x01\x02\x00"
EVERY_HEADER = pytest.mark.parametrize(("header", "source"), HEADERS.values(), ids=HEADERS)


@EVERY_HEADER
@pytest.mark.parametrize("follows", [FRAME, HELLO], ids=["frame", "TLS"])
def test_understood_however_it_is_cut(header: bytes, source: Address | None, follows: bytes) -> None:
    stream = header + follows
    cuts = [[stream[:at], stream[at:]] for at in range(len(stream) + 1)]
    for pieces in [*cuts, [stream[at : at + 1] for at in range(len(stream))]]:
        preamble, rest = Preamble(), b""
        for piece in pieces:
            if preamble.done:
                rest += piece
            else:
                preamble.feed(piece)
        assert preamble.done
        assert preamble.source == source
        assert preamble.is_tls == (follows is HELLO)
        assert preamble.rest + rest == follows


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\n\r\n",
        b"PROXY" + b" " * 200,
        b"PROXY TCP4 10.0.0.7\r\n",
        b"PROXY TCP9 10.0.0.7 10.0.0.1 5555 9876\r\n",
        b"PROXY TCP4 10.0.0.7 10.0.0.1 port 9876\r\n",
        b"PROXY TCP4 10.0.0.7 10.0.0.1 \xb2 9876\r\n",
        b"PROXY TCP4 10.0.0.7 10.0.0.1 65536 9876\r\n",
        b"PROXY TCP4 \x1b[31mred 10.0.0.1 5555 9876\r\n",
        b"PROXYTCP4 10.0.0.7 10.0.0.1 5555 9876 x\r\n",
        b"\r\n\r\n\x00\r\nQUIX\n",
        b"\r\nhello",
        v2(V4, version_command=0x11),
        v2(V4[:5]),
        v2(V4, family=0x21),
    ],
)
def test_what_begins_as_a_proxy_header_and_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        Preamble().feed(data)


@given(st.binary(max_size=200), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]))
def test_any_bytes_are_understood_refused_or_too_few(data: bytes, start: bytes) -> None:
    preamble = Preamble()
    with contextlib.suppress(FrameError):
        preamble.feed(start + data)


async def whoami(request: Command, connection: Connection) -> Command:
    return commands.ok(body=str(connection.peer).encode())


@EVERY_HEADER
async def test_a_served_peer_is_who_the_proxy_says(header: bytes, source: Address | None) -> None:
    async with serving({ECHO: whoami}) as (_, address), raw_client(address) as client:
        client.send(header)
        answer = await client.ask(ECHO)
        own = client.writer.get_extra_info("sockname")
        assert answer.body.decode() == str(source or Address(*own[:2]))


async def test_a_header_in_single_bytes_then_requests() -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        stream = v2(V4) + client.request(ECHO, body=b"slow")
        await client.send_in_pieces(stream[at : at + 1] for at in range(len(stream)))
        assert (await client.answer()).body == b"slow"


@pytest.mark.parametrize("first", [HEADERS[name][0] for name in ("v1 unknown", "v2 local", "v1 IPv4")])
def test_a_header_behind_a_header_is_none(first: bytes) -> None:
    preamble = Preamble()
    preamble.feed(first)
    source = preamble.source
    preamble.feed(v2(V4))
    assert preamble.done
    assert preamble.source == source
    assert preamble.rest == v2(V4)


@pytest.mark.parametrize("header", [header for header, _ in HEADERS.values() if header])
async def test_a_header_of_someone_who_is_not_believed_closes_the_connection_with_one_line(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    async with serving({ECHO: echo}, believes_proxy=asked.append) as (_, address):
        async with raw_client(address) as client:
            assert (await client.ask(ECHO)).code == 0  # without a header nobody asks
            assert asked == []
        async with raw_client(address) as client:
            client.send(header)
            assert await client.is_closed_by_the_server()
    assert asked == ["127.0.0.1"]
    (line,) = caplog.records
    assert line.levelname == "WARNING"
    assert "orbitmq.trustedProxies" in line.getMessage()


async def test_a_broken_header_closes_the_connection_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with serving({ECHO: echo}) as (_, address), raw_client(address) as client:
        client.send(b"PROXY TCP4 10.0.0.7 10.0.0.1 \xb2 9876\r\n")
        assert await client.is_closed_by_the_server()
    assert len(caplog.records) == 1
    assert "broken PROXY header" in caplog.text
