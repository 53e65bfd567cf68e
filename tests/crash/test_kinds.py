"""Delays, timers, transactions, retries and leases under kills: promises are kept, and a broker that breaks one is caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash import promised_kinds
from tests.crash.kinds import LedgerOfKinds
from tests.marks import LEDGER

if TYPE_CHECKING:
    from pathlib import Path


@LEDGER
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_promise_is_broken_by_kills(tmp_path: Path) -> None:
    async with LedgerOfKinds(tmp_path, seed=20261115) as ledger:
        await ledger.run(kills=4)

        assert ledger.broken() == []
        assert len(ledger.kinds.seen) > 20, ledger.figures()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("variants", "kills", "complaints"),
    [
        ("early_timers,commits_twice,acks_without_storing", 0, ("ms early", "committed 2 times", "is lost")),
        ("forgotten_timers,visible_halves", 1, ("is lost", "was never committed")),
    ],
)
async def test_a_broker_that_breaks_promises_is_caught(
    tmp_path: Path, variants: str, kills: int, complaints: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promised_kinds, "SETTLE_SECONDS", 4.0)  # what is lost does not come
    async with LedgerOfKinds(tmp_path, seed=7, broken_on_purpose=variants) as ledger:
        await ledger.run(kills)

        broken = ledger.broken()
        for complaint in complaints:
            assert any(complaint in line for line in broken), (complaint, broken[:5])
