"""A slave in its master's place: while no master is alive, the slave with the smallest id does what a master does unasked.

Who is alive the name servers say. One that was started anew may hear of the slave before its master, so a slave that copies from its
master does not begin, whatever they say.

It stores nothing. Offsets and locks it keeps for itself, and its master asks for the offsets when it is back (handing_back.py). Delayed
messages, timers and open transactions that are due it sends to another master of the cluster (escape.py), and so messages whose leases
are over; its positions in them move on as they would on the master.

    members every second, or at once when a name server says that they changed ─> is_acting ─> a round of all that is due

Java: BrokerController.updateMinBroker, changeSpecialServiceStatus
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.broker.leases.checkpoints import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, read_ack, read_checkpoint
from orbitmq.broker.leases.reviving import return_marks
from orbitmq.broker.sending import attempt_after
from orbitmq.errors import BodyError, OrbitError
from orbitmq.message import properties as keys
from orbitmq.message.properties import decode_properties
from orbitmq.storage.files import is_file_name
from orbitmq.tasks import set_within

if TYPE_CHECKING:
    from orbitmq.broker.consumer_offsets import ConsumerOffsets
    from orbitmq.broker.delayed import DelayedMessages
    from orbitmq.broker.half_messages import HalfMessages
    from orbitmq.broker.leases.checkpoints import Checkpoint, LeaseKey
    from orbitmq.broker.leases.lease_log import LeaseLog
    from orbitmq.broker.leases.reviving import Reviving
    from orbitmq.broker.replication.escape import Escape
    from orbitmq.broker.replication.members import Members
    from orbitmq.broker.replication.metadata import MasterTables
    from orbitmq.broker.replication.slave import Copying
    from orbitmq.broker.replication.slave_timers import SlaveTimers
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.clock import Clock
    from orbitmq.message.record import RawRecord

logger = logging.getLogger(__name__)

_ROUND_SECONDS: Final = 0.1
_REST_SECONDS: Final = 10.0  # for a master that is back to register
_ACKS_WITHIN_MS: Final = 3000  # behind its checkpoint, on the wheel
_ACKS_READ_PER_TURN: Final = 256
_SECONDS_REMEMBERED: Final = 60  # of acks, behind the lease that ends


class ActingMaster:
    def __init__(
        self,
        configuration: BrokerConfiguration,
        members: Members,
        escape: Escape,
        copying: Copying,
        tables: MasterTables,
        offsets: ConsumerOffsets,
        delayed: DelayedMessages,
        timers: SlaveTimers | None,
        half_messages: HalfMessages,
        lease_log: LeaseLog,
        reviving: Reviving,
        clock: Clock,
    ) -> None:
        self._configuration = configuration
        self._members = members
        self._escape = escape
        self._copying = copying
        self._tables = tables
        self._offsets = offsets
        self._delayed = delayed
        self._timers = timers
        self._half_messages = half_messages
        self._lease_log = lease_log
        self._reviving = reviving
        self._clock = clock
        self._acting = asyncio.Event()
        self._changed = asyncio.Event()
        self._has_acted = False  # and its master has not registered again
        self._working = asyncio.Lock()
        self._failure = ""
        self._sent: set[int] = set()  # offsets of the lease in hand that another master has already
        self._resting_until = 0.0  # the loop's time
        self._acks: dict[int, dict[LeaseKey, set[int]]] = {}  # on the wheel for a second: what they acknowledge
        self._acks_of = -1  # the timer topic's messages before this are on the wheel

    @property
    def is_acting(self) -> bool:
        return self._acting.is_set()

    def members_changed(self) -> None:
        """A name server says so. Who they are now it is asked: anybody can send such a notice."""
        self._changed.set()

    async def watch(self) -> None:
        """Find out, for ever, whether this is the one."""
        while True:
            alive = await self._members.alive()
            if alive:  # else nobody could say, and everything stays as it is
                self._decide(min(alive))
            await set_within(self._changed, self._configuration.settings.sync_broker_member_group_period / 1000)
            self._changed.clear()

    async def run(self) -> None:
        """Do what is due, while this is the one."""
        while True:
            await self._acting.wait()
            if self._configuration.settings.enable_remote_escape:
                async with self._working:
                    try:
                        await self.round()
                    except OrbitError as error:
                        if str(error) != self._failure:  # not each round anew
                            logger.error("what is due in the master's place waits: %s", error)
                        self._failure = str(error)
            await asyncio.sleep(_ROUND_SECONDS)

    async def step_down(self) -> None:
        """Its master is back, and about to register. What is being put elsewhere is finished first."""
        self._resting_until = asyncio.get_running_loop().time() + _REST_SECONDS
        self._acting.clear()
        async with self._working:
            pass

    async def round(self) -> None:
        await self._delayed.deliver_elsewhere(self._deliver)
        if self._timers is not None:
            await self._timers.fire_elsewhere(self._put_timer)
        await self._half_messages.begin_elsewhere(self._begin_transaction)

    def _decide(self, lowest_id: int) -> None:
        is_it = lowest_id == self._configuration.settings.broker_id
        if is_it and asyncio.get_running_loop().time() < self._resting_until:
            return
        if is_it and not self.is_acting:
            if self._copying.is_connected:  # not for long if the master is gone: haHousekeepingInterval
                return
            if self._copying.was_master:  # what is due here its successor may have done
                return
            logger.warning("no master is alive: this slave acts in its place")
            self._tables.hold_positions(True)
            self._offsets.begin_acting()
            self._escape.forget_routes()
            self._half_messages.look_again()
            self._has_acted = True
            self._sent.clear()
            self._acks_of = -1
            self._acting.set()
        elif not is_it and self._has_acted:
            logger.info("broker %d is alive: this slave acts in its place no longer", lowest_id)
            self._acting.clear()
            self._has_acted = False
            self._tables.hold_positions(False)

    # ---- what is put elsewhere

    async def _deliver(self, topic: str, message: RawRecord) -> bool:
        return self.is_acting and await self._escape.deliver(topic, message)

    async def _begin_transaction(self, message: RawRecord) -> bool:
        return self.is_acting and await self._escape.begin_transaction(message)

    async def _put_timer(self, goal: str, message: RawRecord, put_at_ms: int, rolls: bool) -> bool:
        if not self.is_acting:
            return False
        if goal == self._lease_log.topic:
            return await self._revive(message)
        if rolls:
            due = decode_properties(message.properties).get(keys.TIMER_OUT_MS, "0")
            return await self._escape.deliver(goal, message, **{keys.TIMER_DELIVER_MS: due})
        told = {keys.TIMER_ENQUEUE_MS: str(put_at_ms), keys.TIMER_DEQUEUE_MS: str(self._clock.now_ms())}
        return await self._escape.deliver(goal, message, **told)

    async def _revive(self, entry: RawRecord) -> bool:
        """An entry on its way to the revive topic. Nobody acknowledges anything here, so what it says of a lease is the last word."""
        if decode_properties(entry.properties).get(keys.TAGS) != CHECKPOINT_TAG:
            return True
        try:
            checkpoint = read_checkpoint(bytes(entry.body))
        except BodyError as error:
            logger.error("skipped a lease that cannot be read: %s", error)
            return True
        acked = await self._acked(checkpoint)
        for message in self._reviving.unacked(checkpoint, acked | self._sent):
            again = msgspec.structs.replace(message, reconsume_times=attempt_after(message.reconsume_times))
            topic = self._reviving.topic_again(checkpoint, message.reconsume_times)
            if not is_file_name(topic):  # no broker would ever take it
                logger.error("gave up a message of %s, which no retry topic can have", checkpoint.topic)
                continue
            properties = decode_properties(message.properties)
            marks = return_marks(checkpoint, message.reconsume_times, properties, len(message.properties))
            if not self.is_acting or not await self._escape.deliver(topic, again, **marks):
                return False  # it is the first of the next round
            self._sent.add(message.queue_offset)
        self._sent.clear()
        return True

    async def _acked(self, checkpoint: Checkpoint) -> set[int]:
        """The offsets of a lease whose acks are on the wheel around its end. Each ack is read once, for all leases."""
        assert self._timers is not None
        if self._acks_of != self._timers.wheel.queue_offset:
            self._acks.clear()
            self._acks_of = self._timers.wheel.queue_offset
        end_ms = checkpoint.revive_ms
        seconds = range((end_ms - _ACKS_WITHIN_MS) // 1000, (end_ms + _ACKS_WITHIN_MS) // 1000 + 1)
        acked: set[int] = set()
        for second in seconds:
            if second not in self._acks:
                self._acks[second] = await self._acks_for(self._timers, second)
                for known in [known for known in self._acks if known < seconds[0] - _SECONDS_REMEMBERED]:
                    del self._acks[known]
            acked |= self._acks[second].get(checkpoint.key, set())
        return acked

    async def _acks_for(self, timers: SlaveTimers, second: int) -> dict[LeaseKey, set[int]]:
        own_name = self._configuration.settings.broker_name
        acked: dict[LeaseKey, set[int]] = {}
        entries = timers.due_for(self._lease_log.topic, second * 1000, second * 1000 + 999)
        for number, entry in enumerate(entries, 1):
            if decode_properties(entry.properties).get(keys.TAGS) in (ACK_TAG, BATCH_ACK_TAG):
                try:
                    ack = read_ack(bytes(entry.body))
                except BodyError:
                    continue  # said when it is its turn on the master
                acked.setdefault(ack.key(own_name), set()).update(ack.offsets())
            if not number % _ACKS_READ_PER_TURN:
                await asyncio.sleep(0)
        return acked

    async def close(self) -> None:
        await self._escape.close()
