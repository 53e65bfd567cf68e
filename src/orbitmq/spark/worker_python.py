"""The Python that Spark starts on this machine: the one that runs here, but without Spark's own zips on its path.

Spark puts `pyspark.zip` and `py4j-...-src.zip` of its home before everything else that its Python processes import from. Python keeps
nothing that it compiles out of a zip, so each new process compiles all of PySpark again (0.6 s of processor time for the one that plans a
stream), and each task reads both zips' tables of contents anew (`importlib.invalidate_caches`). A PySpark that pip installed is there a
second time, as plain modules that are compiled already: those are enough. A short program of the shell beside this drops the zips.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

_PROGRAM: Final = Path(__file__).with_suffix("")
_PYTHON: Final = "ORBITMQ_WORKER_PYTHON"  # of the program: what it starts


def worker_python() -> str:
    """A program to start in place of `sys.executable`, for workers of this machine; that itself where PySpark came another way."""
    if not (_is_installed(Path(pyspark.__file__).parent) and os.access(_PROGRAM, os.X_OK)):
        return sys.executable
    os.environ[_PYTHON] = sys.executable
    return str(_PROGRAM)


def _is_installed(home: Path) -> bool:
    """Whether every Python of this environment finds it, and Spark's programs are those that came with it."""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    return str(home.parent) in places and os.environ.get("SPARK_HOME", str(home)) == str(home)
