"""Known weaknesses of what is installed here: `python -m tests.dependency_audit [--strict]`, part of `make check`.

pip-audit asks the advisory database of PyPI. Without --strict nothing that it says or cannot say stops a build: an advisory may
appear on any day, and a database may be out of reach. `make audit` is strict.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

_SECONDS = 120


def audited() -> dict[str, Any] | None:
    """What pip-audit says; None when it cannot be asked."""
    if importlib.util.find_spec("pip_audit") is None:
        return None
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        report: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return report


def lines(report: dict[str, Any] | None) -> tuple[list[str], bool]:
    """What to print, and whether a weakness is known."""
    if report is None:
        return ["pip-audit: not installed, or the advisory database is out of reach; nothing was looked at"], False
    skipped = [one["name"] for one in report["dependencies"] if "skip_reason" in one]
    weak = [
        f"pip-audit: {one['name']} {one['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'nothing yet'}"
        for one in report["dependencies"]
        for found in one.get("vulns", [])
    ]
    note = [f"pip-audit: {len(skipped)} packages could not be looked up"] if skipped else []
    return weak + note, bool(weak)


def main(argv: list[str]) -> None:
    said, is_weak = lines(audited())
    for line in said:
        sys.stderr.write(line + "\n")
    if is_weak and "--strict" in argv:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
