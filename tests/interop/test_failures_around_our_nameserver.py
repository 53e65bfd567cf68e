"""Name servers and brokers die or freeze; clients go on and routes follow."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.interop.apache import Broker, BrokerPlan, wait_until_registered
from tests.interop.conftest import STAND_IN, StartNameServer
from tests.interop.drivers import JavaClient
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually
from tests.interop.wire import ask, brokers_of, register_now

pytestmark = INTEROP

TEMPLATE_TOPIC: Final = "TBW102"
GET_MAX_OFFSET: Final = 30


def test_clients_go_on_whichever_of_three_name_servers_is_killed(
    orbit_nameserver: StartNameServer,
    apache_broker: Callable[[BrokerPlan], Broker],
    java_client: Callable[[bool], JavaClient],
) -> None:
    servers = [orbit_nameserver() for _ in range(3)]
    addresses = [server.address for server in servers]
    broker = apache_broker(BrokerPlan(name="survivor", cluster="cluster", name_servers=addresses))
    client, all_three = java_client(False), ";".join(addresses)
    # One instance for all: a 5.x client tries but one name server per call, picked at random, and a consumer of its own instance
    # that picks the dead one fails to start, with Apache's name servers too. A running instance has moved on.
    client.open_producer("producer", all_three, instanceName="app")
    client.send("producer", "Standing", [{"text": "before"}])
    client.open_push_consumer("standing", all_three, "Standing", instanceName="app")
    assert [message.body for message in client.received("standing", 1)] == [b"before"]

    for killed, server in enumerate(servers):
        server.process.kill()
        texts = [f"without {killed}: {i}" for i in range(5)]

        client.send("producer", "Standing", [{"text": text} for text in texts])
        assert sorted(message.body.decode() for message in client.received("standing", 5)) == texts

        # A new topic and a new consumer need a name server, now.
        topic = f"New-{killed}"
        client.send("producer", topic, [{"text": text} for text in texts])
        client.open_push_consumer(topic, all_three, topic, instanceName="app")
        assert sorted(message.body.decode() for message in client.received(topic, 5)) == texts

        orbit_nameserver(port=int(server.address.rsplit(":", 1)[1]))
        wait_until_registered(broker, [server.address])


def test_the_route_of_a_killed_broker_is_gone_at_once(
    orbit_nameserver: StartNameServer, apache_broker: Callable[[BrokerPlan], Broker]
) -> None:
    server = orbit_nameserver()
    plan = BrokerPlan(name="mortal", cluster="cluster", name_servers=[server.address], binary_headers=True)
    broker = apache_broker(plan)
    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"mortal": {"0": broker.address}}

    broker.process.kill()

    # The lost connection tells; expiry by silence would take two minutes.
    eventually(lambda: brokers_of(server.address, TEMPLATE_TOPIC), lambda route: not route, 5, "the end of the route")


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
def test_a_slave_finds_its_master_through_us_and_stays_when_the_master_is_killed(
    orbit_nameserver: StartNameServer,
    apache_broker: Callable[[BrokerPlan], Broker],
    java_client: Callable[[bool], JavaClient],
) -> None:
    server = orbit_nameserver()
    plan = BrokerPlan(name="pair", cluster="cluster", name_servers=[server.address])
    master = apache_broker(plan)
    slave = apache_broker(replace(plan, settings={"brokerId": 1, "brokerRole": "SLAVE"}))
    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"pair": {"0": master.address, "1": slave.address}}
    client = java_client(False)
    client.open_producer("producer", server.address)
    texts = [f"kept twice {i}" for i in range(5)]
    client.send("producer", "Copied", [{"text": text} for text in texts])
    eventually(lambda: _stored(slave, "Copied"), (len(texts)).__eq__, 30, "the slave's copy", every=0.2)

    master.process.kill()

    eventually(
        lambda: brokers_of(server.address, "Copied"),
        {"pair": {"1": slave.address}}.__eq__,
        5,
        "a route to the slave only",
    )


def _stored(broker: Broker, topic: str) -> int:
    """How many messages a broker holds for a topic of four queues."""
    answers = [ask(broker.address, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) for queue in range(4)]
    return sum(int(answer.fields["offset"]) for answer in answers if answer.code == 0)


@pytest.mark.parametrize("release", ["5.3.3"], indirect=True)
def test_the_route_of_a_frozen_broker_expires_by_the_brokers_own_timeout_and_returns_when_it_wakes(
    orbit_nameserver: StartNameServer, apache_broker: Callable[[BrokerPlan], Broker]
) -> None:
    timeout_ms = 3000
    server = orbit_nameserver({"scanNotActiveBrokerInterval": 500})
    # Only in this mode does a 5.x broker say how long its silence may last.
    acting_master: dict[str, str | int] = {
        "enableSlaveActingMaster": "true",
        "skipPreOnline": "true",
        "brokerNotActiveTimeoutMillis": timeout_ms,
        "brokerHeartbeatInterval": 500,
    }
    broker = apache_broker(
        BrokerPlan(name="sleeper", cluster="cluster", name_servers=[server.address], settings=acting_master)
    )
    time.sleep(timeout_ms / 1000 + 1)
    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"sleeper": {"0": broker.address}}  # heartbeats keep it

    broker.process.freeze()
    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"sleeper": {"0": broker.address}}
    eventually(lambda: brokers_of(server.address, TEMPLATE_TOPIC), lambda route: not route, 15, "the end of the route")

    broker.process.thaw()
    wait_until_registered(broker, [server.address])
    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"sleeper": {"0": broker.address}}


@pytest.mark.skipif(STAND_IN == "apache", reason="Apache's name server has no setting for this and waits two minutes")
@pytest.mark.parametrize("release", ["4.9.7"], indirect=True)
def test_the_route_of_a_frozen_broker_that_names_no_timeout_expires_by_ours(
    orbit_nameserver: StartNameServer, apache_broker: Callable[[BrokerPlan], Broker]
) -> None:
    server = orbit_nameserver({"orbitmq.brokerSilentMillis": 2000, "scanNotActiveBrokerInterval": 100})
    broker = apache_broker(BrokerPlan(name="sleeper", cluster="cluster", name_servers=[server.address]))

    register_now(broker.address)
    broker.process.freeze()

    assert brokers_of(server.address, TEMPLATE_TOPIC) == {"sleeper": {"0": broker.address}}
    eventually(lambda: brokers_of(server.address, TEMPLATE_TOPIC), lambda route: not route, 15, "the end of the route")
