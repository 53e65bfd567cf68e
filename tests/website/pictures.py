"""The drawings of docs/concepts.md, from a few lines each: `python -m tests.website.pictures` writes them, a test compares."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

FOLDER: Final = Path(__file__).parent.parent.parent / "docs" / "pictures"
_HEAD: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{title}">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">\
<path d="M0 0L10 5L0 10z" fill="#475569"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
"""
_FILLS: Final = {"client": "#dbeafe", "server": "#fef3c7", "queue": "#dcfce7", "bad": "#fee2e2", "plain": "#f1f5f9"}


class Drawing:
    """Boxes and arrows between points."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._parts = [_HEAD.format(title=escape(title), width=width, height=height)]

    def box(self, x: int, y: int, width: int, height: int, text: str, fill: str = "plain") -> None:
        """Lines of `text`, in the middle."""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{_FILLS[fill]}" stroke="#475569"/>\n'
        )
        lines = text.split("\n")
        first = y + height / 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self._text(x + width / 2, first + 18 * number, line)

    def arrow(self, start: tuple[int, int], end: tuple[int, int], label: str = "", *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        (x1, y1), (x2, y2) = start, end
        self._parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#475569"{dash} marker-end="url(#tip)"/>\n'
        )
        if label:
            self._text((x1 + x2) / 2, (y1 + y2) / 2 - 7, label, size=12)

    def note(self, x: float, y: float, text: str) -> None:
        self._text(x, y, text, size=12)

    def _text(self, x: float, y: float, text: str, size: int = 14) -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="#0f172a">{escape(text)}</text>\n'
        )

    def svg(self) -> str:
        return "".join(self._parts) + "</svg>\n"


def cluster() -> Drawing:
    drawing = Drawing("A cluster: name servers know where topics are, brokers keep messages", 760, 300)
    drawing.box(20, 120, 120, 60, "producer", "client")
    drawing.box(620, 120, 120, 60, "consumer", "client")
    drawing.box(300, 20, 160, 50, "name servers", "server")
    drawing.box(300, 110, 160, 50, "broker a, master", "server")
    drawing.box(300, 180, 160, 50, "broker b, master", "server")
    drawing.box(300, 250, 160, 40, "broker b, slave", "server")
    drawing.arrow((80, 120), (300, 50), "1. where is topic T?", dashed=True)
    drawing.arrow((140, 140), (300, 135), "2. send")
    drawing.arrow((140, 160), (300, 205))
    drawing.arrow((680, 120), (460, 50), "1. where is topic T?", dashed=True)
    drawing.arrow((620, 140), (460, 135), "3. pull")
    drawing.arrow((620, 160), (460, 205))
    drawing.arrow((380, 110), (380, 70))
    drawing.note(440, 95, "I am here")
    drawing.arrow((380, 230), (380, 250))
    drawing.note(480, 244, "copies of the log")
    return drawing


def queues() -> Drawing:
    drawing = Drawing("A topic is queues; each queue of a topic goes to one member of a group", 760, 270)
    drawing.box(20, 95, 110, 60, "producers", "client")
    for number in range(4):
        drawing.box(250, 20 + 58 * number, 180, 42, f"queue {number}:  0 1 2 3 …", "queue")
        drawing.arrow((130, 125), (250, 41 + 58 * number))
    drawing.note(340, 262, "topic Orders")
    drawing.box(570, 40, 170, 50, "group billing, member 1", "client")
    drawing.box(570, 150, 170, 50, "group billing, member 2", "client")
    for number, y in enumerate((55, 75, 165, 185)):
        drawing.arrow((430, 41 + 58 * number), (570, y))
    drawing.note(655, 225, "another group gets everything once more")
    return drawing


def life() -> Drawing:
    drawing = Drawing("The life of a message that fails", 760, 230)
    drawing.box(20, 30, 120, 50, "topic Orders", "queue")
    drawing.box(230, 30, 130, 50, "your handler", "client")
    drawing.box(470, 30, 120, 50, "done: acked", "plain")
    drawing.box(230, 150, 130, 50, "%RETRY%group", "queue")
    drawing.box(470, 150, 120, 50, "%DLQ%group", "bad")
    drawing.arrow((140, 55), (230, 55))
    drawing.arrow((360, 55), (470, 55), "it returns")
    drawing.arrow((275, 80), (275, 150))
    drawing.note(220, 120, "it raises")
    drawing.arrow((320, 150), (320, 80))
    drawing.note(415, 120, "again, after 10 s, 30 s, 1 m …")
    drawing.arrow((360, 175), (470, 175), "16 times")
    drawing.note(660, 172, "orbitmq dlq ls,")
    drawing.note(660, 188, "resend, export")
    return drawing


def transaction() -> Drawing:
    drawing = Drawing("A transaction: the message is seen when the producer's own work is done", 760, 210)
    drawing.box(20, 70, 130, 60, "producer", "client")
    drawing.box(330, 70, 130, 60, "broker", "server")
    drawing.box(620, 70, 120, 60, "consumer", "client")
    drawing.arrow((150, 85), (330, 85), "1. half message")
    drawing.arrow((150, 115), (330, 115), "3. commit or rollback")
    drawing.arrow((330, 145), (150, 145), "4. no word? what became of it?", dashed=True)
    drawing.arrow((460, 100), (620, 100), "5. committed: delivered")
    drawing.note(85, 55, "2. its own work")
    return drawing


DRAWINGS: Final = {"cluster": cluster, "queues": queues, "life": life, "transaction": transaction}


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    write()
