"""What name servers hear from a broker: at start, when topics change, after a loss, and at the end."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from orbitmq.broker import registration
from orbitmq.broker.advertised import Advertised, advertised_host
from orbitmq.broker.settings import Settings
from orbitmq.errors import ConfigError
from orbitmq.protocol.bodies.registration import decode_registration
from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.protocol.command import Command, answer, ok
from orbitmq.protocol.headers.admin import CreateTopic
from orbitmq.protocol.headers.nameserver import BrokerRegistered
from orbitmq.transport.address import Address
from orbitmq.transport.http import HttpServer, Page
from orbitmq.transport.lookup import published_list
from orbitmq.transport.server import Server
from tests.broker.kit import MAX_OFFSET, no_table_saved, running, wire
from tests.raw_client import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.storage import tables
    from orbitmq.transport.connection import Connection

REGISTER, UNREGISTER = 103, 104


class Register:
    """A name server that writes down what it hears, and answers as told."""

    def __init__(self) -> None:
        self.registered: list[Command] = []
        self.unregistered: list[Command] = []
        self.body = b""
        self.master = ""
        self.refusals = 0
        self.server = Server({REGISTER: self._register, UNREGISTER: self._unregister})

    async def _register(self, request: Command, connection: Connection) -> Command:
        self.registered.append(request)
        if self.refusals:
            self.refusals -= 1
            return answer(ResponseCode.SYSTEM_ERROR, "not now")
        return ok(BrokerRegistered(master_addr=self.master, ha_server_addr=self.master), body=self.body)

    async def _unregister(self, request: Command, connection: Connection) -> Command:
        self.unregistered.append(request)
        return ok()

    def topics(self, number: int) -> set[str]:
        request = self.registered[number]
        registration = decode_registration(request.body, request.version)
        return set(registration.topic_config_serialize_wrapper.topic_config_table)

    def heard_of(self, topic: str) -> bool:
        return any(topic in self.topics(number) for number in range(len(self.registered)))


@asynccontextmanager
async def register() -> AsyncIterator[tuple[Register, Address]]:
    heard = Register()
    address = await heard.server.start("127.0.0.1", 0)
    try:
        yield heard, address
    finally:
        await heard.server.stop(grace_seconds=0.5)


async def test_every_name_server_hears_of_the_broker_at_start_and_at_the_end(tmp_path: Path) -> None:
    async with register() as (first, one), register() as (second, two):
        async with running(tmp_path, namesrvAddr=f"{one};{two}") as broker:
            for heard in (first, second):
                assert heard.registered[0].fields["brokerAddr"] == str(broker.address)
                assert heard.registered[0].fields["brokerName"] == "broker-a"
                assert {"TBW102", "broker-a", "SCHEDULE_TOPIC_XXXX"} <= heard.topics(0)
        for heard in (first, second):
            assert [request.fields["brokerName"] for request in heard.unregistered] == ["broker-a"]


async def test_name_servers_are_found_on_a_published_list_and_followed_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with register() as (first, one), register() as (second, two):
        listed = [str(one)]

        async def page() -> Page:
            return Page(";".join(listed) + "\n")

        lists = HttpServer({"/rocketmq/nsaddr": page})
        domain = await lists.start("127.0.0.1", 0)
        monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", str(domain))
        try:
            async with running(tmp_path, fetchNamesrvAddrByAddressServer="true") as broker:
                assert first.registered[0].fields["brokerAddr"] == str(broker.address)
                listed.append(str(two))
                name_servers = broker.state.registration._name_servers
                assert await name_servers.refresh()  # what is done every ten seconds
                assert set(name_servers.addresses) == {one, two}
                broker.state.registration.again_soon()
                await until(lambda: bool(second.registered), what="the second name server told")
                await lists.stop()
                assert not await name_servers.refresh()  # the known ones stay
                assert set(name_servers.addresses) == {one, two}
        finally:
            await lists.stop()


def test_a_published_list_without_a_port_is_looked_for_where_java_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", "lists.local")
    assert published_list("nsaddr") == "http://lists.local:8080/rocketmq/nsaddr"


async def test_every_address_behind_a_name_is_a_name_server(tmp_path: Path) -> None:
    async with register() as (heard, address):
        named = f"localhost:{address.port}"
        async with running(tmp_path, namesrvAddr=named, fetchNameSrvAddrByDnsLookup="true") as broker:
            assert address in broker.state.registration._name_servers.addresses
            assert heard.registered[0].fields["brokerName"] == "broker-a"


def test_the_advertised_address_comes_with_its_reason() -> None:
    def advertised(**changes: str) -> Advertised:
        return advertised_host(msgspec.structs.replace(Settings(), **changes), [Address("127.0.0.1", 9876)])

    assert advertised(broker_ip1="10.0.0.7") == ("10.0.0.7", "brokerIP1 says so")
    assert advertised(bind_address="127.0.0.2").reason == "it is the only address this broker listens on"
    anywhere = advertised(bind_address="0.0.0.0")
    assert ipaddress.ip_address(anywhere.host) != ipaddress.ip_address("0.0.0.0")
    assert re.match(r"it is (this container's address|the address this machine uses)", anywhere.reason)
    with pytest.raises(ConfigError, match="is not an IP address"):
        advertised(broker_ip1="broker.local")


async def test_a_new_topic_is_announced_at_once_and_alone(tmp_path: Path) -> None:
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
        await client.send("Brand_new")
        assert heard.topics(-1) == {"Brand_new"}, "its route is there when its sender may ask for it"


@pytest.mark.parametrize(
    "comes_back", [False, True], ids=["at once", "with all others, to a name server that was lost"]
)
async def test_a_new_topic_is_kept_before_it_is_announced_and_its_first_message_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    """A broker that is killed in between would have the message, and know of no such topic."""
    monkeypatch.setattr(registration, "_REJOIN_SECONDS", 0.0)
    async with (
        register() as (heard, address),
        running(tmp_path, namesrvAddr=str(address)) as broker,
        wire(broker) as client,
        wire(broker) as other,
    ):
        with no_table_saved() as may_save:
            broker.state.registration._lost = comes_back
            receipt = asyncio.ensure_future(client.send("New"))
            await until(lambda: broker.state.topics.get("New") is not None, what="the topic")
            for _ in range(50):  # all that would happen meanwhile
                await other.ask(MAX_OFFSET, {"topic": "New", "queueId": 0})
            assert len(heard.registered) == 1
            assert not receipt.done()
            may_save.set()
            assert (await receipt).code == 0
        assert "New" in (tmp_path / "config" / "topics.json").read_text()
        assert "New" in heard.topics(1)


@pytest.mark.usefixtures("loops")
async def test_who_sends_to_a_topic_that_another_just_made_waits_for_it_as_well(tmp_path: Path) -> None:
    async with (
        register() as (_, address),
        running(tmp_path, namesrvAddr=str(address)) as broker,
        wire(broker) as client,
        wire(broker) as other,
    ):
        with no_table_saved() as may_save:
            first = asyncio.ensure_future(client.send("New"))
            await until(lambda: broker.state.topics.get("New") is not None, what="the topic")
            second = asyncio.ensure_future(other.send("New"))
            await until(lambda: broker.state.store.queue_range("New", 0).max_offset == 2, what="both messages")
            for _ in range(50):  # all that would happen meanwhile
                await client.ask(MAX_OFFSET, {"topic": "New", "queueId": 0})
            assert not first.done()
            assert not second.done()
            may_save.set()
            assert [(await first).code, (await second).code] == [0, 0]


async def test_a_compressed_registration_says_the_same(tmp_path: Path) -> None:
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address, compressedRegister="true"):
        assert heard.registered[0].fields["compressed"] == "true"
        assert "TBW102" in heard.topics(0)


async def test_a_broker_starts_without_name_servers_and_is_found_by_one_that_comes_later(tmp_path: Path) -> None:
    async with register() as (heard, address):
        pass
    async with running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
        assert (await client.send("T")).code == 0
        assert heard.registered == []


async def test_a_lost_connection_makes_it_register_again(tmp_path: Path) -> None:
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address):
        for connection in list(heard.server.connections):
            connection.abort()
        await until(lambda: len(heard.registered) == 2, what="the second registration")
        assert "TBW102" in heard.topics(1)


async def test_an_answer_that_cannot_be_read_does_not_end_registration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with register() as (heard, address):
        heard.body = b"[1,"
        async with running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
            await client.send("One")
            await until(lambda: heard.heard_of("One"), what="the first topic announced")
            await client.send("Two")
            await until(lambda: heard.heard_of("Two"), what="the second topic announced")
    assert "cannot be read" in caplog.text


async def test_a_change_that_a_name_server_did_not_take_goes_along_with_the_next(tmp_path: Path) -> None:
    """Told of the next one alone, it would have the newest version, and believe nothing more under that."""
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
        heard.refusals = 1
        await client.send("Missed")
        await until(lambda: heard.heard_of("Missed") and not heard.refusals, what="the first topic refused")
        await client.send("Next")
        assert {"Missed", "Next"} <= heard.topics(-1)
        await client.send("Third")
        assert heard.topics(-1) == {"Third"}


async def test_a_master_that_cannot_be_read_does_not_end_registration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with register() as (heard, address):
        heard.master = "nowhere"
        async with running(tmp_path, namesrvAddr=address, brokerRole="SLAVE", brokerId="1") as broker:
            broker.state.registration.again_soon()
            await until(lambda: len(heard.registered) > 1, what="the second registration")
    assert "our master cannot be read" in caplog.text


async def test_what_one_name_server_makes_fail_leaves_the_others_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        register() as (heard, address),
        register() as (_, bad),
        running(tmp_path, namesrvAddr=f"{bad};{address}") as broker,
        wire(broker) as client,
    ):
        registration = broker.state.registration
        register_with = registration._register

        async def failing(server: Address, changed: list[tables.TopicConfig] | None) -> None:
            if server == bad:
                raise ZeroDivisionError
            await register_with(server, changed)

        monkeypatch.setattr(registration, "_register", failing)
        await client.send("One")
        await until(lambda: heard.heard_of("One"), what="the first topic announced")
        await client.send("Two")
        await until(lambda: heard.heard_of("Two"), what="the second topic announced")
    assert "ZeroDivisionError" in caplog.text


async def test_what_a_name_server_calls_ordered_is_ordered(tmp_path: Path) -> None:
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
        await client.send("One")
        await until(lambda: heard.heard_of("One"), what="the first topic announced")
        heard.body = b'{"table":{"One":"broker-a:4"}}'
        await client.send("Two")
        await until(lambda: broker.state.topics.require("One").order, what="marked")
        assert not broker.state.topics.require("Two").order


async def test_an_ordered_topic_that_a_name_server_does_not_know_stays_ordered(tmp_path: Path) -> None:
    """It may be just being made, and name servers do not tell each other."""
    async with register() as (heard, address), running(tmp_path, namesrvAddr=address) as broker, wire(broker) as client:
        heard.body = b'{"table":{"Another":"broker-a:4"}}'
        header = CreateTopic(
            topic="Mine", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG", order=True
        )
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0  # it has been told by now
        assert heard.heard_of("Mine")
        assert broker.state.topics.require("Mine").order
