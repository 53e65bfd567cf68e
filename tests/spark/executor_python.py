"""The Python of a test cluster's executors: that of the tests, without what the driver's machine has and theirs would not have.

    python -S executor_python.py DRIVER_ONLY INSTALLED -m pyspark.daemon ...

Files below the folders DRIVER_ONLY are refused, as if they were not there. Of what is installed only the folder INSTALLED counts,
and not what is only pointed to from there: our own package, installed for editing.
"""

from __future__ import annotations

import os
import runpy
import sys

_WATCHED = ("open", "os.listdir", "os.scandir")


def refuse(folders: list[str]) -> None:
    def look(event: str, args: tuple[object, ...]) -> None:
        if event not in _WATCHED or not isinstance(args[0], str):
            return
        path = os.path.realpath(args[0])
        if any(path == folder or path.startswith(folder + os.sep) for folder in folders):
            raise FileNotFoundError(f"{path} is on the driver's machine, not on this executor's")

    sys.addaudithook(look)


if __name__ == "__main__":
    driver_only, installed, *command = sys.argv[1:]
    assert command[0] == "-m", "Spark starts its workers as modules"
    sys.path.append(installed)
    refuse([os.path.realpath(folder) for folder in driver_only.split(os.pathsep)])
    sys.argv = command[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
