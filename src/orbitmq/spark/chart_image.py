"""Charts as a PNG picture, for reports and chats that show no HTML. Needs `pip install "orbitmq[plots]"` (Pillow)."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import ConfigError
from orbitmq.spark.charts import GRID, WIDTH, Box, Table, Text

if TYPE_CHECKING:
    from orbitmq.spark.charts import Drawing, Line, Page

_SCALE: Final = 2  # pixels for one of a drawing: screens have that many, and print wants more
_MARGIN: Final = 24
_TITLE: Final = 24
_HEADING: Final = 17
_SMALL: Final = 12
_ROW: Final = 20
_BETWEEN_COLUMNS: Final = 14
_TALLEST: Final = 20_000
_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}  # Pillow's: where on the line, and that y is its base


def check_pictures() -> None:
    """ConfigError where none can be drawn: to be asked before minutes are spent on what it would show."""
    if find_spec("PIL") is None:
        raise ConfigError(
            "pictures need the package Pillow, which is not installed here",
            hint='pip install "orbitmq[plots]", or take --html, which needs nothing',
        )


def png_image(page: Page) -> bytes:
    check_pictures()
    from PIL import Image

    height = _height(page)
    if height > _TALLEST:
        raise ConfigError(
            f"the picture would be {height:,} points high; {_TALLEST:,} are drawn at most",
            hint="--html has room for more, and --top shortens the lists",
        )
    image = Image.new("RGB", ((WIDTH + 2 * _MARGIN) * _SCALE, height * _SCALE), "white")
    _Pen(image).draw(page)
    written = io.BytesIO()
    image.save(written, "png", optimize=True)
    return written.getvalue()


def _height(page: Page) -> int:
    parts = (part for _, part in page.sections)
    sizes = [_ROW * (len(part.rows) + 1) if isinstance(part, Table) else part.height for part in parts]
    return _MARGIN + 2 * _TITLE + sum(3 * _HEADING + size for size in sizes) + _MARGIN


class _Pen:
    """Draws from top to bottom."""

    def __init__(self, image: Any) -> None:
        from PIL import ImageDraw, ImageFont

        self._paper = ImageDraw.Draw(image)
        self._fonts = {size: ImageFont.load_default(size * _SCALE) for size in (_TITLE, _HEADING, _SMALL)}
        self._top = float(_MARGIN)

    def draw(self, page: Page) -> None:
        self._text(Text(0, _TITLE, page.title), _TITLE)
        self._top += 2 * _TITLE
        for title, part in page.sections:
            self._text(Text(0, 2 * _HEADING, title), _HEADING)
            self._top += 3 * _HEADING
            if isinstance(part, Table):
                self._table(part)
            else:
                self._drawing(part)

    def _drawing(self, drawing: Drawing) -> None:
        for shape in drawing.shapes:
            if isinstance(shape, Text):
                self._text(shape, _SMALL)
            elif isinstance(shape, Box):
                corners = [(shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height)]
                self._paper.rectangle([self._at(x, y) for x, y in corners], shape.colour)
            else:
                self._line(shape)
        self._top += drawing.height

    def _table(self, table: Table) -> None:
        """Columns as wide as their widest text."""
        rows = [table.titles, *(tuple(cell.text for cell in row) for row in table.rows)]
        columns = list(zip(*rows, strict=True))
        widths = [max(map(self._width, column)) + _BETWEEN_COLUMNS for column in columns]
        edges = [sum(widths[:index]) for index in range(len(widths))]
        for number, row in enumerate(rows):
            for index, text in enumerate(row):
                is_number = number > 0 and table.rows[number - 1][index].is_number
                x = edges[index] + (widths[index] - _BETWEEN_COLUMNS if is_number else 0)
                self._text(Text(x, _ROW - 6, text, "end" if is_number else "start"), _SMALL)
            self._top += _ROW
            self._paper.line([self._at(0, -1), self._at(sum(widths), -1)], GRID, _SCALE)

    def _line(self, line: Line) -> None:
        points = [self._at(x, y) for x, y in line.points]
        if len(points) == 1:  # a line of one point is none: a dot
            (x, y) = points[0]
            self._paper.ellipse([x - 2 * _SCALE, y - 2 * _SCALE, x + 2 * _SCALE, y + 2 * _SCALE], line.colour)
        else:
            self._paper.line(points, line.colour, line.width * _SCALE, joint="curve")

    def _text(self, text: Text, size: int) -> None:
        self._paper.text(self._at(text.x, text.y), text.text, text.colour, self._fonts[size], _ANCHORS[text.anchor])

    def _width(self, text: str) -> float:
        return self._paper.textlength(text, self._fonts[_SMALL]) / _SCALE

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (_MARGIN + x) * _SCALE, (self._top + y) * _SCALE
