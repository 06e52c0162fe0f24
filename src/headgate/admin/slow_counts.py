"""The counts of an overview that read all lanes or all jobs, for those who look again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.clock import Clock
from headgate.storage.background_counts import PATIENCE, BackgroundCounts
from headgate.storage.records import QueueCounts, WaitingCount

if TYPE_CHECKING:
    from headgate.admin.overview import UnfinishedCounts


FIRST_PATIENCE = 0.5
"""Seconds that the first overview waits for the jobs in queues, which it cannot show without."""


class SlowCounts:
    """What an overview counts in the background: a store with 200,000 keys takes a second for it.

    Keep one between overviews. Each waits at most `patience` seconds for a count that is under way, and shows the last
    one otherwise; the first one waits `queue_patience` for the jobs in queues (0.5 s; None: until they are counted).
    """

    def __init__(
        self, clock: Clock, *, patience: float = PATIENCE, queue_patience: float | None = FIRST_PATIENCE
    ) -> None:
        self.unfinished: BackgroundCounts[UnfinishedCounts] = BackgroundCounts(
            clock,
            "waiting jobs",
            patience=patience,
            first_patience=queue_patience,
            # What somebody changes in a small store is shown with the next overview.
            fresh_for=0,
        )
        self.finals: BackgroundCounts[Sequence[QueueCounts]] = BackgroundCounts(
            clock, "final jobs", patience=patience, first_patience=patience
        )
        self.tasks: BackgroundCounts[Sequence[WaitingCount]] = BackgroundCounts(
            clock, "waiting jobs by task", patience=patience, first_patience=patience
        )

    async def close(self) -> None:
        """End the counts that are under way."""
        await asyncio.gather(self.unfinished.close(), self.finals.close(), self.tasks.close())
