"""The ledger against what the cluster has when everything is quiet again: what was promised must be there, and nothing else.

What a mode does not promise (docs/guarantees.md) is excused by the fault that may take it, and by no other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from orbitmq.errors import MessageError
from orbitmq.message.record import decode_records
from tests.simulation.ledger import Place, name_in
from tests.simulation.workload import TOPICS

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.ledger import Ledger, Sent
    from tests.simulation.machine import Machine

_ASYNC_FLUSH_SECONDS: Final = 12.0  # ten, at worst, and a round
_BEFORE_ACK_SECONDS: Final = 5.0  # a half message is older than the decision about it


class Checks:
    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._mode = cluster.mode
        master = cluster.running(cluster.master)
        assert master is not None
        self._master = master
        self._stored = stored_messages(master)
        self._places: dict[str, list[Place]] = defaultdict(list)
        for place, name in self._stored.items():
            self._places[name].append(place)

    def broken(self) -> list[str]:
        return [
            *self._ledger.broken,
            *self._lost(),
            *self._moved(),
            *self._undelivered(),
            *self._duplicates(),
            *self._out_of_order(),
            *self._phantoms(),
            *self._unlike_their_master(),
        ]

    def undelivered(self) -> set[str]:
        """Acknowledged, kept, and not received yet."""
        acked = {name for name, sent in self._ledger.sent.items() if sent.acked_at is not None}
        return {name for name in acked if name in self._places} - self._ledger.received_names

    def unpublished(self) -> set[str]:
        """Acknowledged or committed, and not yet where consumers can see it."""
        return {
            name
            for name, sent in self._ledger.sent.items()
            if sent.acked_at is not None and name not in self._places and not self._may_be_lost(sent)
        }

    # ---- what may be lost

    def _may_be_lost(self, sent: Sent) -> bool:
        assert sent.acked_at is not None
        earliest = sent.acked_at - _BEFORE_ACK_SECONDS
        for fault in self._ledger.faults:
            if fault.at < earliest:
                continue
            if fault.what == "master lost for good" and self._mode.in_sync_replicas == 1:
                return True
            is_soon = fault.at - sent.acked_at < _ASYNC_FLUSH_SECONDS
            if not self._mode.sync_flush and fault.what == "power cut" and is_soon:
                return True
        return False

    @property
    def _may_lose(self) -> bool:
        """Whether anything that happened may take acknowledged messages: then numbers are given out twice."""
        weak = {"power cut"} if not self._mode.sync_flush else set()
        weak |= {"master lost for good"} if self._mode.in_sync_replicas == 1 else set()
        return any(fault.what in weak for fault in self._ledger.faults)

    # ---- the checks

    def _lost(self) -> list[str]:
        return [
            f"lost: {name} ({sent.kind}, acked at {sent.acked_at:.2f} s as {sent.place})"
            for name, sent in self._ledger.sent.items()
            if sent.acked_at is not None and name not in self._places and not self._may_be_lost(sent)
        ]

    def _moved(self) -> list[str]:
        found = []
        owners: dict[Place, str] = {}
        for name, sent in self._ledger.sent.items():
            if sent.place is None or sent.kind != "plain" or self._may_lose:
                continue
            if sent.place in owners:
                found.append(f"offset given twice: {sent.place} to {owners[sent.place]} and {name}")
            owners[sent.place] = name
            if self._stored.get(sent.place) not in (name, None):
                found.append(f"not what was acknowledged: {sent.place} is {self._stored[sent.place]}, not {name}")
            if not self._master.state.store.find_by_key(sent.topic, name).records:
                found.append(f"not found by its key: {name} at {sent.place}")
        return found

    def _undelivered(self) -> list[str]:
        if self._may_lose:
            return []
        missing = sorted(name for name in self.undelivered() if not self._may_be_forgotten(name))
        return [f"never delivered: {name} at {self._places[name]}" for name in missing]

    def _may_be_forgotten(self, name: str) -> bool:
        """A message that a consumer gives back is taken without waiting for disk or slaves, as Apache takes it. And the numbers
        of what a master served before its slaves had it are given out again when it is lost for good.
        """
        given_back = self._ledger.given_back
        weak = ("power cut", "master lost for good")
        if name in given_back and any(
            fault.what in weak and fault.at >= given_back[name].at for fault in self._ledger.faults
        ):
            return True
        taken = {received.place for received in self._ledger.received if received.name != name}
        taken |= {back.place for other, back in given_back.items() if other != name}
        return self._is_promoted and not taken.isdisjoint(self._places[name])

    @property
    def _is_promoted(self) -> bool:
        return any(fault.what == "master lost for good" for fault in self._ledger.faults)

    def _duplicates(self) -> list[str]:
        """A producer that asks again may be served twice; a broker that was killed may publish again what waited in it."""
        hit = sum(fault.what in ("kill", "power cut", "stop", "slave becomes master") for fault in self._ledger.faults)
        found = []
        for name, places in self._places.items():
            sent = self._ledger.sent.get(name)
            if sent is None:
                continue
            allowed = sent.attempts if sent.kind == "plain" else sent.attempts + (1000 if hit else 0)
            if len(places) > allowed:
                found.append(f"too often: {name} ({sent.kind}) at {places}, asked {sent.attempts} times")
        return found

    def _out_of_order(self) -> list[str]:
        if self._may_lose:
            return []
        found = []
        last: dict[tuple[str, int], tuple[str, int]] = {}
        for name, sent in self._ledger.sent.items():
            if sent.kind != "plain" or sent.place is None:
                continue
            key = (sent.lane, sent.place.queue_id)
            before, offset = last.get(key, ("", -1))
            if sent.place.offset <= offset:
                found.append(f"out of order: {name} at {sent.place} is behind {before} at {offset}")
            last[key] = (name, sent.place.offset)
        return found

    def _phantoms(self) -> list[str]:
        """What was read from a place must still be what is there: else it never was, or is no more."""
        found = [
            f"phantom: {place} holds {name}, which nobody sent"
            for place, name in self._stored.items()
            if name not in self._ledger.sent
        ]
        hidden = [name for name, sent in self._ledger.sent.items() if sent.kind == "transaction" and not sent.decision]
        found += [f"half message visible: {name}" for name in hidden if name in self._places]
        # What a master served before its slaves had it is gone with the master.
        if not self._may_lose and not self._is_promoted:
            found += [
                f"stale read: {received.consumer} was given {received.name} from {received.place}, "
                f"which holds {self._stored.get(received.place)}"
                for received in self._ledger.received
                if received.place.topic in TOPICS and self._stored.get(received.place) != received.name
            ]
        return found

    def _unlike_their_master(self) -> list[str]:
        return [
            f"{machine.name} differs from its master"
            for machine in self._cluster.slaves
            if not same_log(self._master, self._cluster.running(machine)) and not self._share_nothing(machine)
        ]

    def _share_nothing(self, machine: Machine) -> bool:
        """A master that may lose its log may lose all of it; its slave then waits for its operator, and says so."""
        slave = self._cluster.running(machine)
        if slave is None or not self._may_lose:
            return False
        ours, theirs = (broker.state.store for broker in (self._master, slave))
        return ours.record_at(theirs.log.start) != theirs.record_at(theirs.log.start)


def same_log(master: Broker, slave: Broker | None) -> bool:
    if slave is None:
        return False
    ours, theirs = master.state.store.log, slave.state.store.log
    if ours.end != theirs.end or slave.state.store.dispatched_offset != theirs.end:
        return False
    for segment in theirs.files.segments:
        twin = ours.files.segment_of(segment.start)
        size = min(theirs.end, segment.end) - segment.start
        if twin is None or twin.memory[:size] != segment.memory[:size]:
            return False
    return True


def stored_messages(broker: Broker) -> dict[Place, str]:
    """Everything that consumers of the topics can be given."""
    store = broker.state.store
    found: dict[Place, str] = {}
    for (topic, queue_id), (offset, end) in store.queue_ranges().items():
        while topic in TOPICS and offset < end:
            read = store.read(topic, queue_id, offset)
            try:
                messages = [message for buffer in read.buffers for message in decode_records(buffer)]
            except MessageError as error:
                found[Place(topic, queue_id, offset)] = f"unreadable: {error}"
                messages = []
            if not messages:
                offset += 1
                continue
            for message in messages:
                place = Place(topic, queue_id, message.queue_offset)
                found[place] = name_in(message.body) or f"?{message.body[:40]!r}"
                offset = max(offset, message.queue_offset + 1)
    return found


def summary(broken: list[str]) -> str:
    """The kinds of what was found, with their numbers."""
    return ", ".join(f"{kind} x{count}" for kind, count in Counter(line.partition(":")[0] for line in broken).items())
