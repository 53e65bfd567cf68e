"""A real file system that is too small, from nothing at all to enough: every step of a store's life meets its end somewhere.

Whatever the size: a store opens or says why not, an append is stored or refused with a response code, what was stored is served,
also after a restart; and once there is room, the store goes on. Blocks that were not reserved would show as SIGBUS here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import StorageError, StoreFull
from orbitmq.storage.appended import AppendCode
from orbitmq.storage.json_file import JsonFile
from orbitmq.storage.tables import OFFSETS, OffsetTable
from tests.storage.store_kit import bodies, open_store, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from orbitmq.storage.store import Store

PAGE = 4096
SMALL: dict[str, Any] = {
    "segment_bytes": 4 * PAGE,
    "queue_file_bytes": 20 * 50,
    "index_slots": 500,
    "index_entries": 300,
}


@pytest.fixture
def resized(tmp_path: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """A mounted directory, and a function that gives its file system another size in pages."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED on a real full disk: only root can mount a small file system")

    def run(*arguments: str) -> None:
        done = subprocess.run([mount, *arguments], check=False, capture_output=True)
        if done.returncode:
            pytest.skip(f"NOT TESTED on a real full disk: cannot mount one: {done.stderr.decode().strip()}")

    run("-t", "tmpfs", "-o", f"size={PAGE}", "tmpfs", str(place))
    try:
        yield place, lambda pages: run("-o", f"remount,size={pages * PAGE}", str(place))
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(store: Store, limit: int) -> tuple[list[bytes], StorageError | None]:
    """Append until refused: what was stored, and the refusal."""
    stored: list[bytes] = []
    for number in range(limit):
        body = b"%d." % number + b"x" * 300
        try:
            put(store, "T", body=body, UNIQ_KEY=f"U{number}", KEYS="k")
        except StorageError as refused:
            return stored, refused
        stored.append(body)
        if number % 7 == 0:
            store.dispatch()
    return stored, None


@pytest.mark.timeout(180)
def test_every_size_of_disk_is_an_error_or_a_store_that_serves_what_it_took(
    resized: tuple[Path, Callable[[int], None]],
) -> None:
    place, resize = resized
    outcomes: dict[str, int] = {"not opened": 0, "refused": 0, "not flushed": 0, "enough": 0}
    for pages in (*range(1, 24), 26, 30, 40, 60, 200):
        directory = place / str(pages)
        resize(pages + used_pages(place))
        outcome, stored = life(directory)
        outcomes[outcome] += 1
        resize(pages + used_pages(place) + 300)
        heals(directory, stored)
        shutil.rmtree(directory)
    assert all(outcomes.values()), f"some step was never the one that failed: {outcomes}"


def life(directory: Path) -> tuple[str, list[bytes]]:
    """On a disk of some size: how far it came, and what it took."""
    try:
        store = open_store(directory, **SMALL)
    except StoreFull as error:
        return ("not opened" if "MiB are free" in str(error) else str(error)), []
    stored, refused = fill(store, 120)
    if refused is not None:
        assert isinstance(refused, StoreFull)
        assert refused.code == AppendCode.SERVICE_NOT_AVAILABLE
        assert bodies(store) == stored, "reading goes on"
    outcome = "refused" if refused else "enough"
    try:
        JsonFile(store.disk, store.config.config_path / OFFSETS, OffsetTable).save(OffsetTable())
        store.flush()
    except StoreFull:
        outcome = "refused" if refused else "not flushed"
    assert bodies(store) == stored
    try:
        store.close()
    except StoreFull:
        store.abandon()
    return outcome, stored


def heals(directory: Path, stored: list[bytes]) -> None:
    """With room again: everything that was taken is there, under its keys as well, and more is taken."""
    store = open_store(directory, **SMALL)
    assert bodies(store) == stored
    put(store, "T", body=b"more", UNIQ_KEY="more")
    assert bodies(store) == [*stored, b"more"]
    assert len(store.find_by_key("T", "k", limit=1000).records) == len(stored)
    assert len(store.find_by_key("T", "more").records) == 1
    store.close()


def used_pages(place: Path) -> int:
    room = os.statvfs(place)
    return (room.f_blocks - room.f_bfree) * room.f_frsize // PAGE
