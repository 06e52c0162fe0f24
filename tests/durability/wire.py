"""A wire to a server that can be put to another one, and that can lose a reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self


class Wire:
    """Passes on what is said on a port of its own; so many times as `replies_to_lose` says, it breaks instead."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.replies_to_lose = 0
        self._target = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Self]:
        wire = cls(port)
        wire._server = await asyncio.start_server(wire._serve, "127.0.0.1", 0)
        wire.port = wire._server.sockets[0].getsockname()[1]
        try:
            yield wire
        finally:
            wire._server.close()
            wire.cut()
            await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def put_to(self, port: int) -> None:
        """New connections go there; those that are open break."""
        self._target = port
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._ends |= ends
        ways = [
            asyncio.ensure_future(self._pass_on(reader, back, is_reply=False)),
            asyncio.ensure_future(self._pass_on(there, writer, is_reply=True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._ends -= ends
        for end in ends:
            end.transport.abort()
        await asyncio.wait(ways)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_reply and self.replies_to_lose:
                    self.replies_to_lose -= 1
                    return
                writer.write(data)
                await writer.drain()
