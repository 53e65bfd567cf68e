"""Bad input: whatever a client says, it is answered with a code or hung up on, and changes nothing outside of the store.

The table of routes is walked, so a request code that is added is tried here without being named.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import pkgutil
import random
import socket
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.broker.routes import build_routes
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.protocol import headers
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command, decode, encode
from orbitmq.protocol.frame import frame_bytes
from orbitmq.protocol.headers.base import Header
from orbitmq.protocol.headers.pull import PULL_SUBSCRIPTION, PULL_SUSPEND
from tests.broker.kit import PULL, SEND_BATCH, SEND_V2, UPDATE_OFFSET, Wire, pull_header, running, send_header, wire
from tests.raw_client import raw_client, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orbitmq.broker.broker import Broker

UPDATE_BROKER_CONFIG: Final = 25

for _module in pkgutil.iter_modules(headers.__path__, f"{headers.__name__}."):
    importlib.import_module(_module.name)
# Every name that a field of some request has, so that each handler finds what it looks for.
FIELD_NAMES: Final = sorted({name for kind in Header.__subclasses__() for name in kind.__struct_encode_fields__})
HOSTILE_TEXTS: Final = (
    "", " ", "../../../../tmp/orbitmq-escaped", "/tmp/orbitmq-escaped", "a/b", "..", ".", "a\0b", "x" * 300,
    "y" * 5000, "tópico-é-漢字-🚀", "%RETRY%", "%DLQ%", "%RETRY%../../x", "%LMQ%/x", "$(touch /tmp/orbitmq-escaped)",
    "`touch /tmp/orbitmq-escaped`", "T;rm -rf /", "\ud800", "SCHEDULE_TOPIC_XXXX", "null", "[]", "{}",
)  # fmt: skip
HOSTILE_NUMBERS: Final = (
    "-1", "-2147483648", "2147483647", "2147483648", "-9223372036854775808", "9223372036854775807",
    "9223372036854775808", "9" * 5000, "1.5", "1e9", "NaN", "true", "0x10", " 1", "٣", "",
)  # fmt: skip
HOSTILE_BODIES: Final = (
    b"", b"{", b"[]", b"null", b"{}", b"\0" * 64, b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"a":' * 5000,
    json.dumps({"clientID": None, "consumerDataSet": None, "producerDataSet": 5}).encode(),
    json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "../x", "subscriptionDataSet": []}]}).encode(),
    json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "messageModel": "²"}]}).encode(),
    json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "t", "queueId": "x"}]}).encode(),
    json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [{"brokerName": "b", "topic": "t", "queueId": 2**70}]}).encode(),
    b"key=value\nrocketmqHome=/tmp/orbitmq-escaped\nbrokerConfigPath=/tmp/orbitmq-escaped\nstorePathRootDir=/tmp/x\n",
    b"\xac\xed\x00\x05sr\x00", encode_batch([BatchMember(b"x", b"\xff\xfe\x01\x02")]),
)  # fmt: skip


class Complaints(logging.Handler):
    """What must not be logged: anything with a traceback, anything above a warning that is not about the disk."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.tracebacks: list[str] = []
        self.lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        if record.exc_info or "Traceback" in record.getMessage():
            self.tracebacks.append(f"{record.getMessage()} {record.exc_info}")


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    handler = Complaints()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "store", maxMessageSize=1 << 20) as running_broker:
        yield running_broker


def outside(tmp_path: Path) -> set[str]:
    """All there is around the store, and where the hostile names point to."""
    found = {str(path) for path in tmp_path.rglob("*") if (tmp_path / "store") not in [path, *path.parents]}
    return found | {str(path) for path in tmp_path.parent.glob("*escaped*")}


def codes(broker: Broker) -> list[int]:
    return sorted(int(code) for code in build_routes(broker.state))


async def try_out(broker: Broker, requests: list[Command]) -> None:
    """Each is answered, or its connection is closed; in the latter case the rest goes over a new one."""
    behind = encode(Command(int(RequestCode.GET_MAX_OFFSET), opaque=78, fields={"topic": "T", "queueId": "0"}))
    while requests:
        async with raw_client(broker.address) as client:
            is_open = True
            while is_open and requests:
                client.send(as_sent(requests.pop(0)) + behind)
                while (frame := await client.frame()) is not None:
                    if decode(frame).opaque == 78:  # answered behind it: a pull may be held, the connection lives
                        break
                is_open = frame is not None


