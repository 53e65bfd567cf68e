"""The marks every interop module carries: its kind, one worker for all (they share a world), time for a first Maven download."""

from typing import Final

import pytest

INTEROP: Final = [pytest.mark.interop, pytest.mark.xdist_group("interop"), pytest.mark.timeout(600)]
