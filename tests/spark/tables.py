"""Delta and Iceberg tables as programs read them that know nothing of us."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def table_rows(kind: str, where: Path) -> pa.Table:
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(where)).to_pyarrow_table()
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(str(where)).scan().to_arrow()
