"""Small charts: bars, lines and tables, laid out here and drawn by whoever shows them.

    what was found ─> Page of Sections ─┬─> chart_page.py   one HTML page with SVG inside
                                        └─> chart_image.py  a PNG picture

A drawing is `WIDTH` wide; its y grows downwards, and a text stands on its y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH: Final = 860
INK: Final = "#1c2733"
GRID: Final = "#e3e8ee"
_BAR: Final = 22
_LABELS: Final = 220
_PLOT_HEIGHT: Final = 220
_COLOURS: Final = ("#2f6db5", "#d1495b", "#3b8f5a", "#b5832f", "#6b4fa0")

Anchor = Literal["start", "middle", "end"]


class Text(NamedTuple):
    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    colour: str = INK
    whole: str = ""  # what it stands for, if it was cut


class Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    colour: str


class Line(NamedTuple):
    points: tuple[tuple[float, float], ...]
    colour: str
    width: int


class Drawing(NamedTuple):
    height: int
    shapes: tuple[Text | Box | Line, ...]


class Cell(NamedTuple):
    text: str
    is_number: bool


class Table(NamedTuple):
    titles: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Section(NamedTuple):
    title: str
    part: Drawing | Table


class Page(NamedTuple):
    title: str
    sections: tuple[Section, ...]


def bars(rows: Sequence[tuple[str, float]], unit: str = "") -> Drawing:
    """One bar a row, the longest as wide as there is room."""
    most = max((value for _, value in rows), default=0) or 1
    room = WIDTH - _LABELS - 120
    shapes: list[Text | Box | Line] = []
    for index, (label, value) in enumerate(rows):
        y = index * _BAR
        width = max(1.0, value / most * room)
        shapes.append(Text(_LABELS - 8, y + 15, _short(label), "end", whole=label))
        shapes.append(Box(_LABELS, y + 3, width, _BAR - 6, _COLOURS[0]))
        shapes.append(Text(_LABELS + width + 6, y + 15, f"{figure(value)}{unit}"))
    return Drawing(len(rows) * _BAR, tuple(shapes))


def lines(labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str = "") -> Drawing:
    """One line a series over the same labels."""
    most = max((value for values in series.values() for value in values), default=0) or 1
    left, right, top = 70, 20, 10
    room = WIDTH - left - right
    steps = max(1, len(labels) - 1)
    shapes: list[Text | Box | Line] = []
    for share in (0, 0.5, 1):
        y = top + _PLOT_HEIGHT * (1 - share)
        shapes.append(Line(((left, y), (WIDTH - right, y)), GRID, 1))
        shapes.append(Text(left - 8, y + 4, f"{figure(most * share)}{unit}", "end"))
    for index, (name, values) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = tuple(
            (left + at * room / steps, top + _PLOT_HEIGHT * (1 - value / most)) for at, value in enumerate(values)
        )
        shapes.append(Line(points, colour, 2))
        shapes.append(Text(left + 8 + 150 * index, top + _PLOT_HEIGHT + 40, name, colour=colour))
    for at in sorted({0, len(labels) // 2, len(labels) - 1} & set(range(len(labels)))):
        anchor: Anchor = "start" if at == 0 else "end" if at == len(labels) - 1 else "middle"
        shapes.append(Text(left + at * room / steps, top + _PLOT_HEIGHT + 18, labels[at], anchor))
    return Drawing(_PLOT_HEIGHT + 60, tuple(shapes))


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    return Table(tuple(titles), tuple(tuple(map(_cell, row)) for row in rows))


def figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def _cell(value: object) -> Cell:
    if isinstance(value, int | float):
        return Cell(figure(value), is_number=True)
    return Cell("-" if value is None else str(value), is_number=False)


def _short(label: str) -> str:
    return label if len(label) <= 30 else f"{label[:29]}…"
