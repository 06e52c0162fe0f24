"""The charge router: makes the charges of attempts and sends each amendment to the store that made the charge."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from headgate.engine.charge import AttemptCharge
from headgate.engine.fetcher import Fetcher
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.recorder import Recorder
from headgate.jobs.job import ClaimedJob
from headgate.jobs.lifecycle import Charge
from headgate.storage.records import Amendment


class ChargeRouter:
    """Amends local charges through the recorder, and those of limits `elsewhere` through the fetcher."""

    def __init__(
        self, recorder: Recorder, fetcher: Fetcher, historian: HistoryWriter, elsewhere: Container[str]
    ) -> None:
        self._recorder = recorder
        self._fetcher = fetcher
        self._historian = historian
        self._elsewhere = elsewhere
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bound once: one for each job would be work for the garbage collector.
        self._report = self._amend_from_any_thread

    def charge_of(self, job: ClaimedJob) -> AttemptCharge | None:
        """Return the charge of an attempt that starts now; None if the job draws on no limit."""
        if not job.draws:
            return None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return AttemptCharge(job, self._report, self._elsewhere)

    def refund(self, job: ClaimedJob) -> Charge | None:
        """Give back what a claimed job was charged that does not start; return what its charge came to."""
        charge = AttemptCharge(job, self._amend, self._elsewhere)
        charge.refund()
        return charge.final

    def penalize(self, job: ClaimedJob, closed_for: int) -> None:
        """Close the buckets of the job that are kept elsewhere for so long (microseconds)."""
        for draw in job.draws:
            if draw.limit in self._elsewhere:
                self._fetcher.penalize(draw, closed_for)

    def _amend_from_any_thread(self, amendment: Amendment) -> None:
        # Handlers in threads settle their costs, too.
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._amend, amendment)

    def _amend(self, amendment: Amendment) -> None:
        is_elsewhere = amendment.draw.limit in self._elsewhere
        self._historian.note_amended(amendment, is_local=not is_elsewhere)
        if is_elsewhere:
            self._fetcher.amend(amendment)
        else:
            self._recorder.amend(amendment)
