"""Charts as a page and as a picture: both show the same drawing."""

from __future__ import annotations

import io
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from orbitmq.cli.entry import cli
from orbitmq.errors import ConfigError
from orbitmq.spark import chart_image
from orbitmq.spark.chart_image import png_image
from orbitmq.spark.chart_page import html_page
from orbitmq.spark.charts import WIDTH, Page, Section, bars, lines, table

PAGE = Page(
    "Messages <in> numbers",
    (
        Section("By topic", bars([("Orders", 400.0), ("a topic with a name that nobody could read aloud", 100.0)])),
        Section(
            "By hour", lines(["10:00", "11:00", "12:00"], {"Orders": [1.0, 5.0, 2.0], "Payments": [0.0, 1.0, 4.0]})
        ),
        Section("By hour, once", lines(["10:00"], {"Orders": [3.0]})),
        Section("Nothing", bars([])),
        Section("Largest", table(("topic", "bytes", "id"), [("Orders", 5000, "7F00"), ("Заказы", 12.5, None)])),
    ),
)


def test_a_page_holds_what_was_drawn_and_escapes_names() -> None:
    text = html_page(PAGE)
    assert "<h1>Messages &lt;in&gt; numbers</h1>" in text
    assert "<title>a topic with a name that nobody could read aloud</title>" in text, "cut, and whole when pointed at"
    assert "<td class=n>5,000</td>" in text
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    widths = [float(bar.attrib["width"]) for bar in svg.iter("rect")]
    assert widths[0] == pytest.approx(4 * widths[1])


def test_a_picture_holds_the_same_bars() -> None:
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.open(io.BytesIO(png_image(PAGE)))
    assert image.format == "PNG"
    assert image.width > WIDTH
    blue = (0x2F, 0x6D, 0xB5)
    pixels = image.convert("RGB")
    by_row = [sum(pixels.getpixel((x, y)) == blue for x in range(0, image.width, 2)) for y in range(0, 400, 4)]
    lengths = sorted({length for length in by_row if length > 50})
    assert lengths[-1] == pytest.approx(4 * lengths[0], rel=0.05), "one bar is four times the other"


def test_a_picture_that_would_be_too_tall_is_refused_with_what_to_do() -> None:
    pytest.importorskip("PIL.Image")
    long = Page("Long", (Section("Bars", bars([(f"{number}", 1.0) for number in range(2000)])),))
    with pytest.raises(ConfigError, match=r"44,\d+ points high.*--html"):
        png_image(long)


def test_a_missing_library_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_image, "find_spec", lambda _: None)
    for command in (["stats", "-t", "Orders"], ["trace"]):
        failed = CliRunner().invoke(cli, ["spark", *command, "--png", "charts.png", "-n", "127.0.0.1:1"])
        assert failed.exit_code == 1
        assert 'pip install "orbitmq[plots]"' in failed.output
