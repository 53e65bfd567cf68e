"""How long requests took: one look at the clock for all that came in one read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orbitmq.protocol.codes import FLAG_ONEWAY, RequestCode
from orbitmq.protocol.command import Command
from orbitmq.transport.request_times import BOUNDS_MS, Kind, RequestTimes, Result, spread

SEND, PULL = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE
RPC_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)


def test_requests_of_one_read_share_its_time() -> None:
    times = RequestTimes()
    for _ in range(3):
        times.note(Command(SEND), Command(0))
    times.note(Command(PULL), Command(19))
    times.settle(0.004)
    times.settle(5.0)  # of a read without requests
    sends, pulls = times.of(Kind(SEND)), times.of(Kind(PULL, 19))
    assert spread(sends.counts, RPC_BOUNDS_MS) == [0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    assert spread(pulls.counts, RPC_BOUNDS_MS) == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert sends.seconds == pytest.approx(0.012)
    assert sends.longest_seconds == 0.004


def test_one_way_requests_and_lost_peers_are_kept_apart() -> None:
    times = RequestTimes()
    times.note(Command(SEND, flag=FLAG_ONEWAY), Command(0))
    times.settle(0.0)
    for is_written in (True, False):
        times.note_later(Command(PULL), Command(0), 20.0, is_written=is_written, is_held=True)
    assert {kind for kind, _ in times.all()} == {
        Kind(SEND, 0, Result.ONEWAY),
        Kind(PULL, 0, Result.SUCCESS, True),
        Kind(PULL, 0, Result.NOT_WRITTEN, True),
    }


@pytest.mark.parametrize(
    ("seconds", "place"),
    [(0.0, 0), (0.0009, 0), (0.0011, 0), (0.0031, 1), (0.0105, 4), (0.0995, 5), (3.0, 8), (3.1, 9), (86_400.0, 9)],
)
def test_a_time_is_counted_in_whole_milliseconds_as_java_does(seconds: float, place: int) -> None:
    times = RequestTimes()
    times.of(Kind(SEND)).add(seconds)
    assert spread(times.of(Kind(SEND)).counts, RPC_BOUNDS_MS).index(1) == place


def test_every_time_has_its_place() -> None:
    times = RequestTimes().of(Kind(SEND))
    for bound in BOUNDS_MS:
        times.add(bound / 1000)
    assert all(low < high for low, high in pairwise(BOUNDS_MS))
    assert sum(times.counts) == sum(spread(times.counts, RPC_BOUNDS_MS)) == len(BOUNDS_MS)
