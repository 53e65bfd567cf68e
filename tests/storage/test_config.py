from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.errors import ConfigError
from orbitmq.storage.config import DEFAULT_DELAY_LEVELS_MS, StorageConfig

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defaults_are_javas(tmp_path: Path) -> None:
    config = StorageConfig(directory=tmp_path)
    assert (config.segment_bytes, config.queue_file_bytes, config.batch_queue_file_bytes) == (
        1 << 30,
        6_000_000,
        13_800_000,
    )
    assert 40 + 4 * config.index_slots + 20 * config.index_entries == 420_000_040
    assert (config.max_message_bytes, config.keep_hours, config.delete_at_hours) == (4_194_304, 72, (4,))
    assert len(DEFAULT_DELAY_LEVELS_MS) == 18
    assert (DEFAULT_DELAY_LEVELS_MS[0], DEFAULT_DELAY_LEVELS_MS[4], DEFAULT_DELAY_LEVELS_MS[17]) == (
        1000,
        60_000,
        7_200_000,
    )


def test_a_queue_file_holds_whole_entries(tmp_path: Path) -> None:
    config = StorageConfig(directory=tmp_path, queue_file_bytes=1001, batch_queue_file_bytes=47)
    assert (config.queue_file_bytes, config.batch_queue_file_bytes) == (1020, 92)


def test_the_log_may_live_elsewhere(tmp_path: Path) -> None:
    assert StorageConfig(directory=tmp_path).commit_log_path == tmp_path / "commitlog"
    assert StorageConfig(directory=tmp_path, commit_log_directory=tmp_path / "x").commit_log_path == tmp_path / "x"


@pytest.mark.parametrize(
    "setting",
    [
        {"segment_bytes": 99},
        {"queue_file_bytes": 0},
        {"index_slots": 0},
        {"index_entries": 1},
        {"max_message_bytes": 0},
        {"max_message_bytes": 1 << 31},
        {"write_pool_buffers": -1},
        {"delete_at_hours": (4, 24)},
        {"flush_every_ms": 0},
        {"queue_flush_every_ms": -1},
        {"commit_every_ms": 0},
        {"clean_every_ms": 0},
        {"keep_hours": 0},
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        StorageConfig(directory=tmp_path, **setting)
