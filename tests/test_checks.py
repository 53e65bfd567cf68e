"""The checks of `make check` that are our own find what they look for, and nothing in this repository."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
from pathlib import Path

import pytest

from tests import dependency_audit, secret_scan


def made_up(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    chance = random.Random(length)
    return "".join(chance.choice(letters) for _ in range(length))


@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN RSA " + "PRIVATE KEY-----\n" + made_up(64),
        "AKIA" + made_up(16, string.ascii_uppercase + string.digits),
        "ghp_" + made_up(36),
        "xoxb-" + made_up(24),
        f'secret_key = "{made_up(40)}"',
        f"'api_key': '{made_up(32)}'",
    ],
)
def test_secrets_are_found_with_their_line(secret: str) -> None:
    assert [number for number, _ in secret_scan.findings(f"first\n{secret}\n")] == [2]


def test_words_under_telling_names_are_no_secrets() -> None:
    assert secret_scan.findings('password="choose-a-long-one-please"\nsecretKey: "12345678"\n') == []
    assert secret_scan.findings(f'token = "{made_up(40)}"  # no secret\n') == []


def test_there_are_none_in_this_repository() -> None:
    secret_scan.main()


def test_an_audit_that_cannot_be_made_is_a_warning() -> None:
    said, is_weak = dependency_audit.lines(None)
    assert "nothing was looked at" in said[0]
    assert not is_weak


def test_an_audit_names_what_is_weak_and_what_was_not_looked_up() -> None:
    report = {
        "dependencies": [
            {"name": "sound", "version": "1", "vulns": []},
            {"name": "weak", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]},
            {"name": "unknown", "skip_reason": "not on PyPI"},
        ]
    }
    said, is_weak = dependency_audit.lines(report)
    assert said == ["pip-audit: weak 1.0: PYSEC-1, mended in 1.1", "pip-audit: 1 packages could not be looked up"]
    assert is_weak


SOME_TESTS = """
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")

@pytest.mark.parametrize("number", range(2))
def test_one(tmp_path, shared, number):
    (tmp_path / "large").write_text("x")
    (shared / f"large{number}").write_text("x")
    assert number < %d
"""


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(("passing", "left"), [(2, 0), (1, 4)], ids=["all pass", "one fails"])
def test_a_run_in_which_all_passed_leaves_no_files(tmp_path: Path, workers: str, passing: int, left: int) -> None:
    (tmp_path / "test_some.py").write_text(SOME_TESTS % passing)
    (tmp_path / "temporary").mkdir()
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "tests.leftovers"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": f"{root}:{root / 'src'}", "PYTEST_DEBUG_TEMPROOT": str(tmp_path / "temporary")}
    done = subprocess.run(
        [*command, "-n", workers, str(tmp_path / "test_some.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if passing == 2 else 1), done.stdout + done.stderr
    assert len([path for path in (tmp_path / "temporary").rglob("large*") if path.is_file()]) == left
