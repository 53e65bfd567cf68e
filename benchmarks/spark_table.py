"""The Spark benchmark as a table: each of our jobs beside Kafka's, the yard-stick, and what was aimed at.

Ratios of rows a second are ours to theirs and should be at least the aim; those of latencies should be at most 1.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

LATENCY: Final = "latency at 200 messages a second"


class Line(NamedTuple):
    job: str
    kafka: str
    yard_stick: str
    aim: float


LINES: Final = (
    Line("source -> noop", "Kafka, tuned: source -> noop", "generator -> noop", 1.0),
    Line("source -> parquet", "Kafka, tuned: source, map -> parquet", "generator -> parquet", 1.0),
    Line("availableNow -> noop", "Kafka, tuned: availableNow -> noop", "generator -> noop", 1.0),
    Line("archive", "Kafka, tuned: source, map -> parquet", "generator -> parquet", 1.0),
    Line("store scan -> noop", "Kafka, tuned: source -> noop", "generator -> noop", 1.5),
    Line("store scan -> parquet", "Kafka, tuned: source, map -> parquet", "generator -> parquet", 1.0),
    Line("export-store", "Kafka, tuned: source, map -> parquet", "generator -> parquet", 3.0),
    Line("sink", "Kafka: sink", "generator -> noop", 0.8),
)


def table(figures: dict[str, Any], bodies: list[int]) -> list[str]:
    """Lines of text; what was not measured is a dash."""
    rows = [("", "ours", "Kafka's", "ratio", "aim", "yard-stick")]
    for size in bodies:
        for line in LINES:
            ours, theirs, ceiling = (
                _rate(figures, f"{size} B {name}") for name in (line.job, line.kafka, line.yard_stick)
            )
            ratio = f"{ours / theirs:.2f}" if ours and theirs else "-"
            rows.append((f"{size} B {line.job}", _text(ours), _text(theirs), ratio, f">= {line.aim}", _text(ceiling)))
    for name, ours in figures.get(LATENCY, {}).get("ours", {}).items():
        theirs = figures[LATENCY].get("Kafka, tuned", {}).get(name)
        if name.endswith(("median", "p99")):
            ratio = f"{ours / theirs:.2f}" if theirs else "-"
            rows.append((name, _text(ours), _text(theirs), ratio, "<= 1.0" if name.endswith("median") else "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{widths[0]}}" if not at else f"{cell:>{widths[at]}}" for at, cell in enumerate(row))
        for row in rows
    ]


def _rate(figures: dict[str, Any], name: str) -> float | None:
    found = figures.get(name)
    return found["rows a second"] if found else None


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
