"""Which loops are used: compiled ones only where they are installed, wanted, and of this release."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from orbitmq import accelerated
from orbitmq.accelerated import INTERFACE, MODULES, SWITCH, compiled, ways

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def forgets() -> Iterator[None]:
    accelerated._fits.cache_clear()
    yield
    accelerated._fits.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in the accelerator's place, with one module."""
    ours = {name: module for name, module in sys.modules.items() if name.startswith("orbitmq_accelerator")}
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "orbitmq_accelerator"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"INTERFACE = {INTERFACE}\n")
    for module in MODULES:
        (folder / f"{module}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(SWITCH, "1")
    yield folder
    for name in [name for name in sys.modules if name.startswith("orbitmq_accelerator")]:
        del sys.modules[name]
    sys.modules.update(ours)


def test_one_that_is_installed_is_used(package: Path) -> None:
    assert isinstance(compiled("sends"), ModuleType)
    assert ways() == "compiled"


def test_one_that_is_switched_off_is_not(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert compiled("sends") is None
    assert ways() == f"in Python ({SWITCH}=0)"


def test_one_of_another_release_is_left_out_and_named_once(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    (package / "__init__.py").write_text(f"INTERFACE = {INTERFACE + 1}\n")
    assert compiled("sends") is None
    assert compiled("sends") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"orbitmq-accelerator {INTERFACE + 1} does not fit this release ({INTERFACE}): install the one that belongs to it"
    ]


def test_one_that_cannot_be_loaded_is_left_out_and_named_once(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    (package / "reads.py").unlink()
    assert compiled("sends") is None
    assert compiled("indexes") is None
    assert ways().startswith("in Python")
    assert [record.getMessage() for record in caplog.records] == [
        "orbitmq-accelerator cannot be used: No module named 'orbitmq_accelerator.reads'; install it again with this Python"
    ]
