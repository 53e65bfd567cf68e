"""The small parts: names, namespaces, filters, faults, codecs, routes, name servers, the gate, accumulated rules."""

import asyncio
import dataclasses
import http.server
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from orbitmq import Sql, connect
from orbitmq.client.codecs import JsonCodec
from orbitmq.client.config import name_server_source
from orbitmq.client.faults import Faults
from orbitmq.client.figures import Figures
from orbitmq.client.filters import subscription
from orbitmq.client.in_flight import InFlight
from orbitmq.client.namespaces import unwrapped, wrapped
from orbitmq.client.queue_choice import RoundRobin
from orbitmq.client.routes import route_from_template, route_of
from orbitmq.errors import ConfigError, MessageError
from orbitmq.message import QueueRef
from orbitmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from orbitmq.protocol.signing import Credentials
from orbitmq.transport.address import Address
from tests.client.scripted import scripted_cluster


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("Orders", "shop%Orders"),
        ("shop%Orders", "shop%Orders"),
        ("%RETRY%group", "%RETRY%shop%group"),
        ("%DLQ%group", "%DLQ%shop%group"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    ],
)
def test_names_inside_a_namespace(name: str, inside: str) -> None:
    assert wrapped("shop", name) == inside
    assert unwrapped("shop", inside) == name.removeprefix("shop%")
    assert wrapped("", name) == unwrapped("", name) == name


def test_filters_are_read_as_java_reads_them() -> None:
    for everything in ("*", "", None, "  "):
        assert subscription("T", everything, 1).expression == "*"
    two = subscription("T", " new ||paid|| ", 1)
    assert two.tags == {"new", "paid"}
    assert sorted(two.body().code_set) == sorted([108960, 3433164])
    assert subscription("T", Sql("a > 1"), 1).body().expression_type == "SQL92"
    with pytest.raises(ConfigError):
        subscription("T", "||", 1)
    with pytest.raises(ConfigError):
        subscription("T", Sql(" "), 1)


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [(0, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10000), (15000, 30000)],
)
def test_slow_brokers_are_left_alone_by_javas_table(latency_ms: int, pause_ms: int) -> None:
    faults = Faults()
    faults.sent("b", latency_ms / 1000, now=100.0)
    assert faults.is_available("b", 100.0 + pause_ms / 1000)
    assert faults.is_available("b", 100.0) == (pause_ms == 0)


def test_a_failure_counts_as_ten_seconds_and_only_ever_extends() -> None:
    faults = Faults()
    faults.failed("b", now=0.0)
    faults.sent("b", 0.6, now=1.0)
    assert not faults.is_available("b", 9.9)
    assert faults.is_available("b", 10.0)


def test_available_brokers_are_preferred_and_all_are_used_when_none_is() -> None:
    queues = (QueueRef("T", "a", 0), QueueRef("T", "b", 0))
    faults, turns = Faults(), RoundRobin(random.Random(1))
    faults.failed("a", now=0.0)
    assert {turns.choose_available(queues, faults, 1.0, "").broker_name for _ in range(6)} == {"b"}
    faults.failed("b", now=0.0)
    assert {turns.choose_available(queues, faults, 1.0, "").broker_name for _ in range(6)} == {"a", "b"}
    assert {turns.choose(queues, "a").broker_name for _ in range(6)} == {"b"}
    assert {turns.choose(queues[:1], "a").broker_name for _ in range(3)} == {"a"}


def test_a_route_says_what_can_be_written_and_read() -> None:
    found = TopicRoute(
        broker_datas=[
            BrokerData(cluster="c", broker_name="b", broker_addrs={0: "1.2.3.4:1", 1: "1.2.3.4:2"}),
            BrokerData(cluster="c", broker_name="a", broker_addrs={1: "1.2.3.4:3"}),
            BrokerData(cluster="c", broker_name="broken", broker_addrs={0: "nonsense"}),
        ],
        queue_datas=[
            QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=1, perm=6),
            QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6),
            QueueData(broker_name="broken", read_queue_nums=1, write_queue_nums=1, perm=2),
        ],
    )
    route = route_of("T", found)
    assert route.writable == (QueueRef("T", "b", 0),)  # the others have no master
    assert route.readable == (QueueRef("T", "a", 0), QueueRef("T", "b", 0), QueueRef("T", "b", 1))
    assert route.brokers["b"] == {0: Address("1.2.3.4", 1), 1: Address("1.2.3.4", 2)}
    ordered = msgspec.structs.replace(found, order_topic_conf="b:2;a:1;")
    assert [queue.queue_id for queue in route_of("T", ordered).writable] == [0, 1, 0]
    assert len(route_from_template("New", found, 1).readable) == 2


