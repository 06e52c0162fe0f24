"""Silent clients in the middle of a statement: a process ends their sessions if they hold locks.

A server limits how long a session may be idle in a transaction, and from version 17 on how long a transaction may last.
Older servers have no limit for a session that waits for its client *inside* a statement: for the rest of a message, for
values after the statement was parsed, or for the client to read the answer.
"""

from __future__ import annotations

import logging

from headgate.clock import SECOND, Clock
from headgate.storage.postgres.database import Database, Session

logger = logging.getLogger("headgate.storage")

LOOK_EVERY = 1.0
"""Seconds between two looks for silent clients."""

SILENT_FOR = 3 * SECOND
"""How long a client is silent before its session is ended; a healthy client is silent for a round trip."""

Silent = tuple[int, str]
"""A session by its process id, and the statement in which it waits."""


class SilentClients:
    """The sessions of one database that wait for their clients while they hold locks."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._since: dict[Silent, int] = {}

    async def run(self) -> None:
        """Check every second; errors are only logged, because other processes check too."""
        # A server may hide its sessions from this user: then only its own timeouts end them.
        await self._database.keep_running(self.look, LOOK_EVERY, self._clock, reads="the sessions")

    async def look(self, session: Session) -> None:
        """End the sessions whose clients have been silent for too long."""
        silent = [(row[0], row[1]) for row in await session.fetch("silent_clients")]
        now = self._clock.monotonic()
        self._since = {each: self._since.get(each, now) for each in silent}
        too_long = [each for each, since in self._since.items() if now - since >= SILENT_FOR]
        if too_long:
            pids, statements = zip(*too_long, strict=True)
            for pid, is_ended in await session.fetch("end_silent_clients", pids=pids, statements=statements):
                if is_ended:
                    logger.warning(
                        "%s: ended session %d, whose client was silent for %d s in a statement and held locks",
                        self._database.name,
                        pid,
                        SILENT_FOR // SECOND,
                    )
