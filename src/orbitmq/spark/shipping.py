"""The package itself, carried to executors that do not have it: a zip of its modules, as Spark takes them.

    ship(spark)                                       in a program or a notebook on a cluster; our commands do it themselves
    python -m orbitmq.spark.shipping orbitmq.zip      for spark-submit --py-files orbitmq.zip

Every module is in it twice: as source, and compiled for the Python that runs here, because Python keeps nothing that it compiles
out of a zip, and every new worker would begin by doing so. Workers run the same Python as their driver; one that is not falls
back on the source. What the package stands on (pyarrow, numpy, msgspec) is machine code, which no zip can hold: executors need it
installed.
"""

from __future__ import annotations

import atexit
import functools
import py_compile
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE: Final = Path(__file__).parent.parent
_FINDERS: Final = ("pyspark_orbitmq", "pyspark_orbitmq_store")
_ROOMS: Final = ("client", "message", "protocol", "spark", "storage", "transport")  # what a worker may import


def ship(spark: SparkSession) -> None:
    """Workers find this package from now on, in the driver's version, before one of their own."""
    if _HERE.is_dir():  # else the driver runs from such a zip itself, and Spark carries that
        spark.sparkContext.addPyFile(str(_package()))


def is_elsewhere(master: str) -> bool:
    """Whether executors are processes of their own, which see nothing of the driver's."""
    return not (master == "local" or master.startswith("local["))


def write_package(target: Path) -> Path:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as package, tempfile.TemporaryDirectory() as scratch:
        for module in _modules():
            name = str(module.relative_to(_HERE.parent))
            compiled = Path(scratch, "module.pyc")
            unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the times of the sources mean nothing there
            py_compile.compile(str(module), str(compiled), dfile=name, doraise=True, invalidation_mode=unchecked)
            package.write(module, name)
            package.write(compiled, f"{name}c")
    return target


@functools.cache
def _package() -> Path:
    """Kept as long as the process: executors fetch it whenever they first need it."""
    folder = Path(tempfile.mkdtemp(prefix="orbitmq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_package(folder / "orbitmq.zip")


def _modules() -> list[Path]:
    found = [*_HERE.glob("*.py")]
    for room in _ROOMS:
        found += (_HERE / room).rglob("*.py")
    for finder in _FINDERS:
        found += (_HERE.parent / finder).glob("*.py")
    return sorted(found)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m orbitmq.spark.shipping FILE.zip")
    write_package(Path(sys.argv[1]))