async def test_the_gate_counts_messages_and_bytes_and_keeps_the_order() -> None:
    gate = InFlight(max_messages=10, max_bytes=100)
    assert gate.enter(60) is None
    big, small = gate.enter(60), gate.enter(10)
    assert big is not None
    assert small is not None  # it would fit, but not before its turn
    waiting = [asyncio.ensure_future(big), asyncio.ensure_future(small)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    gate.leave(60)
    await asyncio.gather(*waiting)
    assert (gate.messages, gate.bytes) == (2, 70)


async def test_who_gives_up_waiting_lets_the_next_one_pass() -> None:
    gate = InFlight(max_messages=10, max_bytes=100)
    gate.enter(60)
    big, small = gate.enter(60), gate.enter(10)
    assert big is not None
    assert small is not None
    impatient, patient = asyncio.ensure_future(big), asyncio.ensure_future(small)
    await asyncio.sleep(0)
    impatient.cancel()
    await patient
    gate.leave(60)
    gate.leave(10)
    assert (gate.messages, gate.bytes) == (0, 0)
    assert gate.enter(1000) is None  # alone, anything passes


def test_values_become_bodies_and_bodies_values() -> None:
    @dataclasses.dataclass
    class Order:
        id: int

    class Model:
        """As pydantic's look from outside."""

        def model_dump_json(self) -> str:
            return '{"m":1}'

        @classmethod
        def model_validate_json(cls, body: bytes) -> str:
            if body != b'{"m":1}':
                raise ValueError(body)
            return "validated"

    codec = JsonCodec()
    assert codec.encode(Order(7)) == b'{"id":7}'
    assert codec.decode(b'{"id":7}', Order) == Order(7)
    assert codec.encode(Model()) == b'{"m":1}'
    assert codec.decode(b'{"m":1}', Model) == "validated"
    assert codec.decode("é".encode(), str) == "é"
    assert codec.encode(memoryview(b"x")) == codec.decode(b"x", bytes) == b"x"
    for value in ("\ud800", {"half": "\ud800"}):
        with pytest.raises(MessageError, match="cannot be sent as"):
            codec.encode(value)
    for body, wanted in ((b"{}", Order), (b"\xff", str), (b"{}", Model)):
        with pytest.raises(MessageError, match="the body is not"):
            codec.decode(body, wanted)


def test_name_servers_come_from_the_call_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="no name server") as caught:
        name_server_source(None)
    assert "NAMESRV_ADDR" in caught.value.hint
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert name_server_source(None) == ((Address("a", 1), Address("b", 2)), "")
    assert name_server_source("c:3,d:4") == ((Address("c", 3), Address("d", 4)), "")
    assert name_server_source(["c:3", "c:3"]) == ((Address("c", 3),), "")
    assert name_server_source("http://somewhere/list") == ((), "http://somewhere/list")


