"""What the weakest mode may lose is excused to the moment: a checker that forgives more would forgive bugs."""

from __future__ import annotations

import pytest

from orbitmq.message.message import StoredMessage
from orbitmq.transport.address import Address
from tests.crash.promised_kinds import Promise, PromisedKinds
from tests.faults.leases import LeaseLedger
from tests.faults.library import LibraryLedger, Place, Sent
from tests.faults.losses import UNFLUSHED_SECONDS, Losses, Window
from tests.faults.orders import Orders, body_of
from tests.faults.progress import Committed
from tests.faults.timeline import Timeline

CUT = Window(6.0, 8.0)
BEFORE, WITHIN, AFTER = 5.9, 7.0, 8.1


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(started_ms=1_000_000)


@pytest.fixture
def losses(timeline: Timeline) -> Losses:
    losses = Losses(timeline)
    losses.windows.append(CUT)
    return losses


def test_a_window_begins_as_long_before_a_power_cut_as_a_flush_may_be_late_and_ends_with_the_next_start() -> None:
    timeline = Timeline()
    losses = Losses(timeline)
    window = losses.begin()
    cut_at = window.begun + UNFLUSHED_SECONDS
    assert losses.may_include(cut_at - UNFLUSHED_SECONDS + 0.1)
    assert not losses.may_include(cut_at - UNFLUSHED_SECONDS - 0.1)
    losses.end(window)
    assert cut_at <= window.ended
    assert not losses.may_include(window.ended + 0.1)


def test_a_plain_message_is_excused_within_the_window_only(losses: Losses) -> None:
    orders = Orders(losses)
    for number, at in enumerate((BEFORE, WITHIN, AFTER)):
        orders.tried(f"order-0-{number}", 0, number)
        orders.acked(f"order-0-{number}", number, at)
    broken, lost = orders.check({0: []})
    assert [line.split(" was")[0] for line in broken] == ["lost: order-0-0", "lost: order-0-2"]
    assert lost == 1


def test_a_number_is_given_out_twice_only_after_a_loss(losses: Losses, timeline: Timeline) -> None:
    orders = Orders(losses)
    for number, (old, new) in enumerate([(BEFORE, AFTER), (WITHIN, AFTER)]):
        for name, at in ((f"old-{number}", old), (f"new-{number}", new)):
            orders.tried(name, 0, number)
            orders.acked(name, number, at)
        lagging = _stored(f"old-{number}", number, timeline.started_ms + round(old * 1000))
        orders.read("a slave", 0, lagging)
    assert [line.split(" serves ")[1].split(" at ")[0] for line in orders.broken] == ["old-0"]


def test_a_master_may_miss_only_what_it_may_have_lost(losses: Losses) -> None:
    orders = Orders(losses)
    for offset, at in enumerate((BEFORE, WITHIN)):
        orders.tried(f"order-0-{offset}", 0, offset)
        orders.acked(f"order-0-{offset}", offset, at)
    orders.master_ends_at("the master", 0, 9.0, 1)
    assert orders.broken == []
    orders.master_ends_at("the master", 0, 9.0, 0)
    assert len(orders.broken) == 1
    assert orders.broken[0].startswith("stale")


def test_a_delay_and_a_decision_are_excused_by_when_they_were_answered(losses: Losses, timeline: Timeline) -> None:
    kinds = PromisedKinds(1, lambda: Address("127.0.0.1", 1))
    kinds.may_be_lost = losses.may_include_ms
    for name, at in (("before", BEFORE), ("within", WITHIN), ("after", AFTER)):
        at_ms = timeline.started_ms + round(at * 1000)
        kinds.promises[f"delay {name}"] = Promise("Delayed", 0, acked=True, acked_ms=at_ms)
        half = Promise("Payments", 0, acked=True, acked_ms=0, decisions=1, committed=True, committed_ms=at_ms)
        kinds.promises[f"payment {name}"] = half
    missing = {"delay before", "payment before", "delay after", "payment after"}
    assert set(kinds.broken()) == {f"{name} was acknowledged and is lost" for name in missing}
    assert set(kinds.excused()) == {"delay within", "payment within"}


def test_a_leased_message_is_excused_by_when_it_was_sent_and_not_by_its_lease(losses: Losses) -> None:
    ledger = LeaseLedger(losses, sent={"before": BEFORE, "within": WITHIN, "after": AFTER})
    ledger.note_given("before", WITHIN, WITHIN)  # not acknowledged, and the lease forgotten: it has to come again
    ledger.forget_since(CUT.begun)
    assert ledger.open() == ["before", "after"]
    ledger.note_given("before", AFTER, AFTER)
    assert ledger.broken == []


def test_a_consumer_may_pass_over_a_number_that_it_has_read(losses: Losses) -> None:
    ledger = LibraryLedger(losses)
    for number, (name, at) in enumerate([("before", BEFORE), ("within", WITHIN), ("after", AFTER), ("again", AFTER)]):
        ledger.sent[name] = Sent(at, Place(0, number))
    ledger.note_received("lost", Place(0, 3))
    assert ledger.missing() == ["before", "after"]
    assert ledger.excused() == ["within", "again"]


def test_a_commit_is_forgotten_if_a_crash_came_before_it_was_saved_and_not_for_being_heard_of_late() -> None:
    committed = Committed(answered=[(3.9, 1), (5.0, 2), (7.0, 3)])
    assert committed.floor(9.0, [CUT], unsafe_seconds=2.0) == 1
    committed.answered.append((AFTER, 4))
    assert committed.floor(9.0, [CUT], unsafe_seconds=2.0) == 4


def _stored(name: str, queue_offset: int, stored_at_ms: int) -> StoredMessage:
    return StoredMessage(
        topic="Orders", queue_id=0, queue_offset=queue_offset, body=body_of(name), properties={}, raw_properties=b"",
        flag=0, sys_flag=0, born_at_ms=0, born_host=b"", stored_at_ms=stored_at_ms, store_host=b"", reconsume_times=0,
        prepared_transaction_offset=0, commit_log_offset=0, size=0, body_crc=0,
    )  # fmt: skip
