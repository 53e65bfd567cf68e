"""A disk without room: sends are refused with code 14, the figure and the directory; reading goes on; it heals by itself."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.broker.kit import Wire, running, wire
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orbitmq.protocol.command import Command

FIGURE = re.compile(r"[0-9.,]+ of [0-9.,]+ MiB are free")


async def send_until_refused(client: Wire, size: int) -> tuple[int, Command]:
    """How many were taken, and the answer to the one that was not."""
    for taken in range(10_000):
        answer = await client.send("T", b"x" * size)
        if answer.code != 0:
            return taken, answer
    raise AssertionError("the disk does not fill")


async def taken_again(client: Wire) -> None:
    async with asyncio.timeout(20):
        while (await client.send("T", b"again")).code != 0:
            await asyncio.sleep(0.05)


async def test_a_full_disk_is_told_of_with_figure_and_place_and_heals_by_itself(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    async with (
        running(tmp_path / "store", disk=disk, mappedFileSizeCommitLog=100_000) as broker,
        wire(broker) as client,
    ):
        assert (await client.send("T", b"first")).code == 0
        disk.faults.space_left = 0

        taken, refused = await send_until_refused(client, 1000)

        assert refused.code == 14
        assert str(tmp_path / "store" / "commitlog") in str(refused.remark)
        assert FIGURE.search(str(refused.remark))
        assert len(await client.bodies("T")) == taken + 1

        disk.faults.space_left = None
        await taken_again(client)
        assert (await client.bodies("T"))[-1] == b"again"


async def test_a_disk_above_its_watermark_is_told_of_in_percent(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    async with running(tmp_path / "store", disk=disk, cleanResourceInterval=100) as broker, wire(broker) as client:
        assert (await client.send("T", b"first")).code == 0
        disk.faults.used_percent = 99
        async with asyncio.timeout(20):
            while (refused := await client.send("T", b"more")).code == 0:
                await asyncio.sleep(0.02)
        assert refused.code == 14
        assert "99%" in str(refused.remark)
        assert str(tmp_path / "store") in str(refused.remark)

        disk.faults.used_percent = 50
        await taken_again(client)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB in memory, where that is permitted."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run([mount, "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)  # records that were served may still be in memory


async def test_a_real_small_disk_fills_up_and_is_cleared(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (10 << 20))
    async with running(small_disk / "store", mappedFileSizeCommitLog=4 << 20) as broker, wire(broker) as client:
        taken, refused = await send_until_refused(client, 100_000)
        assert refused.code == 14
        assert str(small_disk) in str(refused.remark)
        assert FIGURE.search(str(refused.remark)) or "%" in str(refused.remark)
        assert len(await client.bodies("T")) == taken

        ballast.unlink()

        await taken_again(client)
    async with running(small_disk / "store", mappedFileSizeCommitLog=4 << 20) as broker, wire(broker) as client:
        assert len(await client.bodies("T")) == taken + 1
