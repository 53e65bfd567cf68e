"""Log lines as sentences, on stderr."""

from __future__ import annotations

import logging
import re
from typing import Final

_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class _OneLine(logging.Formatter):
    """Names come from the network: none of them may start a new line in the log or paint the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        return _CONTROL_CHARACTER.sub(lambda found: f"\\x{ord(found.group()):02x}", line)


def log_to_stderr(*, verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("asyncio").setLevel(logging.WARNING)
