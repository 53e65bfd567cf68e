"""The other brokers of a development cluster: processes of their own, started and stopped with `orbitmq dev`."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

logger = logging.getLogger(__name__)

_READY: Final = b" ready on "
_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 15.0


class BrokerPlan(NamedTuple):
    name: str
    broker_id: int  # 0: a master
    folder: Path
    port: int
    settings: dict[str, str]

    @property
    def title(self) -> str:
        return self.name if self.broker_id == 0 else f"{self.name}, slave {self.broker_id}"


@asynccontextmanager
async def running_broker(plan: BrokerPlan, host: str, name_server: str) -> AsyncIterator[str]:
    """Its address, once it is ready. It is stopped at the end, and ends by itself when this process is killed."""
    role = {"brokerId": str(plan.broker_id)}
    if plan.broker_id:
        role |= {"brokerRole": "SLAVE", "slaveReadEnable": "true"}
    settings = {"brokerName": plan.name, **plan.settings, **role}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "orbitmq", "broker", "--host", host, "--port", str(plan.port), "-n", name_server,
        "--store", str(plan.folder), "--insecure", "--ends-with-parent", *(part for pair in settings.items() for part in ("--set", "=".join(pair))),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; we tell it
    )  # fmt: skip
    said: list[bytes] = []
    listening = asyncio.create_task(_listen(process, said))
    try:
        yield await _address(process, plan, said)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                logger.warning("broker %s does not stop, and is killed", plan.title)
                process.kill()
                await process.wait()
        else:
            logger.warning("broker %s had ended by itself with code %d", plan.title, process.returncode)
        await listening


async def _address(process: asyncio.subprocess.Process, plan: BrokerPlan, said: list[bytes]) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            while line := await process.stdout.readline():
                if _READY in line:
                    return line.split(_READY, 1)[1].strip().decode()
            await process.wait()
    except TimeoutError:
        pass
    last = said[-1].decode(errors="replace").strip() if said else "it said nothing"
    raise ConfigError(f"broker {plan.title} did not start: {last}")


async def _listen(process: asyncio.subprocess.Process, said: list[bytes]) -> None:
    """Its warnings are ours, and its last words say why it did not start."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        said[:] = [line]
        if b" INFO " not in line:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
