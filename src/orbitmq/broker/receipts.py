"""What a sender is told. Java: SendMessageProcessor.handlePutMessageResult"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from orbitmq.protocol import versions
from orbitmq.protocol.codes import FLAG_RESPONSE, ResponseCode
from orbitmq.protocol.command import Command, answer, ok, ok_with_raw_fields
from orbitmq.protocol.frame import lengths
from orbitmq.protocol.headers.send import SendReceipt, SendRefused

if TYPE_CHECKING:
    from orbitmq.errors import OrbitError


class Receipts:
    """Send answers. The successful one is put together from bytes: it is the most frequent answer of all."""

    def __init__(self, region: str, *, trace_on: bool) -> None:
        self.store_host = b""
        self.host_hex = b""
        self._region = region
        self._trace_on = "true" if trace_on else "false"
        self._tail = b',"MSG_REGION":%b,"TRACE_ON":"%b"}' % (msgspec.json.encode(region), self._trace_on.encode())
        # The usual receipt is these, with the offset, the queue, the queue offset, the key and the opaque between them.
        self.before_id = b""
        self.behind_key = b'%b,"flag":%d,"language":"PYTHON","opaque":' % (self._tail, FLAG_RESPONSE)
        self.behind_opaque = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % versions.OURS
        self._header = b""

    def settle_at(self, store_host: bytes) -> None:
        """Message ids begin with the broker's address."""
        self.store_host = store_host
        self.host_hex = store_host.hex().upper().encode()
        self.before_id = b'{"code":0,"extFields":{"msgId":"%b' % self.host_hex
        self._header = b'%b%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":%%b%b%%d%b' % (
            self.before_id,
            self.behind_key.replace(b"%", b"%%"),
            self.behind_opaque,
        )

    def frame(
        self,
        commit_log_offset: int,
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        opaque: int,
        recall_handle: str = "",
    ) -> bytes:
        """What `stored` says, as the whole frame that answers request `opaque`."""
        key = _json_text(unique_key)
        if recall_handle:
            key += b',"recallHandle":"%b"' % recall_handle.encode()
        header = self._header % (commit_log_offset, queue_id, queue_offset, key, opaque)
        return lengths(len(header) + 4, len(header)) + header

    def stored(
        self, commit_log_offset: int, queue_id: int, queue_offset: int, unique_key: str, recall_handle: str = ""
    ) -> Command:
        return ok_with_raw_fields(
            b'{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":%b%b'
            % (
                self.host_hex,
                commit_log_offset,
                queue_id,
                queue_offset,
                _json_text(unique_key),
                b',"recallHandle":"%b"%b' % (recall_handle.encode(), self._tail) if recall_handle else self._tail,
            )
        )

    def stored_batch(
        self, offsets: list[int], queue_id: int, queue_offset: int, unique_key: str | None, *, is_whole: bool = False
    ) -> Command:
        """`is_whole`: as one record, so the producer gets one id for all."""
        host = self.host_hex.decode()
        header = SendReceipt(
            msg_id=",".join(f"{host}{offset:016X}" for offset in offsets),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=unique_key,
            batch_uniq_id=unique_key if is_whole else None,
            region=self._region,
            trace_on=self._trace_on,
        )
        return ok(header)

    def refused(self, error: OrbitError) -> Command:
        code = error.code or ResponseCode.SYSTEM_ERROR
        return answer(code, str(error), SendRefused(region=self._region, trace_on=self._trace_on))


def _json_text(text: str) -> bytes:
    plain = text.encode()
    return b'"%b"' % plain if plain.isalnum() else msgspec.json.encode(text)
