"""From enqueue to handler start, also across processes: the handler sends a datagram with the instant it began."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.support import Latencies

WARM = 20
"""Probes at the beginning that do not count: the worker is coming up."""

STARTED = struct.Struct("<qq")


class StartReceiver:
    """Receives the starts of handlers. All processes of a machine have the same monotonic clock."""

    def __init__(self, folder: Path) -> None:
        self.path = tempfile.mktemp(prefix="starts-", dir=folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._socket.close()

    def ask(self, enqueue: Callable[[], object], number: int) -> float:
        """Enqueue, and return the seconds until the handler of this probe began."""
        asked_at = time.monotonic_ns()
        enqueue()
        return (self.wait_for_start(number) - asked_at) / 1e9

    def wait_for_start(self, number: int) -> int:
        """Wait for the start of the handler of this probe, and return its instant in nanoseconds."""
        while True:
            started, began_at = STARTED.unpack(self._socket.recv(STARTED.size))
            if started == number:
                return int(began_at)


def start_sender(path: str) -> Callable[[int], None]:
    """Return the function that a handler calls first."""
    sendto = raw_start_sender(path)

    def send(number: int) -> None:
        sendto(STARTED.pack(number, time.monotonic_ns()))

    return send


def raw_start_sender(path: str) -> Callable[[bytes], object]:
    """Return the send method of a socket connected to `path`."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own.connect(path)
    return own.send


def gaps(probes: int, shortest: float = 0.005, longest: float = 0.035) -> Iterator[float]:
    """Yield the seconds to wait before each probe, uneven so that they do not coincide with polling."""
    uneven = random.Random(probes)
    for _ in range(probes):
        yield uneven.uniform(shortest, longest)


async def probe(name: str, url: str, load: Load, board: Board, rate: float) -> dict[str, float]:
    """Enqueue so many jobs a second, or without a rate uneven ones a few at a time; workers write on the board."""
    asked = [0] * len(board.began())
    producer = contender(name, url, load)

    async def ask(number: int) -> None:
        asked[number] = time.monotonic_ns()
        await producer.enqueue(number)

    async with producer.open(), asyncio.TaskGroup() as group:
        waits = list(gaps(len(asked), 0.02, 0.08))
        next_at = time.monotonic()
        for number in range(len(asked)):
            group.create_task(ask(number))
            if number < WARM:
                await _until_begun(board, number + 1)
                next_at = time.monotonic()
            next_at += 1 / rate if rate else waits[number]
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await _until_begun(board, len(asked))
    latencies = Latencies()
    for asked_at, began_at in zip(asked[WARM:], board.began()[WARM:], strict=True):
        latencies.add((began_at - asked_at) / 1e9)
    return latencies.metrics()


async def _until_begun(board: Board, jobs: int) -> None:
    deadline = time.monotonic() + 60
    while 0 in board.began()[:jobs]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{board.began()[:jobs].count(0)} jobs have not begun")
        await asyncio.sleep(0.005)
