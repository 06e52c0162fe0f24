"""Job ids: UUIDv7, ordered by time, and strictly increasing inside one process (RFC 9562, method 1 with a counter).

Also the name of a process, which its node and the jobs that it enqueues carry.
"""

from __future__ import annotations

import os
import socket
import threading
from functools import cache
from random import Random
from struct import Struct

from headgate.errors import DeclarationError

_FETCHED = Struct("=64Q")
_random_bits: list[int] = []
"""Random numbers, read from the system 64 at a time: a single read took as long as the rest of an id."""

if hasattr(os, "register_at_fork"):  # not on Windows
    # A forked process would otherwise use the same numbers.
    os.register_at_fork(after_in_child=_random_bits.clear)

MAX_PROCESS_NAME = 200


class IdSource:
    """Creates ids; each is greater than the one before, even when wall time steps back.

    `random` makes them reproducible for tests; the default is the system's randomness.
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._last = 0

    def next(self, now: int) -> str:
        """Return a new id for a job enqueued at `now` (wall microseconds)."""
        # 48 bits of milliseconds and 12 bits of their fraction, as one increasing number.
        stamp = (now // 1000 << 12) | (now % 1000 * 4096 // 1000)
        with self._lock:
            if stamp <= self._last:
                stamp = self._last + 1
            self._last = stamp
        head = f"{stamp:015x}"
        tail = f"{_next_random_bits() if self._random is None else self._random.getrandbits(64):016x}"
        variant = "89ab"[int(tail[0], 16) & 3]
        return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{variant}{tail[1:4]}-{tail[4:]}"


def _next_random_bits() -> int:
    try:
        return _random_bits.pop()
    except IndexError:
        first, *others = _FETCHED.unpack(os.urandom(_FETCHED.size))
        _random_bits.extend(others)
        return int(first)


@cache
def process_name() -> str:
    """Return the name of this process, `host:pid`; at most 200 characters."""
    host, pid = socket.gethostname().encode("utf-8", "backslashreplace").decode(), str(os.getpid())
    return f"{host[: MAX_PROCESS_NAME - len(pid) - 1]}:{pid}"


def require_process_name(name: object, where: str) -> None:
    """Raise DeclarationError unless it can be the name of a process: 1 to 200 printable characters without spaces."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_PROCESS_NAME or not name.isprintable() or " " in name:
        raise DeclarationError(
            f"{where}={name!r:.80} is not the name of a worker: write 1 to {MAX_PROCESS_NAME} printable characters "
            "without spaces, such as mail-1"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_name.cache_clear)
