"""Which files of the commit log go, and when: by age, at certain hours, and by how full the disk is.

    disk use          what happens in a round
    <= clean          files older than `keep_hours` go, in the hours of `delete_at_hours` or when asked for
    >  clean  (75 %)  expired files go at any hour
    >  force  (85 %)  the oldest files go although not expired
    >  refuse (90 %)  as before, and nothing is written until use is back at `force` or below

A file expires by its time of last change. The last file never goes. Queue and key indexes follow the log. A file that
somebody is reading can go as well: what was mapped stays readable until the reader lets go of it.

Java: CleanCommitLogService, CleanConsumeQueueService
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orbitmq.clock import Clock
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk
    from orbitmq.storage.segmented_log import Segment, SegmentedLog

logger = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_ROUNDS_WHEN_ASKED: Final = 20  # a request to clean holds this many rounds, so that batches get through

# However they are set, the watermarks stay within these bounds.
_CLEAN_BOUNDS: Final = (10, 95)
_FORCE_BOUNDS: Final = (30, 85)
_REFUSE_BOUNDS: Final = (35, 90)


class FollowsLog(Protocol):
    """An index that leads into the log."""

    def delete_below(self, log_start: int, /) -> int:
        """Forget what lies before `log_start`; how many files went."""
        ...


class Cleaned(NamedTuple):
    """What one round did."""

    used_percent: int
    deleted: list[int]  # first offsets of the files of the log that went
    index_files: int
    forced: bool  # files could go before they expired


class Retention:
    """`clean` belongs to one thread; `disk_full` may be read from any."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        clock: Clock,
        log: SegmentedLog,
        followers: Sequence[FollowsLog],
        pause: Callable[[float], object],
    ) -> None:
        """`pause` waits so many seconds between two files, to spread the work of the file system."""
        self.disk_full = False
        self._disk = disk
        self._clock = clock
        self._log = log
        self._followers = followers
        self._pause = pause
        self._rounds_asked_for = 0
        self._followed_to = log.start
        self.use(config)

    def use(self, config: StorageConfig) -> None:
        """Clean by these settings from the next round on."""
        self._config = config
        self._clean_above = _within(config.disk_clean_percent, _CLEAN_BOUNDS)
        self._force_above = _within(config.disk_force_percent, _FORCE_BOUNDS)
        self._refuse_above = _within(config.disk_refuse_percent, _REFUSE_BOUNDS)

    def ask(self) -> None:
        """Let expired files go in the next rounds whatever the hour. (Java: TRIGGER_DELETE_FILES)"""
        self._rounds_asked_for = _ROUNDS_WHEN_ASKED

    def clean(self) -> Cleaned:
        """One round: at most `delete_at_most` files."""
        used = self.measure()
        forced = used > self._force_above and self._config.clean_forcibly
        due = used > self._clean_above or self._is_hour() or self._rounds_asked_for > 0
        self._rounds_asked_for = max(0, self._rounds_asked_for - 1)
        deleted = self._delete(forced=forced) if due else []
        if used > self._clean_above and not deleted:
            logger.warning("the disk is %d%% full and no file of the log may go yet", used)
        return Cleaned(used, deleted, self._follow(), forced)

    def measure(self) -> int:
        """How full the disk is, in percent; turns `disk_full` on and off."""
        config = self._config
        used = max(self._disk.used_percent(config.commit_log_path), self._disk.used_percent(config.queues_path))
        if used > self._refuse_above and not self.disk_full:
            logger.error("the disk is %d%% full: nothing is written until it is at most %d%%", used, self._force_above)
            self.disk_full = True
        elif used <= self._force_above and self.disk_full:
            logger.info("the disk is %d%% full: writing again", used)
            self.disk_full = False
        return used

    def follow(self) -> int:
        """Let the indexes go where the log has gone, whether or not it moved since the last round; how many files went."""
        self._followed_to = -1
        return self._follow()

    def _is_hour(self) -> bool:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).astimezone()
        return now.hour in self._config.delete_at_hours

    def _delete(self, *, forced: bool) -> list[int]:
        deleted: list[int] = []
        while len(deleted) < self._config.delete_at_most and len(self._log.segments) > 1:
            oldest = self._log.segments[0]
            if not forced and not self._is_expired(oldest):
                break
            if deleted:
                self._pause(self._config.delete_pause_ms / 1000)
            self._log.delete_oldest()
            deleted.append(oldest.start)
            logger.info("deleted %s segment %s", "unexpired" if forced else "expired", oldest.file.path)
        return deleted

    def _is_expired(self, segment: Segment) -> bool:
        found = self._disk.stat(segment.file.path)
        keep_ms = self._config.keep_hours * _HOUR_MS
        return found is None or found.modified_ms + keep_ms <= self._clock.now_ms()

    def _follow(self) -> int:
        """Let the indexes go where the log has gone, also after somebody else shortened it."""
        start = self._log.start
        if start <= self._followed_to:
            return 0
        # First for good: after a power cut no file of the log may be back whose entries are gone.
        self._disk.sync_directory(self._log.directory)
        count = sum(follower.delete_below(start) for follower in self._followers)
        self._followed_to = start
        return count


def _within(percent: int, bounds: tuple[int, int]) -> int:
    return min(max(percent, bounds[0]), bounds[1])
