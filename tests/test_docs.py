"""What the documents say is there: links lead somewhere, names exist, and nothing points at one person's machine."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EVERY_DOCUMENT = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


@EVERY_DOCUMENT
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if not target.startswith("http"):
            assert (path.parent / target.partition("#")[0]).exists(), target


@EVERY_DOCUMENT
def test_documents_name_no_machine(path: Path) -> None:
    assert not re.search(r"/work/|/home/\w+|/Users/", path.read_text())


def test_the_glossary_names_what_exists() -> None:
    rooms = r"(?:protocol|transport|nameserver|message|storage|configuration|saved_file|fastjson|headers|bodies)"
    for name in sorted(set(re.findall(rf"`({rooms}(?:\.\w+)+)`", (ROOT / "docs" / "glossary.md").read_text()))):
        parts = ["protocol", *name.split(".")] if name.startswith(("headers", "bodies")) else name.split(".")
        found: object = None
        for cut in range(len(parts), 0, -1):
            try:
                found = import_module(".".join(["orbitmq", *parts[:cut]]))
            except ImportError:
                continue
            for attribute in parts[cut:]:
                assert hasattr(found, attribute), name
                found = getattr(found, attribute)
            break
        assert found is not None, name


def test_the_readme_fits_a_screen_and_the_rules_fifty_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 70
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 55


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"def {name}\b", (ROOT / path).read_text()), f"{path}::{name}"
    promises = re.findall(r"(?m)^\| `A?SYNC_FLUSH.*$", text)
    assert len(promises) == 4
    assert all("::test_" in row for row in promises)
