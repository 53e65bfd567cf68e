"""Apps: declared handlers, published messages, start and stop; and the command that runs them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orbitmq import App, Message, connect
from orbitmq.cli.run import load_app, source_stamps
from orbitmq.errors import AlreadyClosed, ConfigError, ConnectFailed
from orbitmq.testing.server import Server
from tests.child import child
from tests.client.scripted import ScriptedCluster, eventually, scripted_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with scripted_cluster(topics={"Orders": 2, "Invoices": 1}) as cluster:
        yield cluster


async def test_an_app_handles_and_publishes(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)
    steps: list[str] = []

    @app.on_start
    async def open_database() -> None:
        steps.append("open")

    @app.on_stop
    async def close_database() -> None:
        steps.append("close")

    @app.subscriber("Orders", group="billing", start="earliest", concurrency=2)
    async def on_order(order: dict[str, int]) -> None:
        steps.append("order")
        await app.publish("Invoices", {"total": order["price"] * 2}, tag="new")

    cluster.broker.put("Orders", 0, b'{"price":21}')
    async with app:
        await eventually(lambda: cluster.broker.queues["Invoices", 0])
    [invoice] = cluster.broker.queues["Invoices", 0]
    assert (invoice.body, invoice.tags) == (b'{"total":42}', "new")
    assert steps == ["open", "order", "close"]
    assert cluster.broker.offsets["billing", "Orders", 0] == 1


async def test_a_handler_stays_an_ordinary_function(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)

    @app.subscriber("Orders", group="billing")
    def on_order(message: Message) -> None:
        message.properties["seen"] = "1"

    message = Message("Orders", b"x")
    on_order(message)
    assert message.properties == {"seen": "1"}


async def test_an_app_publishes_in_message_groups(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)
    async with app:
        places = {(await app.publish("Orders", b"x", message_group="user-7")).queue for _ in range(4)}
    [place] = places
    assert {one.properties["__SHARDINGKEY"] for one in cluster.broker.queues["Orders", place.queue_id]} == {"user-7"}


async def test_an_app_that_is_not_running_says_so(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)
    with pytest.raises(AlreadyClosed, match="not running"):
        await app.publish("Orders", b"x")
    async with app:
        with pytest.raises(ConfigError, match="running already"):
            await app.start()


async def test_a_failed_start_closes_what_was_opened() -> None:
    app = App("127.0.0.1:1")
    stopped: list[int] = []

    @app.on_stop
    async def stop() -> None:
        stopped.append(1)

    app.subscriber("Orders", group="billing")(lambda message: None)
    with pytest.raises(ConnectFailed):
        await app.start()
    assert stopped == [1]


async def test_serve_ends_when_told_and_finishes_what_runs(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)
    done: list[bytes] = []

    @app.subscriber("Orders", group="billing", start="earliest")
    async def on_order(message: Message) -> None:
        app.shut_down()
        await asyncio.sleep(0.02)
        done.append(message.body)

    cluster.broker.put("Orders", 0, b"last")
    async with asyncio.timeout(10):
        await app.serve()
    assert done == [b"last"]
    assert cluster.broker.offsets["billing", "Orders", 0] == 1


@pytest.mark.parametrize("goes_on", [False, True])
async def test_an_app_that_is_told_to_end_while_it_starts_ends_its_start_and_runs_what_it_declared_for_its_stop(
    cluster: ScriptedCluster, goes_on: bool
) -> None:
    app = App(cluster.address)
    steps: list[str] = []

    @app.on_start
    async def start() -> None:
        steps.append("starts")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            steps.append("cancelled")
            if not goes_on:
                raise

    @app.on_stop
    async def stop() -> None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        steps.append(f"stopped, {task.cancelling()} cancellations left")

    app.subscriber("Orders", group="billing")(lambda message: None)
    serving = asyncio.create_task(app.serve())
    await eventually(lambda: steps)
    app.shut_down()
    app.shut_down()
    async with asyncio.timeout(10):
        await serving
    assert steps == ["starts", "cancelled", "stopped, 0 cancellations left"]
    assert cluster.broker.members["billing"] == {}
    with pytest.raises(AlreadyClosed, match="not running"):
        await app.publish("Orders", b"x")


async def test_what_on_stop_declared_runs_though_some_of_it_fails(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(cluster.address)
    steps: list[int] = []

    @app.on_stop
    async def last() -> None:
        steps.append(1)

    @app.on_stop
    async def fails_too() -> None:
        raise ValueError("this one, too")

    @app.on_stop
    async def fails() -> None:
        raise ZeroDivisionError

    for turn in (1, 2):  # an app may start again
        with pytest.raises(ZeroDivisionError):
            async with app:
                await app.publish("Orders", b"x")
        assert len(steps) == turn
    assert "this one, too" in caplog.text


async def test_who_cancels_an_app_that_starts_hears_that_it_was_cancelled() -> None:
    app = App("127.0.0.1:1")
    steps: list[str] = []

    @app.on_start
    async def start() -> None:
        steps.append("starts")
        await asyncio.Event().wait()

    @app.on_stop
    async def stop() -> None:
        steps.append("stopped")

    serving = asyncio.create_task(app.serve())
    await eventually(lambda: steps)
    serving.cancel()
    app.shut_down()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert steps == ["starts", "stopped"]


async def test_an_app_runs_in_any_thread(cluster: ScriptedCluster) -> None:
    app = App(cluster.address)
    steps: list[object] = []

    @app.on_stop
    async def stopped() -> None:
        steps.append("stopped")

    @app.subscriber("Orders", group="billing", start="earliest")
    async def on_order(body: bytes) -> None:
        steps.append(body)

    cluster.broker.put("Orders", 0, b"x")
    running = asyncio.create_task(asyncio.to_thread(app.run))
    await eventually(lambda: ("billing", "Orders", 0) in cluster.broker.offsets and steps)
    await asyncio.sleep(0.3)  # nothing is left for it to do that would make it look up
    app.shut_down()
    await asyncio.wait_for(running, 1)
    assert steps == [b"x", "stopped"]
    app.shut_down()  # which has happened


def test_the_command_finds_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_for_test.py").write_text("from orbitmq import App\napp = App('127.0.0.1:9876')\nother = 1\n")
    (tmp_path / "broken_for_test.py").write_text("import json\napp = 1 / 0\n")
    (tmp_path / "unwritten_for_test.py").write_text("app = (\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert isinstance(load_app("shop_for_test:app"), App)
    for wrong, complaint in (
        ("shop_for_test", "names no app"),
        ("shop_for_test:missing", "shop_for_test has no missing"),
        ("no_such_module:app", "No module named 'no_such_module'"),
        ("broken_for_test:app", r"cannot load .*ZeroDivisionError: .*broken_for_test\.py, line 2"),
        ("unwritten_for_test:app", r"cannot load .*SyntaxError: .*unwritten_for_test\.py, line 1"),
        ("shop_for_test:other", "is a int, not an App"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            load_app(wrong)


async def test_the_command_runs_workers_until_it_is_told_to_stop(cluster: ScriptedCluster, tmp_path: Path) -> None:
    (tmp_path / "worker_for_test.py").write_text(
        "from orbitmq import App\n"
        f"app = App({cluster.address!r})\n"
        "@app.subscriber('Orders', group='billing', start='earliest')\n"
        "async def on_order(body: bytes) -> None:\n"
        "    await app.publish('Invoices', body)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from orbitmq.cli.run import run; run()", "worker_for_test:app", cwd=tmp_path
    )
    try:
        cluster.broker.put("Orders", 1, b"hello")
        await eventually(lambda: cluster.broker.queues["Invoices", 0], seconds=20)
    finally:
        process.terminate()
        async with asyncio.timeout(20):
            status = await process.wait()
    assert status == 0
    assert cluster.broker.offsets["billing", "Orders", 1] == 1
    assert cluster.broker.members["billing"] == {}


async def test_the_command_ends_an_app_that_hangs_in_its_start(tmp_path: Path) -> None:
    (tmp_path / "hanging_for_test.py").write_text(
        "import asyncio\n"
        "from orbitmq import App\n"
        "app = App('127.0.0.1:1')\n"
        "@app.on_start\n"
        "async def start() -> None:\n"
        "    print('starts', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "@app.on_stop\n"
        "async def stop() -> None:\n"
        "    print('stopped', flush=True)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from orbitmq.cli.run import run; run()", "hanging_for_test:app", cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert await process.stdout.readline() == b"starts\n"
        process.terminate()
        assert await process.stdout.read() == b"stopped\n"
        assert await process.wait() == 0


@pytest.mark.timeout(180)
def test_workers_that_end_at_once_are_started_again_with_growing_pauses_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "lost_for_test.py").write_text(
        "from orbitmq import App\n"
        "app = App('127.0.0.1:1')\n"
        "@app.subscriber('Orders', group='billing')\n"
        "async def on_order(body: bytes) -> None: ...\n"
    )
    command = [sys.executable, "-m", "orbitmq", "run", "lost_for_test:app", "--workers", "2"]
    with child(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        pauses: list[str] = []
        for line in process.stderr:
            pauses += re.findall(r"worker \d+ ended with code 3; another starts in (\S+) s", line)
            if len(pauses) == 3:
                break
        process.terminate()
    assert pauses == ["0.5", "1", "2"]
    assert process.returncode == 0


def test_only_source_is_watched_for_changes(tmp_path: Path) -> None:
    for folder in ("shop", ".venv", "env", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert list(source_stamps(tmp_path)) == [tmp_path / "shop" / "main.py"]


_WORKER = """
import os
from orbitmq import App
app = App({address!r}, producer_group="workers")
@app.subscriber("Orders", group="billing", start="earliest")
async def on_order(body: bytes) -> None:
    await app.publish("Invoices", {word!r} + " by " + str(os.getpid()))
