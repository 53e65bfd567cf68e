"""Messages that wait for any moment: the wheel, the log behind it, and how far both are safe.

    put_many messages of the timer topic on the wheel, behind those of the same moment
    due      the next slot whose time is over, and what is in it
    fired    that slot is done
    save     make it all durable: log, wheel, then the checkpoint that relies on them

A slot stands for the messages due in [tick, tick + 1) and fires when that time is over, so nothing fires early. A message
further away than the roll window goes into a nearer slot, marked to be put on the wheel again from there.

Two numbers say what was done: slots before `read_tick` have fired, messages of the timer topic before `queue_offset` are on
the wheel. They are noted, unsynced, with every message that fires (at 64 in `timercheck`, where Java does not look), so a killed
process goes on where it was. After a power cut only the saved checkpoint is believed: messages that were put on the wheel
after it are found in the log and not put twice; slots that fired after it fire again. So a power cut may repeat a second's
messages, and nothing loses one. With a write pool, where what fired dies with the process, a kill counts as a power cut.

Java: TimerMessageStore
"""

from __future__ import annotations

import logging
import struct
from array import array
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.accelerated import compiled
from orbitmq.errors import StorageError
from orbitmq.storage.checkpoint import CheckpointFile, TimerCheckpoint, read_timer_checkpoint
from orbitmq.storage.lock import LastExit
from orbitmq.storage.timer_log import PLAIN, RECALL, ROLL, TimerLog, TimerUnit
from orbitmq.storage.timer_wheel import NOWHERE, SLOTS, Slot, TimerWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from orbitmq.storage.commit_log import CommitLog
    from orbitmq.storage.config import StorageConfig
    from orbitmq.storage.files import Disk

logger = logging.getLogger(__name__)

CHECKPOINT_NAME: Final = "timercheck"
_PROGRESS_AT: Final = 64
_PROGRESS: Final = struct.Struct(
    ">I"  # magic
    "q"  # queue offset
    "q"  # read tick
    "i"  # units of that slot that have fired
)
_FIRED_BYTES: Final = 4
_PROGRESS_MAGIC: Final = 0x4F524254
_MAY_BE_LATE_MS: Final = 30_000  # how long after its time a slot may fire on a busy broker
_HOUR_MS: Final = 3_600_000
_SPARE_SLOTS: Final = 60  # of a turn of the wheel, kept free before its end
_TURN: Final = SLOTS // 2
_LONGEST_DELAY_MS: Final = 2**31 - 1  # that a unit can tell


class Timer(NamedTuple):
    """A message that is to be put on the wheel."""

    due_ms: int
    commit_log_offset: int
    size: int
    topic_hash: int
    recall: bool = False  # it takes another of the same moment from the wheel


class PutTogether(NamedTuple):
    """How many messages were put on the wheel; of each topic that they are for, how many are to wait how long."""

    messages: int = 0
    waits: Sequence[tuple[str, int, int]] = ()  # topic, seconds from birth to delivery, messages


class DueSlot(NamedTuple):
    slot: Slot
    positions: array[int]  # of its units in the log, oldest first
    has_recalls: bool
    fired: int = 0  # how many of them fired before the process was killed


