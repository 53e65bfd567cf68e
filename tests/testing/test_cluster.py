"""The cluster that users get for their tests: brokers that can be killed, and come back with what they had."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import orbitmq as mq
from orbitmq.broker.broker import Broker
from orbitmq.errors import OrbitError
from orbitmq.sync import connect
from orbitmq.testing.broker_process import obey
from orbitmq.testing.clock import MovableClock
from orbitmq.testing.small_settings import broker_configuration
from tests.raw_client import until

if TYPE_CHECKING:
    from pathlib import Path

    from orbitmq.testing import Cluster

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(400)  # several processes are started, on a machine that may be busy

PATIENCE_SECONDS = 60


async def _send_until(producer: mq.Producer, topic: str, brokers: set[str]) -> None:
    """Until every one of these brokers took a message. What fails meanwhile is tried again."""
    reached: set[str] = set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not brokers <= reached:
            try:
                receipt = await producer.send(topic, b"hello")
            except mq.OrbitError:
                await asyncio.sleep(0.05)
            else:
                reached.add(receipt.queue.broker_name)


@pytest.mark.mq_cluster(masters=2, slaves=1)
async def test_a_master_is_killed_and_comes_back_with_its_messages(mq_cluster: Cluster) -> None:
    assert [broker.title for broker in mq_cluster] == ["a", "a-1", "b", "b-1"]
    mq_cluster.create_topic("T", queues=2)
    async with mq.connect(mq_cluster.address, timeout=30) as client, client.producer(group="P") as producer:
        await _send_until(producer, "T", {"a", "b"})
        before = len(mq_cluster.sent("T"))
        mq_cluster["a"].kill()
        assert not mq_cluster["a"].is_running
        await _send_until(producer, "T", {"b"})
        mq_cluster["a"].start()
        await _send_until(producer, "T", {"a", "b"})
    after = mq_cluster.expect("T", count=before + 2)
    assert {message.queue.broker_name for message in after} == {"a", "b"}


def test_faults_and_the_clock_reach_every_broker(mq_cluster: Cluster) -> None:
    with connect(mq_cluster.address, timeout=30) as client, client.producer(group="P", retries=0) as producer:
        for broker in mq_cluster:
            broker.refuse_sends("maintenance")
        with pytest.raises(mq.OrbitError, match="maintenance"):
            producer.send("T", b"refused")
        for broker in mq_cluster:
            broker.accept_sends()
            broker.drop_connections()
            broker.pause()
            broker.resume()
        with client.producer(group="Patient") as patient:  # its connections were cut: it may have to send again
            patient.send("T", b"later", delay=timedelta(hours=1))
        mq_cluster.clock.advance(hours=2)
        (message,) = mq_cluster.expect("T", body=b"later", timeout=PATIENCE_SECONDS)
    assert message.topic == "T"
    with pytest.raises(OrbitError, match="there is no broker 'z'"):
        mq_cluster["z"]
    mq_cluster["b"].stop()
    with pytest.raises(OrbitError, match="is not running"):
        mq_cluster["b"].pause()


async def test_a_broker_says_that_connections_are_dropped_when_they_are(tmp_path: Path) -> None:
    """What it then stands still for, as a paused process does, comes after the end of each connection."""
    async with Broker(broker_configuration(tmp_path, {})) as broker:
        assert broker.address is not None
        with socket.create_connection(broker.address) as peer:
            peer.settimeout(PATIENCE_SECONDS)
            await until(lambda: any(server.connections for server in broker._servers), what="the connection")
            seen = asyncio.get_running_loop().create_future()
            obey({"drop_connections": True}, broker, MovableClock(), lambda: seen.set_result(_end_of(peer)))
            assert await seen in ("closed", "reset")


def _end_of(peer: socket.socket) -> str:
    try:
        return "data" if peer.recv(1) else "closed"
    except ConnectionResetError:
        return "reset"
    except TimeoutError:
        return "open"


def test_users_find_the_fixtures_with_every_runner(pytester: pytest.Pytester) -> None:
    """In a run of their own: marks with --strict-markers, an async test, and two workers."""
    pytester.makepyfile(
        """
        import asyncio
        import pytest
        import orbitmq as mq

        @pytest.mark.asyncio
        @pytest.mark.mq_cluster(masters=1)
        async def test_with_asyncio(mq_cluster):
            async with mq.connect(mq_cluster.address, timeout=30) as client, client.producer(group="P") as producer:
                await producer.send("T", b"hello", tag="t", keys=["k"], properties={"color": "red"})
            mq_cluster.expect("T", body=b"hello", tag="t", key="k", properties={"color": "red"})

        @pytest.mark.anyio
        @pytest.mark.mq_server(settings={"autoCreateTopicEnable": "false"})
        async def test_with_anyio(mq_server):
            async with mq.connect(mq_server.address, timeout=30) as client, client.producer(group="P") as producer:
                with pytest.raises(mq.OrbitError, match="autoCreateTopicEnable"):
                    await producer.send("T", b"hello")
            assert mq_server.sent("T") == []
            with pytest.raises(AssertionError, match="(?s)0 of 1 expected messages in T; there are 0:.*asyncio.to_thread"):
                mq_server.expect("T", timeout=0)

        @pytest.mark.mq_server({"autoCreateTopicEnable": "false"})
        def test_with_a_mark_that_means_nothing(mq_server): ...
        """
    )
    arguments = ["-p", "no:cacheprovider", "--strict-markers", "-n", "2"]
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines("*mark.mq_server does not take *: write mq_server(settings=...)*")
