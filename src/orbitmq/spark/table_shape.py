"""Whether files fit into a lake or table that exists: it is asked before they are written, because a table forgives none that do not.

Delta takes files of any columns: those it does not know are never seen, and those of another type make it unreadable. Iceberg
refuses them, but only when they are committed. Columns that a table has and the files have not are null there. A lake of plain
files takes any columns, but a column keeps its type, and the lake its folders: Spark could not read the directory, nor could its files be
made into one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


class TableShape(NamedTuple):
    columns: pa.Schema  # as the format gives them back
    partitions: tuple[str, ...]


def check_fit(table: str, held: TableShape, given: TableShape) -> None:
    """`table` is for people: "the Delta table /lake"."""
    check_partitions(table, held.partitions, given.partitions)
    differences = [*_unknown(held.columns, given.columns), *_missing(held.columns, given.columns)]
    if differences:
        raise ConfigError(
            f"{table} has other columns: {'; '.join(differences)}",
            hint="write the columns it was made with, or into another directory",
        )


def check_partitions(table: str, held: tuple[str, ...], given: tuple[str, ...]) -> None:
    if held != given:
        raise ConfigError(
            f"{table} is partitioned by {_said(held)}, not by {_said(given)}",
            hint="write with the --by it was made with, or into another directory",
        )


def check_types(lake: str, held: pa.Schema, given: pa.Schema) -> None:
    """`lake` is for people, as above."""
    known = {column.name: column.type for column in held}
    differences = [
        f"{column.name} {column.type} is {known[column.name]}"
        for column in given
        if known.get(column.name, column.type) != column.type
    ]
    if differences:
        raise ConfigError(
            f"{lake} has columns of other types: {'; '.join(differences)}",
            hint="write them as they were, or into another directory",
        )


def _unknown(held: pa.Schema, given: pa.Schema) -> list[str]:
    known = {column.name: column.type for column in held}
    return [
        f"{column.name} {column.type} is {known.get(column.name, 'not there')}"
        for column in given
        if known.get(column.name) != column.type
    ]


def _missing(held: pa.Schema, given: pa.Schema) -> list[str]:
    return [
        f"{column.name} must not be null" for column in held if not column.nullable and column.name not in given.names
    ]


def _said(partitions: tuple[str, ...]) -> str:
    return ", ".join(partitions) or "nothing"
