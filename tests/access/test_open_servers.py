"""A server that asks nobody who they are says so where others can reach it, with the lines that change it; unless it is told not to."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.access.test_known_attacks import _path
from tests.access.test_matrix import GUARDED

if TYPE_CHECKING:
    from pathlib import Path

WARNING: Final = "anyone who reaches 0.0.0.0 can read, write and delete everything here"
CURE: Final = "set authenticationEnabled=true, authorizationEnabled=true and initAuthenticationUser"
EVERYWHERE: Final = ("--host", "0.0.0.0")
LOOPBACK: Final = ("--host", "127.0.0.1")
START_SECONDS: Final = 100


async def said_until_ready(folder: Path, server: str, settings: dict[str, str], *options: str) -> str:
    config = folder / "server.conf"
    own = {"storePathRootDir": str(folder / "store"), "mappedFileSizeCommitLog": "1048576"}
    if server == "nameserver":
        own = {"kvConfigPath": str(folder / "kvConfig.json")}
    config.write_text("".join(f"{key}={value}\n" for key, value in {**own, **settings}.items()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "orbitmq", server, "-c", str(config), "--port", "0", *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={"HOME": str(folder), **_path()},
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(START_SECONDS):
            while "ready on" not in printed:
                line = await process.stdout.readline()
                assert line, printed
                printed += line.decode()
    finally:
        process.terminate()
        await process.communicate()
    return printed


@pytest.mark.parametrize("server", ["broker", "nameserver"])
async def test_an_open_server_warns_with_the_cure_and_is_silenced(tmp_path: Path, server: str) -> None:
    loud = await said_until_ready(tmp_path, server, {}, *EVERYWHERE)
    assert WARNING in loud
    assert CURE in loud
    assert "--insecure silences this" in loud
    assert "anyone who reaches" not in await said_until_ready(tmp_path, server, {}, *EVERYWHERE, "--insecure")
    assert "anyone who reaches" not in await said_until_ready(tmp_path, server, {}, *LOOPBACK)
    assert "anyone who reaches" not in await said_until_ready(tmp_path, server, GUARDED, *EVERYWHERE)
