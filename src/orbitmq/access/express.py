"""The gate for express handlers: signed sends of users who were let through before, at the cost of the signature alone.

Who may send to which topic from where is decided once, by the gate, and forgotten when a user, a policy or an access file changes.
What is left for each request is its signature, over what the handler has decoded anyway. Whatever is not plainly right is left to
the ordinary way, whose gate says no and why.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from orbitmq.access.needs import Action, topic_need

if TYPE_CHECKING:
    from orbitmq.access.gate import Door
    from orbitmq.protocol.headers.send import SignedSendV2
    from orbitmq.protocol.signing import SigningKey

_MOST_KNOWN: Final = 10_000  # askers can name topics without end
_SEND: Final = (Action.PUB,)


class ExpressDoor:
    def __init__(self, gate: Door) -> None:
        self._gate = gate
        self._rates = gate.rates
        self._generation = -1
        self._keys: dict[tuple[str, str, str], SigningKey] = {}  # by user, topic and source; only of those who may

    def admits(self, code: int, send: SignedSendV2, body: bytes, source: str) -> bool:
        """False: not to be decided here. RequestFailed: it is plainly right, and one too many."""
        generation = self._gate.generation
        if generation != self._generation:
            self._keys.clear()
            self._generation = generation
        key = self._keys.get((send.access_key, send.topic, source)) or self._learn(code, send, source)
        if key is None:
            return False
        wanted = key.signature(send.signed_text().encode("utf-8", "replace") + body)
        if not hmac.compare_digest(wanted, send.signature.encode("utf-8", "replace")):
            return False
        if self._rates is not None and self._rates.are_limited:
            self._rates.take(send.access_key, len(send.properties) + len(body))
        return True

    # ---- for the compiled loop of sends, which keeps keys of its own and checks signatures itself

    @property
    def counts_requests(self) -> bool:
        """Users have limits, which is more than the loop looks at."""
        return self._rates is not None and self._rates.are_limited

    @property
    def generation(self) -> int:
        """Another one whenever something that `first_blocks` gave out may count no longer."""
        return self._gate.generation

    def first_blocks(self, code: int, access_key: str, topic: str, source: str) -> tuple[bytes, bytes] | None:
        """The key of a user who may send to this topic from there; None: not to be decided here."""
        key = self._gate.key_of(code, access_key, topic_need(topic, _SEND), source)
        return None if key is None else key.first_blocks

    def give_back(self, send: SignedSendV2, body: bytes) -> None:
        """It was admitted and goes the ordinary way after all, whose gate counts it."""
        if self._rates is not None and self._rates.are_limited:
            self._rates.give_back(send.access_key, len(send.properties) + len(body))

    def _learn(self, code: int, send: SignedSendV2, source: str) -> SigningKey | None:
        key = self._gate.key_of(code, send.access_key, topic_need(send.topic, _SEND), source)
        if key is not None:
            if len(self._keys) >= _MOST_KNOWN:
                self._keys.clear()
            self._keys[send.access_key, send.topic, source] = key
        return key
