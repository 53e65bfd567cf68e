"""A request's JSON header read in one go, custom fields and all, for handlers that know beforehand what they will get.

`Command` reads a header in two steps, because nobody knows the type of the fields before the code is known. One step costs
half as much. What this reader refuses is not necessarily wrong: `Command` also reads the dialects that clients speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from orbitmq.errors import HeaderError
from orbitmq.protocol.headers.base import Header

if TYPE_CHECKING:
    from collections.abc import Callable

H = TypeVar("H", bound=Header)

# What reading may raise.
UNREADABLE: Final = (HeaderError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class WholeRequest(msgspec.Struct, Generic[H], gc=False):
    code: int
    extFields: H  # noqa: N815 - the protocol's spelling
    opaque: int = 0
    flag: int = 0
    version: int = 0
    # Nobody asks for these; a header in which they are broken is broken all the same.
    language: str | int | None = None
    remark: str | None = None


def reader(header_type: type[H]) -> Callable[[bytes], WholeRequest[H]]:
    """Raises one of `UNREADABLE`."""
    whole: Any = WholeRequest[header_type]  # type: ignore[valid-type]
    decode: Callable[[bytes], WholeRequest[H]] = msgspec.json.Decoder(whole, strict=False).decode
    return decode
