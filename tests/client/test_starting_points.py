"""What "latest" means, queue by queue."""

import pytest

from orbitmq import QueueRef
from orbitmq.client.starting_points import Latest
from orbitmq.clock import ManualClock

QUEUE, OTHER = QueueRef("T", "broker-a", 0), QueueRef("T", "broker-a", 1)
A_MINUTE_MS = 60_000  # by which clocks may differ


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def latest(clock: ManualClock) -> Latest:
    return Latest(clock)


def test_a_queue_that_was_there_begins_at_its_end_and_one_that_was_not_with_what_came_since(
    latest: Latest, clock: ManualClock
) -> None:
    began_ms = clock.now_ms()
    latest.begin("T", [QUEUE])
    clock.advance(minutes=5)
    assert latest.since_ms(QUEUE) is None
    assert latest.since_ms(OTHER) == began_ms - A_MINUTE_MS


def test_where_one_attempt_was_not_enough_the_next_passes_over_nothing(latest: Latest, clock: ManualClock) -> None:
    began_ms = clock.now_ms()
    latest.begin("T", [QUEUE, OTHER])
    latest.begun([OTHER])
    latest.attempted("T")
    clock.advance(seconds=2)
    assert latest.since_ms(QUEUE) == began_ms - A_MINUTE_MS
    assert latest.since_ms(OTHER) is None


def test_what_others_have_begun_is_not_begun_from_there_again(latest: Latest, clock: ManualClock) -> None:
    """Its group has offsets there; once they are deleted, "latest" is its end."""
    began_ms = clock.now_ms()
    latest.begin("T", ())
    latest.shared("T", [QUEUE, OTHER], [QUEUE])
    clock.advance(minutes=1)
    latest.shared("T", [QUEUE, OTHER], [QUEUE])
    assert latest.since_ms(OTHER) == began_ms - A_MINUTE_MS  # they may be gone before they begin
    clock.advance(minutes=3)
    latest.shared("T", [QUEUE, OTHER], [QUEUE, OTHER])
    assert latest.since_ms(OTHER) is None


def test_a_queue_that_is_made_again_is_new(latest: Latest, clock: ManualClock) -> None:
    began_ms = clock.now_ms()
    latest.begin("T", [QUEUE, OTHER])
    latest.begun([QUEUE, OTHER])
    latest.attempted("T")
    latest.shared("T", [QUEUE], [QUEUE])
    latest.shared("T", [QUEUE, OTHER], [QUEUE, OTHER])
    assert latest.since_ms(QUEUE) is None
    assert latest.since_ms(OTHER) == began_ms - A_MINUTE_MS


def test_a_topic_that_is_given_up_and_wanted_again_is_new(latest: Latest) -> None:
    latest.begin("T", [QUEUE])
    latest.attempted("T")
    latest.forget("T")
    latest.attempted("T")  # by a round that was under way, like the rest
    latest.begun([QUEUE])
    latest.shared("T", [QUEUE, OTHER], [QUEUE])
    assert not latest.knows("T")
    latest.begin("T", [QUEUE, OTHER])
    assert latest.since_ms(QUEUE) is latest.since_ms(OTHER) is None
