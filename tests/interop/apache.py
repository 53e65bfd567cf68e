"""Apache's name server and broker as child processes, each in a folder of its own, on free ports of the loopback address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.java import JavaBuild
from tests.interop.processes import READY_SECONDS, Process, eventually, free_port, killed_on_failure
from tests.interop.wire import brokers_of, is_answering, register_now

BINARY_HEADERS: Final = {"rocketmq.serialize.type": "ROCKETMQ"}
# For brokers that many tests share. Else they save their timer wheel every second, all 37 MB of it: a quarter of a core, all the time.
SELDOM_SAVED: Final[dict[str, str | int]] = {"timerFlushIntervalMs": 600_000}


@dataclass(frozen=True, slots=True)
class NameServer:
    """A running name server, whoever wrote it."""

    address: str
    process: Process
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A running Apache broker."""

    name: str
    cluster: str
    address: str
    process: Process
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """What a test wants of a broker; `settings` are broker.conf keys and win over everything else."""

    name: str
    cluster: str
    name_servers: Sequence[str]
    settings: Mapping[str, str | int] = field(default_factory=dict)
    binary_headers: bool = False


def start_name_server(
    java: JavaBuild,
    folder: Path,
    settings: Mapping[str, str | int] | None = None,
    port: int = 0,
    *,
    binary_headers: bool = False,
) -> NameServer:
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    properties = {"listenPort": port, "kvConfigPath": folder / "kvConfig.json", **(settings or {})}
    config = write_properties(folder / "namesrv.properties", properties)
    process = Process(
        java.command(
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "-c",
            str(config),
            home=folder,
            properties=BINARY_HEADERS if binary_headers else {},
        ),
        folder / "namesrv.out",
    )
    with killed_on_failure(process):
        process.wait_for_line("The Name Server boot success")
    return NameServer(f"127.0.0.1:{port}", process, folder)


def start_broker(java: JavaBuild, folder: Path, plan: BrokerPlan) -> Broker:
    """Start a broker and wait until it has registered with every name server that answers."""
    folder.mkdir(parents=True, exist_ok=True)
    # Apache's broker also takes the port two below (the "fast" one) and one for replication.
    port = int(plan.settings.get("listenPort", 0)) or free_port(-2, 1)
    properties = {
        "brokerClusterName": plan.cluster,
        "brokerName": plan.name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": ";".join(plan.name_servers),
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
        "mappedFileSizeCommitLog": 16 << 20,
        "mappedFileSizeConsumeQueue": 6000 * 20,
        "maxIndexNum": 4000,
        "maxHashSlotNum": 1000,
        # A busy machine is no reason to refuse a message here.
        "osPageCacheBusyTimeOutMills": 30_000,
        "waitTimeMillsInSendQueue": 30_000,
        "diskMaxUsedSpaceRatio": 99,
        **plan.settings,
    }
    config = write_properties(folder / "broker.conf", properties)
    process = Process(
        java.command(
            "org.apache.rocketmq.broker.BrokerStartup",
            "-c",
            str(config),
            home=folder,
            heap_mb=512,
            properties=BINARY_HEADERS if plan.binary_headers else {},
        ),
        folder / "broker.out",
    )
    broker = Broker(name=plan.name, cluster=plan.cluster, address=f"127.0.0.1:{port}", process=process, folder=folder)
    with killed_on_failure(process):
        process.wait_for_line("boot success")
        wait_until_registered(broker, [address for address in plan.name_servers if is_answering(address)])
    return broker


def wait_until_registered(broker: Broker, name_servers: Sequence[str]) -> None:
    """Wait until each of `name_servers` knows the broker.

    A 5.x broker registers only with name servers that its scan, every 3 s, has found alive; it often misses its first
    registration for that reason and tries again after 10 s. We do not wait that long.
    """

    def missing() -> list[str]:
        unaware = [address for address in name_servers if not _knows(address, broker)]
        if unaware:
            register_now(broker.address)
        return unaware

    eventually(missing, lambda unaware: not unaware, READY_SECONDS, f"registration of {broker.name}", every=0.2)


def _knows(name_server: str, broker: Broker) -> bool:
    """Every broker has a topic of its own name."""
    return broker.address in brokers_of(name_server, broker.name).get(broker.name, {}).values()


def write_properties(path: Path, properties: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path