@pytest.mark.parametrize(
    ("wrong", "said", "hint"),
    [
        ({"name_servers": 9876}, "name servers 9876 are no text", "127.0.0.1:9876"),
        ({"name_servers": [("127.0.0.1", 9876)]}, "are no text", "127.0.0.1:9876"),
        ({"credentials": "my-secret"}, "credentials are no pair of texts", 'credentials=("access key", "secret key")'),
        ({"credentials": ("key", b"my-secret")}, "credentials are no pair of texts", "secret key"),
        ({"credentials": 7}, "credentials are no pair of texts", "secret key"),
        ({"credentials": ("key",)}, "credentials are no pair of texts", "secret key"),
        ({"timeout": timedelta(seconds=3)}, "no number of seconds", "total_seconds()"),
        ({"timeout": "3"}, "timeout is '3', which is no number of seconds", "give one"),
        ({"tls": 2}, "tls is 2", "ssl.create_default_context(cafile="),
        ({"tls": "/etc/ssl/ca.pem"}, "tls is '/etc/ssl/ca.pem'", "ssl.create_default_context(cafile="),
    ],
)
def test_what_connect_is_given_of_a_wrong_kind_is_refused_there(wrong: dict[str, Any], said: str, hint: str) -> None:
    """A file of authorities as `tls` had the machine's own asked, and two letters were a key and its secret."""
    with pytest.raises(ConfigError) as caught:
        connect(**{"name_servers": "127.0.0.1:9876", **wrong})
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "my-secret" not in str(caught.value)


@pytest.mark.parametrize("yes", [1, np.True_])
@pytest.mark.parametrize("no", [0, np.False_])
async def test_a_number_may_say_whether_there_is_tls_as_settings_do(yes: Any, no: Any) -> None:
    async with connect("127.0.0.1:9876", tls=yes) as guarded, connect("127.0.0.1:9876", tls=no) as plain:
        assert guarded.config.tls is not None
        assert plain.config.tls is None


async def test_credentials_may_have_no_token() -> None:
    """As `os.environ.get` says it."""
    given: Any = ("key", "secret", None)
    async with connect("127.0.0.1:9876", credentials=given) as client:
        assert client.config.credentials == Credentials("key", "secret")


@pytest.fixture
def page() -> Iterator[tuple[str, list[str]]]:
    """A web page that lists name servers, as its second value says."""
    text = [""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text[0].encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr", text
    server.shutdown()
    server.server_close()
    thread.join()


async def test_name_servers_can_be_looked_up(page: tuple[str, list[str]]) -> None:
    url, text = page
    async with scripted_cluster() as cluster:
        text[0] = f"{cluster.address}\nmore text"
        async with connect(url) as client, client.producer("P") as producer:
            assert (await producer.send("T", b"x")).queue.topic == "T"


async def test_every_address_behind_a_host_name_is_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = {"ns.example": ["127.0.0.9", "127.0.0.1"]}

    async def records(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in answers[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", records, raising=False)
    async with scripted_cluster() as cluster:
        port = cluster.name_server.port
        async with connect(f"ns.example:{port}") as client, client.producer("P") as producer:
            for _ in range(3):
                await producer.send("T", b"x")  # only the second address has a server
            instance = producer._instance
            assert instance is not None
            servers = instance.cluster.name_servers
            assert sorted(servers.addresses) == [Address("127.0.0.1", port), Address("127.0.0.9", port)]
            answers["ns.example"] = ["127.0.0.1"]
            await servers.look_up()
            assert servers.addresses == [Address("127.0.0.1", port)]
    assert set(asked) == {"ns.example"}


def test_speeds_are_of_the_last_minute_and_failures_of_the_last_hour() -> None:
    figures = Figures(now=0.0)
    topic = figures.of("T")
    for second in range(0, 7200, 10):
        topic.handled(seconds=0.5, done=20, failed=0)
        topic.found(seconds=0.25, count=20)
        if second < 3000:
            topic.handled(seconds=0.0, done=0, failed=1)
        figures.sample(now=second + 10.0)
    speed = figures.speed("T", now=7200.0)
    assert (speed.done_per_second, speed.pulled_per_second, speed.failed_per_second) == (2.0, 2.0, 0.0)
    assert (speed.handling_ms, speed.pull_ms, speed.failed_in_hour) == (500.0, 250.0, 0)
    assert figures.speed("Unknown", now=7200.0) == (0.0, 0.0, 0.0, 0.0, 0.0, 0)
    early = Figures(now=100.0)
    early.of("T").handled(seconds=0.1, done=3, failed=4)
    assert early.speed("T", now=103.0)[:3] == (1.0, 4 / 3, 100.0)
    assert early.speed("T", now=103.0).failed_in_hour == 4
