"""A slave that does not step down when its master is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orbitmq.broker.replication import handing_back
from orbitmq.clock import ManualClock
from orbitmq.errors import RequestFailed
from orbitmq.protocol.codes import ResponseCode
from tests.nameserver.running import running as running_name_server
from tests.replication.kit import Group, wire
from tests.replication.test_acting import ACTING, all_alive, commit, committed, create_group, master_dies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orbitmq.broker.replication.acting import ActingMaster


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with running_name_server(tmp_path / "names", supportActingMaster=True) as name_server:
        group = Group(tmp_path, name_server, ManualClock())
        try:
            yield group
        finally:
            await group.stop_all()


async def acting_slave(group: Group) -> ActingMaster:
    """Its master is dead, and its consumers have got to 7."""
    master, slave = await group.master(**ACTING), await group.slave(**ACTING)
    await all_alive(slave, 0, 1)
    client = wire(master)
    for number in range(10):
        assert (await client.send("T", b"%d" % number)).code == 0
    await create_group(client)
    await client.close()
    await master_dies(group, master, slave)
    await commit(slave, 7)
    assert slave.state.acting is not None
    return slave.state.acting


def refused() -> RequestFailed:
    return RequestFailed(ResponseCode.NO_PERMISSION, "it may look, not change")


async def test_nothing_is_taken_back_before_the_slave_has_stepped_down(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acting = await acting_slave(group)
    step_down = acting.step_down
    tries = 0

    async def refuse_at_first() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise refused()
        await step_down()

    monkeypatch.setattr(acting, "step_down", refuse_at_first)
    monkeypatch.setattr(handing_back, "_AGAIN_SECONDS", 0.01)
    master = await group.master(**ACTING)
    assert tries == 3
    assert await committed(master) == 7
    assert not acting.is_acting
    assert caplog.text.count("does not step down") == 1, "said once, not with each try"
    assert "it may look, not change" in caplog.text


async def test_a_slave_that_never_steps_down_is_named_and_what_it_did_still_counts(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else all that it did would be done again, not only what it does in these moments."""
    acting = await acting_slave(group)

    async def refuse() -> None:
        raise refused()

    monkeypatch.setattr(acting, "step_down", refuse)
    monkeypatch.setattr(handing_back, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(handing_back, "_PATIENCE_SECONDS", 0.1)
    master = await group.master(**ACTING)
    assert await committed(master) == 7
    assert "goes on in this master's place" in caplog.text
