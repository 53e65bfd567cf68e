"""A page that cannot be refreshed any more does not go on to look live."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import orbitmq.console

LIVE = Path(orbitmq.console.__file__).parent / "static" / "live.js"
STAGE = Path(__file__).parent / "live_page.js"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="the script runs in node here")


def played(*answers: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What the page shows after each answer of the console; None: there was no answer."""
    assert NODE is not None
    command = [NODE, str(STAGE), str(LIVE), json.dumps(answers)]
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    )
    assert len(found) == len(answers)
    return found


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": 401, "warning": "this console wants its token"}, "this console wants its token"),
        ({"status": 502, "warning": "nobody listens there"}, "nobody listens there"),
        ({"status": 500}, "it answered 500"),
        ({"status": 200}, "it answered with another page"),
        (None, "the console does not answer"),
    ],
)
def test_what_is_old_is_said_to_be_old_since_when_and_why(answer: dict[str, Any] | None, why: str) -> None:
    fresh, failed, again, mended = played(
        {"status": 200, "shown": "second"}, answer, answer, {"status": 200, "shown": "third"}
    )
    assert fresh == {"main": "second", "old": False, "notices": []}
    assert (failed["main"], failed["old"]) == ("second", True)
    (notice,) = failed["notices"]
    assert notice.startswith("This is old: it was so at ")
    assert any(letter.isdigit() for letter in notice)
    assert why in notice
    assert again == failed
    assert mended == {"main": "third", "old": False, "notices": []}
