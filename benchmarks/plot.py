"""A bar chart as SVG, from nothing but text: for each row one bar a contender, as long as its share of the row's best."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LABEL_WIDTH: Final = 250
_BAR_WIDTH: Final = 420
_BAR_HEIGHT: Final = 13
_ROW_GAP: Final = 12
_COLOURS: Final = ("#2f6fb2", "#c9702b", "#6b8e4e")


def bar_chart(path: Path, title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """`rows`: label -> contender -> value."""
    names = list(next(iter(rows.values())))
    row_height = _BAR_HEIGHT * len(names) + _ROW_GAP
    height = 50 + row_height * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABEL_WIDTH + _BAR_WIDTH + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="0" y="15" font-weight="bold">{escape(title)}</text>',
    ]
    for number, name in enumerate(names):
        x = _LABEL_WIDTH + 140 * number
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{_COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 15}" y="34">{escape(name)}</text>')
    for row, (label, values) in enumerate(rows.items()):
        top = 46 + row * row_height
        parts.append(f'<text x="0" y="{top + row_height // 2}">{escape(label)}</text>')
        most = max(values.values())
        for number, name in enumerate(names):
            value = values.get(name, 0.0)
            y, width = top + number * _BAR_HEIGHT, round(_BAR_WIDTH * value / most) if most else 0
            parts.append(
                f'<rect x="{_LABEL_WIDTH}" y="{y}" width="{width}" height="{_BAR_HEIGHT - 2}" fill="{_COLOURS[number]}"/>'
            )
            parts.append(f'<text x="{_LABEL_WIDTH + width + 5}" y="{y + 10}">{value:,.0f}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
