"""The counts of an overview that read all lanes or all jobs, kept for repeated overviews."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.clock import SECOND, Clock
from headgate.storage.background_counts import PATIENCE, BackgroundCounts
from headgate.storage.records import QueueCounts, WaitingCount

if TYPE_CHECKING:
    from headgate.admin.history import ActivityReport
    from headgate.admin.overview import UnfinishedCounts


FIRST_PATIENCE = 0.5
"""Seconds that the first overview waits for the jobs in queues, which it needs."""


FINALS_MAX_AGE = 60 * SECOND
"""Microseconds: the age of the counts of final jobs; to count millions takes a second or more."""


class SlowCounts:
    """Counts for an overview, read in the background: with 200,000 keys, counting takes a second.

    Keep one between overviews. Each waits at most `patience` seconds for a running count, and shows the last one
    otherwise; the first one waits `queue_patience` for the jobs in queues (0.5 s; None: until they are counted).
    """

    def __init__(
        self, clock: Clock, *, patience: float = PATIENCE, queue_patience: float | None = FIRST_PATIENCE
    ) -> None:
        self.unfinished: BackgroundCounts[UnfinishedCounts] = BackgroundCounts(
            clock,
            "waiting jobs",
            patience=patience,
            first_patience=queue_patience,
            # In a small store, the next overview shows each change.
            fresh_for=0,
        )
        self.finals: BackgroundCounts[Sequence[QueueCounts]] = BackgroundCounts(
            clock, "final jobs", patience=patience, first_patience=patience, max_age=FINALS_MAX_AGE
        )
        self.tasks: BackgroundCounts[Sequence[WaitingCount]] = BackgroundCounts(
            clock, "waiting jobs by task", patience=patience, first_patience=patience
        )
        self.activity: BackgroundCounts[ActivityReport] = BackgroundCounts(
            clock, "finished jobs by task", patience=patience, first_patience=FIRST_PATIENCE
        )

    async def close(self) -> None:
        """End the running counts."""
        await asyncio.gather(*(each.close() for each in (self.unfinished, self.finals, self.tasks, self.activity)))
