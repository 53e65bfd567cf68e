"""A tap in a TCP connection: passes every byte on, both ways, and hands each whole frame to a listener."""

import socket
import threading
from collections.abc import Callable
from typing import Final

from tests.interop.wire import read_frame

TO_SERVER: Final = True
TO_CLIENT: Final = False

OnFrame = Callable[[bool, bytes], None]


class Tap:
    """Listens on a port of its own and forwards to `server`; `on_frame(direction, frame)` gets frames without length word."""

    def __init__(self, server: str, on_frame: OnFrame) -> None:
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._on_frame = on_frame
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for connection in (self._listener, *self._connections):
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._connections += [client, server]
            for source, target, direction in ((client, server, TO_SERVER), (server, client, TO_CLIENT)):
                threading.Thread(target=self._pass_on, args=(source, target, direction), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: bool) -> None:
        try:
            while (frame := read_frame(source)) is not None:
                self._on_frame(direction, frame)
                target.sendall(len(frame).to_bytes(4, "big") + frame)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one end is gone; the other learns of it when the tap closes
