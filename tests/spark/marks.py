"""The marks of test modules that use the shared Spark session: one worker for all of them, time for a cold start."""

from typing import Final

import pytest

SPARK: Final = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]
