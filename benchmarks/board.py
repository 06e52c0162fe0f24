"""When jobs began and ended in other processes: a file that all of them map, so that reporting costs a job nothing."""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
from pathlib import Path
from typing import Self

INSTANT = struct.Struct("<q")
SIZE = INSTANT.size

HEAD = 8
"""Counters in front of the instants: how many handlers each of the workers has begun."""


class Board:
    """Instants of the monotonic clock, one for all processes of a machine, in nanoseconds; 0 is not yet."""

    def __init__(self, path: Path, worker: int = 0) -> None:
        self.path = path
        self._worker = worker
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._jobs = (len(self._map) // SIZE - HEAD) // 2
        self._attempts = 0

    @classmethod
    def new(cls, folder: Path, jobs: int) -> Self:
        """For jobs with the numbers 0 to `jobs` - 1."""
        path = Path(tempfile.mkdtemp(dir=folder)) / "board"
        path.write_bytes(bytes(SIZE * (HEAD + 2 * jobs)))
        return cls(path)

    def attempt(self) -> None:
        """A handler of this worker was called."""
        self._attempts += 1
        self._put(self._worker, self._attempts)

    def begin(self, number: int) -> None:
        """The job does now what it is there for."""
        self._put(HEAD + number, time.monotonic_ns())

    def end(self, number: int) -> None:
        self._put(HEAD + self._jobs + number, time.monotonic_ns())

    def attempts(self) -> int:
        return sum(self._instants(0, HEAD))

    def began(self) -> tuple[int, ...]:
        return self._instants(HEAD, self._jobs)

    def ended(self) -> tuple[int, ...]:
        return self._instants(HEAD + self._jobs, self._jobs)

    def _put(self, index: int, value: int) -> None:
        INSTANT.pack_into(self._map, SIZE * index, value)

    def _instants(self, first: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}q", self._map, SIZE * first)
