"""The ACL signature: proof that a request comes from who holds the secret key.

    content    the value of every custom field but `Signature`, in the order of the field names, then the body
    signature  base64(HMAC-SHA1(secret key, content))

Java: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orbitmq.protocol.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the field's name
_BLOCK_BYTES: Final = 64  # of SHA-1


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks. The secret key never travels; a security token does, when there is one."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


def sign(request: Command, credentials: Credentials) -> None:
    """Add the three fields. Nothing may be added afterwards; signing again replaces the signature."""
    names = {ACCESS_KEY: credentials.access_key}
    if credentials.security_token:
        names[SECURITY_TOKEN] = credentials.security_token
    fields = {**request.fields, **names}
    request.add_fields(**names, **{SIGNATURE: signature(fields, request.body, credentials.secret_key)})


class SigningKey:
    """A secret key made ready: HMAC's two first blocks are hashed once instead of with each request."""

    __slots__ = ("_inner", "_outer", "first_blocks")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key).digest()  # noqa: S324 - RocketMQ's signature is HMAC-SHA1
        block = key.ljust(_BLOCK_BYTES, b"\0")
        self.first_blocks = bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)
        self._inner, self._outer = map(hashlib.sha1, self.first_blocks)

    def signature(self, content: bytes) -> bytes:
        inner = self._inner.copy()
        inner.update(content)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False)


def signature(fields: Mapping[str, str], body: bytes, secret_key: str, leave_out: tuple[str, ...] = ()) -> str:
    """What `Signature` must be, to send it or to check it."""
    names = sorted((name for name in fields if name != SIGNATURE and name not in leave_out), key=_utf16)
    content = "".join([fields[name] for name in names]).encode("utf-8", "replace") + body
    digest = hmac.digest(secret_key.encode(), content, hashlib.sha1)
    return base64.b64encode(digest).decode("ascii")


def _utf16(name: str) -> bytes:
    """Java compares strings by UTF-16 code unit."""
    return name.encode("utf-16-be", "surrogatepass")
