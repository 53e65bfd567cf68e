"""Whether compiled loops do the busiest work: they do where the package orbitmq-accelerator is installed.

Its source is `accelerator/` in the repository. It changes no result, only speed; ORBITMQ_ACCELERATOR=0 leaves it out.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

SWITCH: Final = "ORBITMQ_ACCELERATOR"


def compiled(module: str) -> Any | None:
    """A module of the accelerator, or None where the loops in Python are to be used."""
    if os.environ.get(SWITCH) == "0" or find_spec("orbitmq_accelerator") is None:
        return None
    return import_module(f"orbitmq_accelerator.{module}")
