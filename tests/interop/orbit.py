"""Our own servers as child processes, started the way a user starts them."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.interop.apache import Broker, NameServer, write_properties
from tests.interop.processes import Process, free_port, killed_on_failure

_READY: Final = "name server ready on "


def start_name_server(folder: Path, settings: Mapping[str, str | int] | None = None, port: int = 0) -> NameServer:
    """Start `orbitmq nameserver`, on a port of its own choice unless one is given, and wait for its word that it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {"kvConfigPath": folder / "kvConfig.json", **(settings or {})}
    config = write_properties(folder / "namesrv.properties", properties)
    command = [
        sys.executable,
        "-m",
        "orbitmq",
        "nameserver",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        str(config),
    ]
    process = Process(command, folder / "nameserver.out", {"HOME": str(folder)})
    with killed_on_failure(process):
        address = process.wait_for_line(_READY).split(_READY, 1)[1].strip()
    return NameServer(address, process, folder)


def start_broker(
    folder: Path,
    name_server: str,
    name: str = "orbit-a",
    settings: Mapping[str, str | int] | None = None,
    port: int = 0,
) -> Broker:
    """Start `orbitmq broker` on its own store below `folder`; started again with the same folder, it goes on there.

    A port that is free to choose is not the system's choice: beside that one, the port for slaves may be taken by then.
    """
    port = port or free_port(-2, 1)
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        "brokerName": name,
        "brokerClusterName": "orbit-cluster",
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 64 << 20,
        "traceTopicEnable": "true",
        "osPageCacheBusyTimeOutMills": 60_000,  # a busy machine is no reason to refuse a message here
        "waitTimeMillsInSendQueue": 60_000,
        **(settings or {}),
    }
    config = write_properties(folder / "broker.conf", properties)
    command = [sys.executable, "-m", "orbitmq", "broker", "--host", "127.0.0.1", "--port", str(port), "-n", name_server]
    process = Process([*command, "-c", str(config)], folder / "broker.out", {"HOME": str(folder)})
    with killed_on_failure(process):
        address = process.wait_for_line(" ready on ").split(" ready on ", 1)[1].strip()
    return Broker(name=name, cluster="orbit-cluster", address=address, process=process, folder=folder)


@contextmanager
def running(folder: Path, settings: Mapping[str, str | int]) -> Iterator[tuple[NameServer, Broker]]:
    """A name server, and a broker with these settings."""
    name_server = start_name_server(folder / "nameserver")
    try:
        broker = start_broker(folder / "broker", name_server.address, settings=settings)
        try:
            yield name_server, broker
        finally:
            broker.process.kill()
    finally:
        name_server.process.kill()
