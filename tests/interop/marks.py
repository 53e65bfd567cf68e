"""The marks every interop module carries: its kind, one worker for all (they share a world), time for a first Maven download."""

import os
from typing import Final

import pytest

INTEROP: Final = [
    pytest.mark.interop,
    pytest.mark.xdist_group("interop"),
    pytest.mark.timeout(600),
    # Apache's programs have time limits of their own (3 s to send, 1 s to lock a queue), which a busy machine can break. A
    # second failure counts, and a first one is shown as RERUN.
    pytest.mark.flaky(reruns=int(os.environ.get("ORBITMQ_INTEROP_RERUNS", "1"))),
]
