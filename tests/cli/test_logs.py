"""What servers write down: lines that strangers cause are few, and none of them is more than a line."""

from __future__ import annotations

import io
import logging

from orbitmq.cli import logs


def _line(
    message: str, *values: object, at: float, name: str = "orbitmq.x", level: int = logging.WARNING
) -> logging.LogRecord:
    record = logging.LogRecord(name, level, __file__, 1, message, values, None)
    record.created = at
    return record


def _written(records: list[logging.LogRecord]) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs._OneLine("%(message)s"))
    handler.addFilter(logs.FewAlike())
    for record in records:
        handler.handle(record)
    return out.getvalue().splitlines()


def test_of_one_kind_of_line_a_hundred_are_written_and_the_next_tells_of_the_rest() -> None:
    flood = [_line("refused %d", number, at=1000 + number / 1000) for number in range(5_000)]
    other = [_line("something else", at=1004.9), _line("refused %d", 7, at=1010.1), _line("refused %d", 8, at=1010.2)]
    assert _written(flood + other) == [
        *(f"refused {number}" for number in range(100)),
        "something else",
        "refused 7 (and 4,900 more such lines before it)",
        "refused 8",
    ]


def test_what_operators_did_is_all_written_down() -> None:
    done = [_line("%d: done", number, at=1000, name="orbitmq.audit", level=logging.INFO) for number in range(300)]
    refused = [_line("refused %d", number, at=1000, name="orbitmq.audit") for number in range(300)]
    assert len(_written(done + refused)) == 300 + 100


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    lines = [_line("x", at=2000) for _ in range(200)] + [_line("x", at=500)]
    assert _written(lines)[-1] == "x (and 100 more such lines before it)"


def test_no_name_starts_a_line_of_its_own() -> None:
    assert _written([_line("refused %s", "a\n2026 INFO done\x1b[2J", at=0)]) == ["refused a\\x0a2026 INFO done\\x1b[2J"]
