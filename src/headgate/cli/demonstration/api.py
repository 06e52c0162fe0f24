"""The outside API of the demonstration: a small HTTP server that counts and records calls itself, and its client.

It does not use Headgate's rules: it answers 429 to a tenant with more than `count` calls in any window.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from headgate.clock import SECOND, Clock, SystemClock, sleep_until

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


class RecordedCall(msgspec.Struct, frozen=True, array_like=True):
    """A recorded call. `at`: when the request arrived, in microseconds since boot."""

    tenant: str
    job: str
    at: int
    status: int


class CallTotals(msgspec.Struct, frozen=True):
    """Counts all calls, refused calls, and by tenant the calls that the API answers now."""

    calls: int
    refused: int
    in_flight: Mapping[str, int]
    last_call_at: Mapping[str, int]


class CallLog:
    """Accepts or refuses calls by an exact log of the accepted ones, and records all calls."""

    def __init__(self, count: int, window: int) -> None:
        self._count = count
        self._window = window
        self._accepted: defaultdict[str, deque[int]] = defaultdict(deque)
        self.calls: list[RecordedCall] = []

    def enter(self, tenant: str, job: str, at: int) -> int | None:
        """Return None for a call within the limit, else the microseconds until the next one would be."""
        accepted = self._accepted[tenant]
        while accepted and at - accepted[0] >= self._window:
            accepted.popleft()
        if len(accepted) >= self._count:
            self.calls.append(RecordedCall(tenant, job, at, 429))
            return accepted[0] + self._window - at
        accepted.append(at)
        self.calls.append(RecordedCall(tenant, job, at, 200))
        return None


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request; header names are in lower case."""

    status: int
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        headers = {"content-type": "application/json", "content-length": str(len(self.body)), **self.headers}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([f"HTTP/1.1 {self.status} {_REASONS[self.status]}", *lines])
        return head.encode() + b"\r\n\r\n" + self.body


class Api:
    """The API's pages: `/call?tenant=…&job=…` takes `latency` seconds, `/ledger` and `/totals` return the calls."""

    def __init__(self, count: int, window: float, latency: float, clock: Clock) -> None:
        self._clock = clock
        self._latency = round(latency * SECOND)
        self._ledger = CallLog(count, round(window * SECOND))
        self._in_flight: defaultdict[str, int] = defaultdict(int)

    async def answer(self, target: str) -> Response:
        """Answer one request, at once or after the latency."""
        arrived = self._clock.monotonic()
        parts = urlsplit(target)
        match parts.path:
            case "/call":
                return await self._call(dict(parse_qsl(parts.query)), arrived)
            case "/ledger":
                return Response(200, msgspec.json.encode(self._ledger.calls))
            case "/totals":
                return Response(200, msgspec.json.encode(self._totals()))
            case _:
                return Response(404)

    async def _call(self, query: Mapping[str, str], arrived: int) -> Response:
        tenant, job = query.get("tenant"), query.get("job")
        if not tenant or not job:
            return Response(400)
        retry_after = self._ledger.enter(tenant, job, arrived)
        if retry_after is not None:
            return Response(429, headers={"retry-after": f"{retry_after / SECOND:.6f}"})
        self._in_flight[tenant] += 1
        if self._latency:
            await sleep_until(self._clock, arrived + self._latency)
        self._in_flight[tenant] -= 1
        return Response(200)

    def _totals(self) -> CallTotals:
        calls = self._ledger.calls
        return CallTotals(
            calls=len(calls),
            refused=sum(call.status == 429 for call in calls),
            in_flight=self._in_flight,
            last_call_at={call.tenant: call.at for call in calls},
        )


async def listen(api: Api) -> asyncio.Server:
    """Serve on a free port of the loopback interface, over connections that stay open. Requests have no body."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The caller may be killed at any moment. A task that ends as cancelled would be reported.
        gone = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*gone), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
                response = await api.answer(words[1]) if len(words) == 3 else Response(400)
                writer.write(response.encode())
                await writer.drain()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    """Return the port of a server."""
    port: int = server.sockets[0].getsockname()[1]
    return port


class ApiClient:
    """Calls one server on the loopback interface; concurrent calls use separate connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str, **query: str) -> Response:
        """GET a page. Raises OSError or asyncio.IncompleteReadError if the server does not answer."""
        target = f"{path}?{urlencode(query)}" if query else path
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        try:
            writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            body = await reader.readexactly(int(headers["content-length"]))
        except BaseException:
            # After an incomplete response the connection cannot be used again.
            writer.close()
            raise
        self._idle.append((reader, writer))
        return Response(int(head[0].split(" ")[1]), body, headers)

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _serve(count: int, window: float, latency: float) -> None:
    """Print the port on stdout, and serve until stdin ends, which it does with the parent process."""
    server = await listen(Api(count, window, latency, SystemClock()))
    sys.stdout.write(f"{port_of(server)}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            ended.set()

    loop.add_reader(0, read)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
