"""The compiled modules; everything else stands in pyproject.toml."""

import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = (
    "sends",
    "acks",
    "ends",
    "pulls",
    "indexes",
    "reads",
    "copies",
    "timers",
    "columns",
    *(("sockets",) if sys.platform == "linux" else ()),  # epoll
)

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"orbitmq_accelerator.{name}",
                [f"src/orbitmq_accelerator/{name}.pyx"],
                depends=[str(file) for file in Path("src/orbitmq_accelerator").glob("*.[hp]*")],
                include_dirs=["src/orbitmq_accelerator"],
                define_macros=[("_GNU_SOURCE", "1")],
                extra_compile_args=["-O3"],
            )
            for name in MODULES
        ],
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False},
    )
)
