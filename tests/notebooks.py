"""Notebooks run without Jupyter: their cells in order, in one namespace, with what each prints.

python -m tests.notebooks examples/orders.ipynb       runs it and keeps what its cells print in the file
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def load(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kept_output(cell: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in cell["outputs"])


def run_cells(cells: list[dict[str, Any]]) -> list[str]:
    """What each cell prints, the value of its last line included, as a notebook shows it."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return [_run("".join(cell["source"]), f"cell {number}", namespace) for number, cell in enumerate(cells, 1)]


def _run(source: str, name: str, namespace: dict[str, Any]) -> str:
    parsed = ast.parse(source, name)
    shown = parsed.body.pop() if parsed.body and isinstance(parsed.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, name, "exec"), namespace)
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), name, "eval"), namespace)
            if value is not None:
                print(repr(value))  # noqa: T201 - as a notebook does
    return printed.getvalue()


def main(path: Path) -> None:
    notebook = load(path)
    cells = code_cells(notebook)
    for number, (cell, printed) in enumerate(zip(cells, run_cells(cells), strict=True), 1):
        lines = printed.splitlines(keepends=True)
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
