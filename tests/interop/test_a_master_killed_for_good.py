"""Java's clients when one master of two is killed and never comes back: they read what it had from its slave, and send to the other."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from tests.interop import orbit, wire
from tests.interop.marks import INTEROP
from tests.interop.processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.interop.conftest import StartNameServer
    from tests.interop.drivers import JavaClient

pytestmark = INTEROP

TOPIC: Final = "Outlived"
UPDATE_TOPIC: Final = 17
PATIENCE_SECONDS: Final = 90
FILES: Final[dict[str, str | int]] = {"mappedFileSizeCommitLog": 1 << 20, "slaveReadEnable": "true"}
MASTER: Final[dict[str, str | int]] = {**FILES, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
SLAVE: Final[dict[str, str | int]] = {**FILES, "brokerRole": "SLAVE", "brokerId": 1}


def test_java_clients_go_on_with_a_slave_and_another_master(
    tmp_path: Path, orbit_nameserver: StartNameServer, java_client: Callable[[bool], JavaClient]
) -> None:
    name_server = orbit_nameserver().address
    with ExitStack() as stack:
        lost = orbit.start_broker(tmp_path / "a-0", name_server, "a", MASTER)
        stack.callback(lost.process.kill)
        stack.callback(orbit.start_broker(tmp_path / "a-1", name_server, "a", SLAVE).process.kill)
        kept = orbit.start_broker(tmp_path / "b-0", name_server, "b", FILES)
        stack.callback(kept.process.kill)
        queues = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        for master in (lost, kept):
            assert wire.ask(master.address, UPDATE_TOPIC, {"topic": TOPIC, **queues}).code == 0
        client = java_client(False)
        client.open_producer("producer", name_server)
        client.open_push_consumer("awake", name_server, TOPIC)

        def send(text: str) -> str:
            """The broker that took it, on as many disks as it promises."""
            receipt = eventually(
                lambda: client.send("producer", TOPIC, [{"text": text}])[0],
                lambda receipt: receipt["status"] == "SEND_OK",
                PATIENCE_SECONDS,
                "the slave is connected",
                every=0.2,
            )
            broker: str = receipt["broker"]
            return broker

        def read_by(consumer: str, wanted: dict[str, str]) -> bool:
            """Each from where it was sent to; what was sent again is there twice."""
            found: set[tuple[str, str]] = set()
            while missing := wanted.items() - found:
                received = client.received(consumer, 1, PATIENCE_SECONDS)
                assert received, f"{consumer} waits for {missing}"
                found |= {(each.body.decode(), each.broker) for each in received}
            return True

        before: dict[str, str] = {}
        while len(before) < 12 or len(set(before.values())) < 2:  # on both masters
            text = f"before-{len(before)}"
            before[text] = send(text)
        assert read_by("awake", before)

        lost.process.kill()
        after = {f"after-{number}": send(f"after-{number}") for number in range(6)}
        assert set(after.values()) == {"b"}
        assert read_by("awake", after)

        client.open_push_consumer("late", name_server, TOPIC)
        assert read_by("late", {**before, **after})  # what the lost master had, from its slave
