"""The charge router: creates the charges of attempts and sends each amendment to the store that made the charge."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headgate.engine.charge import AttemptCharge
from headgate.engine.fetcher import Fetcher
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.recorder import Recorder
from headgate.jobs.job import ClaimedJob
from headgate.jobs.lifecycle import Charge
from headgate.storage.records import Amendment


class ChargeRouter:
    """Amends local charges through the recorder, and those of `remote_limits` through the fetcher."""

    def __init__(
        self, recorder: Recorder, fetcher: Fetcher, history_writer: HistoryWriter, remote_limits: Collection[str]
    ) -> None:
        self._recorder = recorder
        self._fetcher = fetcher
        self._history_writer = history_writer
        self._remote_limits = remote_limits
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bound once: a bound method for each job would be work for the garbage collector.
        self._report = self._amend_from_any_thread

    def charge_of(self, job: ClaimedJob) -> AttemptCharge | None:
        """Return the charge of an attempt that starts now; None if the job draws on no limit."""
        if not job.draws:
            return None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        charge = AttemptCharge(job, self._report, self._remote_limits)
        if self._remote_limits and charge.unlimited:
            self._history_writer.note_unlimited(charge.unlimited)
        return charge

    def refund(self, job: ClaimedJob) -> Charge | None:
        """Give back the charge of a claimed job that does not start; return the final charge."""
        charge = AttemptCharge(job, self._amend, self._remote_limits)
        charge.refund()
        return charge.final

    def penalize(self, job: ClaimedJob, closed_for: int) -> None:
        """Close the remote buckets of the job for `closed_for` microseconds."""
        for draw in job.draws:
            if draw.limit in self._remote_limits:
                self._fetcher.penalize(draw, closed_for)

    def _amend_from_any_thread(self, amendment: Amendment) -> None:
        # Handlers in threads settle their costs, too.
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._amend, amendment)

    def _amend(self, amendment: Amendment) -> None:
        is_remote = amendment.draw.limit in self._remote_limits
        self._history_writer.note_amended(amendment, is_local=not is_remote)
        if is_remote:
            self._fetcher.amend(amendment)
        else:
            self._recorder.amend(amendment)
