"""Large buffers that are used again: a worker that reads or writes topics makes and drops megabytes all the time.

The C library gives blocks above 128 KB straight back to the system and takes new ones from it, and the system fills every page
of those with zeroes first. Told to keep them, it spends half as much time on a pulled message of 1 KB.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Final

# <malloc.h>
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3

_LARGEST_KEPT_BYTES: Final = 32 << 20  # the most that glibc takes
_KEPT_BYTES: Final = 128 << 20


@cache
def keep_large_buffers() -> bool:
    """For the rest of this process. False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
