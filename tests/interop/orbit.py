"""Our own servers as child processes, started the way a user starts them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.interop.apache import NameServer, write_properties
from tests.interop.processes import Process, killed_on_failure

_READY: Final = "name server ready on "


def start_name_server(folder: Path, settings: Mapping[str, str | int] | None = None, port: int = 0) -> NameServer:
    """Start `orbitmq nameserver`, on a port of its own choice unless one is given, and wait for its word that it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        "kvConfigPath": folder / "kvConfig.json",
        "configStorePath": folder / "namesrv.properties",
        **(settings or {}),
    }
    config = write_properties(folder / "nameserver.conf", properties)
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
