"""Which groups pull and which lease, topic by topic, as an operator has set it. Java: MessageRequestModeManager"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orbitmq.broker.saved_table import SavedTable
from orbitmq.storage.tables import RequestMode, RequestModeTable

if TYPE_CHECKING:
    from orbitmq.storage.json_file import JsonFile

PULL: Final = "PULL"
POP: Final = "POP"


class RequestModes:
    def __init__(self, file: JsonFile[RequestModeTable]) -> None:
        table = file.load()
        self._modes = table.message_request_mode_map  # topic -> group -> mode
        self._unknown = table.unknown
        self._saved = SavedTable(file, self.table)

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get(topic, {}).get(group)

    async def set(self, mode: RequestMode) -> None:
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        await self._saved.save()

    async def take_over(self, table: RequestModeTable) -> None:
        """A slave has the modes of its master."""
        if table.message_request_mode_map != self._modes:
            self._modes = table.message_request_mode_map
            await self._saved.save()

    def table(self) -> RequestModeTable:
        modes = {topic: dict(groups) for topic, groups in self._modes.items()}
        return RequestModeTable(message_request_mode_map=modes, unknown=self._unknown)
