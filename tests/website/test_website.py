"""The site is built as strictly as mkdocs can, from pages that are up to date, with pictures of the program as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.website import interop_page, pictures, shots
from tests.website.errors_page import templates

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(400)  # programs are started one after the other, and a busy machine takes its time

ROOT = interop_page.ROOT
SVG = "{http://www.w3.org/2000/svg}"


def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    """Strict: a link or an anchor that leads nowhere, or a page outside of the navigation, is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {"errors"} <= {page.stem for page in pages}
    for page in pages:
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert loaded == [], page.name


def test_the_table_of_clients_is_what_the_interop_tests_say() -> None:
    found = interop_page.collected()
    named = {test for features in interop_page.FEATURES.values() for test in features.values()}
    assert named <= found.keys(), "tests that are gone"
    assert interop_page.PAGE.read_text() == interop_page.page(found), "run: make docs"


def test_drawings_are_up_to_date() -> None:
    for name, draw in pictures.DRAWINGS.items():
        assert (pictures.FOLDER / f"{name}.svg").read_text() == draw().svg(), "run: make docs"


def test_pictures_of_the_terminal_can_be_taken_again(tmp_path: Path) -> None:
    made = shots.take(tmp_path)
    assert {path.name for path in made} == {path.name for path in pictures.FOLDER.glob("shot-*.svg")}
    for path, words in (
        ("dev", "OrbitMQ is up."),
        ("group-lag", "COMMITTED"),
        ("msg-trace", "attempt 1"),
        ("failure", "does not exist"),
    ):
        for folder in (tmp_path, pictures.FOLDER):
            drawn = ET.parse(folder / f"shot-{path}.svg")
            text = " ".join(line.text or "" for line in drawn.iter(f"{SVG}text")).replace("\N{NO-BREAK SPACE}", " ")
            assert words in text, (folder, path)


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    shown = {
        name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"\(pictures/([^)]+)\)", page.read_text())
    }
    assert shown == {path.name for path in pictures.FOLDER.iterdir()}


def test_the_questions_quote_what_the_program_says() -> None:
    """Each quoted text of a heading is one that the code can say: … and what the program puts in match anything."""
    said = [text for text in templates() if len(re.sub(r"[…\W]", "", text)) >= 8]
    headings = [line for line in (ROOT / "docs" / "faq.md").read_text().splitlines() if line.startswith("### ")]
    quoted = [text for line in headings for text in re.findall(r'"([^"]+)"', line)]
    assert len(quoted) > 30
    invented = [text for text in quoted if not any(_fits(text, one) or _fits(one, text) for one in said)]
    assert invented == []


def _fits(pattern: str, text: str) -> bool:
    """Whether the pieces between … of one are in the other, in their order."""
    at = 0
    for piece in pattern.split("…"):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
