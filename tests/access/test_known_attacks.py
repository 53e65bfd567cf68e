"""Attacks that are on record against RocketMQ, and bombs: refused by both servers, with credentials and without."""

from __future__ import annotations

import asyncio
import os
import sys
import tracemalloc
import zlib
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import orbitmq as mq
from orbitmq.broker.broker import Broker
from orbitmq.broker.permissions import NEEDS
from orbitmq.broker.routes import build_routes
from orbitmq.client.filters import subscription
from orbitmq.client.incoming import Incoming
from orbitmq.message.batch import BatchMember, encode_batch
from orbitmq.message.compression import plain_body
from orbitmq.message.record import crc31, encode_record, topic_field
from orbitmq.message.sysflags import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    INNER_BATCH,
    NEED_UNWRAP,
)
from orbitmq.protocol.codes import RequestCode
from orbitmq.protocol.command import Command
from orbitmq.protocol.signing import Credentials, sign
from orbitmq.transport.pool import Pool
from tests.access.test_matrix import BODIES, FIELDS, GUARDED, ROOT
from tests.broker.kit import PATIENCE_SECONDS, SEND_BATCH, SEND_V2, configuration, send_header
from tests.nameserver.running import registration_fields
from tests.nameserver.running import running as running_name_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orbitmq.nameserver.server import NameServer
    from orbitmq.transport.address import Address

BOMB_BYTES: Final = 300 << 20
MOST_BYTES: Final = 64 << 20
WHO = pytest.mark.parametrize("who", [None, ROOT], ids=["a stranger", "a super user"])
OPEN = pytest.mark.parametrize("guarded", [False, True], ids=["open", "guarded"])


async def ask(address: Address | None, request: Command, who: Credentials | None) -> Command:
    assert address is not None
    if who is not None:
        sign(request, who)
    pool = Pool()
    try:
        return await pool.call(address, request, PATIENCE_SECONDS)
    finally:
        await pool.close()


@asynccontextmanager
async def a_broker(folder: Path, *, guarded: bool, **more: object) -> AsyncIterator[Broker]:
    async with Broker(configuration(folder, {**(GUARDED if guarded else {}), **more})) as broker:
        yield broker


@asynccontextmanager
async def a_name_server(folder: Path, *, guarded: bool) -> AsyncIterator[NameServer]:
    settings: dict[str, Any] = GUARDED if guarded else {}
    async with running_name_server(folder, **settings) as server:
        yield server


@OPEN
@WHO
async def test_cve_2023_33246_no_command_by_way_of_the_settings(
    tmp_path: Path, guarded: bool, who: Credentials | None
) -> None:
    trace = tmp_path / "executed"
    async with a_broker(tmp_path / "store", guarded=guarded) as broker:
        before = broker.configuration.settings
        body = f"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch {trace};\n".encode()
        answer = await ask(broker.address, Command(RequestCode.UPDATE_BROKER_CONFIG, body=body), who)
        assert answer.code == 16
        assert broker.configuration.settings == before
        harmless = Command(RequestCode.UPDATE_BROKER_CONFIG, body=b"filterServerNums=1\n")  # there is nothing to start
        assert (await ask(broker.address, harmless, who)).code == (16 if guarded and who is None else 0)
    assert not trace.exists()


@OPEN
@WHO
async def test_cve_2023_37582_no_file_by_way_of_the_settings(
    tmp_path: Path, guarded: bool, who: Credentials | None
) -> None:
    target = tmp_path / "authorized_keys"
    async with a_name_server(tmp_path / "names", guarded=guarded) as server:
        for key in ("configStorePath", "kvConfigPath", "configStorePathName", "rocketmqHome"):
            body = f"productEnvName=ssh-rsa AAAA\n{key}={target}\n".encode()
            answer = await ask(server.address, Command(RequestCode.UPDATE_NAMESRV_CONFIG, body=body), who)
            assert answer.code == 16 or key == "configStorePathName"
        assert server.configuration.file.parent == tmp_path / "names"
    async with a_broker(tmp_path / "store", guarded=guarded) as broker:
        for key in ("brokerConfigPath", "storePathRootDir", "storePathCommitLog"):
            body = f"{key}={target}\n".encode()
            assert (await ask(broker.address, Command(RequestCode.UPDATE_BROKER_CONFIG, body=body), who)).code == 16
    assert not target.exists()


