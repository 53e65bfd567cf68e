"""A bad network as a process of its own: `python -m tests.client.faulty_proxy LISTEN TARGET` passes bytes on, well or badly.

    SIGUSR1   cut: each connection carries a few chunks, then half of one, then a reset to both sides
    SIGUSR2   slow: every chunk waits for two seconds
    SIGHUP    whole: as a network should be

Prints `ready`, then `cut request` or `cut answer` for each reset.
"""

import asyncio
import contextlib
import random
import signal
import socket
import struct
import sys

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST, what was not sent is dropped
_SLOW_SECONDS = 2.0
_CHUNK_BYTES = 1 << 16


class Proxy:
    """Pairs of connections, and what is done to them now."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.mode = "whole"
        self._target = target
        self._random = random.Random(7)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._pass_on(reader, their_writer, "request")),
            asyncio.create_task(self._pass_on(their_reader, writer, "answer")),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, their_writer):
            _reset(end)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        whole_chunks = self._random.randrange(3, 12)
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if self.mode == "slow":
                    await asyncio.sleep(_SLOW_SECONDS)
                if self.mode == "cut":
                    whole_chunks -= 1
                    if whole_chunks < 0:
                        writer.write(chunk[: len(chunk) // 2])
                        await writer.drain()
                        print(f"cut {what}", flush=True)
                        return
                writer.write(chunk)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


async def main() -> None:
    listen, target = (address.rsplit(":", 1) for address in sys.argv[1:])
    proxy = Proxy((target[0], int(target[1])))
    loop = asyncio.get_running_loop()
    for number, mode in ((signal.SIGUSR1, "cut"), (signal.SIGUSR2, "slow"), (signal.SIGHUP, "whole")):
        loop.add_signal_handler(number, setattr, proxy, "mode", mode)
    async with await asyncio.start_server(proxy.serve, listen[0], int(listen[1])) as server:
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
