"""Waiting jobs that a claim met and could not have, because somebody's open transaction holds them."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.clock import Clock
from headgate.storage.admission import RowId
from headgate.storage.claiming import LOCKED_FOR, LaneHead


class LockedJobs:
    """Passed over by the claims of this process for a second. One that was replaced meanwhile has another fence."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[str, int], tuple[RowId, int]] = {}

    def begin(self) -> None:
        """A claim begins: those that were met long ago are tried again."""
        if self._until:
            now = self._clock.monotonic()
            self._until = {job: found for job, found in self._until.items() if found[1] > now}

    def met(self, heads: Iterable[LaneHead]) -> None:
        """These could not be had."""
        until = self._clock.monotonic() + LOCKED_FOR
        self._until |= {(head.id, head.fence): (head.lane, until) for head in heads}

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self._until]

    @property
    def names(self) -> list[str]:
        """What they are called by statements that leave them out."""
        return [f"{id}:{fence}" for id, fence in self._until]

    @property
    def lanes(self) -> set[RowId]:
        """The lanes that have such jobs."""
        return {lane for lane, _ in self._until.values()}
