"""The notebook among the examples runs from top to bottom, and its cells print what the file shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.notebooks import code_cells, kept_output, load, run_cells
from tests.spark.marks import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "orders.ipynb"


def test_the_notebook_prints_what_it_shows(spark: SparkSession) -> None:
    assert spark, "the notebook finds this session and uses it"
    cells = code_cells(load(NOTEBOOK))
    printed = run_cells(cells)
    assert printed == [kept_output(cell) for cell in cells]
    assert any("osaka" in text for text in printed)
