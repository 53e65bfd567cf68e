"""A name server and a broker, alive, and a great many damaged requests for them.

    python -m fuzz.servers --frames 1000000 --seed 1        [--guarded: with access control]

Requests are recorded ones and one of each code that the two serve, with both header codecs. On each connection come forty whose
fields, codes, flags and bodies are damaged, and behind them one whose bytes are, lengths included. On every second connection most of
the forty are sends as every client sends them, so that the loops for many sends in one read meet the damaged ones. With access control
most requests are signed after they were damaged: what is behind the gate is attacked as well as the gate. At the end:

    alive       both answer, and neither log has a traceback
    answers     no request was answered twice, and nobody who asked for no answer got one
    files       nothing was written outside the store and the two servers' own files
    memory      grew by less than 64 MB from the first tenth of the run on

The servers may make 60 topics and groups a minute: damaged names would otherwise be as many topics, which is no fault but takes room.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.golden_frames import golden_frames
from tests.interop import orbit
from tests.mutations import mutated as damaged_inside

from fuzz.mutation import mutated as damaged_anywhere
from orbitmq.broker.permissions import NEEDS as BROKER_CODES
from orbitmq.errors import HeaderError, ProtocolError
from orbitmq.nameserver.permissions import NEEDS as NAMESERVER_CODES
from orbitmq.protocol import command as commands
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.address import Address, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.processes import Process

_VOLLEY: Final = 40
_USUAL_SHARE: Final = 0.85  # of the sends, where they are many
_SIGNED_SHARE: Final = 0.9
_ROOT: Final = Credentials("root", "root-secret")
_AT_ONCE: Final = 8
_PATIENCE_SECONDS: Final = 120.0
_MOST_GROWTH_MB: Final = 64.0
_FIELDS: Final = {
    "a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "TAGS\x01t\x02",
    "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "100", "subscription": "*", "subVersion": "0", "consumerGroup": "G", "group": "G",
    "producerGroup": "P", "clientID": "c", "offset": "0", "timestamp": "0", "key": "k", "maxNum": "10", "beginTimestamp": "0",
    "endTimestamp": "9999999999999", "namespace": "N", "value": "v", "clusterName": "C", "brokerName": "b", "brokerAddr":
    "127.0.0.1:1", "brokerId": "0", "haServerAddr": "127.0.0.1:2", "defaultTopic": "TBW102", "readQueueNums": "1",
    "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "username": "u", "subject": "User:u", "delayLevel": "1",
    "pollTime": "100", "invisibleTime": "1000", "initMode": "0", "bornTime": "0", "extraInfo": "0 0 1000 0 0 b 0",
}  # fmt: skip
_BODIES: Final = (
    b"body",
    b"{}",
    b'{"clientID":"c","producerDataSet":[{"groupName":"P"}],"consumerDataSet":[]}',
    b"flushDelayOffsetInterval=10000\n",
)
_CODES: Final = tuple(sorted({*BROKER_CODES, *NAMESERVER_CODES}))
_TELLING_TEXTS: Final = (
    "", "0", "-1", "1", "2147483647", "2147483648", "-9223372036854775808", "99999999999999999999", "1e9", "true", "null", "NaN",
    "T", "G", "%RETRY%G", "%DLQ%G", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "../../../../tmp/x", "/etc/passwd",
    "a/b", "\0", "\x01", "\x02", "ключ", "\U0001f600", "x" * 300, "y" * 70_000, "{}", '{"a":', "$(id)", "|", "*", ".*(a+)+$",
    "a = 1 AND", "a" + " IS NULL" * 500, "a > 1.5 OR " * 2_000 + "a IS NULL", "0x1p99999", "1" * 30_000 + "x", "KEYS\x01\x02" * 5_000,
    "rmq_sys_REVIVE_LOG_DefaultCluster", "TAG", "SQL92", "127.0.0.1:10911", "1.2.3.4:99999", "7F00000100002A9F0000000000000000", "0 0 1000 0 0 b 0",
)  # fmt: skip
_TELLING_BODIES: Final = (
    b"", b"\0", b"\xff" * 8, b"{}", b"[]", b"null", b'{"a":' * 300, b'"$ref":"$"', b"storePathRootDir=/tmp/x\n",
    b"brokerConfigPath=/tmp/x\n", b"rocketmqHome=/tmp/x\n", b"\x78\x9c\xed\xc1", b"\x7f\xff\xff\xff", b"x" * 5000,
    b'{"username":"u","password":"p"}', b'{"topic":"../x"}',
    b'{"bn":"b","c":"G","d":[],"it":1,"n":999999999999999,"pt":1,"q":0,"so":0,"t":"T"}',
)  # fmt: skip
_OWN_FILES: Final = ("broker.conf", "broker.out", "namesrv.properties", "nameserver.out", "kvConfig.json")


class Request(NamedTuple):
    code: int
    fields: dict[str, str]
    body: bytes
    flag: int = 0
    version: int = 479
    opaque: int = 0
    codec: int = CODEC_JSON


@dataclass
class Report:
    frames: int = 0
    answers: int = 0
    faults: list[str] = field(default_factory=list)
    memory_mb: dict[str, list[float]] = field(default_factory=dict)


def corpus() -> list[bytes]:
    recorded = [golden.data for golden in golden_frames() if not golden.is_response and len(golden.data) < 3000]
    made = []
    for number, code in enumerate(_CODES):
        request = Command(code, opaque=number, fields=_FIELDS, body=_BODIES[number % len(_BODIES)])
        made.append(commands.encode(request, CODEC_JSON))
        with suppress(HeaderError):  # a code too great for the binary header
            made.append(commands.encode(request, CODEC_BINARY))
    return recorded + made


def parsed(frames: list[bytes]) -> list[Request]:
    found = []
    for data in frames:
        (frame,) = FrameDecoder().feed(data)
        command = commands.decode(frame)
        found.append(Request(command.code, dict(command.fields), frame.body, command.flag, command.version))
    return found


def usual_send(chance: random.Random) -> Request:
    fields = {
        **{letter: _FIELDS[letter] for letter in "abcdfgh"},
        "e": str(chance.randrange(4)),
        "i": f"UNIQ_KEY\x01{chance.randbytes(16).hex().upper()}\x02WAIT\x01true\x02TAGS\x01t\x02",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "b",
    }
    body = chance.randbytes(chance.choice((1, 60, 100, 300, 2000)))
    return Request(
        RequestCode.SEND_MESSAGE_V2, fields, body, opaque=chance.randrange(1, 1 << 31), codec=chance.choice((0, 1))
    )


def volley(
    requests: list[Request], frames: list[bytes], chance: random.Random, who: Credentials | None = None
) -> tuple[int, bytes]:
    """How many requests, and their bytes. The last is damaged anywhere; a server need not read on behind that."""
    if chance.random() < 0.5:
        asked = [damaged(chance.choice(requests), chance) for _ in range(_VOLLEY)]
    else:
        sends = [usual_send(chance) for _ in range(_VOLLEY)]
        asked = [send if chance.random() < _USUAL_SHARE else damaged(send, chance) for send in sends]
    well_formed = [encoded(request, who if chance.random() < _SIGNED_SHARE else None) for request in asked]
    if chance.random() < 0.5:
        last = damaged_inside(chance.choice(frames), chance)
    else:
        last = damaged_anywhere(frames, chance, most_damages=4)
    return _VOLLEY + 1, b"".join((*well_formed, last))


def damaged(request: Request, chance: random.Random) -> Request:
    """Still a request, though nobody's."""
    fields, body, code, flag, version = dict(request.fields), request.body, request.code, request.flag, request.version
    for _ in range(chance.randint(1, 3)):
        what = chance.randrange(10)
        name = chance.choice([*fields, "topic"])
        if what < 4:
            fields[name] = chance.choice(_TELLING_TEXTS)
        elif what < 5:
            fields.pop(name, None)
        elif what < 6:
            fields[chance.choice([*_FIELDS])] = chance.choice(_TELLING_TEXTS)
        elif what < 8:
            at = chance.randint(0, len(body))
            body = body[:at] + chance.choice(_TELLING_BODIES) + body[at + chance.choice((0, 0, 1, 50)) :]
        elif what < 9:
            code = chance.choice((*_CODES, chance.randint(-40_000, 40_000)))
        else:
            flag, version = chance.choice((0, 0, 1, 2, 3, -1)), chance.choice((-1, 0, 100, 399, 400, 479, 32767))
    return Request(code, fields, body, flag, version, chance.randrange(1, 1 << 31), chance.choice((0, 1)))


