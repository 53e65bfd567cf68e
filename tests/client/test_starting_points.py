"""What "latest" means, queue by queue."""

from orbitmq import QueueRef
from orbitmq.client.starting_points import Latest
from orbitmq.clock import ManualClock

QUEUE, OTHER = QueueRef("T", "broker-a", 0), QueueRef("T", "broker-a", 1)
A_MINUTE_MS = 60_000


def test_a_queue_that_was_there_begins_at_its_end_and_one_that_was_not_with_what_came_since() -> None:
    clock = ManualClock()
    latest, began_ms = Latest(clock), clock.now_ms()
    latest.begin("T", [QUEUE])
    clock.advance(minutes=5)
    assert latest.since_ms(QUEUE) is None
    assert latest.since_ms(OTHER) == began_ms - A_MINUTE_MS


def test_an_end_that_could_not_be_found_out_is_that_of_the_first_attempt() -> None:
    latest = Latest(ManualClock())
    latest.begin("T", [QUEUE])
    latest.sought(QUEUE, 1000, found=False)
    latest.sought(QUEUE, 2000, found=False)
    assert latest.since_ms(QUEUE) == 1000


def test_what_was_begun_here_or_by_others_is_not_begun_from_there_again() -> None:
    """Its group has offsets there; once they are deleted, "latest" is its end."""
    latest = Latest(ManualClock())
    latest.begin("T", ())
    latest.sought(QUEUE, 1000, found=True)
    latest.left_to_others([OTHER])
    assert latest.since_ms(QUEUE) is latest.since_ms(OTHER) is None


def test_a_topic_that_is_given_up_and_wanted_again_is_new() -> None:
    latest = Latest(ManualClock())
    latest.begin("T", [QUEUE])
    latest.sought(QUEUE, 1000, found=False)
    latest.forget("T")
    assert not latest.knows("T")
    latest.begin("T", [QUEUE, OTHER])
    assert latest.since_ms(QUEUE) is latest.since_ms(OTHER) is None
