"""A TCP proxy that can change its server, lose a reply, break at a word, stop passing data, and reset connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from enum import Enum
from typing import Self

# A connection that is closed with this is reset: the other side gets an RST.
NO_LINGER = struct.pack("ii", 1, 0)


class TcpProxy:
    """Passes on the data of its own port. Closes the connection instead of the next `replies_to_lose` replies."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.replies_to_lose = 0
        self.connections = 0
        self._target = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._ways: set[asyncio.Future[None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._breaks: list[Break] = []
        self._answers: list[Break] = []
        self._flows = asyncio.Event()
        self._flows.set()
        self._answers_flow = asyncio.Event()
        self._answers_flow.set()
        self._server: asyncio.Server | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, port: int) -> AsyncIterator[Self]:
        proxy = cls(port)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.port = proxy._server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy._server.close()
            # One that is about to be passed on is cut as soon as it is.
            while proxy._serving:
                proxy.cut()
                await asyncio.wait(proxy._serving, timeout=0.05)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def put_to(self, port: int) -> None:
        """Pass new connections to that port, and close the open ones."""
        self._target = port
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        for way in self._ways:
            way.cancel()

    def reset(self) -> None:
        """Close all connections with an RST to both sides; data in flight is lost."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.cut()

    def hold(self) -> None:
        """Accept connections and pass on nothing."""
        self._flows.clear()

    def hold_answers(self) -> None:
        """Pass on requests and no replies."""
        self._answers_flow.clear()

    def release(self) -> None:
        self._flows.set()
        self._answers_flow.set()

    def break_after(self, words: bytes, *, within: bytes = b"") -> Break:
        """Break once: the next request that has these words in it is answered, and the answer is lost.

        With `within`, the same connection must have sent that since its last COMMIT or ROLLBACK.
        """
        return self._expect(Break(Loss.ANSWER, words, within))

    def break_before(self, words: bytes, *, within: bytes = b"") -> Break:
        """Break once: the next request that has these words in it does not arrive."""
        return self._expect(Break(Loss.REQUEST, words, within))

    def break_at_answer(self, words: bytes) -> Break:
        """Break once: the next answer that has these words in it does not arrive."""
        coming = Break(Loss.ANSWER, words, b"")
        self._answers.append(coming)
        return coming

    def stall_before(self, words: bytes, *, within: bytes = b"") -> Break:
        """Hold one connection from the next request with these words until `resumed` of the break is set."""
        return self._expect(Break(Loss.TIME, words, within))

    def _expect(self, coming: Break) -> Break:
        self._breaks.append(coming)
        return coming

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        try:
            remote, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._ends |= ends
        connection = ProxiedConnection()
        ways = {
            asyncio.ensure_future(self._pass_requests(reader, back, connection)),
            asyncio.ensure_future(self._pass_replies(remote, writer, connection)),
        }
        self._ways |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        self._ends -= ends
        for end in ends:
            end.transport.abort()
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        self._ways -= ways

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: ProxiedConnection
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                if self._breaks and (fault := self._next_break(connection, data)):
                    match fault.loss:
                        case Loss.ANSWER:
                            connection.answers_are_lost = fault
                        case Loss.REQUEST:
                            fault.happened.set()
                            return
                        case Loss.TIME:
                            fault.happened.set()
                            await fault.resumed.wait()
                writer.write(data)
                await writer.drain()

    async def _pass_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: ProxiedConnection
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                await self._answers_flow.wait()
                lost = connection.answers_are_lost or next((each for each in self._answers if each.words in data), None)
                if lost is not None:
                    if lost in self._answers:
                        self._answers.remove(lost)
                    lost.happened.set()
                    return
                if self.replies_to_lose:
                    self.replies_to_lose -= 1
                    return
                writer.write(data)
                await writer.drain()

    def _next_break(self, connection: ProxiedConnection, data: bytes) -> Break | None:
        connection.record(data)
        for each in self._breaks:
            if each.words in data and each.within in connection.sent:
                self._breaks.remove(each)
                return each
        return None


class Loss(Enum):
    """What is lost by a break."""

    ANSWER = "answer"
    REQUEST = "request"
    TIME = "time"


class Break:
    """A planned break; `happened` is set when it occurs, and setting `resumed` ends a stall."""

    def __init__(self, loss: Loss, words: bytes, within: bytes) -> None:
        self.loss = loss
        self.words = words
        self.within = within
        self.happened = asyncio.Event()
        self.resumed = asyncio.Event()


class ProxiedConnection:
    """What one connection has sent in its open transaction, recorded while a break is planned."""

    def __init__(self) -> None:
        self.sent = b""
        self.answers_are_lost: Break | None = None
        self._has_ended = False

    def record(self, data: bytes) -> None:
        self.sent = data if self._has_ended else self.sent[-(1 << 20) :] + data
        self._has_ended = b"COMMIT" in data or b"ROLLBACK" in data
