"""Log lines as sentences, on stderr."""

from __future__ import annotations

import logging
import re
from typing import Final

_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST_ALIKE: Final = 100
_SPAN_SECONDS: Final = 10.0
_MOST_KINDS: Final = 1000
_ACTIONS: Final = "orbitmq.audit"  # what operators did is written down, however often they did it


class _OneLine(logging.Formatter):
    """Names come from the network: none of them may start a new line in the log or paint the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        unsaid: int = getattr(record, "unsaid", 0)
        more = f" (and {unsaid:,} more such lines before it)" if unsaid else ""
        return _CONTROL_CHARACTER.sub(lambda found: f"\\x{ord(found.group()):02x}", line) + more


class FewAlike(logging.Filter):
    """At most so many lines of one kind in ten seconds; the next one says how many were left out. A stranger writes most of them,
    by what it asks, and could fill the disk with no more than that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}  # since when, and how many

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == _ACTIONS and record.levelno < logging.WARNING:
            return True
        kind = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        since, count = self._kinds.get(kind, (record.created, 0))
        if not 0 <= record.created - since < _SPAN_SECONDS:
            record.unsaid = max(0, count - _MOST_ALIKE)
            since, count = record.created, 0
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (since, count + 1)
        return count < _MOST_ALIKE


def log_to_stderr(*, verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
    if not verbose:
        handler.addFilter(FewAlike())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