def encoded(request: Request, who: Credentials | None = None) -> bytes:
    command = Command(
        request.code,
        flag=request.flag,
        opaque=request.opaque,
        fields=request.fields,
        body=request.body,
        version=request.version,
        language="JAVA",
    )
    if who is not None:
        sign(command, who)
    try:
        return commands.encode(command, request.codec)
    except HeaderError:  # what the binary header has no room for
        return commands.encode(command, CODEC_JSON)


def allowed_answers(stream: bytes) -> Counter[int]:
    """How often each request id may be answered."""
    allowed: Counter[int] = Counter()
    for frame in FrameDecoder().feed(stream):
        try:
            command = commands.decode(frame)
        except ProtocolError:
            break
        if not command.is_response and not command.is_oneway:
            allowed[command.opaque] += 1
    return allowed


async def attack(address: Address, stream: bytes, hold_seconds: float = 0.0) -> Counter[int]:
    """What was answered, by request id. Who holds on also hears what is answered late."""
    answers: Counter[int] = Counter()
    decoder = FrameDecoder()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            with suppress(ConnectionError, OSError):  # the server may have heard enough
                writer.write(stream)
                await asyncio.sleep(hold_seconds)
                writer.write_eof()
                while data := await reader.read(1 << 18):
                    for frame in decoder.feed(data):
                        command = commands.decode(frame)
                        if command.is_response:  # and no notice or question of the server's
                            answers[command.opaque] += 1
        finally:
            writer.transport.abort()
    return answers


