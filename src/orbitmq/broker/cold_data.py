"""Limits for groups that read old messages: noted and shown. Nothing here slows a reader down, and neither does Apache's
broker while its coldDataFlowControlEnable is false, as it is unless somebody sets it.

Java: ColdDataCgCtrService
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class ColdDataLimits:
    """Memory only, as in Java."""

    def __init__(self) -> None:
        self._bytes_per_second: dict[str, int] = {}

    def set(self, group: str, bytes_per_second: int) -> None:
        logger.warning("group %s: a limit for old messages is noted, and has no effect", group)
        self._bytes_per_second[group] = bytes_per_second

    def remove(self, group: str) -> None:
        self._bytes_per_second.pop(group, None)

    def by_group(self) -> dict[str, int]:
        return dict(self._bytes_per_second)
