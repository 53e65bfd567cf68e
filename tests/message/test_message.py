from __future__ import annotations

import pytest

from orbitmq.message import Message, QueueRef


def test_tags_and_keys_live_in_the_properties() -> None:
    message = Message("T", b"body", tag="A", keys=["k1", "k2"], properties={"mine": "1"})
    assert message.properties == {"mine": "1", "TAGS": "A", "KEYS": "k1 k2"}
    assert message.tag == "A"
    assert message.keys == ["k1", "k2"]
    assert Message("T", b"").keys == []


def test_keys_may_be_given_as_one_text() -> None:
    assert Message("T", b"", keys="k1 k2").keys == ["k1", "k2"]


def test_a_message_does_not_share_the_map_it_was_made_from() -> None:
    given = {"a": "b"}
    Message("T", b"", tag="x", properties=given)
    assert given == {"a": "b"}


def test_messages_are_equal_by_what_they_hold_and_cannot_be_hashed() -> None:
    assert Message("T", b"1", tag="a") == Message("T", b"1", tag="a")
    assert Message("T", b"1") != Message("T", b"2")
    assert Message("T", b"1") != "T"
    with pytest.raises(TypeError):
        hash(Message("T", b"1"))
    assert repr(Message("T", b"12")) == "Message(topic='T', body=2 bytes, properties={})"


def test_queues_sort_by_topic_broker_and_id() -> None:
    queues = [QueueRef("T", "b", 1), QueueRef("T", "a", 2), QueueRef("S", "z", 9), QueueRef("T", "a", 1)]
    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]
    assert len({QueueRef("T", "b", 1), QueueRef("T", "b", 1)}) == 1
