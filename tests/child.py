"""A process for as long as a `with` lasts."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PATIENCE_SECONDS: Final = 60.0


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`with subprocess.Popen(...)` waits for the end of a process, also when the test has failed, and then for ever if it
    does not know that it should end. Here it is killed when the test fails, or when it does not end by itself.
    """
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
            if process.poll() is None:
                process.communicate(timeout=_PATIENCE_SECONDS)
        finally:
            process.kill()
