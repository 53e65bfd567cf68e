"""Secrets that somebody may have committed: `python -m tests.secret_scan`, part of `make check`.

Looks at every file that git knows, for the shapes in which keys are handed out, and for long random texts under telling names. What
is random and no secret gets `# no secret` on its line.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_SHAPES: Final = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s*[A-Za-z0-9+/=]{20,}"),
    "a key of AWS": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of GitHub": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b|\bgithub_pat_[A-Za-z0-9_]{60,}\b"),
    "a token of GitLab": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}\b"),
    "a token of Slack": re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b"),
    "a token of PyPI": re.compile(r"\bpypi-[A-Za-z0-9_-]{60,}\b"),
    "a key of Google": re.compile(r"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a web token": re.compile(r"\beyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
}
_NAMED: Final = re.compile(
    r"(?i)(?:password|passwd|secret|token|api_?key)\w*[\"']?\s*[:=]\s*[\"']([A-Za-z0-9+/=_-]{24,})[\"']"
)
_RANDOM_BITS: Final = 4.0  # a character, on average; words have less
_EXCUSED: Final = "no secret"
_LARGEST_BYTES: Final = 2 << 20


def findings(text: str) -> list[tuple[int, str]]:
    """Line numbers, and what seems to stand there."""
    found = []
    for what, shape in _SHAPES.items():
        found += [(text.count("\n", 0, match.start()) + 1, what) for match in shape.finditer(text)]
    for match in _NAMED.finditer(text):
        if randomness(match[1]) >= _RANDOM_BITS:
            found.append((text.count("\n", 0, match.start()) + 1, "a random text under a telling name"))
    lines = text.splitlines()
    return sorted((number, what) for number, what in found if _EXCUSED not in lines[number - 1])


def randomness(text: str) -> float:
    """Entropy in bits a character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


def tracked_files() -> list[Path]:
    """None where this is no git repository: an unpacked archive has been looked at before it was packed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    return [path for name in names if name and (path := ROOT / name).is_file() and path.stat().st_size < _LARGEST_BYTES]


def main() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {what}"
        for path in tracked_files()
        for number, what in findings(path.read_text(errors="replace"))
    ]
    if found:
        sys.exit("\n".join([*found, "take it out of the history as well, and change it where it is used"]))


if __name__ == "__main__":
    main()
