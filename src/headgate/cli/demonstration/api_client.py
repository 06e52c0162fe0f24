"""A small HTTP client that keeps its connections: enough to call the API of the demonstration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ApiClient:
    """Calls one server on the loopback interface; concurrent calls use separate connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str, **query: str) -> ApiResponse:
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
        return ApiResponse(int(head[0].split(" ")[1]), headers, body)

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
