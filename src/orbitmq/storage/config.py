"""Where messages live and how safe they are: every setting of a store, checked once.

Java: MessageStoreConfig; its name of each setting stands beside ours where the two differ in more than style.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from orbitmq.errors import ConfigError
from orbitmq.message.record import BLANK_BYTES, FIXED_BYTES

if TYPE_CHECKING:
    from pathlib import Path

QUEUE_ENTRY_BYTES: Final = 20
BATCH_ENTRY_BYTES: Final = 46

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

# What level 1, 2, ... of a delayed message means. Java: messageDelayLevel
DEFAULT_DELAY_LEVELS_MS: Final = (
    _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND,
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    _HOUR, 2 * _HOUR,
)  # fmt: skip


class FlushMode(Enum):
    """When an append counts as done. Java: FlushDiskType"""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where messages live and how safe they are."""

    directory: Path  # storePathRootDir
    commit_log_directory: Path | None = None  # storePathCommitLog; None: `commitlog` in `directory`

    # Files. A store must be opened with the sizes it was written with.
    segment_bytes: int = 1 << 30  # mappedFileSizeCommitLog
    queue_file_bytes: int = 300_000 * QUEUE_ENTRY_BYTES  # mappedFileSizeConsumeQueue
    batch_queue_file_bytes: int = 300_000 * BATCH_ENTRY_BYTES  # mapperFileSizeBatchConsumeQueue
    queue_extension_file_bytes: int = 48 << 20  # mappedFileSizeConsumeQueueExt
    queue_extensions: bool = False  # enableConsumeQueueExt
    index_slots: int = 5_000_000  # maxHashSlotNum
    index_entries: int = 20_000_000  # maxIndexNum
    prepare_next_segment: bool = True
    warm_up_segments: bool = False  # warmMapedFileEnable

    # Messages
    max_message_bytes: int = 4 << 20
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    record_crc: bool = False  # enabledAppendPropCRC
    light_queues: bool = False  # enableLmq and enableMultiDispatch
    max_light_queues: int = 20_000  # maxLmqConsumeQueueNum
    key_index: bool = True  # messageIndexEnable

    # Timers
    timer_precision_ms: int = 1000  # what a slot of the wheel stands for
    timer_roll_window_slots: int = 172_800  # timerRollWindowSlot: further away is put on the wheel again on the way
    timer_log_file_bytes: int = 100 << 20  # mappedFileSizeTimerLog

    # Compaction
    compacted_log_bytes: int = 100 << 20  # compactionMappedFileSize
    compacted_queue_bytes: int = 10 << 20  # compactionCqMappedFileSize

    # Flush
    flush_mode: FlushMode = FlushMode.ASYNC
    flush_every_ms: int = 500  # flushIntervalCommitLog
    flush_least_pages: int = 4
    flush_thorough_every_ms: int = 10_000
    queue_flush_every_ms: int = 1_000
    queue_flush_least_pages: int = 2
    queue_flush_thorough_every_ms: int = 60_000
    write_pool_buffers: int = (
        0  # transientStorePoolSize where transientStorePoolEnable; 0: append straight into the map
    )
    commit_every_ms: int = 200  # commitIntervalCommitLog: how often a write pool is copied to its file

    # Recovery
    check_crc_on_recover: bool = True
    verify_record_crc: bool = False  # forceVerifyPropCRC
    index_safe: bool = False  # messageIndexSafe: recover from where the key index is complete

    # Reading
    max_filtered_entries: int = 800  # maxFilterMessageSize / 20
    max_read_bytes_in_memory: int = 256 << 10  # maxTransferBytesOnMessageInMemory
    max_read_count_in_memory: int = 32
    max_read_bytes_on_disk: int = 64 << 10
    max_read_count_on_disk: int = 8
    max_bulk_read_bytes: int = 4 << 20  # ours: for readers of whole queues, who name their own limit up to this one
    memory_percent: int = 40  # accessMessageInMemoryMaxRatio: of RAM, taken for page cache that holds recent messages

    # Retention
    keep_hours: int = 72  # fileReservedTime
    delete_at_hours: tuple[int, ...] = (4,)  # deleteWhen
    clean_every_ms: int = 10_000  # cleanResourceInterval
    delete_pause_ms: int = 100  # deleteCommitLogFilesInterval
    delete_at_most: int = 10  # deleteFileBatchMax: files in one round
    disk_clean_percent: int = 75  # diskMaxUsedSpaceRatio: above it, expired files go at any hour
    disk_force_percent: int = 85  # diskSpaceCleanForciblyRatio: above it, the oldest go though not expired
    disk_refuse_percent: int = 90  # diskSpaceWarningLevelRatio: above it, nothing is written
    clean_forcibly: bool = True  # cleanFileForciblyEnable

    def __post_init__(self) -> None:
        smallest = FIXED_BYTES + BLANK_BYTES + 1
        self._require(self.segment_bytes > smallest, f"segment_bytes must be more than {smallest}")
        self._require(self.queue_file_bytes > 0, "queue_file_bytes must be positive")
        self._require(self.index_slots > 0, "index_slots must be positive")
        self._require(self.index_entries > 1, "index_entries must be at least 2: entry 0 is never used")
        self._require(0 < self.max_message_bytes < 1 << 31, "max_message_bytes must be positive and below 2 GiB")
        self._require(self.timer_precision_ms > 0, "timer_precision_ms must be positive")
        self._require(self.timer_log_file_bytes >= 136, "timer_log_file_bytes must hold two units and an end mark")
        self._require(self.write_pool_buffers >= 0, "write_pool_buffers must not be negative")
        self._require(all(0 <= hour < 24 for hour in self.delete_at_hours), "delete_at_hours must be hours of a day")
        self._require(
            self.write_pool_buffers == 0 or self.flush_mode is FlushMode.ASYNC,
            "a write pool needs asynchronous flush: what is only in memory cannot be promised",
        )
        for name in ("flush_every_ms", "queue_flush_every_ms", "commit_every_ms", "clean_every_ms", "keep_hours"):
            self._require(getattr(self, name) > 0, f"{name} must be positive")
        for name, entry in (("queue_file_bytes", QUEUE_ENTRY_BYTES), ("batch_queue_file_bytes", BATCH_ENTRY_BYTES)):
            whole = -(-getattr(self, name) // entry) * entry  # up to whole entries, as Java rounds
            object.__setattr__(self, name, whole)
        # Java's arithmetic: its files must have the sizes it expects.
        entries = self.compacted_queue_bytes // BATCH_ENTRY_BYTES * BATCH_ENTRY_BYTES
        self._require(entries >= 2 * BATCH_ENTRY_BYTES, "compacted_queue_bytes must hold two entries")
        times, rest = divmod(self.compacted_log_bytes, entries)
        times = 5 if times < 5 else times if 0 < rest < entries >> 1 else times + 1
        object.__setattr__(self, "compacted_queue_bytes", entries)
        object.__setattr__(self, "compacted_log_bytes", times * entries)

    def _require(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise ConfigError(f"{complaint} (store {self.directory})")

    @property
    def commit_log_path(self) -> Path:
        return self.commit_log_directory or self.directory / "commitlog"

    @property
    def queues_path(self) -> Path:
        return self.directory / "consumequeue"

    @property
    def batch_queues_path(self) -> Path:
        return self.directory / "batchconsumequeue"

    @property
    def queue_extensions_path(self) -> Path:
        return self.directory / "consumequeue_ext"

    @property
    def index_path(self) -> Path:
        return self.directory / "index"

    @property
    def compaction_path(self) -> Path:
        return self.directory / "compaction"

    @property
    def checkpoint_path(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def config_path(self) -> Path:
        return self.directory / "config"
