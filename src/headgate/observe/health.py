"""HealthServer: answers the probes of a container platform for one worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from http import HTTPStatus

from headgate.clock import within
from headgate.errors import HeadgateError, StorageUnavailable
from headgate.jobs.event import NodeStarted, NodeStopping
from headgate.observe.instrument import Observed

DEADLINE = 2.0
"""Seconds that the store gets to answer `/ready`; probes are given up after 1 to 5."""

REQUEST_DEADLINE = 5.0
"""Seconds that a client gets to send its request."""

MOST_BYTES = 8192

MOST_CONNECTIONS = 32
"""Connections at once, each of them an open file of the worker; a further one closes the one that came first."""


class HealthServer:
    """An instrument that serves two addresses over HTTP, on the event loop of its app.

    `/live` answers 200 as long as the event loop runs. `/ready` answers 200 from when the node has started until
    it stops, also if it is quiet, while the store answers within 2 seconds, and 503 with the reason otherwise. The body
    is one line of text.
    """

    def __init__(self) -> None:
        self._observed: Observed | None = None
        self._is_started = False
        self._is_stopping = False
        self._newest: deque[asyncio.StreamWriter] = deque()

    def attach(self, observed: Observed) -> None:
        self._observed = observed
        observed.tap({NodeStarted: self._started, NodeStopping: self._stopping})

    @contextlib.asynccontextmanager
    async def serving(self, port: int, host: str = "127.0.0.1") -> AsyncIterator[int]:
        """Listen until the block ends; yields the port (0 chooses a free one). Raises HeadgateError if it is taken."""
        try:
            server = await asyncio.start_server(self._answer, host, port, limit=MOST_BYTES)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise HeadgateError(f"--health-port: cannot listen at {host}:{port}: {why}") from error
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()

    def _started(self, event: NodeStarted) -> None:
        self._is_started = True

    def _stopping(self, event: NodeStopping) -> None:
        self._is_stopping = True

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._newest.append(writer)
        if len(self._newest) > MOST_CONNECTIONS:
            self._newest.popleft().transport.abort()
        status, text = 400, "no request came"
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            request = await self._request(reader)
            if request is not None:
                status, text = await self._status(*request)
        if writer.is_closing():
            return
        body = f"{text}\n".encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, str] | None:
        """Return the method and the path of a request; None if it is malformed. Raises TimeoutError if it is late."""
        assert self._observed is not None
        head = await within(self._observed.clock, REQUEST_DEADLINE, reader.readuntil(b"\r\n\r\n"))
        line = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        return (line[0], line[1].partition("?")[0]) if len(line) == 3 else None

    async def _status(self, method: str, path: str) -> tuple[int, str]:
        if method not in ("GET", "HEAD"):
            return 405, "use GET"
        if path == "/live":
            return 200, "the event loop runs"
        if path == "/ready":
            reason = await self._why_not_ready()
            return (200, "ready") if reason is None else (503, reason)
        return 404, "there are /live and /ready"

    async def _why_not_ready(self) -> str | None:
        """Return why the worker is not ready; None if it is."""
        assert self._observed is not None
        if not self._is_started:
            return "the worker has not started yet"
        if self._is_stopping:
            return "the worker is stopping"
        try:
            await within(self._observed.clock, DEADLINE, self._observed.store().node_update())
        except TimeoutError:
            return (
                f"the store did not answer within {DEADLINE:g} s: it cannot be reached, is slow, or all connections of "
                "this process are in use"
            )
        except StorageUnavailable as error:
            return f"the store cannot be used: {error}".replace("\n", " ")
        return None
