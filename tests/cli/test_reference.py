"""The pages about the command say what the command does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from orbitmq.cli.entry import cli
from orbitmq.cli.mqadmin.verbs import VERBS
from tests.cli import field_tables
from tests.cli.field_tables import DOCS, DOCUMENTS, FIELDS, ROWS, SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterator

# The commands that look at clusters. Servers and tools for files print lines of their own.
LOOKING = ("topic", "group", "msg", "dlq", "broker", "cluster", "acl", "bench", "doctor")


def test_the_tables_of_fields_are_up_to_date() -> None:
    how = "run: python -m tests.cli.field_tables"
    assert FIELDS.read_text() == field_tables.tables(), how
    assert SCHEMAS.read_text() == field_tables.schemas(), how


def reading_commands(group: click.Group, context: click.Context, path: str = "") -> Iterator[str]:
    for name in group.list_commands(context):
        if not path and name not in LOOKING:
            continue
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from reading_commands(command, context, f"{path}{name} ")
        if any("--output" in parameter.opts for parameter in command.params):
            yield path + name


def test_every_command_that_shows_something_has_documented_fields() -> None:
    found = set(reading_commands(cli, click.Context(cli)))
    documented = {re.sub(r" (--\w+|[A-Z]+)$", "", name) for name in {**ROWS, **DOCUMENTS}}
    assert found == documented - {"dlq export", "store dump"}


def test_the_page_names_every_command_exit_code_and_verb() -> None:
    page = (DOCS / "cli.md").read_text()
    for name in (*LOOKING, "dev", "nameserver", "run", "store", "mqadmin", "completion"):
        assert f"`orbitmq {name}" in page, name
    for code in (0, 1, 2, 3, 4, 5, 6, 130):
        assert f"| {code} |" in page, code
    for verb in VERBS:
        assert f"`{verb}`" in page, verb