async def run(
    servers: dict[str, tuple[Address, Process]], frames: int, seed: int, who: Credentials | None = None
) -> Report:
    report, sources, numbers = Report(), corpus(), iter(range(frames))
    requests = parsed(sources)
    addresses = [address for address, _ in servers.values()]
    next_look = frames // 10

    async def shooter() -> None:
        nonlocal next_look
        for number in numbers:
            if report.frames >= frames or len(report.faults) > 10:
                return
            chance = random.Random(f"{seed}/{number}")  # so that one volley can be repeated
            count, stream = volley(requests, sources, chance, who)
            report.frames += count
            address = addresses[number % len(addresses)]
            try:
                answers = await attack(address, stream, chance.choice((0, 0, 0, 0.3)))
            except (TimeoutError, ConnectionRefusedError, ProtocolError) as error:
                report.faults.append(f"volley {number} of seed {seed} at {address}: {error!r}")
                continue
            report.answers += answers.total()
            if not answers <= allowed_answers(stream) and not _is_another_protocol(stream):
                report.faults.append(f"volley {number} of seed {seed} at {address}: answered more than was asked")
            if report.frames >= next_look:
                next_look += max(1, frames // 10)
                for name, (_, process) in servers.items():
                    report.memory_mb.setdefault(name, []).append(memory_mb(process.pid))

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(shooter())
    return report


def _is_another_protocol(stream: bytes) -> bool:
    """What looks like a TLS hello or a proxy's header is read before any frame."""
    return stream[:1] == b"\x16" or stream.startswith((b"PROXY ", b"\r\n\r\n"))


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} is gone")


async def is_alive(address: Address, code: int) -> bool:
    answers = await attack(address, commands.encode(Command(code, opaque=1, fields={"topic": "T"})))
    return answers == Counter({1: 1})


def strange_files(base: Path) -> list[str]:
    """What lies where no server had anything to write."""
    found = []
    for path in base.rglob("*"):
        place = path.relative_to(base)
        known = path.name.removesuffix(".bak") in _OWN_FILES and len(place.parts) == 2
        if path.is_file() and not known and place.parts[:2] not in (("broker", "store"), ("names", "auth")):
            found.append(str(place))
    return found


@contextmanager
def started_in(folder: Path) -> Iterator[None]:
    """What a server writes to a relative path is found there."""
    folder.mkdir(exist_ok=True)
    with chdir(folder):
        yield


def hunt(frames: int, seed: int, *, guarded: bool = False) -> Report:
    """Start the two, attack, look at what is left of them."""
    settings: dict[str, str | int] = {}
    if guarded:
        settings = {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": f'{{"username":"{_ROOT.access_key}","password":"{_ROOT.secret_key}"}}',
            "innerClientAuthenticationCredentials": f'{{"accessKey":"{_ROOT.access_key}","secretKey":"{_ROOT.secret_key}"}}',
        }
    bounded = {"orbitmq.topicsCreatedPerMinute": 60, "orbitmq.groupsCreatedPerMinute": 60}
    small = {"mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 10_000, "maxIndexNum": 40_000}
    with tempfile.TemporaryDirectory(prefix="orbitmq-fuzz-") as folder:
        base = Path(folder)
        with started_in(base / "where-it-was-started"):
            names = orbit.start_name_server(base / "names", settings)
        try:
            with started_in(base / "where-it-was-started"):
                broker = orbit.start_broker(base / "broker", names.address, settings={**settings, **bounded, **small})
            try:
                servers = {
                    "name server": (parse_address(names.address), names.process),
                    "broker": (parse_address(broker.address), broker.process),
                }
                report = asyncio.run(run(servers, frames, seed, _ROOT if guarded else None))
                for name, (address, process) in servers.items():
                    code = RequestCode.GET_ROUTEINFO_BY_TOPIC if name != "broker" else RequestCode.GET_MAX_OFFSET
                    if not asyncio.run(is_alive(address, code)):
                        report.faults.append(f"the {name} does not answer any more")
                    if "Traceback" in (printed := process.printed()):
                        where = printed.index("Traceback")
                        report.faults.append(f"the {name} stumbled: {printed[max(0, where - 400) : where + 3000]}")
            finally:
                broker.process.stop()
        finally:
            names.process.stop()
        report.faults += [f"written outside the store: {name}" for name in strange_files(base)]
    for name, looks in report.memory_mb.items():
        if looks[-1] - looks[0] > _MOST_GROWTH_MB:
            report.faults.append(f"the {name} grew from {looks[0]:.0f} to {looks[-1]:.0f} MB")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="Damaged requests for a live name server and broker.")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guarded", action="store_true", help="with access control")
    options = parser.parse_args()
    began = time.monotonic()
    report = hunt(options.frames, options.seed, guarded=options.guarded)
    looks = {name: [round(look) for look in looks] for name, looks in report.memory_mb.items()}
    print(f"{report.frames:,} damaged requests in {time.monotonic() - began:.0f} s, {report.answers:,} answers")
    print(f"anonymous memory, MB: {looks}")
    for fault in report.faults:
        print(f"fault: {fault}")
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
