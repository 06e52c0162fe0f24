"""Waking other processes and being woken by them: NOTIFY saves time, polling guarantees that changes are found.

A notification takes a lock on the whole database when it commits, so it is never part of a transaction of jobs. It is
sent by itself, at most once in 2 ms by each process, or in 5 ms where much changes. A connection of its own listens. A
query now and then checks it, because a connection that is cut on the way reports nothing; while no connection listens,
polling is faster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from headgate.clock import Clock, sleep, wait_for_event
from headgate.errors import StorageUnavailable
from headgate.storage.driver import Wake
from headgate.storage.postgres.database import Database
from headgate.urls import displayed_url, without_secrets

logger = logging.getLogger("headgate.storage")

SEND_EVERY = 0.002
SEND_EVERY_BUSY = 0.005
"""Seconds between two notifications; the second one while many changes come."""

MANY = 4
"""Changes since the last notification. Each notification delays all other commits that notify a little."""

LISTENING_POLL = 5.0
"""Seconds between two polls beside notifications. Nodes themselves check for arrivals once a second."""

BLIND_POLL = 0.1
WATCHDOG = 5.0
RECONNECT = 1.0

_ENDINGS = "endings"
"""The name in place of queues if jobs have become final and nothing else has changed."""

LONGEST_PAYLOAD = 4_000
"""Bytes. A notification that would be longer does not name its queues; the server allows 8,000."""

_decode_queues = msgspec.json.Decoder(list[str]).decode


class WakeUps:
    """Notifies the other processes of changes, and calls `wake` for theirs.

    `listens_on` opens the connection that listens, to the database itself and not to a pooler. None: no connection
    listens, and only polling finds changes.
    """

    def __init__(
        self,
        database: Database,
        listens_on: Callable[[], AbstractAsyncContextManager[Any]] | None,
        clock: Clock,
        wake: Wake,
        listen_url: str | None = None,
    ) -> None:
        self._database = database
        self._listens_on = listens_on
        self._clock = clock
        self._wake = wake
        self._listen_url = listen_url
        self._has_heard = asyncio.Event()
        self.channel = f"headgate_{database.schema}"
        self._origin = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._has_changes = asyncio.Event()
        self._queues: set[str] | None = set()
        self._changes = 0
        self.is_listening = False
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *, listens: bool = True) -> None:
        """Start. It waits for the first connection, so that no later change is missed."""
        ready = asyncio.Event()
        self._tasks = [asyncio.create_task(self._send(), name="headgate-notify")]
        if not listens:
            return
        self._tasks.append(asyncio.create_task(self._poll(), name="headgate-poll"))
        if self._listens_on is not None:
            self._tasks.append(asyncio.create_task(self._listen(self._listens_on, ready), name="headgate-listen"))
            await wait_for_event(self._clock, ready, 2.0)

    async def close(self) -> None:
        tasks, self._tasks = set(self._tasks), []
        while tasks:
            # The driver may take a cancellation for a timeout of its own; then the task is cancelled again.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1.0)

    def notify(self, queues: Collection[str] | None = None) -> None:
        """Notify other processes of a change, as `Wake` says."""
        self._queues = None if queues is None or self._queues is None else self._queues.union(queues)
        self._changes += 1
        self._has_changes.set()

    async def _send(self) -> None:
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            payload = self._take_payload()
            pause = SEND_EVERY_BUSY if self._changes > MANY else SEND_EVERY
            self._changes = 0
            try:
                await self._notify(payload)
            except Exception as error:
                # Without this task, other processes would not be notified any more, so it outlives any error.
                level = logging.DEBUG if isinstance(error, StorageUnavailable) else logging.WARNING
                logger.log(level, "other processes were not notified, and find changes by polling: %r", error)
            await sleep(self._clock, pause)

    def _take_payload(self) -> str:
        """Return the payload for the changes since the last one: the origin, and the queues if they are known."""
        queues, self._queues = self._queues, set()
        if queues is not None and not queues:
            return f"{self._origin} {_ENDINGS}"
        named = "" if queues is None else f" {msgspec.json.encode(sorted(queues)).decode()}"
        return self._origin + (named if len(named.encode()) <= LONGEST_PAYLOAD else "")

    async def _notify(self, payload: str) -> None:
        await self._database.run(lambda session: session.fetch("notify", channel=self.channel, payload=payload))

    async def _poll(self) -> None:
        while True:
            await sleep(self._clock, LISTENING_POLL if self.is_listening else BLIND_POLL)
            try:
                self._wake(None)
            except Exception:
                logger.exception("waking failed")

    async def _listen(self, listens_on: Callable[[], AbstractAsyncContextManager[Any]], ready: asyncio.Event) -> None:
        is_warned = False
        while True:
            try:
                async with listens_on() as connection:
                    await self._listen_once(connection, ready)
            except Exception as error:
                is_warned = is_warned and not self.is_listening
                if not is_warned:
                    url = self._listen_url or self._database.url
                    told = without_secrets(repr(error), url)
                    logger.warning("not listening to %s, polling instead: %s", displayed_url(url), told)
                is_warned = True
            self.is_listening = False
            ready.set()
            await sleep(self._clock, RECONNECT)

    async def _listen_once(self, connection: Any, ready: asyncio.Event) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda *_: lost.set())
            await connection.add_listener(self.channel, self._receive)
            self._has_heard.clear()
            # Others need not look for jobs.
            await self._notify(f"{self._origin} {_ENDINGS}")
            if not await wait_for_event(self._clock, self._has_heard, WATCHDOG):
                raise StorageUnavailable("it receives nothing that is sent: it is a pooler, or another database")
            self.is_listening = True
            ready.set()
            # Changes from before the listener are found now.
            self._wake(None)
            while not await wait_for_event(self._clock, lost, WATCHDOG):
                await connection.fetchval("SELECT 1", timeout=WATCHDOG)
        finally:
            # Not given back to a pool while it listens.
            with contextlib.suppress(Exception):
                connection.terminate()

    def _receive(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        origin, _, named = str(payload).partition(" ")
        if origin == self._origin:
            self._has_heard.set()
            return
        queues: list[str] | None = [] if named == _ENDINGS else None
        with contextlib.suppress(msgspec.DecodeError):
            # A payload without names, or not from this library, is about any queue.
            queues = _decode_queues(named)
        self._wake(queues)
