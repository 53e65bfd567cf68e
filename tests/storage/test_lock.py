from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from orbitmq.errors import StoreLocked
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import LastExit, last_exit, mark_running, mark_stopped, take_lock
from tests.child import child
from tests.storage.faulty_disk import FaultyDisk

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from orbitmq.storage.files import LocalDisk
from orbitmq.storage.lock import take_lock
lock = take_lock(LocalDisk(), Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_in_use_is_refused_by_name_and_process(tmp_path: Path) -> None:
    lock = take_lock(LocalDisk(), tmp_path)
    with pytest.raises(StoreLocked, match=f"{tmp_path} is in use by process {os.getpid()}"):
        take_lock(LocalDisk(), tmp_path)
    lock.release()
    take_lock(LocalDisk(), tmp_path).release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    hold = [sys.executable, "-c", HOLD, str(tmp_path)]
    with child(hold, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match="in use by"):
            take_lock(LocalDisk(), tmp_path)
        other.kill()
    take_lock(LocalDisk(), tmp_path).release()


def test_the_abort_file_tells_how_the_last_run_ended(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    assert last_exit(disk, tmp_path) is LastExit.CLEAN
    mark_running(disk, tmp_path)
    assert last_exit(disk, tmp_path) is LastExit.KILLED
    assert disk.read(tmp_path / "abort").split(b"\n")[0] == str(os.getpid()).encode()
    disk.crash()
    assert last_exit(disk, tmp_path) is LastExit.CRASHED
    mark_stopped(disk, tmp_path)
    disk.crash()
    assert last_exit(disk, tmp_path) is LastExit.CLEAN


def test_a_copy_of_a_running_store_is_not_taken_for_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    mark_running(LocalDisk(), store)
    assert last_exit(LocalDisk(), store) is LastExit.KILLED
    shutil.copytree(store, tmp_path / "copy")
    assert last_exit(LocalDisk(), tmp_path / "copy") is LastExit.CRASHED


@pytest.mark.parametrize("content", [b"", b"4242", b"4242\n", b"\xff\xfe\n\n"])
def test_javas_abort_file_says_nothing_of_the_machine_so_the_worst_is_assumed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "abort").write_bytes(content)
    assert last_exit(LocalDisk(), tmp_path) is LastExit.CRASHED
