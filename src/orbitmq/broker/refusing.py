"""Sends that are refused because too many wait: from their bytes, many at once, at a fraction of what storing them would cost.

When sends wait too long before they are read, a share of all reads is refused, and the share is sought at which they do not: it grows
fast and shrinks slowly. What is not refused is stored as ever, so an overloaded broker goes on with most of what it can do.

Java: BrokerFastFailure
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final

from orbitmq.accelerated import compiled
from orbitmq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from orbitmq.protocol.command import answer, encode
from orbitmq.protocol.frame import CODEC_BINARY, CODEC_JSON, HEADER_LENGTH_MASK, frame_prefix
from orbitmq.transport.request_times import Kind

if TYPE_CHECKING:
    from orbitmq.broker.settings import BrokerConfiguration
    from orbitmq.transport.congestion import Congestion
    from orbitmq.transport.connection import Connection
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.request_times import RequestTimes

logger = logging.getLogger(__name__)

LIMIT: Final = "waitTimeMillsInSendQueue"
_SENDS: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
_JSON_CODES: Final = tuple(b'{"code":%d,' % code for code in _SENDS)
_FLAG: Final = b'"flag":'  # not in a string: quotes are escaped there
_ANSWERED: Final = b'"flag":0,'  # a one-way send has another
_OPAQUE: Final = b'"opaque":'
_MOST_DIGITS: Final = 11  # of a signed number of 32 bits
_PREFIX: Final = struct.Struct(">II")  # length, then codec and length of the header
_PREFIX_BYTES: Final = 8
_BINARY_START: Final = struct.Struct(">h3xii")  # code, language and version, opaque, flag
_NO_OPAQUE: Final = b""
_LEAST_SHARE: Final = 0.05  # of reads that are taken however long the others wait
_LOOKS: Final = 5  # that find too long a wait, before the first is refused
_LESS: Final = 0.7  # of the share, at each look that finds too long a wait
_FALLS: Final = 0.9  # of the wait at the look before: then enough is refused already
_MORE: Final = 0.05


class Refusing:
    """A swift handler (transport/express.py) that stores nothing."""

    def __init__(
        self, congestion: Congestion, configuration: BrokerConfiguration, times: RequestTimes, refusals: Refusals
    ) -> None:
        loops = compiled("refusals")
        self.share = 1.0  # of reads whose sends are taken
        self.sends = RefusedSends() if loops is None else loops.RefusedSends()
        self._congestion = congestion
        self._configuration = configuration
        self._refused = times.of(Kind(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY))
        self._refusals = refusals
        self._long_waits = 0  # at so many looks, without one between them that found less
        self._waited_ms = 0  # at the last look
        self._due = 0.0  # parts of a read that is to be taken

    def look(self, now: float) -> None:
        """Ten times a second: how many are refused from now on. `now` is the event loop's time."""
        waits_ms = round(self._congestion.look(now) * 1000)
        most_ms = self._configuration.settings.wait_time_mills_in_send_queue
        waited_ms, self._waited_ms = self._waited_ms, waits_ms
        self._long_waits = self._long_waits + 1 if waits_ms > most_ms else 0
        if waits_ms > most_ms:
            if self.share == 1.0 and self._long_waits < _LOOKS:
                return  # a hiccup is none of it
            if self.share == 1.0:
                logger.warning("sends wait %d ms before they are read: some are refused for a while", waits_ms)
            if self.share == 1.0 or waits_ms > waited_ms * _FALLS:
                self.share = max(_LEAST_SHARE, self.share * _LESS)
            self.say(waits_ms, most_ms)
        elif self.share < 1.0 and waits_ms * 2 <= most_ms:
            self.share = min(1.0, self.share + _MORE)
        self._congestion.refuse = self if self.share < 1.0 else None

    def say(self, waits_ms: int, most_ms: int) -> None:
        """Why, from now on."""
        command = answer(
            ResponseCode.SYSTEM_BUSY,
            f"[TIMEOUT_CLEAN_QUEUE]broker busy: sends wait {waits_ms} ms before they are read, and may wait {most_ms} ({LIMIT})",
        )
        command.flag |= FLAG_RESPONSE
        before, opaque, after = encode(command)[_PREFIX_BYTES:].partition(_OPAQUE)
        before, after = before + opaque, after.removeprefix(b"0")
        rest = len(before) + len(after)
        self.sends.say([frame_prefix(rest + digits, 0) + before for digits in range(_MOST_DIGITS + 1)], after)

    def __call__(self, connection: Connection, data: bytes) -> tuple[int, bytes]:
        if self.takes_read():
            return 0, b""
        taken, answers, refused = self.sends(data)
        if refused:
            self.count(refused)
        return taken, answers

    def takes_read(self) -> bool:
        """Whether the sends of one more read are taken."""
        self._due += self.share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def count(self, refused: int) -> None:
        self._refusals.by_key[LIMIT] += refused
        if not self._refused.fresh:
            self._refused.unsettled.append(self._refused)
        self._refused.fresh += refused


class RefusedSends:
    """Frames in, answers out. The accelerator's does the same."""

    def __init__(self) -> None:
        self._before: list[bytes] = []  # the frame of an answer up to its opaque, by the digits of that
        self._after = b""

    def say(self, before: list[bytes], after: bytes) -> None:
        """What the answers are made of from now on."""
        self._before, self._after = before, after

    def __call__(self, data: bytes) -> tuple[int, bytes, int]:
        """How many bytes at the front were sends that want an answer, their answers, and how many they were."""
        answers: list[bytes] = []
        taken, whole, frames = 0, len(data), 0
        while whole - taken >= _PREFIX_BYTES:
            length, word = _PREFIX.unpack_from(data, taken)
            start, end = taken + _PREFIX_BYTES, taken + 4 + length
            header_end = start + (word & HEADER_LENGTH_MASK)
            if end > whole or header_end > end:
                break
            opaque = _opaque(data, start, header_end, word >> 24)
            if not opaque:
                break
            answers += (self._before[len(opaque)], opaque, self._after)
            frames += 1
            taken = end
        return taken, b"".join(answers), frames


def _opaque(data: bytes, start: int, end: int, codec: int) -> bytes:
    """The number of a send that wants an answer, as text; nothing if it is something else, or unusual."""
    if codec == CODEC_JSON:
        return _json_opaque(data, start, end)
    return _binary_opaque(data, start, end) if codec == CODEC_BINARY else _NO_OPAQUE


def _json_opaque(data: bytes, start: int, end: int) -> bytes:
    opaque = data.rfind(_OPAQUE, start, end)  # every known peer writes flag, language and opaque behind the fields
    flag = data.rfind(_FLAG, start, opaque) if opaque > 0 else -1
    if flag < 0 or not data.startswith(_ANSWERED, flag, end) or not data.startswith(_JSON_CODES, start, end):
        return _NO_OPAQUE
    opaque += len(_OPAQUE)
    comma = data.find(b",", opaque, end)
    if not 0 < comma - opaque <= _MOST_DIGITS:
        return _NO_OPAQUE
    digits = data[opaque:comma]
    return digits if digits.removeprefix(b"-").isdigit() else _NO_OPAQUE


def _binary_opaque(data: bytes, start: int, end: int) -> bytes:
    if end - start < _BINARY_START.size:
        return _NO_OPAQUE
    code, opaque, flag = _BINARY_START.unpack_from(data, start)
    return b"%d" % opaque if code in _SENDS and not flag else _NO_OPAQUE
