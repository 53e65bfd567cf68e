"""Charts as one HTML page with SVG inside: nothing to install, nothing fetched when it is looked at."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from orbitmq.spark.charts import GRID, INK, WIDTH, Box, Table, Text

if TYPE_CHECKING:
    from orbitmq.spark.charts import Cell, Drawing, Line, Page

_STYLE: Final = f"""
body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:900px;color:{INK};padding:0 1rem}}
h1{{font-size:1.5rem}}h2{{font-size:1.1rem;margin-top:2rem}}
table{{border-collapse:collapse;font-size:13px}}td,th{{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid {GRID}}}
td.n,th.n{{text-align:right;font-variant-numeric:tabular-nums}}svg text{{font:12px system-ui,sans-serif}}
"""


def html_page(page: Page) -> str:
    parts = []
    for title, part in page.sections:
        parts.append(f"<h2>{escape(title)}</h2>{_table(part) if isinstance(part, Table) else _svg(part)}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(page.title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _svg(drawing: Drawing) -> str:
    shapes = "".join(map(_shape, drawing.shapes))
    return f'<svg viewBox="0 0 {WIDTH} {drawing.height}" width="{WIDTH}" height="{drawing.height}">{shapes}</svg>'


def _shape(shape: Text | Box | Line) -> str:
    if isinstance(shape, Text):
        whole = f"<title>{escape(shape.whole)}</title>" if shape.whole else ""
        return (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" fill="{shape.colour}">'
            f"{escape(shape.text)}{whole}</text>"
        )
    if isinstance(shape, Box):
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}" '
            f'fill="{shape.colour}"/>'
        )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    return f'<polyline fill="none" stroke="{shape.colour}" stroke-width="{shape.width}" points="{points}"/>'


def _table(table: Table) -> str:
    def cell(one: Cell) -> str:
        return f"<td{' class=n' if one.is_number else ''}>{escape(one.text)}</td>"

    head = "".join(f"<th>{escape(title)}</th>" for title in table.titles)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in table.rows)
    return f"<table><tr>{head}</tr>{body}</table>"
