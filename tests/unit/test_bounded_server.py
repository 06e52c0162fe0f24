"""The server of metrics and of the dashboard: who is disconnected when there are too many, or who reads nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import headgate.observe.bounded_server as bounded_server
from headgate.errors import HeadgateError
from headgate.observe.bounded_server import BoundedServer
from headgate.observe.metrics import PrometheusMetrics
from tests.until import patient, until

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNK = b"x" * 1_000_000


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """Answers with more than any buffer holds."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(50):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def short(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serving(app: Any, most_connections: int) -> AsyncIterator[tuple[BoundedServer, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = BoundedServer(app, most_connections, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        try:
            yield server, listening.getsockname()[1]
        finally:
            server.should_exit = True
            await running


@contextmanager
def connections(port: int, count: int, content: bytes) -> Iterator[list[socket.socket]]:
    """So many clients that have sent this; they are read from in threads, as the server is in this one."""
    with ExitStack() as opened:
        found = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=patient(10)))
            for _ in range(count)
        ]
        for each in found:
            with suppress(ConnectionResetError, BrokenPipeError):
                each.sendall(content)
        yield found


async def read(client: socket.socket) -> bytes:
    return await asyncio.to_thread(client.recv, 2**20)


async def test_above_the_bound_the_longest_idle_connection_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(short, 4) as (server, port):
        with connections(port, 4, HALF) as half:
            await until(lambda: len(server.server_state.connections) == 4)
            for _ in range(3):
                with connections(port, 1, WHOLE) as (whole,):
                    assert (await read(whole)).startswith(b"HTTP/1.1 200")
            with suppress(ConnectionResetError):
                assert await read(half[0]) == b""
            assert len(server.server_state.connections) <= 4
            half[-1].sendall(b"\r\n\r\n")
            assert (await read(half[-1])).startswith(b"HTTP/1.1 200")
    assert "4 connections are open, which is the most" in caplog.text


async def test_many_connections_write_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(short, 4) as (server, port):
        with connections(port, 100, HALF), connections(port, 50, b"not http at all\r\n\r\n"):
            await until(lambda: bool(caplog.records) and len(server.server_state.connections) <= 4)
    assert 1 <= len(caplog.records) <= 21
    assert all(record.levelno >= logging.WARNING for record in caplog.records)


async def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "STALL_TIMEOUT", 0.3)
    async with serving(endless, 4) as (server, port):
        with connections(port, 1, WHOLE):
            await until(lambda: len(server.server_state.connections) == 1)
            await until(lambda: not server.server_state.connections)
        # One that reads slowly, but reads, gets everything. No stall of a busy machine is a client that does not read.
        monkeypatch.setattr(bounded_server, "STALL_TIMEOUT", patient(5))
        with connections(port, 1, WHOLE) as (slow,):
            received = 0
            while received < 50 * len(CHUNK):
                received += len(await read(slow))


async def test_the_lines_of_another_server_of_the_process_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "uvicorn.error")
    logger = logging.getLogger("uvicorn.error")
    async with serving(short, 4):
        await asyncio.to_thread(logger.info, "of another server, in its own thread")
        assert logger.isEnabledFor(logging.INFO)
    assert [record.getMessage() for record in caplog.records] == ["of another server, in its own thread"]


def test_without_its_package_metrics_are_not_served_and_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "headgate.observe.bounded_server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(HeadgateError, match=r"uvicorn package, which is missing; pip install 'headgate\[prometheus\]'"):
        PrometheusMetrics(registry=CollectorRegistry()).serve(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_no_answer_waits_for_an_acknowledgement(host: str) -> None:
    """A listening socket of `socket.create_server` names no protocol, so asyncio does not turn off the delay."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        server = BoundedServer(short, 4, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        await until(lambda: server.started)
        with socket.create_connection(listening.getsockname()[:2], timeout=patient(10)):
            await until(lambda: len(server.server_state.connections) == 1)
            (connection,) = server.server_state.connections
            answering = connection.transport.get_extra_info("socket")
            assert answering.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        server.should_exit = True
        await running
