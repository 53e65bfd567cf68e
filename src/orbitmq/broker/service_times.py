"""How quickly the broker serves, in the figures that operators read: of the last whole minute, and the longest ever.

A put takes from the read of its request to its answer, waiting for disk and slaves included.

Java: StoreStatsService
"""

from __future__ import annotations

from itertools import accumulate
from operator import add, sub
from typing import TYPE_CHECKING, Final

from orbitmq.protocol.codes import RequestCode, ResponseCode
from orbitmq.transport.request_times import BOUNDS_MS, Result, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orbitmq.broker.durability import Durability
    from orbitmq.transport.request_times import RequestTimes, Times

SAMPLE_SECONDS: Final = 60

_PUTS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)  # fmt: skip
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_GETS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_PUT_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)

# Java: BrokerController.registerProcessor. What is not here is an operator's.
_ADMIN: Final = "admin"
_PROCESSORS: Final[dict[str, tuple[RequestCode, ...]]] = {
    "send": (*_PUTS, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.RECALL_MESSAGE),
    "async_put": (),  # a pool of threads for messages that Java's own parts store
    "pull": (
        RequestCode.PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    ),
    "ack": (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    "query_message": (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    "client_manager": (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
    "heartbeat": (RequestCode.HEART_BEAT,),
    "lite_pull": (RequestCode.LITE_PULL_MESSAGE,),
    "transaction": (RequestCode.END_TRANSACTION,),
    "consumer_manager": (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
    ),
    "reply": (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
}
_PROCESSOR_OF: Final[dict[int, str]] = {code: name for name, codes in _PROCESSORS.items() for code in codes}


class ServiceTimes:
    def __init__(self, times: RequestTimes, durability: Durability) -> None:
        self._times = times
        self._durability = durability
        self._puts_until_now = self._puts()
        self._puts_of_minute = [0] * len(self._puts_until_now)

    def sample(self) -> None:
        """Called every `SAMPLE_SECONDS`: the minute is over."""
        puts = self._puts()
        self._puts_of_minute = list(map(sub, puts, self._puts_until_now))
        self._puts_until_now = puts

    def put_spread(self) -> list[int]:
        """Puts of the last minute: at once, within 10, 50, 100, 200, 500 ms, 1, 2, 3, 4, 5, 10 s, and longer."""
        return spread(self._puts_of_minute, _PUT_BOUNDS_MS)

    def put_percentile_ms(self, share: float) -> float:
        """How long all but the slowest of the last minute's puts took at most; between two bounds it is estimated."""
        counts = self._puts_of_minute
        place = int(sum(counts) * share)
        for bound, number, so_far in zip(range(len(BOUNDS_MS)), counts, accumulate(counts), strict=False):
            if place <= so_far:
                high, low = BOUNDS_MS[bound], BOUNDS_MS[max(0, bound - 1)]
                return low + (high - low) * (place - so_far + number) / number if number else float(low)
        return float(BOUNDS_MS[-1])

    @property
    def longest_put_ms(self) -> int:
        return max((int(times.longest_seconds * 1000) for times in self._of_puts()), default=0)

    @property
    def longest_get_ms(self) -> int:
        """Without the time for which pulls were held."""
        gets = (times for kind, times in self._times.all() if kind.request_code in _GETS and not kind.is_held)
        return max((int(times.longest_seconds * 1000) for times in gets), default=0)

    def watermarks(self) -> dict[str, int]:
        """Requests that were begun and wait for disk, slaves or name servers: the nearest to Java's queues before threads."""
        marks = dict.fromkeys((*_PROCESSORS, _ADMIN), 0)
        for code, waiting in self._times.waiting.items():
            marks[_PROCESSOR_OF.get(code, _ADMIN)] += waiting
        marks["send"] = self._durability.unanswered
        return marks

    def _puts(self) -> list[int]:
        together = [0] * (len(BOUNDS_MS) + 1)
        for times in self._of_puts():
            together = list(map(add, together, times.counts))
        return together

    def _of_puts(self) -> Iterator[Times]:
        for kind, times in self._times.all():
            if kind.request_code in _PUTS and kind.answer_code in _STORED and kind.result is not Result.NOT_WRITTEN:
                yield times
