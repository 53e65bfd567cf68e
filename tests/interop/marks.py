"""The marks every interop module carries: its kind, one worker for all (they share a world), time for a first Maven download.

`INTEROP` needs Java and Maven, and is skipped without, with the reason shown. `OTHER_LANGUAGES` needs what languages.py says.
"""

import os
from typing import Final

import pytest

from tests.interop.java import missing_tools

OTHER_LANGUAGES: Final = [
    pytest.mark.interop,
    pytest.mark.xdist_group("interop"),
    pytest.mark.timeout(600),
    # Apache's programs have time limits of their own (3 s to send, 1 s to lock a queue), which a busy machine can break. A
    # second failure counts, and a first one is shown as RERUN.
    pytest.mark.flaky(reruns=int(os.environ.get("ORBITMQ_INTEROP_RERUNS", "1"))),
]
INTEROP: Final = [
    *OTHER_LANGUAGES,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]
