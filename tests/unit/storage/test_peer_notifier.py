"""Other processes on the same file: notifications, polling, and a deleted file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from headgate.errors import HeadgateError, StorageUnavailable
from headgate.storage.sqlite import peer_notifier as module
from headgate.storage.sqlite.peer_notifier import PeerNotifier
from headgate.testing.manual_clock import ManualClock
from tests.until import patient


class WatchedFile:
    """A file with its log, and what a look finds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"
        self.path.touch()
        self.log = folder / "jobs.db-wal"
        self.log.touch()
        self.clock = ManualClock()
        self.version = 1
        self.failing = False
        self.woken = asyncio.Event()
        self.only_endings: bool | None = None
        self.lost: list[HeadgateError] = []
        self.asked = 0

    async def look(self) -> int:
        self.asked += 1
        if self.failing:
            raise StorageUnavailable("not now")
        return self.version

    def wake(self, queues: Collection[str] | None) -> None:
        self.only_endings = queues is not None
        self.woken.set()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[PeerNotifier]:
        peer_notifier = PeerNotifier(self.path, self.clock, self.look, self.wake, self.lost.append)
        await peer_notifier.open()
        try:
            yield peer_notifier
        finally:
            await peer_notifier.close()

    async def pass_polls(self, count: int) -> None:
        """Let so many looks come and go."""
        for _ in range(count):
            await asyncio.sleep(0)
            self.clock.advance(module.LOOK_EVERY)
            for _ in range(5):
                await asyncio.sleep(0)

    def commit(self, *, at: float | None = None) -> None:
        """Another process commits; the clock of the filesystem says `at`, or what time it is."""
        self.version += 1
        with self.log.open("r+b") as log:
            log.write(b"\0")
        if at is not None:
            os.utime(self.log, (at, at))


@pytest.fixture
def around(tmp_path: Path) -> WatchedFile:
    return WatchedFile(tmp_path)


async def test_a_deleted_file_is_noticed_even_while_polls_fail(around: WatchedFile) -> None:
    async with around.watched():
        around.failing = True
        await around.pass_polls(module.FILE_EVERY)
        assert around.lost == []
        around.path.unlink()
        await around.pass_polls(module.FILE_EVERY)
        assert "was removed or replaced while it was open" in str(around.lost[0])


async def test_a_changed_file_wakes_and_an_unchanged_one_does_not(around: WatchedFile) -> None:
    async with around.watched():
        await around.pass_polls(1)
        around.woken.clear()
        await around.pass_polls(10)
        assert not around.woken.is_set()
        around.commit()
        await around.pass_polls(1)
        assert around.woken.is_set()


async def test_sqlite_is_read_only_while_its_log_is_written_to(around: WatchedFile) -> None:
    around.commit(at=1_000_000.5)
    async with around.watched():
        await around.pass_polls(2)
        asked = around.asked
        await around.pass_polls(10)
        assert around.asked == asked
        around.commit(at=1_000_001.5)
        await around.pass_polls(1)
        assert around.asked == asked + 1


async def test_what_is_written_within_the_same_tick_of_the_filesystem_wakes(around: WatchedFile) -> None:
    async with around.watched():
        around.commit(at=1_000_000.5)
        await around.pass_polls(5)
        around.commit(at=1_000_001.5)
        await around.pass_polls(1)
        around.woken.clear()
        around.commit(at=1_000_001.5)
        await around.pass_polls(1)
        assert around.woken.is_set()


async def test_a_filesystem_with_times_in_whole_seconds_is_not_relied_on(around: WatchedFile) -> None:
    async with around.watched():
        around.commit(at=1_000_000)
        await around.pass_polls(5)
        around.woken.clear()
        around.commit(at=1_000_000)
        await around.pass_polls(1)
        assert around.woken.is_set()


async def test_a_failed_poll_is_repeated(around: WatchedFile) -> None:
    async with around.watched():
        await around.pass_polls(5)
        around.woken.clear()
        around.failing = True
        around.commit(at=1_000_000.5)
        await around.pass_polls(5)
        assert not around.woken.is_set()
        around.failing = False
        await around.pass_polls(1)
        assert around.woken.is_set()


async def test_only_a_datagram_of_headgate_wakes(around: WatchedFile) -> None:
    async with around.watched() as peer_notifier:
        await around.pass_polls(1)
        around.woken.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"something else", ("127.0.0.1", peer_notifier.port))
            sender.sendto(b"x" * 1000, ("127.0.0.1", peer_notifier.port))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not around.woken.is_set()
            sender.sendto(b"headgate", ("127.0.0.1", peer_notifier.port))
            await asyncio.wait_for(around.woken.wait(), patient(5))
            assert around.only_endings is False
            around.woken.clear()
            sender.sendto(b"headgate endings", ("127.0.0.1", peer_notifier.port))
            await asyncio.wait_for(around.woken.wait(), patient(5))
            assert around.only_endings is True


async def test_a_notification_reaches_peers_although_some_are_gone(around: WatchedFile) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, socket.socket() as unused:
        other.bind(("127.0.0.1", 0))
        other.settimeout(patient(5))
        unused.bind(("127.0.0.1", 0))
        ports = [unused.getsockname()[1], 1, other.getsockname()[1]]
        async with around.watched() as peer_notifier:
            for _ in range(3):
                peer_notifier.notify(ports)
                assert other.recv(64) == b"headgate"
            peer_notifier.notify(ports, only_endings=True)
            assert other.recv(64) == b"headgate endings"
        peer_notifier.notify(ports)
