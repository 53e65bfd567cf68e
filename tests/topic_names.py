"""Topics are named after the tests that use them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest

_LONGEST: Final = 60
_numbers: Final = itertools.count(1)


def fresh_name(request: pytest.FixtureRequest) -> str:
    """Another one at every call: a test that is tried again finds nothing of its first try."""
    words = request.node.originalname.split("_")
    return "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST] + str(next(_numbers))
