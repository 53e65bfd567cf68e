"""The compiled modules; everything else stands in pyproject.toml."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = Path("src/orbitmq_accelerator")
NEEDS_EPOLL = {"sockets"}
MODULES = {file.stem for file in SOURCES.glob("*.pyx")} - (set() if sys.platform == "linux" else NEEDS_EPOLL)
CORES = os.cpu_count() or 1

setup(
    options={"build_ext": {"parallel": CORES}},
    ext_modules=cythonize(
        [
            Extension(
                f"orbitmq_accelerator.{name}",
                [str(SOURCES / f"{name}.pyx")],
                depends=[str(file) for file in SOURCES.glob("*.[hp]*")],
                include_dirs=[str(SOURCES)],
                define_macros=[("_GNU_SOURCE", "1")],
                extra_compile_args=["-O3"],
            )
            for name in sorted(MODULES)
        ],
        nthreads=CORES,
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "cdivision": True, "initializedcheck": False},
    ),
)
