"""A minute of the proving ground; `make soak` is the rest. Each checker is seen to complain of a broker that deserves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crash import promised_kinds
from tests.faults import leases, life
from tests.faults.broken import VARIANTS
from tests.faults.cluster import MODES
from tests.faults.life import Life
from tests.faults.outcome import RULES, rule_of
from tests.faults.plan import KINDS, Fault, make_plan
from tests.faults.report import write_report

if TYPE_CHECKING:
    from pathlib import Path


SEED = 20261115  # `make soak` takes others
CHOSEN = (
    Fault(1.5, "freeze", 1, 1.0, 1),
    Fault(2.0, "name server killed", 0, 1.0, 1),
    Fault(2.5, "power cut", 0, 0.2, 3),
    Fault(3.0, "stall connections", 2, 1.0, 1),
    Fault(5.0, "full disk", 1, 0.5, 1),
    Fault(6.0, "cut connections", 0, 0.1, 1),
    Fault(7.0, "failing sync", 2, 0.3, 2),
    Fault(8.0, "promotion", 0, 0.1, 4),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_promise_is_broken_by_one_fault_of_each_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shorten_leases(monkeypatch)
    outcome = await Life(tmp_path / "cluster", SEED, 10.0, MODES["sync"]).live(list(CHOSEN))
    assert outcome.broken == []
    assert outcome.figures["sends acknowledged"] > 50
    assert outcome.faults().keys() == {fault.kind for fault in CHOSEN}
    write_report(tmp_path / "report.md", "One of each", [outcome])
    page = (tmp_path / "report.md").read_text()
    assert "| acknowledged messages lost | 0 |" in page
    assert "power cut" in (tmp_path / "report.svg").read_text()


# What breaks which rule (tests/faults/broken.py). Two in one build must not hide each other, hence two builds.
WITHOUT_SLAVES = {
    "loses_messages": "lost",
    "swaps_messages": "order",
    "shows_late": "stale",
    "skips_messages": "gap",
    "forgets_commits": "offset regress",
    "early_timers": "kind",
    "visible_halves": "half",
    "ignores_acks": "lease",
    "loses_what_the_library_sent": "client",
    "stops_badly": "process",
}
WITH_A_SLAVE = {
    "doubles_messages": "duplicate",
    "invents_messages": "phantom",
    "wrong_receipts": "moved",
    "invents_commits": "offset phantom",
    "commits_twice": "kind",
    "leases_twice": "lease",
    "damages_copies": "copy",
}
FOLLOWS = {"wrong_receipts": "changed"}  # another rule that a build breaks as well


def test_every_rule_has_a_build_that_breaks_it() -> None:
    assert {*WITHOUT_SLAVES.values(), *WITH_A_SLAVE.values(), *FOLLOWS.values()} == RULES.keys()
    assert {*WITHOUT_SLAVES, *WITH_A_SLAVE} <= VARIANTS.keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("builds", "slaves", "mode"),
    [(WITHOUT_SLAVES, 0, "async"), (WITH_A_SLAVE, 1, "async-copies")],
    ids=["alone", "with a slave"],
)
async def test_a_broker_that_breaks_promises_is_caught(
    tmp_path: Path, builds: dict[str, str], slaves: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the weakest mode too: nobody loses power here, so nothing is excused."""
    rules = {*builds.values(), *(rule for build, rule in FOLLOWS.items() if build in builds)}
    monkeypatch.setattr(promised_kinds, "SETTLE_SECONDS", 2.0)  # what is lost does not come
    monkeypatch.setattr(life, "SOON_SECONDS", 3.0)
    monkeypatch.setattr(life, "QUIET_SECONDS", 3.0)  # what is never acknowledged is leased for ever
    _shorten_leases(monkeypatch)
    brokers = Life(
        tmp_path / "cluster", 7, 3.0, MODES[mode], pause_seconds=0.02, slaves=slaves, name_servers=1,
        variants=",".join(builds), wanted=frozenset(rules),
    )  # fmt: skip
    outcome = await brokers.live([])
    assert rules <= {rule_of(complaint) for complaint in outcome.broken}, outcome.broken[:30]
    assert {rule_of(complaint) for complaint in outcome.broken} <= RULES.keys()


def _shorten_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's clock is wrong here, so that they may end soon."""
    monkeypatch.setattr(leases, "LEASE_MS", 1500)
    monkeypatch.setattr(leases, "SURE_SECONDS", 1.4)


def test_a_plan_can_be_made_again_and_has_faults_of_every_kind() -> None:
    plan = make_plan(7, 3600, MODES["sync"])
    assert plan == make_plan(7, 3600, MODES["sync"])
    assert plan != make_plan(8, 3600, MODES["sync"])
    assert {fault.kind for fault in plan} == {kind.name for kind in KINDS}
    assert {fault.target for fault in plan} == {0, 1, 2}


def test_without_copies_nobody_is_promoted() -> None:
    for name in ("async", "async-copies"):
        assert "promotion" not in {fault.kind for fault in make_plan(7, 3600, MODES[name])}
