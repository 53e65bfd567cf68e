"""Java's integer types, as bounds on ours.

Without them one peer could store a number here that every Java program chokes on when we pass it on.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1

Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]

# Keys of maps. Where numbers fall in a dict can be foreseen, and with all of 32 bits to choose from a megabyte of them can be made
# that all look for a place where the others are: seconds of work. Below 65,536 there are not enough such numbers.
QueueId = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
