"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from orbitmq.accelerated import SWITCH, compiled
from tests import spark_java
from tests.leftovers import pytest_sessionfinish as pytest_sessionfinish

# Tests assert behaviour, never time: a busy machine is no failure. A failing example is printed so that it can be repeated.
settings.register_profile("orbitmq", deadline=None, print_blob=True)
settings.load_profile("orbitmq")

# The loops in Python are the reference. Tests of what the accelerator does ask for `loops`, and run both ways.
os.environ.setdefault(SWITCH, "0")
spark_java.start_quickly()


@pytest.fixture(scope="module", params=["in Python", "compiled"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "0")
        if request.param == "compiled":
            switch_on(patch)
        yield


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The compiled loops, for tests that compare; switch them off with what this gives."""
    switch_on(monkeypatch)
    return monkeypatch


def switch_on(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(SWITCH, "1")
    if compiled("sends") is None:
        pytest.skip("orbitmq-accelerator is not installed: `make setup` builds it where there is a C compiler")
