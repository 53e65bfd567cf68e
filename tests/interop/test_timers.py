"""Timer messages: Apache's producers and consumers on our broker, and one store served by both kinds of broker in turns."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop import apache, orbit
from tests.interop.apache import Broker, BrokerPlan, NameServer
from tests.interop.conftest import StartNameServer
from tests.interop.drivers import ClientError, JavaClient
from tests.interop.java import JavaBuild
from tests.interop.marks import INTEROP
from tests.interop.processes import free_port

pytestmark = [*INTEROP, pytest.mark.parametrize("release", ["5.3.3"], indirect=True)]

SETTINGS: Final[dict[str, str | int]] = {"mappedFileSizeTimerLog": 1 << 20, "recallMessageEnable": "true"}
LATE_MS: Final = 20_000  # on a machine that has other work; early is never allowed


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with orbit.running(tmp_path_factory.mktemp("timers"), SETTINGS) as (name_server, _):
        yield name_server


def test_every_way_to_ask_for_a_delay_is_kept(
    name_server: NameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    client, now_ms = java_client(False), time.time_ns() // 1_000_000
    client.open_producer("producer", name_server.address)
    asked = {
        "seconds": (now_ms + 3000, {"delaySeconds": 3}),
        "millis": (now_ms + 2500, {"delayMillis": 2500}),
        "moment": (now_ms + 4000, {"deliverAtMillis": now_ms + 4000}),
        "passed": (now_ms, {"deliverAtMillis": now_ms - 5000}),
    }
    receipts = client.send("producer", "Alarms", [{"text": text, **ask} for text, (_, ask) in asked.items()])
    assert ["recallHandle" in receipt for receipt in receipts] == [True, True, True, False]
    recalled = client.send("producer", "Alarms", [{"text": "recalled", "delaySeconds": 3}])[0]
    assert client.call("Recall", name="producer", topic="Alarms", handle=recalled["recallHandle"]) == recalled["id"]
    passed = base64.urlsafe_b64encode(b"v1 Alarms orbit-a 1000 K").decode()
    with pytest.raises(ClientError) as refused:
        client.call("Recall", name="producer", topic="Alarms", handle=passed)
    assert refused.value.code == 604

    client.open_push_consumer("consumer", name_server.address, "Alarms", group="alarmed")

    seen: dict[str, int] = {}
    while len(seen) < len(asked):
        (message, *more) = client.received("consumer", 1)
        assert not more or len(seen) + 1 + len(more) <= len(asked)
        for each in (message, *more):
            seen[each.body.decode()] = time.time_ns() // 1_000_000
            assert "recalled" not in each.body.decode()
    for text, (due_ms, _) in asked.items():
        assert 0 <= seen[text] - due_ms < LATE_MS, text
    assert client.received("consumer", 1, seconds=2) == []


def test_a_store_with_waiting_timers_served_in_turns(
    tmp_path: Path, java: JavaBuild, orbit_nameserver: StartNameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    """Each broker leaves timers behind, properly stopped or killed; the next one delivers them, and leaves its own."""
    name_server, port = orbit_nameserver().address, free_port(-2, 1)
    settings: dict[str, str | int] = {
        **SETTINGS,
        "brokerClusterName": "turns",
        "storePathRootDir": str(tmp_path / "store"),
        "storePathCommitLog": str(tmp_path / "store" / "commitlog"),
        "listenPort": port,
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 6000 * 20,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
    }
    client = java_client(False)
    sent: set[str] = set()
    broker: Broker | None = None
    lives = [("ours", "kill"), ("Apache's", "kill"), ("ours", "")]
    try:
        for life, (whose, how) in enumerate(lives):
            home = tmp_path / f"life-{life}"
            if whose == "ours":
                broker = orbit.start_broker(home, name_server, "turns", settings, port)
            else:
                plan = BrokerPlan(name="turns", cluster="turns", name_servers=[name_server], settings=settings)
                broker = apache.start_broker(java, home, plan)
            if life == 0:
                client.open_producer("producer", name_server)
                client.open_push_consumer("consumer", name_server, "Turns", group="turns")
            given: set[str] = set()
            while not sent <= given:
                received = client.received("consumer", 1, seconds=60)
                assert received, f"{whose}, life {life}: not delivered {sorted(sent - given)}"
                assert all(time.time_ns() // 1_000_000 >= int(m.properties["TIMER_DELIVER_MS"]) for m in received)
                given |= {message.body.decode() for message in received}
            assert not [text for text in given if text.endswith("x")], "recalled, and delivered all the same"
            if not how:
                break
            # Far enough away that this life ends before, near enough that the next one is not waited for.
            due_ms = time.time_ns() // 1_000_000 + 5000
            batch = [{"text": f"{life}-{i}", "deliverAtMillis": due_ms + 400 * i} for i in range(5)]
            client.send("producer", "Turns", batch)
            sent = {str(message["text"]) for message in batch}
            regretted = client.send("producer", "Turns", [{"text": f"{life}-x", "deliverAtMillis": due_ms}])[0]
            client.call("Recall", name="producer", topic="Turns", handle=regretted["recallHandle"])
            time.sleep(1.5)  # Apache puts timers on its wheel, and saves it, once a second
            broker.process.kill()
    finally:
        if broker is not None:
            broker.process.kill()