def as_sent(request: Command) -> bytes:
    """Not by our own encoder, which knows no half characters."""
    header = {"code": request.code, "opaque": 77, "extFields": dict(request.fields), "language": "JAVA", "version": 479}
    return frame_bytes(json.dumps(header).encode(), request.body)


def requests_for(code: int, randomness: random.Random) -> list[Command]:
    """Nothing at all, each kind of text in all fields at once, numbers that are none or too large, and mixtures."""
    requests = [Command(code), Command(code, body=b"x"), Command(code, fields={"unknown": "x"})]
    texts = (*HOSTILE_TEXTS, *HOSTILE_NUMBERS)
    requests += [Command(code, fields=dict.fromkeys(FIELD_NAMES, text), body=b"body") for text in texts]
    for body in HOSTILE_BODIES:
        requests.append(Command(code, body=body))
        requests.append(Command(code, fields=plausible(randomness), body=body))
    for _ in range(60):
        fields = plausible(randomness)
        for name in randomness.sample(FIELD_NAMES, randomness.randrange(1, 6)):
            fields[name] = randomness.choice(texts)
        for name in randomness.sample(FIELD_NAMES, randomness.randrange(3)):
            fields.pop(name, None)
        requests.append(Command(code, fields=fields, body=randomness.choice((b"body", *HOSTILE_BODIES))))
    return requests


def plausible(randomness: random.Random) -> dict[str, str]:
    """Fields that get past the first checks of most handlers."""
    fields = {name: str(randomness.randrange(3)) for name in FIELD_NAMES}
    fields |= dict.fromkeys(("b", "topic", "originTopic"), "T")
    fields |= dict.fromkeys(("c", "defaultTopic"), "TBW102")
    fields |= dict.fromkeys(("a", "group", "consumerGroup", "groupName", "producerGroup"), "G")
    fields |= {"i": "KEYS\x01k\x02", "properties": "", "m": "false", "batch": "false", "subscription": "*"}
    fields |= {"expressionType": "TAG", "suspendTimeoutMillis": "1", "topicFilterType": "SINGLE_TAG", "perm": "6"}
    return fields


@pytest.mark.parametrize("part", range(4))
async def test_hostile_fields_and_bodies_of_every_request(
    broker: Broker, tmp_path: Path, complaints: Complaints, part: int
) -> None:
    before = outside(tmp_path)
    async with wire(broker) as client:
        assert (await client.send("Kept", b"before")).code == 0
    for code in codes(broker)[part::4]:
        await try_out(broker, requests_for(code, random.Random(code)))
        assert complaints.tracebacks == [], f"request code {code}"

    assert outside(tmp_path) == before
    async with wire(broker) as client:
        assert (await client.send("After", b"alive")).code == 0
        assert await client.bodies("After") == [b"alive"]
        assert await client.bodies("Kept") == [b"before"]


async def test_numbers_that_no_java_program_could_have_sent_are_refused(client: Wire) -> None:
    for field in ("e", "f", "h", "j", "d"):
        header = {**send_header("T").to_fields(), field: str(2**31)}
        assert (await client.ask(SEND_V2, header, b"x")).code == 29
    assert (await client.ask(SEND_V2, {**send_header("T").to_fields(), "g": str(2**63)}, b"x")).code == 29
    names = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    assert (await client.ask(UPDATE_OFFSET, {**names, "commitOffset": 2**63})).code == 29


