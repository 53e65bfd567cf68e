"""Signed sends in the compiled loop: the very answers and bytes that the loops in Python give, forged, revoked and limited ones too."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from orbitmq.accelerated import SWITCH, compiled
from orbitmq.broker.broker import Broker
from orbitmq.broker.routes import build_routes
from orbitmq.clock import ManualClock
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.protocol import command as commands
from orbitmq.protocol.bodies.access import Acl, Policy, PolicyEntry, User
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, FrameDecoder
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.storage.open_files import MappedFile, storage_error
from orbitmq.testing.clock import MovableClock
from orbitmq.transport.server import Server
from tests.access.test_matrix import GUARDED, ROOT
from tests.broker.kit import SEND_V2, configuration, running, send_header
from tests.broker.test_express_mutations import said
from tests.broker.test_swift_sends import cut
from tests.line import connected, swift_answer
from tests.mutations import mutated
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from orbitmq.access.users import Users

REQUESTS: Final = 300
MUTATIONS: Final = 400
MEMBER: Final = Credentials("member", "member-secret")
LONG_KEY: Final = Credentials("longkey", "a secret longer than a block of SHA-1 " * 3)
WITH_TOKEN: Final = Credentials("member", "member-secret", "some-token")
STRANGER: Final = Credentials("stranger", "stranger-secret")
FORGER: Final = Credentials("root", "guessed-secret")
BODY_BYTES: Final = (1, 12, 55, 56, 63, 64, 65, 100, 1024, 3000)  # around where SHA-1's last block is full
# How the loop hashes one message, and several together: by the processor's instructions for SHA-1 or without, and with which vectors.
HASHING: Final = {
    "portable": (False, 0),
    "instructions": (True, 0),
    "AVX2": (False, 1),
    "instructions and AVX2": (True, 1),
    "instructions and AVX-512": (True, 2),
}


@contextmanager
def hashing(way: str) -> Iterator[None]:
    sends = compiled("sends")
    assert sends is not None
    try:
        if sends.use_instructions_for_signatures(*HASHING[way]) != HASHING[way]:
            pytest.skip("this processor has no such instructions")
        yield
    finally:
        sends.use_instructions_for_signatures(True, ~0)


def some_users(users: Users) -> None:
    for who in (MEMBER, LONG_KEY):
        users.create(User(username=who.access_key, password=who.secret_key))
        entry = PolicyEntry(resource="Topic:Orders", actions=["Pub"], decision="Allow")
        users.create_acl(Acl(subject=f"User:{who.access_key}", policies=[Policy(entries=[entry])]))


def send_frame(
    who: Credentials | None,
    *,
    topic: str = "Orders",
    number: int = 0,
    codec: int = CODEC_JSON,
    body: bytes = b"body",
    **changes: str,
) -> bytes:
    properties = {"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": "a", "WAIT": "true"}
    fields = send_header(topic, number % 4, properties).to_fields()
    request = Command(SEND_V2, opaque=number, fields=fields, body=body)
    if who is not None:
        sign(request, who)
    request.add_fields(**changes)
    return commands.encode(request, codec)


def some_send(number: int, chance: random.Random) -> bytes:
    """Two thirds are right; the others of strangers, forged, for other topics, changed on the way."""
    who: Credentials | None = chance.choice((MEMBER, LONG_KEY, WITH_TOKEN, ROOT, MEMBER))
    topic, changes = "Orders", {}
    odd = chance.random()
    if odd < 0.05:
        topic = "Payments"
    elif odd < 0.1:
        who = chance.choice((None, STRANGER, FORGER))
    elif odd < 0.3:
        changes = chance.choice(
            ({"e": "3"}, {"a": "other"}, {"SecurityToken": "t"}, {"AccessKey": "root"}, {"Signature": "="}, {"o": "1"})
        )
    codec = chance.choice((CODEC_JSON, CODEC_BINARY))
    body = chance.randbytes(chance.choice(BODY_BYTES))
    return send_frame(who, topic=topic, number=number, codec=codec, body=body, **changes)


async def told(
    directory: Path, reads: list[bytes], requests: int, *afterwards: bytes
) -> tuple[list[tuple[int, int, str]], dict[str, bytes]]:
    """The answers, and every file with messages or indexes in it. `afterwards`: requests that come when the others are answered."""
    async with Broker(configuration(directory, GUARDED), clock=ManualClock()) as broker:
        broker.state.store.settle_at(bytes(8))  # each has a port of its own
        broker.state.receipts.settle_at(bytes(8))
        some_users(broker.state.users)
        connection, line = connected(broker._servers[0])

        async def answered(count: int) -> list[Command]:
            # The first receipt of a new topic waits until the topic has a route.
            await until(
                lambda: len(FrameDecoder().feed(bytes(line.written))) == count, what="an answer to each request"
            )
            return [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]

        for read in reads:
            connection.data_received(read)
        answers = await answered(requests)
        for number, request in enumerate(afterwards):
            connection.data_received(request)
            answers = await answered(requests + number + 1)
        connection.connection_lost(None)
    files = {
        str(file.relative_to(directory)): file.read_bytes()
        for folder in ("commitlog", "consumequeue", "index")
        for file in sorted((directory / folder).rglob("*"))
        if file.is_file()
    }
    return sorted((answer.opaque, answer.code, answer.remark or "") for answer in answers), files


@pytest.mark.parametrize("way", HASHING)
async def test_signed_and_forged_sends_leave_the_same_bytes_both_ways(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, way: str
) -> None:
    chance = random.Random(way)
    reads = cut(b"".join(some_send(number, chance) for number in range(REQUESTS)), chance)
    with hashing(way):
        compiled_story = await told(tmp_path / "compiled", reads, REQUESTS)
    accelerator.setenv(SWITCH, "0")
    assert compiled_story == await told(tmp_path / "python", reads, REQUESTS)
    codes = [code for _, code, _ in compiled_story[0]]
    assert len(codes) == REQUESTS
    assert codes.count(0) > REQUESTS // 2
    assert codes.count(16) > REQUESTS // 10


def with_two_codes(frame: bytes) -> bytes:
    """Of a transaction's end at first sight, of a send to who reads on; it is signed, which does not cover the code."""
    (found,) = FrameDecoder().feed(frame)
    header = found.header.replace(b'{"code":310,', b'{"code":37,"code":310,')
    assert header != found.header
    return b"".join(
        ((4 + len(header) + len(found.body)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header, found.body)
    )


async def test_a_send_that_looks_like_another_request_lends_its_signature_to_no_other(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    frames = [send_frame(MEMBER, number=number, body=b"%3d" % number * 100) for number in range(12)]
    frames[4] = with_two_codes(frames[4])
    frames[7] = frames[7][:-300] + frames[8][-300:]  # another's body
    reads = [send_frame(ROOT, number=12), b"".join(frames)]
    story = await told(tmp_path / "compiled", reads, 13)
    accelerator.setenv(SWITCH, "0")
    assert story == await told(tmp_path / "python", reads, 13)
    assert [opaque for opaque, code, _ in story[0] if code] == [7]


def signed(number: int, properties: dict[str, str]) -> bytes:
    request = Command(SEND_V2, opaque=number, fields=send_header("Orders", 0, properties).to_fields(), body=b"body")
    sign(request, MEMBER)
    return commands.encode(request, CODEC_BINARY)


async def test_a_half_message_with_a_long_id_reaches_into_no_other_message(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    """Its id is stored twice, and the properties of all sends of a read stand behind each other until they are stored."""
    half = {"TRAN_MSG": "true", "PGROUP": "P"}
    small, large = {"COLOR": "blue", "SHAPE": "round"}, {"NOTE": "n" * 31_300}
    reads = [send_frame(ROOT, number=1), signed(2, {"UNIQ_KEY": "A2"} | half)]
    requests = 2
    for key_bytes, before, behind in (
        (500, small, small),
        *((n, small, small) for n in range(1180, 1220, 4)),
        (31_000, large, small),
    ):
        read = [
            *(signed(requests + number, before | {"UNIQ_KEY": f"B{number}"}) for number in range(3)),
            signed(requests + 3, {"UNIQ_KEY": "C" * key_bytes} | half),
            signed(requests + 4, behind | {"UNIQ_KEY": "D1"}),
        ]
        requests += len(read)
        reads.append(b"".join(read))
    story = await told(tmp_path / "compiled", reads, requests)
    accelerator.setenv(SWITCH, "0")
    assert story == await told(tmp_path / "python", reads, requests)
    assert [code for _, code, _ in story[0] if code] == [13]  # the longest is too long


def signed_batch(number: int, topic: str, members: int) -> bytes:
    """With the code of single messages, which is the one that the loop takes where it checks signatures."""
    fields = send_header(topic, 0, {}, {"batch": True}).to_fields()
    body = encode_batch([BatchMember(b"%d" % number * 300, b"") for _ in range(members)])
    request = Command(SEND_V2, opaque=number, fields=fields, body=body)
    sign(request, ROOT)
    return commands.encode(request, CODEC_BINARY)


@pytest.mark.parametrize("last", [18, 30])  # members of the 17th: it is as long as the first, or longer
async def test_batches_that_cannot_be_stored_while_the_loop_looks_ahead_are_stored_once_each_afterwards(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, last: int
) -> None:
    """The topic behind the 17th ends what is put together, when the 17th was found right but not taken yet."""
    write = MappedFile.write
    refused: list[int] = []

    def find_no_room_once(file: MappedFile, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        if not refused:
            refused.append(len(parts))
            raise storage_error("write", file.path, OSError(errno.ENOSPC, "no space"))
        write(file, parts, position)

    async with Broker(configuration(tmp_path, GUARDED), clock=ManualClock()) as broker:
        connection, line = connected(broker._servers[0])
        for topic in ("Orders", "Payments"):
            connection.data_received(send_frame(ROOT, topic=topic))
            await until(lambda: bool(line.written), what="the first receipt of a topic")
            line.written.clear()
        # As many as are looked at together, and two more.
        frames = [signed_batch(number, "Orders", 18) for number in range(101, 117)]
        frames += [signed_batch(117, "Orders", last), signed_batch(118, "Payments", 18)]
        accelerator.setattr(MappedFile, "write", find_no_room_once)
        connection.data_received(b"".join(frames))
        accelerator.setattr(MappedFile, "write", write)
        answers = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
        assert refused == [16]
        assert [(answer.opaque, answer.code) for answer in answers] == [(number, 0) for number in range(101, 119)]
        connection.connection_lost(None)
        broker.state.store.dispatch()
        assert broker.state.store.queue_range("Orders", 0).max_offset == 1 + 16 * 18 + last


async def test_a_user_disabled_by_the_same_read_is_refused_as_soon_as_in_python(
    tmp_path: Path, accelerator: pytest.MonkeyPatch
) -> None:
    disable = Command(
        RequestCode.AUTH_UPDATE_USER,
        opaque=100,
        fields={"username": "member"},
        body=User(user_status="disable").to_json(),
    )
    sign(disable, ROOT)
    sends = [send_frame(MEMBER, number=number) for number in range(6)]
    reads = [send_frame(ROOT, number=99), b"".join((*sends[:3], commands.encode(disable), *sends[3:]))]
    afterwards = send_frame(MEMBER, number=50)
    story = await told(tmp_path / "compiled", reads, 8, afterwards)
    accelerator.setenv(SWITCH, "0")
    assert story == await told(tmp_path / "python", reads, 8, afterwards)
    answers = {opaque: code for opaque, code, _ in story[0]}
    assert [answers[number] for number in (0, 1, 2, 99, 100)] == [0] * 5
    assert answers[50] == 16


def taken(broker: Broker, *frames: bytes) -> int:
    """How many of these the compiled loop takes from the front of one read."""
    size, _ = swift_answer(broker, *frames)
    ends = [sum(map(len, frames[:count])) for count in range(len(frames) + 1)]
    return ends.index(size)


async def with_topic(broker: Broker, who: Credentials = ROOT) -> None:
    """The loop leaves the first message of a topic to others. Its receipt waits until the topic has a route."""
    connection, line = connected(broker._servers[0])
    connection.data_received(send_frame(who))
    await until(lambda: bool(line.written), what="the first receipt")
    (answer,) = [commands.decode(frame) for frame in FrameDecoder().feed(bytes(line.written))]
    assert answer.code == 0
    connection.connection_lost(None)


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_BINARY])
async def test_a_run_ends_before_the_first_that_is_not_rightly_signed(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, codec: int
) -> None:
    async with Broker(configuration(tmp_path, GUARDED)) as broker:
        some_users(broker.state.users)
        await with_topic(broker)
        right = send_frame(MEMBER, codec=codec)
        assert taken(broker, right, send_frame(ROOT, codec=codec), send_frame(LONG_KEY, codec=codec)) == 3
        for wrong in (
            send_frame(None, codec=codec),
            send_frame(STRANGER, codec=codec),
            send_frame(FORGER, codec=codec),
            send_frame(MEMBER, codec=codec, e="3"),
            send_frame(MEMBER, codec=codec, AccessKey="root"),
            right[:-1] + b"?",
            right.replace(b"TagA", b"TagB") if b"TagA" in right else right.replace(b"Orders", b"orders"),
        ):
            assert taken(broker, right, wrong, right) == 1, wrong
        (frame,) = FrameDecoder().feed(right)
        signature = commands.decode(frame).fields["Signature"]
        for at in range(len(signature)):
            other = "A" if signature[at] != "A" else "B"
            forged = signature[:at] + other + signature[at + 1 :]
            assert taken(broker, right.replace(signature.encode(), forged.encode())) == 0, at


@pytest.mark.parametrize("way", HASHING)
async def test_each_of_many_in_a_read_is_held_to_its_own_signature(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, way: str
) -> None:
    chance = random.Random(way)
    who, codecs = (MEMBER, LONG_KEY, WITH_TOKEN, ROOT), (CODEC_JSON, CODEC_BINARY)
    async with Broker(configuration(tmp_path, GUARDED)) as broker:
        some_users(broker.state.users)
        await with_topic(broker)
        with hashing(way):
            frames = [
                send_frame(chance.choice(who), number=size, codec=chance.choice(codecs), body=chance.randbytes(size))
                for size in range(1, 450)  # every place where a field, a body or a block can end
            ]
            assert taken(broker, *frames) == len(frames)
            frames = frames[240:262] + frames[:3]
            chance.shuffle(frames)
            for at, frame in enumerate(frames):
                forged = frame[:-1] + bytes((frame[-1] ^ 1,))
                assert taken(broker, *frames[:at], forged, *frames[at + 1 :]) == at


@pytest.mark.parametrize("change", ["disabled", "other password", "policy gone", "deleted"])
async def test_the_loop_forgets_who_may_when_that_changes(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, change: str
) -> None:
    async with Broker(configuration(tmp_path, GUARDED)) as broker:
        users = broker.state.users
        some_users(users)
        await with_topic(broker)
        assert taken(broker, send_frame(MEMBER)) == 1
        if change == "disabled":
            users.update(User(username="member", user_status="disable"))
        elif change == "other password":
            users.update(User(username="member", password="changed-secret"))
        elif change == "policy gone":
            users.delete_acl("User:member", None, None)
        else:
            users.delete("member")
        assert taken(broker, send_frame(MEMBER)) == 0
        if change == "other password":
            assert taken(broker, send_frame(Credentials("member", "changed-secret"))) == 1


async def test_a_users_limit_counts_whichever_loop_runs(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    limited = {**GUARDED, "orbitmq.requestsPerSecondPerUser": "2"}
    async with Broker(configuration(tmp_path, limited), clock=ManualClock()) as broker:
        some_users(broker.state.users)
        await with_topic(broker)
        connection, line = connected(broker._servers[0])
        connection.data_received(b"".join(send_frame(MEMBER, number=number) for number in range(4)))
        answers = [commands.decode(frame).code for frame in FrameDecoder().feed(bytes(line.written))]
        assert answers == [0, 0, 2, 2]
        connection.connection_lost(None)


async def test_access_files_of_4x_count_in_the_loop(tmp_path: Path, accelerator: pytest.MonkeyPatch) -> None:
    clock = MovableClock()
    clerk, admin = Credentials("clerk-of-orders", "clerk-secret"), Credentials("administrator", "admin-secret")
    file = tmp_path / "config" / "plain_acl.yml"
    file.parent.mkdir()
    account = "accounts:\n- accessKey: clerk-of-orders\n  secretKey: clerk-secret\n  topicPerms: [Orders=%s]\n"
    file.write_text(account % "PUB" + "- accessKey: administrator\n  secretKey: admin-secret\n  admin: true\n")
    async with running(tmp_path, clock=clock, aclEnable="true") as broker:
        await with_topic(broker, admin)
        forged = send_frame(Credentials("administrator", "guessed-secret"))
        assert taken(broker, send_frame(clerk), send_frame(admin), forged) == 2
        file.write_text(account % "DENY")
        clock.advance(seconds=2)
        assert taken(broker, send_frame(clerk)) == 0


@pytest.mark.parametrize("codec", [CODEC_JSON, CODEC_BINARY])
async def test_a_damaged_signed_send_is_answered_the_same_both_ways(
    tmp_path: Path, accelerator: pytest.MonkeyPatch, codec: int
) -> None:
    logging.disable()  # a line for each of them would be many
    try:
        chance = random.Random(codec)
        async with Broker(configuration(tmp_path, GUARDED)) as broker:
            some_users(broker.state.users)
            await with_topic(broker)
            ordinary = Server(build_routes(broker.state))
            await ordinary.start("127.0.0.1", 0)
            frame = send_frame(MEMBER, number=1, codec=codec)
            codes: list[Any] = []
            assert said(ordinary, frame) == said(broker._servers[0], frame)
            assert taken(broker, frame) == 1
            for _ in range(MUTATIONS):
                odd = mutated(frame, chance)
                first, second = said(ordinary, odd), said(broker._servers[0], odd)
                assert first == second, odd
                codes += [answer[0] for answer in first[0][:1]]
                await asyncio.sleep(0)
            await ordinary.stop()
            assert codes.count(16) > MUTATIONS // 20
    finally:
        logging.disable(logging.NOTSET)
