"""Small charts as SVG inside one HTML page: nothing to install, nothing fetched when it is looked at."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDTH: Final = 860
_BAR: Final = 22
_LABELS: Final = 220
_PLOT_HEIGHT: Final = 220
_COLOURS: Final = ("#2f6db5", "#d1495b", "#3b8f5a", "#b5832f", "#6b4fa0")
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:900px;color:#1c2733;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;font-size:13px}td,th{padding:.25rem .8rem .25rem 0;text-align:left;border-bottom:1px solid #e3e8ee}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}svg text{font:12px system-ui,sans-serif;fill:#1c2733}
"""


def page(title: str, parts: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def bars(rows: Sequence[tuple[str, float]], unit: str = "") -> str:
    """One bar a row, the longest as wide as there is room."""
    most = max((value for _, value in rows), default=0) or 1
    room = _WIDTH - _LABELS - 120
    parts = []
    for index, (label, value) in enumerate(rows):
        y = index * _BAR
        width = max(1.0, value / most * room)
        parts.append(
            f'<text x="{_LABELS - 8}" y="{y + 15}" text-anchor="end">{escape(_short(label))}<title>{escape(label)}</title></text>'
            f'<rect x="{_LABELS}" y="{y + 3}" width="{width:.1f}" height="{_BAR - 6}" fill="{_COLOURS[0]}"/>'
            f'<text x="{_LABELS + width + 6:.1f}" y="{y + 15}">{figure(value)}{escape(unit)}</text>'
        )
    return _svg(len(rows) * _BAR, parts)


def lines(labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str = "") -> str:
    """One line a series over the same labels."""
    most = max((value for values in series.values() for value in values), default=0) or 1
    left, right, top = 70, 20, 10
    room = _WIDTH - left - right
    steps = max(1, len(labels) - 1)
    parts = [
        f'<line x1="{left}" x2="{_WIDTH - right}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e3e8ee"/>'
        f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{figure(most * share)}{escape(unit)}</text>'
        for share in (0, 0.5, 1)
        for y in [top + _PLOT_HEIGHT * (1 - share)]
    ]
    for index, (name, values) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(
            f"{left + at * room / steps:.1f},{top + _PLOT_HEIGHT * (1 - value / most):.1f}"
            for at, value in enumerate(values)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        parts.append(
            f'<text x="{left + 8 + 150 * index}" y="{top + _PLOT_HEIGHT + 40}" style="fill:{colour}">{escape(name)}</text>'
        )
    for at in sorted({0, len(labels) // 2, len(labels) - 1} & set(range(len(labels)))):
        anchor = "start" if at == 0 else "end" if at == len(labels) - 1 else "middle"
        parts.append(
            f'<text x="{left + at * room / steps:.1f}" y="{top + _PLOT_HEIGHT + 18}" text-anchor="{anchor}">{escape(labels[at])}</text>'
        )
    return _svg(_PLOT_HEIGHT + 60, parts)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object, tag: str) -> str:
        is_number = isinstance(value, int | float)
        text = figure(value) if isinstance(value, int | float) else "-" if value is None else str(value)
        return f"<{tag}{' class=n' if is_number else ''}>{escape(text)}</{tag}>"

    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">{"".join(parts)}</svg>'


def _short(label: str) -> str:
    return label if len(label) <= 30 else f"{label[:29]}…"
