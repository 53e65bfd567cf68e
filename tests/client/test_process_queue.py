"""Offsets are committed in order however messages end, and pulling pauses at each limit."""

import itertools
import weakref

from orbitmq.client.process_queue import CacheLimits, ProcessQueue
from orbitmq.client.received import ReceivedMessage
from orbitmq.message import QueueRef, StoredMessage
from orbitmq.message.hosts import pack_host

QUEUE = QueueRef("T", "b", 0)


class Watched(ReceivedMessage):
    """Can be referred to weakly, as any class without slots."""


def message(offset: int, holder: ProcessQueue, body: bytes = b"x") -> ReceivedMessage:
    host = pack_host("127.0.0.1", 1)
    stored = StoredMessage(
        topic="T", queue_id=0, queue_offset=offset, body=body, properties={}, raw_properties=b"", flag=0, sys_flag=0,
        born_at_ms=0, born_host=host, stored_at_ms=0, store_host=host, reconsume_times=0,
        prepared_transaction_offset=0, commit_log_offset=0, size=0, body_crc=0,
    )  # fmt: skip
    return Watched(stored, "T", body, QUEUE, holder)


async def test_the_commit_offset_never_passes_a_message_that_is_not_done_with() -> None:
    for order in itertools.permutations(range(4)):
        held = ProcessQueue(QUEUE, QUEUE, 10, CacheLimits())
        messages = [message(10 + number, held) for number in range(4)]
        held.add(messages)
        waiting = {10, 11, 12, 13}
        for number in order:
            held.remove([messages[number]])
            waiting.discard(10 + number)
            assert held.commit_offset == min(waiting, default=14)


async def test_messages_that_were_not_wanted_count_as_done() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits())
    held.skip_to(32)
    assert held.commit_offset == 32
    wanted = message(40, held)
    held.add([wanted])
    held.skip_to(64)
    assert held.commit_offset == 40
    held.remove([wanted])
    assert held.commit_offset == 64


async def test_removing_twice_changes_nothing() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits())
    elsewhere = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits())
    one, same_place = message(0, held), message(0, elsewhere)
    held.add([one])
    held.remove([same_place])
    assert held.holds(one)
    held.remove([one])
    held.remove([one])
    assert (len(held), held.bytes, held.commit_offset) == (0, 0, 1)


async def test_room_ends_at_each_limit_and_comes_back() -> None:
    for limits, bodies in (
        (CacheLimits(messages=2), [b"x"] * 3),
        (CacheLimits(bytes=10), [b"x" * 6] * 2),
    ):
        held = ProcessQueue(QUEUE, QUEUE, 0, limits)
        messages = [message(number, held, body) for number, body in enumerate(bodies)]
        held.add(messages[:-1])
        assert held.has_room()
        held.add(messages[-1:])
        assert not held.has_room()
        held.remove(messages[:1])
        assert held.has_room()


async def test_one_stuck_message_stops_the_queue_from_running_away() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits(span=5))
    stuck, far = message(0, held), message(6, held)
    held.add([stuck, far])
    assert not held.has_room()
    held.remove([stuck])
    assert held.has_room()


async def test_what_is_done_with_behind_a_stuck_message_is_let_go() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits(span=5))
    messages = [message(number, held) for number in range(7)]
    known = [weakref.ref(one) for one in messages]
    held.add(messages)
    held.remove(messages[1:])
    del messages
    assert [one() is not None for one in known] == [True] + [False] * 6
    assert (len(held), held.bytes, held.commit_offset) == (1, 1, 0)
    assert not held.has_room()  # the last is far from the stuck one, although it is gone


async def test_the_same_offset_pulled_again_waits_for_both() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits())
    before, again = message(0, held), message(0, held)
    held.add([before])
    held.add([again])
    held.remove([again])
    assert (held.holds(before), held.holds(again), held.commit_offset) == (True, False, 0)
    held.remove([before])
    assert held.commit_offset == 1


async def test_a_message_whose_body_was_changed_frees_what_it_took() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits(bytes=10))
    stored = [message(number, held, b"x" * 6).stored for number in range(2)]
    messages = [ReceivedMessage(one, "T", one.body, QUEUE, held) for one in stored]
    held.add(messages)
    assert not held.has_room()
    messages[0].body, messages[1].body = b"", b"decrypted, inflated"
    held.remove(messages)
    assert (held.bytes, held.has_room()) == (0, True)


async def test_a_dropped_queue_lets_its_puller_go() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits(messages=0))
    held.add([message(0, held)])
    held.pause()
    held.drop()
    await held.wait_for_room()
    await held.active.wait()


async def test_the_head_is_what_stands_first() -> None:
    held = ProcessQueue(QUEUE, QUEUE, 0, CacheLimits())
    messages = [message(number, held) for number in range(5)]
    held.add(messages)
    held.remove([messages[1]])
    assert held.head(2) == [messages[0], messages[2]]
