"""Other processes on the same file: notifies them of changes, receives theirs, and notices that the file is gone.

A datagram on loopback after each commit wakes the nodes at once. Every quarter of a second, a read of SQLite's data
version finds changes without a datagram, such as a job that was added inside a user's own transaction. SQLite is read
only after its log has been written to, as every commit does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from headgate.clock import Clock, sleep
from headgate.errors import HeadgateError, StorageLost, StorageUnavailable
from headgate.storage.driver import Wake

logger = logging.getLogger("headgate.storage")

LOOK_EVERY = 0.25
FILE_EVERY = 8
"""The number of reads after which the file itself is checked."""

_CHANGE = b"headgate"
_ENDINGS = b"headgate endings"


class PeerNotifier:
    """Wakes this process when another changes the file, and the others when this one does."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        look: Callable[[], Awaitable[int]],
        wake: Wake,
        on_lost: Callable[[HeadgateError], None],
    ) -> None:
        self._path = path
        self._file = str(path)
        # SQLite keeps its log and its locks beside the file itself, even if the path is a link to it.
        self._log = f"{path.resolve()}-wal"
        self._locks = f"{path.resolve()}-shm"
        self._clock = clock
        self._look = look
        self._wake = wake
        self._on_lost = on_lost
        self._identity = self._identify()
        self._stamp: tuple[int, int] | None = None
        self._was_written = True
        self._socket: socket.socket | None = None
        self._watching: asyncio.Task[None] | None = None
        self.port = 0

    async def open(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), self._receive)
        self._watching = loop.create_task(self._watch(), name="headgate-peers")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def notify(self, ports: Sequence[int], *, only_endings: bool = False) -> None:
        """Notify these ports of a change, from any thread; if a datagram is lost, polling finds the change."""
        own = self._socket
        if own is None:
            return
        for port in ports:
            if port != self.port:
                try:
                    own.sendto(_ENDINGS if only_endings else _CHANGE, ("127.0.0.1", port))
                except OSError as error:
                    logger.debug("no datagram could be sent to port %s: %s", port, error)

    def _receive(self) -> None:
        assert self._socket is not None
        received: set[bytes] = set()
        try:
            # Any number of datagrams means no more than one of each kind.
            while True:
                received.add(self._socket.recv(64))
        except BlockingIOError:
            if not received.isdisjoint((_CHANGE, _ENDINGS)):
                self._wake(None if _CHANGE in received else ())

    async def _watch(self) -> None:
        seen: int | None = None
        looks = 0
        while True:
            await sleep(self._clock, LOOK_EVERY)
            looks += 1
            if looks % FILE_EVERY == 0 and self.is_file_lost():
                self._on_lost(lost(self._path))
            if not self._may_have_changed():
                continue
            try:
                version = await self._look()
            except StorageUnavailable as error:
                logger.warning("the changes of %s could not be read: %s", self._path, error)
                self._was_written = True
                continue
            if version != seen:
                seen = version
                self._wake(None)

    def _may_have_changed(self) -> bool:
        """Whether the log was written to since the last read of SQLite, even by this process.

        A file's time advances in ticks of up to 10 ms, so a write just after a check may have the same time as one just
        before it. So the next check reads once more, when the tick is over. Times in whole seconds, as on some old
        filesystems, are too coarse.
        """
        status = _status(self._log)
        stamp = None if status is None else (status.st_size, status.st_mtime_ns)
        was_written, self._was_written = self._was_written, stamp != self._stamp
        self._stamp = stamp
        return was_written or self._was_written or stamp is None or stamp[1] % 1_000_000_000 == 0

    def _identify(self) -> Sequence[tuple[int, int] | None]:
        """Return the identities of the file, its log and its locks, which stay while any process has the file open."""
        return [_identity(path) for path in (self._file, self._log, self._locks)]

    def is_file_lost(self) -> bool:
        """Whether the file, its log or its locks are not those that were opened; three file lookups, 6 µs."""
        return self._identify() != self._identity

    def is_index_lost(self) -> bool:
        """Whether `-shm` is not the one that was opened; one file lookup, 2 µs.

        It has SQLite's locks and its index of the log. Processes that open the file now have new ones, and append to
        the same log what this process does not know of.
        """
        return _identity(self._locks) != self._identity[2]

    def may_others_have_written(self) -> bool:
        """Whether the log may have more than this process knows of; a checkpoint of what it knows would damage that."""
        return self.is_index_lost() and None not in self._identify()[:2]


def lost(path: Path) -> StorageLost:
    """Return the error that every verb raises then."""
    return StorageLost(
        f"{path} was removed or replaced while it was open, or -wal or -shm beside it; what is written now would be "
        "lost: put it back and restart this process"
    )


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 (at each commit, and Path.stat takes twice as long)
    except OSError:
        return None


def _identity(path: str) -> tuple[int, int] | None:
    status = _status(path)
    return None if status is None else (status.st_dev, status.st_ino)
