"""One small world that most interop tests share: Apache brokers of every release, each registered with every name server in it.

    name servers   ours, Apache 5.3.3, Apache 4.9.7
    brokers        broker-5 of cluster-5 (5.3.3), broker-4 of cluster-4 (4.9.7)
    mqadmin        of both releases

So a question put to our name server and to Apache's is about the same brokers and topics, and the two answers must agree.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop import apache
from tests.interop.apache import Broker, BrokerPlan, NameServer
from tests.interop.drivers import MqAdmin
from tests.interop.java import RELEASES, JavaBuild, build

# Transactions are asked about every 30 s by default, and 5.x writes decisions down after 3 s; no test can wait for that.
_SETTINGS: Final[dict[str, str | int]] = {
    "transactionTimeOut": 3000,
    "transactionCheckInterval": 1000,
    "transactionOpBatchInterval": 100,
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    **apache.SELDOM_SAVED,
}


@dataclass(frozen=True, slots=True)
class World:
    """Everything that runs, by release where there is one of each."""

    java: dict[str, JavaBuild]
    orbit: NameServer
    apache: dict[str, NameServer]
    brokers: dict[str, Broker]
    admins: dict[str, MqAdmin]

    @property
    def name_servers(self) -> list[str]:
        return [self.orbit.address, *(server.address for server in self.apache.values())]


@contextmanager
def running_world(folder: Path, start_orbit: Callable[[Path], NameServer]) -> Iterator[World]:
    with ExitStack() as stack:
        java = {release: build(release) for release in RELEASES}
        orbit = start_orbit(folder / "orbit")
        stack.callback(orbit.process.kill)
        name_servers: dict[str, NameServer] = {}
        brokers: dict[str, Broker] = {}
        admins: dict[str, MqAdmin] = {}
        for release in RELEASES:
            name_servers[release] = apache.start_name_server(java[release], folder / f"namesrv-{release}")
            stack.callback(name_servers[release].process.kill)
        everyone = [orbit.address, *(server.address for server in name_servers.values())]
        for release in RELEASES:
            major = release[0]
            plan = BrokerPlan(
                name=f"broker-{major}", cluster=f"cluster-{major}", name_servers=everyone, settings=_SETTINGS
            )
            brokers[release] = apache.start_broker(java[release], folder / f"broker-{release}", plan)
            stack.callback(brokers[release].process.kill)
            admins[release] = MqAdmin(java[release], folder / f"mqadmin-{release}")
            stack.callback(admins[release].close)
        yield World(java, orbit, name_servers, brokers, admins)
