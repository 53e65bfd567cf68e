"""Marks that several rooms of tests share."""

from typing import Final

import pytest

# A promise that is broken once is broken: the first failure counts.
LEDGER: Final = pytest.mark.flaky(reruns=0)
