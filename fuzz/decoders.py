"""Everything that turns a stranger's bytes into values: frames, headers, bodies, properties, first bytes of a connection.

    python -m fuzz.decoders --seconds 60 --seed 1     random damage to recorded frames; stops at the first fault
    python -m fuzz.decoders --atheris [corpus]        the same target under atheris

A fault is any exception but ProtocolError, or a decoder that disagrees with itself about the same bytes cut differently.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from typing import TYPE_CHECKING, Final

from tests.golden_frames import golden_frames

from fuzz.mutation import mutated, pieces
from orbitmq import fastjson
from orbitmq.errors import ProtocolError
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies import leases as lease_bodies
from orbitmq.protocol.bodies import registration, route, topics
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.frame import Frame, FrameDecoder
from orbitmq.protocol.headers import leases
from orbitmq.protocol.headers import nameserver as headers
from orbitmq.protocol.lease_texts import parse_handle
from orbitmq.protocol.properties_text import parse_properties
from orbitmq.transport.preamble import Preamble

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.protocol.bodies.base import Body
    from orbitmq.protocol.headers.base import Header

_HEADERS: Final[tuple[type[Header], ...]] = (
    headers.PutKvConfig, headers.KvConfigKey, headers.KvConfigValue, headers.KvNamespace, headers.RegisterBroker,
    headers.BrokerRegistered, headers.UnregisterBroker, headers.QueryDataVersion, headers.DataVersionVerdict,
    headers.BrokerHeartbeat, headers.GetRoute, headers.BrokerName, headers.WritePermissionWiped, headers.DeleteTopic,
    headers.RegisterTopic, headers.ClusterName, headers.MemberGroup, headers.MinBrokerIdChanged,
    leases.PopMessage, leases.PopResult, leases.AckMessage, leases.ChangeInvisibleTime, leases.Notification,
)  # fmt: skip
_BODIES: Final[tuple[type[Body], ...]] = (
    registration.Registration, topics.TopicTable, topics.DataVersion, topics.TopicList, route.TopicRoute,
    route.ClusterInfo, route.BrokerMembersBody, route.KvTable, lease_bodies.BatchAcks, lease_bodies.QueryAssignment,
)  # fmt: skip


def check(data: bytes) -> None:
    """Put one input through every decoder. Anything it raises is a fault."""
    whole = _decoded([data])
    # Cut in the same way for the same bytes, so that a fault can be repeated.
    cut = _decoded(pieces(data, random.Random(data)))
    assert whole == cut, "the decoder gives other frames when the stream is cut"
    for frame in whole[0]:
        _check_command(frame)
    _tolerates(lambda: Preamble().feed(data))
    for codec in (0, 1):
        _check_command(Frame(codec, data, b""))
    _check_body(data)


def _decoded(parts: list[bytes]) -> tuple[list[Frame], str]:
    decoder = FrameDecoder()
    frames = [frame for part in parts for frame in decoder.feed(part)]
    return frames, str(decoder.failure)


def _check_command(frame: Frame) -> None:
    try:
        command = commands.decode(frame)
    except ProtocolError:
        return
    for header in _HEADERS:
        _tolerates(lambda header=header: command.read(header))  # type: ignore[misc]
    try:
        fields = command.fields
    except ProtocolError:
        pass
    else:
        for key, value in fields.items():
            assert isinstance(key, str)
            assert isinstance(value, str)
        repr(command)
        again = commands.decode(FrameDecoder().feed(commands.encode(command))[0])
        assert dict(again.fields) == dict(fields), "a command changes on its way through the JSON codec"
    if command.code == RequestCode.REGISTER_BROKER:
        _tolerates(lambda: registration.decode_registration(command.body, command.version))
    if command.body:
        _check_body(command.body)


def _check_body(data: bytes) -> None:
    for body in _BODIES:
        _tolerates(lambda body=body: _through(body, data))  # type: ignore[misc]
    for version in (0, 400, 479):
        _tolerates(lambda version=version: registration.decode_registration(data, version))  # type: ignore[misc]
    _tolerates(lambda: fastjson.loads(data))
    _tolerates(lambda: parse_handle(data.decode("utf-8", "replace")))
    _tolerates(lambda: parse_properties(data.decode("utf-8", "replace")))


def _through(kind: type[Body], data: bytes) -> None:
    body = kind.from_json(data)
    for standard in (True, False):
        assert kind.from_json(body.to_json(standard=standard)) == body, f"{kind.__name__} changes on its way through"


def _tolerates(attempt: Callable[[], object]) -> None:
    with contextlib.suppress(ProtocolError):
        attempt()


def corpus() -> list[bytes]:
    """Recorded frames, the shorter ones: long ones are slow and teach nothing more."""
    return [golden.data for golden in golden_frames() if len(golden.data) < 3000]


def run(*, seed: int, seconds: float | None = None, count: int | None = None) -> int:
    """How many inputs were tried. The first fault is raised, after its input was printed."""
    chance, frames, tried = random.Random(seed), corpus(), 0
    end = time.monotonic() + seconds if seconds is not None else None
    while (count is None or tried < count) and (end is None or time.monotonic() < end):
        data = mutated(frames, chance)
        try:
            check(data)
        except Exception:
            print(f"fault at input {tried} of seed {seed}: bytes.fromhex({data.hex()!r})", file=sys.stderr)
            raise
        tried += 1
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the decoders.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="run under atheris; further arguments are its own")
    options, rest = parser.parse_known_args()
    if options.atheris:
        import atheris

        atheris.Setup([sys.argv[0], *rest], check)
        atheris.Fuzz()
        return
    tried = run(seed=options.seed, seconds=options.seconds)
    print(f"{tried} inputs, no fault")


if __name__ == "__main__":
    main()
