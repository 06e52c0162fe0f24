"""The HTTP server of metrics and of the dashboard: uvicorn, with bounds on what unknown clients can use."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headgate.clock import SystemClock
from headgate.observe.log_budget import LogBudget

HEAD_TIMEOUT = 10.0
"""Seconds until the head of a request must be complete, from the connection or from its first byte on."""

STALL_TIMEOUT = 30.0
"""Seconds for which a client may leave an answer unread."""

KEEP_ALIVE = 5
"""Seconds between two requests of a connection."""

ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the bound is checked again."""

WAITING = 1024
"""Connections that the system queues until they are accepted."""

_log = logging.getLogger("uvicorn.error")


class BoundedServer(uvicorn.Server):
    """Serves an ASGI app to at most `most_connections` at once, fewer if the process may open fewer files.

    Beyond the bound it closes the connection that has waited longest without a whole request, or the new one if all
    have sent one. Log lines that clients cause have a budget. It does not handle signals.
    """

    def __init__(self, app: Any, most_connections: int, **options: Any) -> None:
        self._budget = LogBudget(SystemClock())
        self._bounds = _Bounds(_connections_allowed(most_connections), self._budget)
        protocol = type("BoundedProtocol", (_BoundedProtocol,), {"bounds": self._bounds})
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                # It would configure the access log of the whole process; the protocol turns it off instead.
                access_log=True,
                server_header=False,
                # The app determines the client: its settings name the trusted proxies.
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                backlog=ACCEPTED_AT_ONCE,
                **options,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: a server that was asked to stop and did so has not failed."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            # asyncio accepts as many at once as may wait in the backlog; here few are accepted at once, and many may
            # wait.
            each.listen(WAITING)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)
        quiet = _OwnLines(self._budget)
        _log.addFilter(quiet)
        try:
            await super().serve(sockets)
        finally:
            _log.removeFilter(quiet)

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio reports each connection without a free file, with a traceback, up to the whole backlog per second.
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            if self._budget.admits(_log.error):
                _log.error("no connection can be accepted: %s", error)
            return
        loop.default_exception_handler(context)


@dataclass
class _Bounds:
    """The bounds of all connections of a server. `headless` are those without a whole request, the oldest first."""

    most_connections: int
    budget: LogBudget
    headless: dict[_BoundedProtocol, None] = field(default_factory=dict)


class _BoundedProtocol(H11Protocol):
    """A connection with timeouts: for the request to arrive, and for the client to read the answer."""

    bounds: _Bounds

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio does it only for sockets whose protocol is named. Without it, the end of each answer waits 40 ms
            # for the client's acknowledgement of its beginning.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_head()
        if len(self.connections) > self.bounds.most_connections:
            if self.bounds.budget.admits(_log.warning):
                _log.warning(
                    "%d connections are open, which is the most; one that had sent no whole request was closed",
                    self.bounds.most_connections,
                )
            next(iter(self.bounds.headless))._abort()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._is_answering():
            self._expect_head()
        super().data_received(data)
        if self._is_answering():
            self._forget_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering():
            # It waits for another request, and may be closed to make room for a connection with one.
            self.bounds.headless[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self._stall_timer or self.loop.call_later(STALL_TIMEOUT, self._abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self.bounds.headless[self] = None
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self._abort)

    def _forget_head(self) -> None:
        self.bounds.headless.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort(self) -> None:
        self._forget_head()
        # It no longer counts, though it closes only after the data in flight.
        self.connections.discard(self)
        self.transport.abort()


class _OwnLines(logging.Filter):
    """Passes the lines of other servers in the process; of this thread's lines only warnings, within a budget."""

    def __init__(self, budget: LogBudget) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._budget = budget

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        if record.levelno < logging.WARNING:
            return False
        # The lines of this module are counted already, and so is the report of the rest.
        return record.module == __name__.rpartition(".")[2] or self._budget.admits(_log.warning)


def _connections_allowed(connections: int) -> int:
    """Return the number of connections: `connections`, or fewer if the process may not open that many files."""
    try:
        import resource
    except ImportError:
        return connections
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(8, soft * 3 // 4 - 96))