@WHO
async def test_cve_2024_23321_no_secret_is_told(tmp_path: Path, who: Credentials | None) -> None:
    secrets = (b"root-secret", b"plain-secret", b"admin-secret")
    async with a_broker(tmp_path / "store", guarded=True) as broker:
        for code in build_routes(broker.state):
            request = Command(code, fields={**FIELDS, "username": "root"}, body=BODIES.get(RequestCode(code), b""))
            answer = await ask(broker.address, request, who)
            assert not any(secret in answer.body or secret in str(answer).encode() for secret in secrets), code
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: admin-key, secretKey: admin-secret, admin: true}\n"
        "- {accessKey: plain-key, secretKey: plain-secret, defaultTopicPerm: PUB}\n"
    )
    plain = {"aclEnable": "true", "rocketmqHome": str(tmp_path / "home")}
    member = None if who is None else Credentials("plain-key", "plain-secret")
    async with a_broker(tmp_path / "plain", guarded=False, **plain) as broker:
        refused = await ask(broker.address, Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG), member)
        assert (refused.code, refused.body) == (1, b"")
        told = await ask(
            broker.address,
            Command(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG),
            Credentials("admin-key", "admin-secret"),
        )
        assert told.code == 0
        assert not any(secret in told.body for secret in secrets)


@OPEN
@WHO
async def test_cve_2019_17572_no_folder_by_way_of_a_topic(
    tmp_path: Path, guarded: bool, who: Credentials | None
) -> None:
    async with a_broker(tmp_path / "deep" / "store", guarded=guarded) as broker:
        for topic in ("../../../escaped", "..", "a/../../escaped", "/escaped", "%RETRY%../../../escaped"):
            send = Command(SEND_V2, fields={**send_header("T").to_fields(), "b": topic}, body=b"x")
            assert (await ask(broker.address, send, who)).code != 0
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
                      "topicFilterType": "SINGLE_TAG"}  # fmt: skip
            create = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)
            assert (await ask(broker.address, create, who)).code != 0
    assert list(tmp_path.rglob("*escaped*")) == []
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"store"}


async def test_from_a_white_address_every_code_passes_and_from_elsewhere_none(tmp_path: Path) -> None:
    file = tmp_path / "config" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text("globalWhiteRemoteAddresses: [127.0.0.*]\naccounts: []\n")
    async with a_broker(tmp_path, guarded=False, aclEnable="true") as white:
        for code in build_routes(white.state):
            answer = await ask(white.address, _of(code), None)
            assert "AclException" not in (answer.remark or ""), RequestCode(code).name
        gate = white.state.gate
        assert gate is not None
        for code in build_routes(white.state):
            with pytest.raises(mq.RequestFailed, match="No accessKey is configured"):
                gate.check(_of(code), "10.1.1.1", NEEDS[code])


def _of(code: int) -> Command:
    return Command(code, fields=dict(FIELDS), body=BODIES.get(RequestCode(code), b""))


# ---- bombs


