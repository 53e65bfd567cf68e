"""What the connections of one server, or of one pool, share: whom they serve and how, and who hears of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orbitmq.transport.congestion import Congestion
    from orbitmq.transport.connection import Connection, Routes
    from orbitmq.transport.express import ExpressHandler, SwiftHandler, SwiftReader
    from orbitmq.transport.load_limits import Refusals
    from orbitmq.transport.request_times import RequestTimes
    from orbitmq.transport.tls import ServerTls


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """`server_tls` marks the accepting side: only there do the first bytes choose between plain and TLS."""

    routes: Routes = field(default_factory=dict)
    express: Mapping[bytes, ExpressHandler] = field(default_factory=dict)  # by the first bytes of a header
    swift: SwiftHandler | None = None  # sees every read first (express.py)
    reader: SwiftReader | None = None
    server_tls: ServerTls | None = None
    times: RequestTimes | None = None  # hears how long requests took
    congestion: Congestion | None = None  # hears how much is read
    on_open: Callable[[Connection], None] | None = None
    on_close: Callable[[Connection], None] | None = None
    on_source: Callable[[Connection], None] | None = None  # a proxy names another peer
    refusals: Refusals | None = None
    leaves_silent_peers: bool = False  # closes a connection on which a call timed out and nothing was heard meanwhile
    believes_proxy: Callable[[str], bool] | None = (
        None  # whether the host that is connected may do that; without it, all may
    )
