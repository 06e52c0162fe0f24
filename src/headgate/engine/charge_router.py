"""The charge router: creates the charges of attempts and sends each amendment to the store that made the charge."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from headgate.engine.bus import publish_storage_failure
from headgate.engine.charge import AttemptCharge
from headgate.engine.fetcher import Fetcher
from headgate.engine.recorder import Recorder
from headgate.engine.services import Services
from headgate.errors import StorageUnavailable
from headgate.jobs.job import ClaimedJob
from headgate.jobs.lifecycle import Charge
from headgate.storage.batcher import Batcher
from headgate.storage.records import Amendment

_Move = tuple[Sequence[AttemptCharge], int]
# Charges to move, and how far ahead of the commit (µs).


class ChargeRouter:
    """Amends local charges through the recorder, and those of `remote_limits` through the fetcher.

    Charges of late starts are moved at once, in groups: those that wait during one commit share the next.
    """

    def __init__(
        self,
        services: Services,
        recorder: Recorder,
        fetcher: Fetcher,
        remote_limits: Collection[str],
    ) -> None:
        self._storage = services.storage
        self._registry = services.registry
        self._recorder = recorder
        self._fetcher = fetcher
        self._history_writer = services.history_writer
        self._remote_limits = remote_limits
        self._clock = services.clock
        self._bus = services.bus
        self._moves: Batcher[_Move] = Batcher(self._commit_moves)
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

    async def move(self, charges: Sequence[AttemptCharge], ahead: int = 0) -> None:
        """Move the charges to one instant, `ahead` microseconds after the commit, and return after the commit.

        Those that the store did not move have not changed; if it failed, they may have, and are uncertain.
        """
        await self._moves.write((charges, ahead))

    async def _commit_moves(self, moves: Sequence[_Move]) -> Sequence[None]:
        local = [
            (charge, start)
            for charges, ahead in moves
            for charge in charges
            if (start := charge.start_move(self._registry.rules, ahead)) is not None
        ]
        were_uncertain = [charge.is_uncertain for charge, _ in local]
        for charge, _ in local:
            charge.is_uncertain = True
        moved: Mapping[tuple[str, int], int] = {}
        if local:
            try:
                starts = [start for _, start in local]
                moved = await self._storage.move_starts(self._recorder.node, starts, self._registry.rules)
            except Exception as error:
                if len(moves) > 1 and not isinstance(error, StorageUnavailable):
                    # The store cannot hold one of them, so each is moved alone.
                    for move in moves:
                        await self._commit_moves([move])
                else:
                    publish_storage_failure(self._bus, self._clock, "moving the charges of late starts", error)
                return [None] * len(moves)
        for (charge, _), was_uncertain in zip(local, were_uncertain, strict=True):
            charge.is_uncertain = was_uncertain
        now = self._storage.limit_now()
        unmoved = {charge.attempt for charge, _ in local if charge.attempt not in moved}
        for charges, _ in moves:
            for charge in charges:
                if charge.attempt not in unmoved:
                    for amendment in charge.move(moved.get(charge.attempt, now)):
                        self._note(amendment)
        return [None] * len(moves)

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
        if not self._is_remote(amendment):
            self._recorder.amend(amendment)
        self._note(amendment)

    def _note(self, amendment: Amendment) -> None:
        """Count an amendment in the history, and send it to the remote store that made the charge."""
        is_remote = self._is_remote(amendment)
        self._history_writer.note_amended(amendment, is_local=not is_remote)
        if is_remote:
            self._fetcher.amend(amendment)

    def _is_remote(self, amendment: Amendment) -> bool:
        return amendment.draw.limit in self._remote_limits
