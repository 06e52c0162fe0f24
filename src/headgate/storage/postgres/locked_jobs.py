"""Waiting jobs that a claim could not take because another open transaction has locked them."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.clock import Clock
from headgate.jobs.identity import job_number
from headgate.storage.admission import RowId
from headgate.storage.claim_rows import LaneHead
from headgate.storage.claiming import LOCKED_FOR


class LockedJobs:
    """Locked jobs that claims of this process skip for a second. A replaced job has a new fence: not skipped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[tuple[str, int], tuple[RowId, int]] = {}

    def begin(self) -> None:
        """Begin a claim. It tries jobs again that were found locked more than a second ago."""
        if self._until:
            now = self._clock.monotonic()
            self._until = {job: found for job, found in self._until.items() if found[1] > now}

    def note_locked(self, heads: Iterable[LaneHead]) -> None:
        """Note that other transactions have locked these jobs."""
        until = self._clock.monotonic() + LOCKED_FOR
        self._until |= {(head.id, head.fence): (head.lane, until) for head in heads}

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self._until]

    @property
    def names(self) -> list[str]:
        """Their names in statements that leave them out: id and fence."""
        return [f"{job_number(id)}:{fence}" for id, fence in self._until]

    @property
    def lanes(self) -> set[RowId]:
        """The lanes that have such jobs."""
        return {lane for lane, _ in self._until.values()}
