"""The time just after the start, while brokers have not all registered yet. Java: ClientRequestProcessor"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from orbitmq.clock import Clock
    from orbitmq.nameserver.settings import NameServerConfiguration


class Opening:
    """For a while after the start the tables are still filling: with `needWaitForService`, answer nothing wrong."""

    def __init__(self, clock: Clock, configuration: NameServerConfiguration) -> None:
        self._clock = clock
        self._configuration = configuration
        self._started_ms = clock.now_ms()

    def check(self) -> None:
        settings = self._configuration.settings
        if not settings.need_wait_for_service:
            return
        if self._clock.now_ms() - self._started_ms < settings.wait_seconds_for_service * 1000:
            raise RequestFailed(ResponseCode.SYSTEM_ERROR, "name server not ready")
