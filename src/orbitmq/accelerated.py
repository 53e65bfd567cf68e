"""Whether compiled loops do the busiest work: they do where the package orbitmq-accelerator is installed.

Its source is `accelerator/` in the repository. It changes no result, only speed; ORBITMQ_ACCELERATOR=0 leaves it out. One that was
built for another release, or for another Python, is left out as well, and said so once.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

logger = logging.getLogger(__name__)

SWITCH: Final = "ORBITMQ_ACCELERATOR"
MODULES: Final = (
    "sends",
    "refusals",
    "leases",
    "pops",
    "acks",
    "ends",
    "lanes",
    "pulls",
    "pages",
    "indexes",
    "reads",
    "copies",
    "timers",
    "columns",
    "members",
    *(("sockets",) if sys.platform == "linux" else ()),
)
INTERFACE: Final = 21  # what the two expect of each other; to be changed in both, together


def compiled(module: str) -> Any | None:
    """A module of the accelerator, or None where the loops in Python are to be used."""
    if os.environ.get(SWITCH) == "0" or not _fits() or module not in MODULES:
        return None
    return import_module(f"orbitmq_accelerator.{module}")


def ways() -> str:
    """For people: how the busiest loops run here."""
    if os.environ.get(SWITCH) == "0":
        return f"in Python ({SWITCH}=0)"
    return "compiled" if _fits() else "in Python (there is no orbitmq-accelerator that fits)"


@cache
def _fits() -> bool:
    if find_spec("orbitmq_accelerator") is None:
        return False
    found = getattr(import_module("orbitmq_accelerator"), "INTERFACE", 0)
    if found != INTERFACE:
        logger.warning(
            "orbitmq-accelerator %s does not fit this release (%s): install the one that belongs to it",
            found,
            INTERFACE,
        )
        return False
    try:
        for module in MODULES:
            import_module(f"orbitmq_accelerator.{module}")
    except ImportError as error:
        logger.warning("orbitmq-accelerator cannot be used: %s; install it again with this Python", error)
        return False
    return True
