"""The command as tests run it: in this process, through the same door as the real one."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from click.testing import CliRunner

from orbitmq.cli.entry import cli

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def rows(self, row_type: type[msgspec.Struct]) -> list[Any]:
        """The JSON output as documented rows: exactly their fields, each of its type."""
        plain = self.json
        assert all(tuple(row) == row_type.__struct_fields__ for row in plain)
        return msgspec.convert(plain, list[row_type])  # type: ignore[valid-type]

    def document(self, document_type: type[msgspec.Struct]) -> Any:
        plain = self.json
        assert tuple(plain) == document_type.__struct_fields__
        return msgspec.convert(plain, document_type)


class Command:
    """Runs `orbitmq` against one server."""

    def __init__(self, name_server: str, credentials: tuple[str, str] | None = None) -> None:
        self.name_server = name_server
        self._environment = {
            "NAMESRV_ADDR": name_server,
            "ORBITMQ_ACCESS_KEY": credentials[0] if credentials is not None else None,
            "ORBITMQ_SECRET_KEY": credentials[1] if credentials is not None else None,
        }

    def __call__(self, *arguments: str, typed: str | None = None) -> Outcome:
        """Whatever it does; `typed` is what the user answers."""
        result = CliRunner().invoke(cli, list(arguments), input=typed, env=self._environment, prog_name="orbitmq")
        return Outcome(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str, typed: str | None = None) -> Outcome:
        outcome = self(*arguments, typed=typed)
        assert outcome.code == 0, (arguments, outcome)
        return outcome

    def failure(self, *arguments: str, typed: str | None = None) -> Outcome:
        """One that fails as it should: one line, no traceback."""
        outcome = self(*arguments, typed=typed)
        assert outcome.code != 0, (arguments, outcome)
        assert "Traceback" not in outcome.err + outcome.out
        assert len(outcome.err.strip().splitlines()) == 1, outcome.err
        assert outcome.err.startswith("orbitmq: ")
        return outcome
