from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from orbitmq.message.moments import moment_at


def test_a_time_is_the_moment_it_says() -> None:
    assert moment_at(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


@pytest.mark.parametrize("at_ms", [-(2**63), 2**63 - 1, 1_700_000_000_123 * 1_000_000])
def test_a_time_beyond_all_calendars_is_one_that_every_zone_can_show(at_ms: int) -> None:
    for hours in (-12, 14):
        assert moment_at(at_ms).astimezone(timezone(timedelta(hours=hours))).year in (1, 9999)
