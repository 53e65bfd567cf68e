"""The checks of `make check` that are our own find what they look for, and nothing in this repository."""

from __future__ import annotations

import random
import string

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
