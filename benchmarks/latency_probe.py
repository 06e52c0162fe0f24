"""From enqueue to handler start, also across processes: the handler sends a datagram with the instant it began."""

from __future__ import annotations

import random
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

SAID = struct.Struct("<qq")


class Ears:
    """Hears from handlers. The monotonic clock is one for all processes of a machine."""

    def __init__(self, folder: Path) -> None:
        self.path = tempfile.mktemp(prefix="ears-", dir=folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._socket.close()

    def ask(self, enqueue: Callable[[], object], number: int) -> float:
        """Seconds from before the enqueue until the handler of this probe began."""
        asked_at = time.monotonic_ns()
        enqueue()
        return (self.hear(number) - asked_at) / 1e9

    def hear(self, number: int) -> int:
        """When the handler of this probe began."""
        while True:
            heard, began_at = SAID.unpack(self._socket.recv(SAID.size))
            if heard == number:
                return int(began_at)


def mouth(path: str) -> Callable[[int], None]:
    """What a handler calls first."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own.connect(path)

    def say(number: int) -> None:
        own.send(SAID.pack(number, time.monotonic_ns()))

    return say


def gaps(probes: int, shortest: float = 0.005, longest: float = 0.035) -> Iterator[float]:
    """Seconds to wait before each probe, uneven so that they do not fall into step with anybody's polling."""
    uneven = random.Random(probes)
    for _ in range(probes):
        yield uneven.uniform(shortest, longest)
