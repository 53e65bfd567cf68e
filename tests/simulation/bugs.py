"""Switches that break the code, each in one place, as a tired programmer might: the simulation must find every one of them.

    python -m tests.simulation --bug ack_before_flush

A switch says what its bug looks like from outside, and by which faults it shows: no power cut, no lost page.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

from orbitmq.broker import sending
from orbitmq.broker.consumer_offsets import ConsumerOffsets
from orbitmq.broker.half_messages import HalfMessages
from orbitmq.broker.pulling import Pulling
from orbitmq.broker.replication import master as replication_master
from orbitmq.broker.replication.slave import Copying
from orbitmq.broker.sending import Sending
from orbitmq.broker.settings import Settings
from orbitmq.client.membership import Membership
from orbitmq.client.process_queue import ProcessQueue
from orbitmq.protocol.codes import ResponseCode
from orbitmq.storage.commit_log import CommitLog
from orbitmq.storage.entry_log import EntryFiles
from orbitmq.storage.store import Store
from tests.simulation.cluster import Mode
from tests.simulation.faults import MISSED, plan_faults
from tests.simulation.schedule import Outcome, Plan, plan, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_SYNC: Final = Mode(sync_flush=True, slaves=0, in_sync_replicas=1)
_COPIED: Final = Mode(sync_flush=True, slaves=1, in_sync_replicas=2)
_POWER_CUTS: Final = ("power cut", "power cut at a disk operation")


class Bug(NamedTuple):
    name: str
    story: str
    shows_as: tuple[str, ...]  # how a finding begins
    apply: Callable[[], Any]  # a context manager
    mode: Mode
    faults: tuple[str, ...]  # by which it shows; () for any
    promotes: bool
    handling_seconds: float
    long_bodies: bool

    def planned(self, seed: int) -> Plan:
        """A schedule in which it has a good chance to show."""
        random = Random(f"{seed}/{self.name}")
        faults = plan_faults(random, count=random.randrange(2, 6), kinds=self.faults)
        return replace(
            plan(seed), mode=self.mode, faults=faults, messages=30, promotes=self.promotes, promotes_early=self.promotes,
            handling_seconds=self.handling_seconds, long_bodies=self.long_bodies,
        )  # fmt: skip


BUGS: dict[str, Bug] = {}


def bug(
    *shows_as: str,
    mode: Mode = _SYNC,
    faults: tuple[str, ...] = (),
    promotes: bool = False,
    handling_seconds: float = 0.2,
    long_bodies: bool = False,
) -> Callable[[Callable[[], Any]], Any]:
    def register(function: Callable[[], Any]) -> Any:
        name = function.__name__
        story = (function.__doc__ or "").strip()
        BUGS[name] = Bug(
            name, story, shows_as, contextmanager(function), mode, faults, promotes, handling_seconds, long_bodies
        )
        return function

    return register


def hunt(wanted: Bug, seeds: Iterable[int]) -> Outcome | None:
    """The first schedule in which it shows."""
    for seed in seeds:
        with wanted.apply():
            outcome = run(wanted.planned(seed))
        if any(line.startswith(wanted.shows_as) for line in outcome.broken):
            return outcome
    return None


# ---- the store


@bug("lost", "offset given twice", "not what", faults=_POWER_CUTS)
def ack_before_flush() -> Iterator[None]:
    """With synchronous flush a send is answered before it is on the disk."""
    with mock.patch.object(Store, "when_durable", lambda _self, _end, callback: callback(None)):
        yield


@bug("lost", "never delivered", "not found", faults=_POWER_CUTS)
def no_directory_fsync() -> Iterator[None]:
    """The names of new queue files are not synced before the checkpoint vouches for what is in them."""
    sync = EntryFiles.sync

    def forget(self: EntryFiles) -> None:
        self._names_changed = False
        sync(self)

    with mock.patch.object(EntryFiles, "sync", forget):
        yield


@bug("offset given twice", "not what", "lost", "out of order")
def queue_offset_given_twice() -> Iterator[None]:
    """Now and then two messages get the same number in their queue."""
    append, count = CommitLog.append, 0

    def again(self: CommitLog, topic: str, queue_id: int, *rest: Any) -> Any:
        nonlocal count
        appended = append(self, topic, queue_id, *rest)
        count += 1
        if count % 25 == 0:
            self.next_queue_offsets[(topic, queue_id)] -= 1
        return appended

    with mock.patch.object(CommitLog, "append", again):
        yield


@bug("phantom", mode=replace(_SYNC, sync_flush=False), faults=_POWER_CUTS, long_bodies=True)
def torn_record_kept() -> Iterator[None]:
    """Recovery believes the length of a record and does not look whether all of it is there."""
    original = Settings.storage_config

    def believe(self: Settings) -> Any:
        return replace(original(self), check_crc_on_recover=False)

    with mock.patch.object(Settings, "storage_config", believe):
        yield


# ---- replication


@bug("lost", mode=_COPIED, faults=("resets",), promotes=True)
def ack_before_slave() -> Iterator[None]:
    """With a synchronous slave a send is answered before the slave has it."""

    def at_once(_self: Any, _end: int, _copies: int, told: Callable[[ResponseCode], None]) -> None:
        told(ResponseCode.SUCCESS)

    with mock.patch.object(replication_master.Slaves, "tell", at_once):
        yield


@bug("b1 differs", "b2 differs", mode=replace(_COPIED, sync_flush=False), faults=("power cut",))
def diverged_tail_kept() -> Iterator[None]:
    """A slave whose log went another way than its master's copies on behind it."""

    async def trust(_self: Copying, _master: Any) -> None:
        return

    with mock.patch.object(Copying, "_agree", trust):
        yield


