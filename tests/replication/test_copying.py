"""Master and slave of our own: the log arrives byte for byte, is served, and stays whole through what happens to either."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.replication.agreement import master_record
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import answer
from orbitmq.storage.replica import Replica
from orbitmq.transport.network import TcpNetwork
from orbitmq.transport.pool import Pool
from orbitmq.transport.server import Server
from tests.broker.kit import PATIENCE_SECONDS
from tests.replication.kit import copied, log_bytes, until, wire

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.broker.broker import Broker
    from orbitmq.protocol.command import Command
    from orbitmq.transport.connection import Connection
    from tests.replication.kit import Group


async def send(broker: Broker, *bodies: bytes, topic: str = "T") -> None:
    client = wire(broker)
    for body in bodies:
        assert (await client.send(topic, body, KEYS=body[:20].decode())).code == 0
    await client.close()


async def served(broker: Broker, topic: str = "T") -> list[bytes]:
    await until(lambda: broker.state.topics.get(topic) is not None, "the slave knows the topic")
    client = wire(broker)
    bodies = await client.bodies(topic)
    await client.close()
    return bodies


async def test_a_slave_has_the_same_bytes_and_serves_the_same_messages(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    bodies = [b"%04d" % number + b"x" * 3000 for number in range(800)]  # several files
    await send(master, *bodies)
    await copied(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert await served(slave) == bodies
    store = slave.state.store
    assert len(store.find_by_key("T", "0007" + "x" * 16).records) == 1


async def test_a_master_whose_host_is_gone_is_not_connected_to_for_minutes(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class VanishingPackets(TcpNetwork):
        async def connect(self, protocol: object, address: object) -> None:
            await asyncio.Event().wait()

    await group.master()
    copying = (await group.slave()).state.copying
    assert copying is not None
    await until(lambda: copying.is_connected, "the slave copies")
    with monkeypatch.context() as changed:
        changed.setattr("orbitmq.broker.replication.slave._CONNECT_SECONDS", 0.05)
        changed.setattr(copying, "_network", VanishingPackets())
        copying.disconnect()
        await until(lambda: "does not answer" in caplog.text, "the slave gives up connecting")
    await until(lambda: copying.is_connected, "the slave copies again")


async def test_a_slave_that_comes_late_gets_everything_from_the_first_message_on(group: Group) -> None:
    master = await group.master()
    bodies = [b"%04d" % number + b"x" * 3000 for number in range(800)]
    await send(master, *bodies)
    assert len(master.state.store.log.files.segments) > 2
    slave = await group.slave()
    await copied(master, slave)
    assert log_bytes(slave) == log_bytes(master)


async def test_a_slave_told_so_begins_with_the_last_file_as_apaches_does(group: Group) -> None:
    master = await group.master()
    await send(master, *(b"x" * 3000 for _ in range(800)))
    slave = await group.slave(syncFromLastFile="true")
    await copied(master, slave)
    last = master.state.store.log.files.segments[-1]
    assert slave.state.store.log.start == last.start
    assert log_bytes(slave) == log_bytes(master)[-len(log_bytes(slave)) :]


async def test_a_slave_goes_on_where_it_stopped(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    await send(master, b"one", b"two")
    await copied(master, slave)
    await group.stop(slave)
    await send(master, b"three")
    slave = await group.slave()
    assert slave.state.store.last_exit.name == "CLEAN"
    await copied(master, slave)
    assert await served(slave) == [b"one", b"two", b"three"]


async def test_a_slave_finds_its_master_again(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    await send(master, b"one")
    await copied(master, slave)
    await group.stop(master)
    assert await served(slave) == [b"one"], "a slave serves while its master is away"
    master = await group.master()
    await send(master, b"two")
    await slave.state.registration.start()  # the regular one comes within ten seconds
    await copied(master, slave)
    assert await served(slave) == [b"one", b"two"]


async def test_a_tail_that_the_master_lost_is_cut_off_and_kept(group: Group, tmp_path: Path) -> None:
    master = await group.master()
    slave = await group.slave()
    await send(master, b"both")
    await copied(master, slave)
    lost = master.state.store.log.end
    await send(master, b"lost-1", b"lost-2")
    await copied(master, slave)
    await group.stop(slave)
    await group.stop(master)
    lose_behind(tmp_path / "master" / "commitlog" / ("0" * 20), lost)
    (tmp_path / "master" / "abort").touch()
    master = await group.master()
    await send(master, b"other", b"and more", b"and more")
    slave = await group.slave()
    await copied(master, slave)
    assert log_bytes(slave) == log_bytes(master)
    assert await served(slave) == [b"both", b"other", b"and more", b"and more"]
    assert len(slave.state.store.find_by_key("T", "lost-1").records) == 0
    (kept,) = (tmp_path / "slave-1" / "diverged").rglob("0*")
    assert b"lost-1" in kept.read_bytes()
    assert b"lost-2" in kept.read_bytes()


async def test_a_store_of_another_broker_is_refused_and_stays(
    group: Group, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Replica, "record_starts")  # it is tried each second: no file is to be looked through for that
    stranger = await group.master("slave-1", brokerName="other")
    await send(stranger, b"mine", b"mine too")
    await group.stop(stranger)
    master = await group.master()
    await send(master, b"theirs", b"theirs too")
    slave = await group.slave()
    await until(lambda: "have no message in common" in caplog.text, "the slave says why it does not copy")
    assert b"mine too" in log_bytes(slave)
    await send(master, b"more")
    assert b"theirs" not in log_bytes(slave)


async def test_a_master_that_changes_while_the_slave_connects_is_followed(group: Group) -> None:
    first, second = await group.master("first", brokerName="first"), await group.master("second", brokerName="second")
    await send(first, b"of the first")
    await send(second, b"of the second")
    slave = await group.slave(syncFromLastFile="true", registerNameServerPeriod=60_000)
    copying = slave.state.copying
    assert copying is not None

    async def change() -> None:
        copying.before_copying = usual
        copying.follow(second.address, second.state.registration.ha_address)

    usual, copying.before_copying = copying.before_copying, change
    copying.follow(first.address, first.state.registration.ha_address)
    await copied(second, slave)
    assert log_bytes(slave) == log_bytes(second)


async def test_a_master_that_does_not_answer_is_not_one_with_another_log() -> None:
    answers = {
        0: answer(ResponseCode.SYSTEM_BUSY, "later"),
        1: answer(ResponseCode.SYSTEM_ERROR, "an account is missing"),
        2: answer(ResponseCode.SYSTEM_ERROR, "can not find message by the offset, 2"),
    }

    async def view(request: Command, _connection: Connection) -> Command:
        return answers[int(request.fields["offset"])]

    server, pool = Server({RequestCode.VIEW_MESSAGE_BY_ID: view}), Pool()
    address = await server.start("127.0.0.1", 0)
    with pytest.raises(RequestFailed, match="does not show its message at 0: later"):
        await master_record(pool, address, 0)
    with pytest.raises(RequestFailed, match="an account is missing"):
        await master_record(pool, address, 1)
    assert await master_record(pool, address, 2) is None
    await pool.close()
    await server.stop()


async def test_a_slave_without_leave_copies_nothing_instead_of_the_last_file(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    tables = (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
    )
    master = await group.master(
        authenticationEnabled="true",
        authenticationWhitelist=",".join(str(int(code)) for code in (*tables, RequestCode.SEND_MESSAGE_V2)),
        initAuthenticationUser='{"username":"root","password":"secret"}',
    )
    await send(master, b"one")
    slave = await group.slave()
    await until(lambda: "does not say where its log begins: username" in caplog.text, "the slave says what is wrong")
    assert log_bytes(slave) == b""


async def test_what_writes_is_refused_by_a_slave(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    await send(master, b"one")
    await copied(master, slave)
    client = wire(slave)
    sent = await client.send("T", b"two")
    assert sent.code == ResponseCode.SYSTEM_BUSY
    assert "slave" in (sent.remark or "")
    changed = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert changed.code == ResponseCode.SYSTEM_ERROR
    assert log_bytes(slave) == log_bytes(master)
    await client.close()


async def test_a_slave_takes_no_message_back_and_decides_no_transaction(group: Group) -> None:
    """With Apache's codes, and the region that Java's client needs to trace a recall."""
    master = await group.master(recallMessageEnable="true")
    slave = await group.slave(recallMessageEnable="true")
    await send(master, b"one")
    first = wire(master)
    timer = await first.send("T", b"timer", TIMER_DELAY_SEC="60", UNIQ_KEY="K")
    half = await first.send("T", b"half", header={"sys_flag": 4}, TRAN_MSG="true", PGROUP="P", UNIQ_KEY="H")
    await copied(master, slave)
    end = {
        "producerGroup": "P",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": 8,
    }
    handle = {"topic": "T", "recallHandle": timer.fields["recallHandle"]}
    client = wire(slave)

    recalled = await client.ask(RequestCode.RECALL_MESSAGE, handle)
    assert (recalled.code, "slave" in (recalled.remark or "")) == (ResponseCode.SLAVE_NOT_AVAILABLE, True)
    assert recalled.fields["MSG_REGION"] == "DefaultRegion"
    assert (await client.ask(RequestCode.END_TRANSACTION, end)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert log_bytes(slave) == log_bytes(master)

    assert (await first.ask(RequestCode.RECALL_MESSAGE, handle)).code == 0
    assert (await first.ask(RequestCode.END_TRANSACTION, end)).code == 0
    await client.close()
    await first.close()


async def test_a_slave_that_may_not_be_read_from_says_how_to_change_that(group: Group) -> None:
    await group.master()
    slave = await group.slave(slaveReadEnable="false")
    client = wire(slave)
    refused = await client.pull("T")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "slaveReadEnable=true" in (refused.remark or "")
    await client.close()


async def test_a_reader_far_behind_is_sent_to_the_slave_if_slaves_may_be_read(group: Group) -> None:
    for folder, may_read, suggested in (("yes", "true", "1"), ("no", "false", "0")):
        settings = {"brokerName": folder, "slaveReadEnable": may_read, "accessMessageInMemoryMaxRatio": "0"}
        master = await group.master(folder, **settings)
        await send(master, b"one", b"two")
        client = wire(master)
        assert (await client.pull("T")).fields["suggestWhichBrokerId"] == suggested
        await client.close()


async def test_topics_groups_and_offsets_follow(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    client = wire(master)
    await send(master, b"one", topic="Made")
    await client.heartbeat("client", "G", {"Made": "*"})
    commit = {"consumerGroup": "G", "topic": "Made", "queueId": 0, "commitOffset": 1}
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    await until(lambda: slave.state.offsets.get("G", "Made", 0) == 1, "the offset is on the slave")
    await until(lambda: slave.state.topics.get("Made") == master.state.topics.get("Made"), "and the topic")
    await until(lambda: slave.state.groups.get("G") == master.state.groups.get("G"), "and the group")
    mode = b'{"topic":"Made","consumerGroup":"G","mode":"POP","popShareQueueNum":0}'
    assert (await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)).code == 0
    await until(lambda: slave.state.request_modes.get("Made", "G") is not None, "and how the group consumes")
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"})).code == 0
    await until(lambda: slave.state.topics.get("Made") is None, "a deleted topic is gone on the slave too")
    await client.close()


async def test_a_slave_can_become_the_master(group: Group) -> None:
    master = await group.master()
    slave = await group.slave()
    await send(master, b"one", b"two")
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    await group.stop(slave)
    await group.stop(master)
    master = await group.master("slave-1")
    slave = await group.slave(1, "master")
    await send(master, b"three")
    await copied(master, slave)
    assert await served(slave) == [b"one", b"two", b"three"]
    assert log_bytes(slave) == log_bytes(master)


class TestSynchronousMaster:
    settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}  # noqa: RUF012

    async def test_a_send_is_answered_once_a_slave_has_it(self, group: Group) -> None:
        master = await group.master(slaveTimeout="60000", **self.settings)
        slave = await group.slave(
            flushDiskType="SYNC_FLUSH", flushIntervalCommitLog=600_000
        )  # it does not wait for that
        await until(lambda: len(master.state.slaves.states()) == 1, "the slave is connected")
        client = wire(master)
        for _ in range(20):
            assert (await client.send("T", b"x")).code == ResponseCode.SUCCESS
            assert slave.state.store.log.end == master.state.store.log.end
            assert slave.state.store.flushed_offset == master.state.store.log.end
        await client.close()

    async def test_without_a_slave_the_sender_is_told_so_at_once(self, group: Group) -> None:
        master = await group.master(slaveTimeout="60000", **self.settings)
        client = wire(master)
        assert (await client.send("T", b"x")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert (await client.send("T", b"x", WAIT="false")).code == ResponseCode.SUCCESS
        assert await client.bodies("T") == [b"x", b"x"], "it is stored all the same"
        await client.close()

    async def test_a_slave_that_does_not_answer_is_waited_for_and_no_longer(self, group: Group) -> None:
        master = await group.master(slaveTimeout="50", **self.settings)
        silent = await Peer.connect(master)
        silent.report(0)
        await until(lambda: len(master.state.slaves.states()) == 1, "the slave is connected")
        client = wire(master)
        assert (await client.send("T", b"x")).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        silent.report(master.state.store.log.end)
        await until(lambda: master.state.slaves.states()[0].acked == master.state.store.log.end, "it acknowledged")
        await client.close()
        silent.close()

    async def test_another_number_of_copies_counts_from_the_next_start_on(self, group: Group) -> None:
        master = await group.master(slaveTimeout="60000", **self.settings)
        silent = await Peer.connect(master)
        silent.report(0)
        await until(lambda: len(master.state.slaves.states()) == 1, "the slave is connected")
        client = wire(master)
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"inSyncReplicas=1")).code == 0
        sent = asyncio.create_task(client.send("T", b"x"))
        await until(lambda: master.state.slaves.states()[0].next_offset > 0, "the slave was sent it")
        silent.report(master.state.store.log.end)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await sent).code == ResponseCode.SUCCESS
        await client.close()
        silent.close()

    async def test_whoever_waits_for_a_slave_is_answered_before_the_master_stops(self, group: Group) -> None:
        master = await group.master(slaveTimeout="500", **self.settings)
        silent = await Peer.connect(master)
        silent.report(0)
        await until(lambda: len(master.state.slaves.states()) == 1, "the slave is connected")
        client = wire(master)
        sent = asyncio.create_task(client.send("T", b"x"))
        await until(lambda: master.state.store.log.end > 0, "the message is stored")
        await group.stop(master)
        assert (await sent).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        await client.close()
        silent.close()


class TestStrangersOnTheCopyingPort:
    async def test_a_slave_that_claims_to_have_more_is_sent_away(
        self, group: Group, caplog: pytest.LogCaptureFixture
    ) -> None:
        master = await group.master()
        await send(master, b"one")
        peer = await Peer.connect(master)
        peer.report(1 << 40)
        assert await peer.rest() == b""
        assert "more than this master" in caplog.text

    async def test_an_acknowledgement_of_what_was_not_sent_is_none(
        self, group: Group, caplog: pytest.LogCaptureFixture
    ) -> None:
        master = await group.master(**TestSynchronousMaster.settings)
        peer = await Peer.connect(master)
        peer.report(0)
        await until(lambda: len(master.state.slaves.states()) == 1, "the slave is connected")
        peer.report(1 << 40)
        assert await peer.rest() == b""
        assert "was sent 0" in caplog.text

    async def test_whoever_is_gone_before_it_is_looked_at_is_no_slave(self, group: Group) -> None:
        class Gone(asyncio.Transport):
            is_aborted = False

            def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

            def abort(self) -> None:
                self.is_aborted = True

        slaves, transport = (await group.master()).state.slaves, Gone()
        connection = slaves._accept()
        connection.connection_made(transport)
        assert transport.is_aborted
        connection.connection_lost(None)
        assert slaves.states() == []

    async def test_a_negative_report_ends_the_connection(self, group: Group) -> None:
        peer = await Peer.connect(await group.master())
        peer.report(-1)
        assert await peer.rest() == b""

    async def test_whoever_says_nothing_is_sent_nothing_and_then_closed(self, group: Group) -> None:
        master = await group.master(haHousekeepingInterval="10")
        await send(master, b"secret")
        assert await (await Peer.connect(master)).rest() == b""

    async def test_an_idle_slave_gets_signs_of_life(self, group: Group) -> None:
        peer = await Peer.connect(await group.master(haSendHeartbeatInterval="1"))
        peer.report(0)
        assert await peer.read(12) == bytes(12)
        peer.close()


class Peer:
    """A bare connection to the port that slaves use."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, master: Broker) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", master.state.registration.ha_address.port))

    def report(self, offset: int) -> None:
        self._writer.write(offset.to_bytes(8, "big", signed=True))

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        """Everything until the other side closes."""
        received = b""
        async with asyncio.timeout(PATIENCE_SECONDS):
            with contextlib.suppress(ConnectionResetError):
                while piece := await self._reader.read(1 << 16):
                    received += piece
        self._writer.close()
        return received

    def close(self) -> None:
        self._writer.close()


def lose_behind(path: Path, offset: int) -> None:
    """What a power cut does to writes that were not synced."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(path.stat().st_size - offset))


async def test_a_slave_does_not_correct_a_reader_that_is_ahead_of_it(group: Group) -> None:
    """Its master may have what is asked for. Found by the simulation: the reader went back, and forgot what it held."""
    master, slave = await group.master(), await group.slave()
    await send(master, b"one")
    await copied(master, slave)
    await until(lambda: slave.state.topics.get("T") is not None, "the slave knows the topic")
    client = wire(slave)
    answered = await client.pull("T", offset=5)
    await client.close()
    assert answered.code == ResponseCode.PULL_NOT_FOUND
    assert answered.fields["nextBeginOffset"] == "5"