class TimerStore:
    """Belongs to the thread that appends to the store; `save` may run in another."""

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        now_ms: int,
        last_exit: LastExit,
        is_timer_record: Callable[[int, int], bool],
    ) -> None:
        """`is_timer_record` says whether a record of the timer topic begins at a log offset and has that size."""
        self.precision_ms = config.timer_precision_ms
        longest = _TURN - _SPARE_SLOTS
        window = config.timer_roll_window_slots
        window = window if 2 <= window <= longest else longest
        # A message is put again, as a new record, well before its file may expire.
        self._roll_window = max(2, min(window, config.keep_hours * _HOUR_MS * 3 // 4 // self.precision_ms))
        path = config.config_path / CHECKPOINT_NAME
        self.checkpoint = read_timer_checkpoint(disk, path)
        self.wheel = TimerWheel(disk, config.directory / "timerwheel")
        self.log = TimerLog(disk, config.directory / "timerlog", config.timer_log_file_bytes)
        self._checkpoint_file = CheckpointFile(disk, path)
        self.log.recover(
            self.checkpoint.log_synced_offset,
            lambda unit: is_timer_record(unit.commit_log_offset, unit.size),
            power_cut=last_exit is LastExit.CRASHED,
        )
        self.queue_offset = self.checkpoint.queue_offset
        if self.log.end < self.checkpoint.log_synced_offset:
            logger.error(
                "the timer log ends at %d, the checkpoint knows %d: every message of the timer topic is put on the wheel again",
                self.log.end,
                self.checkpoint.log_synced_offset,
            )
            self.queue_offset = 0
        now = now_ms // self.precision_ms
        known = self.checkpoint.read_until_ms // self.precision_ms
        # However long ago that is: whatever is on the wheel was put there within a turn from then.
        self.read_tick = known or (now - longest if self.log.end else now)
        self._notes_firing = not config.write_pool_buffers
        self._fired_units = 0  # of the slot at `read_tick`
        if last_exit is LastExit.KILLED and self.log.end >= self.checkpoint.log_synced_offset:
            self._go_on(known)
        self._closed_to = self.read_tick  # nothing more comes into slots before it
        self.last_tick = NOWHERE  # of the latest slot in use
        self._saving = Lock()
        self._known: set[int] = set()  # log offsets that are on the wheel though the checkpoint does not say so
        # Slots that the disk has not taken yet, by tick. Their units are in the log; to put them there once more would leave chains
        # that lead past the first ones, and a start that finds only a part of the second would think all of them put.
        self._unwritten: dict[int, Slot] = {}
        self._loops = compiled("timers")
        self._recover_wheel()
        self._write_progress()

    # ---- on the wheel

    def was_put(self, commit_log_offset: int) -> bool:
        """Whether a message behind the checkpoint was put on the wheel before the last stop."""
        return commit_log_offset in self._known

    def is_over(self, due_ms: int, now_ms: int) -> bool:
        """Whether the slot of that moment has fired or is firing, and rightly so: a clock may have been set back."""
        return due_ms // self.precision_ms < min(self._closed_to, now_ms // self.precision_ms)

    def must_fire_first(self, now_ms: int) -> bool:
        """Whether what is put could come into a slot that is still in use for a moment two turns ago."""
        now = now_ms // self.precision_ms
        return self.is_waiting and now + self._roll_window - self.read_tick >= SLOTS

    def put_many(self, timers: Iterable[Timer], now_ms: int) -> int:
        """Put messages on the wheel, in their order: how many there was room for. StorageError when not even for one.

        Each slot is read and written once, however many messages come into it.
        """
        self._write_slots()
        slots: dict[int, Slot] = {}
        done = 0
        try:
            for timer in timers:
                self._put(slots, timer, now_ms // self.precision_ms)
                done += 1
        except Exception:  # whatever it is: those before it are put, and must not be once more
            if not done:
                raise
        finally:
            # A kill before this costs nothing: a start finds the units in the log, and chains those that no slot leads to.
            self._write_slots_later(slots)
        return done

    def put_together(self, entries: bytes, topic: bytes, log: CommitLog, now_ms: int) -> PutTogether:
        """Put on the wheel what these entries of the timer topic lead to, up to the first that is unusual; `put_many` takes all.

        Always nothing without the accelerator.
        """
        self._write_slots()
        segment = self.log.room()
        if self._loops is None or segment is None or not self.is_waiting:
            return PutTogether()
        now = now_ms // self.precision_ms
        run = self._loops.TimerRun(
            log.files, self.wheel.slot, self.precision_ms, now, self._closed_to, self._roll_window
        )
        messages, self.log.end = run.put(
            entries, topic, log.readable_end, self._known, segment.memory, segment.start, self.log.end
        )
        slots = {slot[0]: Slot(*slot) for slot in run.slots()}
        self.last_tick = max((self.last_tick, *slots))
        self._write_slots_later(slots)
        return PutTogether(messages, run.waits())

    def _write_slots_later(self, slots: dict[int, Slot]) -> None:
        """Now, if the disk takes them. If not, the messages are put all the same, and nothing more is done before it does."""
        self._unwritten.update(slots)
        with suppress(StorageError):  # whatever is done next raises it
            self._write_slots()

    def _write_slots(self) -> None:
        while self._unwritten:
            tick = next(iter(self._unwritten))
            self.wheel.put(self._unwritten[tick])
            del self._unwritten[tick]

    def _put(self, slots: dict[int, Slot], timer: Timer, now: int) -> None:
        due = timer.due_ms // self.precision_ms
        if not self.is_waiting:
            self._pass_to(min(now, due))
        tick = max(due, self._closed_to)
        kind = PLAIN | RECALL if timer.recall else PLAIN
        away = tick - now
        if away >= self._roll_window:
            kind |= ROLL
            # The rest of the way is left long enough for another turn.
            tick = now + (
                self._roll_window // 2 if away - self._roll_window < self._roll_window // 3 else self._roll_window
            )
            tick = max(tick, self._closed_to)
        slot = slots.get(tick) or self.wheel.slot(tick)
        # A clock that was set by weeks is further away than a unit can tell. When it fires must be right, not when it was put.
        most = _LONGEST_DELAY_MS // self.precision_ms
        put = max(tick - most, min(now, tick + most))
        put_ms, delay_ms = put * self.precision_ms, (tick - put) * self.precision_ms
        unit = TimerUnit(slot.last, kind, put_ms, delay_ms, timer.commit_log_offset, timer.size, timer.topic_hash)
        slots[tick] = self._chained(slot, self.log.append(unit), kind)

    def count_at(self, due_ms: int) -> int:
        """Messages in the slot of that moment."""
        return self.wheel.slot(due_ms // self.precision_ms).messages

    def count_between(self, start_ms: int, stop_ms: int) -> int:
        """Messages in the slots from one moment to before another."""
        stop = min(stop_ms // self.precision_ms, self.last_tick + 1)
        return sum(slot.messages for slot in self.wheel.used(start_ms // self.precision_ms, stop))

    # ---- off the wheel

    @property
    def is_waiting(self) -> bool:
        return self.last_tick >= self.read_tick

    def due(self, now_ms: int) -> DueSlot | None:
        """The earliest slot that is over and has not fired. Moves past those that nothing is in."""
        self._write_slots()
        now = now_ms // self.precision_ms
        for slot in self.wheel.used(self.read_tick, min(now, self.last_tick + 1)):
            fired = self._fired_units if slot.tick == self.read_tick else 0
            self.read_tick, self._closed_to = slot.tick, slot.tick + 1
            return DueSlot(slot, *self._chain_of(slot), fired)
        self._pass_to(now)
        return None

    def units_between(self, start_ms: int, stop_ms: int) -> Iterator[TimerUnit]:
        """What is on the wheel for that time, fired or not."""
        stop = min(stop_ms // self.precision_ms, self.last_tick) + 1
        for slot in self.wheel.used(start_ms // self.precision_ms, stop):
            for position in self._chain_of(slot)[0]:
                unit = self.log.unit(position)
                if unit is not None:
                    yield unit

    def note(self, fired_units: int) -> None:
        """So many units of the slot that is firing have fired. Should the process be killed now, they do not fire again."""
        self._fired_units = fired_units
        if self._notes_firing:
            self._write_progress()

    def place_of_fired(self) -> memoryview | None:
        """Where `note` writes how many have fired, for who does that many times; None where that is not noted."""
        at = _PROGRESS_AT + _PROGRESS.size - _FIRED_BYTES
        return self._checkpoint_file.place(_FIRED_BYTES, at) if self._notes_firing else None

    def fired(self, due: DueSlot) -> None:
        self._pass_to(due.slot.tick + 1)
        self.note(0)

    def follow_to(self, read_until_ms: int) -> bool:
        """On a slave: its master has fired all slots before that moment, and no other, whatever this wheel did as a master.

        Whether it did more: then that has to be saved, or a start would believe what was saved before.
        """
        tick = read_until_ms // self.precision_ms
        goes_back = tick < self.read_tick
        self.read_tick = self._closed_to = tick
        self.note(0)
        return goes_back

    def log_was_cut(self, log_end: int, queue_end: int, since_ms: int) -> None:
        """On a slave: its log was cut back to there, and its timer topic. What it lost was stored since then.

        Other messages will come to where those were that are on the wheel. What slots delivered since then may be lost with the log,
        so they fire again unless the master says that it has fired them. A killed process must not go on from before the cut.
        """
        self._known = {offset for offset in self._known if offset < log_end}
        self.queue_offset = min(self.queue_offset, queue_end)
        self.read_tick = self._closed_to = min(self.read_tick, (since_ms - _MAY_BE_LATE_MS) // self.precision_ms)
        self._fired_units = 0
        self._write_progress()

    def _pass_to(self, tick: int) -> None:
        self.read_tick = self._closed_to = max(self.read_tick, tick)

    # ---- across restarts

    def mark(self) -> TimerCheckpoint:
        """What is true now."""
        return TimerCheckpoint(
            read_until_ms=self.read_tick * self.precision_ms,
            log_synced_offset=self.log.end,
            queue_offset=self.queue_offset,
            master_queue_offset=self.queue_offset,
            version_state=self.checkpoint.version_state,
            version_ms=self.checkpoint.version_ms,
            version_counter=self.checkpoint.version_counter,
        )

    def mark_to_save(self) -> TimerCheckpoint:
        """The same, when all of it has been written. StorageError if that cannot be done now."""
        self._write_slots()
        return self.mark()

    def save(self, mark: TimerCheckpoint, now_ms: int) -> bool:
        """Durable on return, given that the commit log is up to where it was when `mark_to_save` made it. False: nothing new."""
        with self._saving:
            if mark == self.checkpoint:
                return False
            self.log.sync(self.checkpoint.log_synced_offset, mark.log_synced_offset)
            self.wheel.sync()
            mark.version_ms = now_ms
            mark.version_counter = self.checkpoint.version_counter + 1
            self._checkpoint_file.save(mark)
            self.checkpoint = mark
            return True

    def close(self) -> None:
        self.log.close()
        self.wheel.close()
        self._checkpoint_file.close()

    def _chained(self, slot: Slot, position: int, kind: int) -> Slot:
        first = position if slot.first == NOWHERE else slot.first
        self.last_tick = max(self.last_tick, slot.tick)
        return Slot(slot.tick, first, position, slot.messages + (-1 if kind & RECALL else 1))

    def _chain_of(self, slot: Slot) -> tuple[array[int], bool]:
        """Where its units are, and whether recalls are among them."""
        positions, has_recalls, at = array("q"), False, slot.last
        if self._loops is not None:
            positions, has_recalls, at = self._loops.chain_of(self.log.files, self.log.start, self.log.end, at)
        while at != NOWHERE:
            unit = self.log.unit(at)
            if unit is None or unit.previous >= at:
                if unit is not None:
                    has_recalls = has_recalls or bool(unit.kind & RECALL)
                    positions.append(at)
                logger.error("the chain of timers due at tick %d breaks at %d of the timer log", slot.tick, at)
                break
            has_recalls = has_recalls or bool(unit.kind & RECALL)
            positions.append(at)
            at = unit.previous
        positions.reverse()
        return positions, has_recalls

    def _write_progress(self) -> None:
        progress = _PROGRESS.pack(_PROGRESS_MAGIC, self.queue_offset, self.read_tick, self._fired_units)
        self._checkpoint_file.note(progress, _PROGRESS_AT)

    def _go_on(self, earliest: int) -> None:
        """Where a killed process was."""
        magic, queue_offset, read_tick, fired = _PROGRESS.unpack(
            self._checkpoint_file.read(_PROGRESS.size, _PROGRESS_AT)
        )
        if magic == _PROGRESS_MAGIC and read_tick >= earliest and queue_offset >= self.queue_offset:
            self.queue_offset, self.read_tick, self._fired_units = queue_offset, read_tick, fired

    def _recover_wheel(self) -> None:
        """The wheel as the log tells it. Slots that lead behind the log's end are built anew from their first unit on."""
        rescan_from = 0 if self.wheel.is_new else self.checkpoint.log_synced_offset
        for slot in self.wheel.used(self.read_tick, self.read_tick + SLOTS):
            if slot.last >= self.log.end:
                rescan_from = min(rescan_from, slot.first)
                self.wheel.clear(slot.tick)
            else:
                self.last_tick = max(self.last_tick, slot.tick)
        for position, unit in self.log.units_from(rescan_from):
            if position >= self.log.end:
                break
            if position >= self.checkpoint.log_synced_offset:
                self._known.add(unit.commit_log_offset)
            tick = unit.fires_ms // self.precision_ms
            slot = self.wheel.slot(tick)
            if tick >= self.read_tick and position > slot.last:
                self.wheel.put(self._chained(slot, position, unit.kind))
