"""The pages about the command say what the command does."""

from __future__ import annotations

from orbitmq.cli.mqadmin.verbs import VERBS
from tests.cli import field_tables
from tests.cli.field_tables import DOCS, FIELDS, SCHEMAS
from tests.cli.tour import leaves


def test_the_tables_of_fields_are_up_to_date() -> None:
    how = "run: python -m tests.cli.field_tables"
    assert FIELDS.read_text() == field_tables.tables(), how
    assert SCHEMAS.read_text() == field_tables.schemas(), how


def test_the_page_names_every_command_exit_code_and_verb() -> None:
    page = (DOCS / "cli.md").read_text()
    listed = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `orbitmq ")]
    for name in leaves():
        words = name.split()
        assert any(f"`orbitmq {words[0]}" in cell and words[-1] in cell for cell in listed), name
    for code in (0, 1, 2, 3, 4, 5, 6, 130):
        assert f"| {code} |" in page, code
    for verb in VERBS:
        assert f"`{verb}`" in page, verb