@cache
def bomb(compression: int = COMPRESSION_ZLIB) -> bytes:
    if compression == COMPRESSION_ZLIB:
        packer: Any = zlib.compressobj(9)
    elif compression == COMPRESSION_LZ4:
        packer = pytest.importorskip("lz4.frame").LZ4FrameCompressor()
    else:
        packer = pytest.importorskip("zstandard").ZstdCompressor().compressobj()
    begin = packer.begin() if compression == COMPRESSION_LZ4 else b""
    zeroes = bytes(10 << 20)
    return begin + b"".join(packer.compress(zeroes) for _ in range(BOMB_BYTES // len(zeroes))) + bytes(packer.flush())


@asynccontextmanager
async def little_memory() -> AsyncIterator[None]:
    bomb()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < MOST_BYTES


async def test_bombs_that_are_sent_and_sent_in_batches_are_never_inflated_by_the_broker(tmp_path: Path) -> None:
    async with a_broker(tmp_path, guarded=False, mappedFileSizeCommitLog=4 << 20) as broker, little_memory():
        for code, changes in (
            (SEND_V2, {"sys_flag": COMPRESSED | COMPRESSION_ZLIB}),
            (SEND_BATCH, {"sys_flag": COMPRESSED | COMPRESSION_ZLIB, "batch": True}),
            (SEND_V2, {"sys_flag": COMPRESSED | 0x80}),
        ):
            request = Command(code, fields=send_header("T", 0, None, changes).to_fields(), body=bomb())
            answer = await ask(broker.address, request, None)
            assert answer.code in (0, 1, 13, 29), answer.remark


async def test_a_bomb_for_a_registration(tmp_path: Path) -> None:
    async with a_name_server(tmp_path, guarded=False) as server, little_memory():
        fields = {key: text for key, text in registration_fields().items() if key != "bodyCrc32"}
        answer = await ask(server.address, Command(RequestCode.REGISTER_BROKER, fields=fields, body=bomb()), None)
        assert answer.code == 29


@pytest.mark.parametrize("topic", ["T", "RMQ_SYS_TRACE_TOPIC"])
async def test_bombs_for_consumers_and_readers_of_traces(tmp_path: Path, topic: str) -> None:
    async with running_name_server(tmp_path / "names") as names:
        more = {"namesrvAddr": str(names.address), "mappedFileSizeCommitLog": 4 << 20, "traceTopicEnable": "true"}
        async with a_broker(tmp_path / "store", guarded=False, **more) as broker:
            changes = {"sys_flag": COMPRESSED | COMPRESSION_ZLIB}
            for _ in range(3):
                request = Command(SEND_V2, fields=send_header(topic, 0, None, changes).to_fields(), body=bomb())
                assert (await ask(broker.address, request, None)).code == 0
            async with mq.connect(str(names.address)) as client, client.pull_consumer(group="G") as consumer:
                queue = next(queue for queue in await consumer.queues(topic) if queue.queue_id == 0)
                async with little_memory():
                    fetched = [message for at in range(3) for message in await consumer.fetch(queue, offset=at, max=1)]
                assert [message.body == bomb() for message in fetched] == [True] * 3  # given as it is stored


@pytest.mark.parametrize("kind", ["fetched", "polled", "leased"])
async def test_many_that_just_pass_the_limit_take_no_room_together(tmp_path: Path, kind: str) -> None:
    size, count = 23 << 20, 8
    packed = zlib.compress(bytes(size), 9)
    async with running_name_server(tmp_path / "names") as names:
        more = {"namesrvAddr": str(names.address), "mappedFileSizeCommitLog": 4 << 20}
        async with a_broker(tmp_path / "store", guarded=False, **more) as broker:
            changes = {"sys_flag": COMPRESSED | COMPRESSION_ZLIB}
            for _ in range(count):
                request = Command(SEND_V2, fields=send_header("T", 0, None, changes).to_fields(), body=packed)
                assert (await ask(broker.address, request, None)).code == 0
            got: list[mq.ReceivedMessage | mq.LeasedMessage] = []
            async with mq.connect(str(names.address)) as client, asyncio.timeout(PATIENCE_SECONDS), little_memory():
                if kind == "leased":
                    async with client.lease_consumer("T", group="G", start="earliest") as leases:
                        while len(got) < count:
                            got += await leases.fetch()
                elif kind == "fetched":
                    async with client.pull_consumer(group="G") as consumer:
                        queue = next(queue for queue in await consumer.queues("T") if queue.queue_id == 0)
                        got += await consumer.fetch(queue, offset=0, max=count)
                else:
                    async with client.pull_consumer(group="G", start="earliest") as consumer:
                        await consumer.subscribe("T")
                        while len(got) < count:
                            got += await consumer.poll()
                assert [len(message.body) for message in got] == [size] * count


async def test_a_batch_that_is_a_bomb_is_given_as_it_is_stored() -> None:
    """No broker of ours stores one, and no client sends one; a consumer reads what others' brokers have."""

    def record(body: bytes, queue_offset: int) -> bytes:
        sys_flag = COMPRESSED | COMPRESSION_ZLIB | NEED_UNWRAP | INNER_BATCH
        host = bytes(8)
        return encode_record(
            topic_field("T"), 0, 0, queue_offset, 0, sys_flag, 0, host, 0, host, 0, 0, body, crc31(body), b""
        )

    fine = zlib.compress(encode_batch([BatchMember(b"one"), BatchMember(b"two")]))
    many = zlib.compress(encode_batch([BatchMember(bytes(3 << 20))]))
    bodies = (bomb(), many, many, fine, b"no zlib")
    answer = b"".join(record(body, 10 * number) for number, body in enumerate(bodies))
    async with little_memory():
        wanted = subscription("T", None, 0)
        got = Incoming("", "%RETRY%G").messages(answer, mq.QueueRef("T", "b", 0), wanted, None)
        plain = [(message.body, message.queue_offset) for message in got]
    assert plain == [
        (bomb(), 0), (bytes(3 << 20), 10), (many, 20), (b"one", 30), (b"two", 31), (b"no zlib", 40)
    ]  # fmt: skip


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
async def test_bombs_of_every_kind_stop_at_the_limit(compression: int) -> None:
    packed = bomb(compression)
    async with little_memory():
        with pytest.raises(mq.OrbitError, match="inflates to more than"):
            plain_body(packed, COMPRESSED | compression)


# ---- secrets


async def test_no_secret_is_in_the_list_of_processes_nor_in_a_log(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    settings = {
        **GUARDED,
        "brokerName": "b",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "1048576",
    }
    config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "orbitmq", "broker", "-c", str(config), "--host", "127.0.0.1", "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"HOME": str(tmp_path), **_path()},
    )  # fmt: skip
    assert process.stdout is not None
    printed = b""
    try:
        async with asyncio.timeout(100):
            while b"ready on" not in printed:
                line = await process.stdout.readline()
                assert line, printed.decode()
                printed += line
        seen = Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"root-secret" not in seen
    finally:
        process.terminate()
        rest, _ = await process.communicate()
    assert b"root-secret" not in printed + rest
    holding = {path.name for path in tmp_path.rglob("*") if path.is_file() and b"root-secret" in path.read_bytes()}
    assert holding == {"broker.conf", "users.json"}


def _path() -> dict[str, str]:
    return {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
