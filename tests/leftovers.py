"""What a run leaves in the temporary folder: nothing if all passed. A whole run makes some twenty gigabytes of stores.

pytest's own `tmp_path_retention_policy = "failed"` removes each test's folder when that test is over. The next test then gets its name, and
its files may get the same inodes: whoever remembers either, such as Spark or the table of locks that a process holds, would
mistake the one for the other.
"""

from __future__ import annotations

import shutil

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    was_told_where = config.option.basetemp is not None  # as workers of xdist are, too
    if exitstatus == pytest.ExitCode.OK and not was_told_where:
        folder = config._tmp_path_factory._basetemp  # type: ignore[attr-defined]
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
