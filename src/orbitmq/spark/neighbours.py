"""Python files of a pipeline, and the modules that lie beside them.

Beside: found while the file runs and while its tables are made. Workers have neither, so whatever they are to run of them goes along
by value. That holds for what was imported at the top of a file; an import inside a function that workers run is theirs to resolve.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import cloudpickle

from orbitmq.errors import ConfigError, OrbitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_OURS: Final = "orbitmq"  # workers have it
_carry: Final[Callable[[ModuleType], None]] = cloudpickle.register_pickle_by_value


def run_file(path: Path) -> ModuleType:
    """As a module of its own, which never takes the name of another: `json.py` may be a pipeline."""
    name = f"{_OURS}_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(
            f"{path} is no Python file",
            hint="name a .py file that is there; `orbitmq pipeline init --form python` makes one",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look it up there
    try:
        with modules_beside(path.parent):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, OrbitError) or not isinstance(error, Exception):
            raise
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    _carry(module)
    return module


@contextmanager
def modules_beside(folder: Path) -> Iterator[None]:
    place = str(folder.absolute())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] != _OURS and _is_in(Path(place), name, module):
                _carry(module)


def _is_in(folder: Path, name: str, module: ModuleType) -> bool:
    """As its name says; what an environment below the folder has got is not."""
    file = getattr(module, "__file__", None)
    base = folder.joinpath(*name.split("."))
    return file is not None and Path(file) in (base.with_name(f"{base.name}.py"), base / "__init__.py")