@pytest.mark.parametrize("property_name", ["INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "REAL_TOPIC", "REAL_QID"])
@pytest.mark.parametrize("value", ["²", "x", "-1", "9" * 400, "%LMQ%../../x", "../../x"])
async def test_properties_that_only_brokers_write_do_no_harm(
    client: Wire, complaints: Complaints, property_name: str, value: str
) -> None:
    await client.send("T", b"x", **{property_name: value})  # type: ignore[arg-type]
    await client.send("T", b"y", **{property_name: value, "DELAY": "1"})  # type: ignore[arg-type]
    batch = encode_batch([BatchMember(b"z", f"{property_name}\x01{value}\x02".encode())])
    await client.ask(SEND_BATCH, send_header("T", changes={"batch": True}), batch)

    assert (await client.send("T", b"last")).code == 0

    assert (await client.bodies("T"))[-1] == b"last"
    assert complaints.tracebacks == []


# ---- attacks with a number


@pytest.mark.parametrize("topic", ["../../../../tmp/orbitmq-escaped", "..%2f..%2fx", "/etc/orbitmq", "a/../../b"])
async def test_cve_2019_17572_a_topic_name_leads_nowhere_outside_the_store(
    client: Wire, tmp_path: Path, topic: str
) -> None:
    before = outside(tmp_path)

    assert (await client.send(topic)).code == 29
    group_beat = {"clientID": "c", "consumerDataSet": [{"groupName": topic, "subscriptionDataSet": []}]}
    assert (await client.ask(int(RequestCode.HEART_BEAT), None, json.dumps(group_beat).encode())).code == 29
    assert (await client.send(f"%RETRY%{topic}")).code == 29

    assert outside(tmp_path) == before
    await client.send("Fine")
    assert not [path for path in (tmp_path / "store").rglob("*") if "escaped" in path.name or "orbitmq" in path.name]


async def test_cve_2023_33246_no_setting_changed_from_afar_runs_or_writes_anything(
    client: Wire, broker: Broker, tmp_path: Path
) -> None:
    """filterServerNums and rocketmqHome together started a shell command of the sender's choice in Apache's broker."""
    before, settings = outside(tmp_path), broker.configuration.settings
    marker = tmp_path / "escaped"
    home = f"-c $@|sh . echo touch {marker};"
    attacks = (
        f"filterServerNums=1\nrocketmqHome={home}\n",
        f"rocketmqHome={home}\n",
        f"brokerConfigPath={marker}\naaa=bbb\n",  # CVE-2023-37582: writes a file of the sender's choice
        f"configBlackList=\nbrokerConfigPath={marker}\n",
        f"storePathRootDir={marker}\n",
        f"brokerName=x\nkvConfigPath={marker}\n",
    )
    for attack in attacks:
        assert (await client.ask(UPDATE_BROKER_CONFIG, None, attack.encode())).code != 0

    assert broker.configuration.settings == settings
    assert outside(tmp_path) == before


# ---- too much


async def test_a_client_that_never_reads_is_cut_off_and_the_others_do_not_notice(broker: Broker) -> None:
    assert broker.address is not None
    async with wire(broker) as client:
        for _ in range(4):
            await client.send("T", b"x" * 250_000)
        loop = asyncio.get_running_loop()
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.setblocking(False)
        await loop.sock_connect(greedy, broker.address)
        pull = encode(Command(PULL, fields=pull_header("T", 0, 0).to_fields()))
        sent = 0

        async def ask_without_end() -> None:
            nonlocal sent
            while True:
                await loop.sock_sendall(greedy, pull)
                sent += 1

        asking = asyncio.create_task(ask_without_end())
        await until(lambda: any(c._write_paused for c in broker._servers[0].connections), what="the greedy one paused")
        for _ in range(20):
            assert (await client.pull("T")).code == 0
        unsent = [c._transport.get_write_buffer_size() for c in broker._servers[0].connections]
        assert max(unsent) < 64 << 20  # and not 250 KB for each of its thousands of requests
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        greedy.close()


async def test_held_pulls_of_a_hostile_length_do_not_outlive_their_client_for_long(broker: Broker) -> None:
    async with wire(broker) as client:
        await client.send("T")
        header = pull_header("T", 0, 1, {"sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND, "suspend_timeout_millis": 2**62})
        for _ in range(100):
            await client.start(PULL, header)
        await until(lambda: len(broker.state.pulling.held) == 100, what="held")
    async with wire(broker) as client:
        await client.send("T", b"new")
        await until(lambda: len(broker.state.pulling.held) == 0, what="forgotten")