"""


async def test_workers_share_the_work_are_replaced_when_they_die_and_reload_new_code(
    mq_server: Server, tmp_path: Path
) -> None:
    source = tmp_path / "reloaded_for_test.py"
    source.write_text(_WORKER.format(address=mq_server.address, word="old"))
    invoices: list[list[str]] = []

    async def on_invoice(text: str) -> None:
        invoices.append(text.split(" by "))

    async def two_at_work(word: str, killed: int = 0) -> set[int]:
        """The last two workers that were seen, once there are two: every queue gets an order again and again.

        What a worker that was killed had said before may come late.
        """
        async with asyncio.timeout(60):
            while True:
                invoices.clear()
                await asyncio.gather(*(producer.send("Orders", b"x", queue=queue) for queue in queues))
                await asyncio.sleep(0.2)
                seen = {int(pid) for said, pid in invoices if said == word} - {killed}
                if len(seen) == 2:
                    return seen

    async with (
        connect(mq_server.address) as client,
        client.producer("Customers") as producer,
        client.consumer("Invoices", group="readers", start="earliest", handler=on_invoice),
    ):
        await producer.send("Orders", b"first")
        queues = await producer.queues("Orders")
        command = ["-m", "orbitmq", "run", "reloaded_for_test:app", "--workers", "2", "--reload"]
        process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=tmp_path)
        try:
            first = await two_at_work("old")
            assert process.pid not in first
            os.kill(min(first), signal.SIGKILL)
            second = await two_at_work("old", killed=min(first))
            assert first & second == {max(first)}
            source.write_text(_WORKER.format(address=mq_server.address, word="new"))
            third = await two_at_work("new")
            assert not third & (first | second)
        finally:
            process.terminate()
            async with asyncio.timeout(20):
                status = await process.wait()
    assert status == 0
