"""Windows of counters: what happened in the last minute, hour and day."""

from __future__ import annotations

from orbitmq.broker.statistics import SAMPLE_SECONDS, Statistics
from orbitmq.clock import ManualClock


def test_an_hour_and_a_day_know_of_what_came_ten_seconds_ago_and_forget_in_time() -> None:
    clock = ManualClock()
    statistics = Statistics(clock)
    counter = statistics.counter("TOPIC_PUT_NUMS", "Orders")

    def pass_samples(count: int) -> None:
        for _ in range(count):
            clock.advance(seconds=SAMPLE_SECONDS)
            statistics.sample()

    assert counter.day().total == 0
    counter.add(2)
    pass_samples(1)
    counter.add(250)
    pass_samples(1)
    assert (counter.minute().total, counter.hour().total, counter.day().total) == (252, 252, 252)
    assert counter.day().per_second == 252 / (2 * SAMPLE_SECONDS)
    pass_samples(7)
    assert (counter.minute().total, counter.hour().total, counter.day().total) == (0, 252, 252)
    pass_samples(2 * 3600 // SAMPLE_SECONDS)
    assert (counter.hour().total, counter.day().total) == (0, 252)
    pass_samples(25 * 3600 // SAMPLE_SECONDS)
    assert counter.day().total == 0
