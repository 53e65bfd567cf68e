"""Background work: what ends it, what does not, and who hears of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from orbitmq.errors import OrbitError
from orbitmq.tasks import Once, Tasks, every, shared
from tests.raw_client import until


async def awaits_what_was_cancelled() -> None:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


async def test_a_job_that_raises_is_reported_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    turns = 0

    async def job() -> None:
        nonlocal turns
        turns += 1
        if turns <= 3:
            raise ValueError("a bug")
        if turns <= 6:
            await awaits_what_was_cancelled()

    running = asyncio.create_task(every(0, job, "the job"))
    await until(lambda: turns >= 8)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [record.getMessage() for record in caplog.records] == [
        "the job fails: ValueError('a bug')",
        "the job works again",
    ]


async def test_a_cancelled_job_ends_also_while_it_cleans_up() -> None:
    began = asyncio.Event()

    async def job() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            raise OrbitError("it could not clean up")

    running = asyncio.create_task(every(0, job, "the job"))
    await began.wait()
    running.cancel()
    with pytest.raises(OrbitError):
        await running


async def test_a_task_that_anothers_cancellation_ended_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()
    waiting = tasks.start(asyncio.Event().wait(), "the patient one")
    ended = tasks.start(awaits_what_was_cancelled(), "the unlucky one")
    assert waiting is not None
    assert ended is not None
    await asyncio.wait([ended])
    await tasks.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the unlucky one ended, though nobody cancelled it: what it waited for was cancelled"
    ]


async def test_who_waits_for_a_task_that_is_given_up_is_not_cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    waiting = [asyncio.create_task(shared(task, lambda: OrbitError("given up"))) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert not task.done()
    task.cancel()
    for one in waiting[1:]:
        with pytest.raises(OrbitError, match="given up"):
            await one


async def test_what_is_done_once_goes_on_without_who_began_it() -> None:
    done: list[int] = []
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.append(1)

    once = Once()
    first = asyncio.create_task(once.run(work, "the work"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    await asyncio.gather(once.run(work, "the work"), once.run(work, "the work"))
    assert done == [1]


async def test_a_failure_that_nobody_waits_for_any_more_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("a bug")

    once = Once()
    first = asyncio.create_task(once.run(work, "the work"))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await until(lambda: caplog.records)
    assert "the work ended with ValueError('a bug')" in caplog.text