@bug("stale read", "never delivered", mode=_COPIED, faults=(MISSED,))
def slave_ahead_of_its_master() -> Iterator[None]:
    """A slave gets, and serves, what is not on its master's disk yet. (This was a bug; see docs/guarantees.md.)"""
    init = replication_master._Slave.__init__

    class Unconfirmed:
        def __init__(self, store: Store) -> None:
            self._log = store.log

        @property
        def confirmed_offset(self) -> int:
            return self._log.readable_end

    def hurry(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._store = Unconfirmed(self._store)

    with mock.patch.object(replication_master._Slave, "__init__", hurry):
        yield


# ---- transactions, delays


@bug("too often", "half message visible", faults=("resets", "client killed"))
def half_message_committed_twice() -> Iterator[None]:
    """A decision does not end a transaction, and is carried out twice."""
    publish = HalfMessages._publish

    def twice(self: HalfMessages, half: Any) -> None:
        publish(self, half)
        publish(self, half)

    with mock.patch.object(HalfMessages, "_publish", twice):
        yield


@bug("half message visible")
def half_message_visible() -> Iterator[None]:
    """Half messages are stored where consumers see them."""
    put = Sending.put

    def reveal(self: Sending, topic: str, queue_id: int, body: bytes, properties: str, *rest: Any) -> Any:
        born_at_ms, born_host, *_ = rest
        return put(self, topic, queue_id, body, properties.replace("TRAN_MSG", "HALF"), born_at_ms, born_host)

    with mock.patch.object(Sending, "put", reveal):
        yield


@bug("early", mode=replace(_SYNC, timers=True), faults=("resets",))
def timer_fires_early() -> Iterator[None]:
    """A timer message is delivered at once."""
    with mock.patch.object(sending, "park_timer", return_value=None):
        yield


@bug("early")
def delay_level_fires_early() -> Iterator[None]:
    """Delays are half as long as they should be."""
    levels = Settings.delay_levels_ms

    def halve(self: Settings) -> tuple[int, ...]:
        return tuple(delay // 2 for delay in levels(self))

    with mock.patch.object(Settings, "delay_levels_ms", halve):
        yield


@bug("lost")
def delayed_message_dropped() -> Iterator[None]:
    """Every tenth delayed message is acknowledged and thrown away."""
    parked, count = Sending.parked, 0

    def lose(self: Sending, topic: str, queue_id: int, properties: str, parsed: dict[str, str]) -> Any:
        nonlocal count
        place = parked(self, topic, queue_id, properties, parsed)
        count += topic == "Delayed"
        return place._replace(topic="Nowhere") if place and topic == "Delayed" and count % 10 == 0 else place

    with mock.patch.object(Sending, "parked", lose):
        yield


# ---- consuming


@bug("never delivered", faults=("client killed",))
def offset_committed_before_handling() -> Iterator[None]:
    """A consumer says that it is done with everything it has pulled."""
    with mock.patch.object(ProcessQueue, "commit_offset", property(lambda self: self.last_offset + 1)):
        yield


@bug("offset forgotten", faults=("kill",))
def offsets_not_saved() -> Iterator[None]:
    """What groups have committed is kept in memory only."""

    async def nothing(_self: ConsumerOffsets) -> None:
        return

    with mock.patch.object(ConsumerOffsets, "save", nothing):
        yield


@bug("never delivered", mode=_COPIED, faults=(MISSED,), handling_seconds=2.0)
def lagging_slave_moves_readers() -> Iterator[None]:
    """A slave that lags tells a reader that its offset is wrong, and the reader forgets what it holds. (Both were bugs.)"""

    init = Pulling.__init__

    def correct(self: Pulling, *arguments: Any) -> None:
        init(self, *arguments)
        self._corrects = True

    async def move(self: Membership, held: ProcessQueue, offset: int, is_reset: bool) -> None:
        await self.restart(held.queue, offset)

    with mock.patch.object(Pulling, "__init__", correct), mock.patch.object(Membership, "_moved", move):
        yield
