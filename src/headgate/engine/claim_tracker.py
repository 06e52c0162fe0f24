"""The claims of a node that have no reply yet, and the jobs of claims whose reply was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping

from headgate.engine.recorder import Recorder
from headgate.engine.running_attempts import RunningAttempts, Slots
from headgate.engine.services import Services, WithServices
from headgate.jobs.job import ClaimedJob, JobState


class ClaimTracker(WithServices):
    """Knows which claims are pending; starts or returns the jobs that this node owns in the store and has not got."""

    def __init__(
        self,
        services: Services,
        slots: Slots,
        holds_lease: Callable[[], bool],
        attempts: RunningAttempts,
        recorder: Recorder,
        *,
        remote_limits: Container[str],
        stopping: asyncio.Event,
    ) -> None:
        super().__init__(services)
        self._slots = slots
        self._holds_lease = holds_lease
        self._attempts = attempts
        self._recorder = recorder
        self._remote_limits = remote_limits
        self._stopping = stopping
        self._lost_claims = LostClaims()
        # When the pending claims were sent, the first one first.
        self._sent_at: list[int] = []
        self._checks_left = 0

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is pending, or its jobs have not been started yet."""
        return bool(self._sent_at)

    def claim_sent(self, at: int) -> None:
        """Note that a claim was sent at `at` (monotonic); every free slot is reserved for it."""
        self._sent_at.append(at)

    def claim_answered(self, at: int) -> None:
        """Note that the claim that was sent at `at` has returned and its jobs start next."""
        self._sent_at.remove(at)

    def claim_failed(self, at: int) -> None:
        """Note that the claim failed; it may have succeeded in the store and its reply may be lost."""
        self._sent_at.remove(at)
        # A job is lost if two checks do not find it here.
        self._checks_left = 2

    def take_check(self) -> bool:
        """Return whether a heartbeat should check for lost claims now; True uses up one of the checks."""
        if not self._checks_left:
            return False
        self._checks_left -= 1
        return True

    async def start_lost(self, node: str, owned: Mapping[str, int]) -> None:
        """Start or return the lost jobs among those that `node` owns; `owned` maps them to their fences."""
        known = self._attempts.jobs | self._recorder.pending
        now = self._clock.monotonic()
        since = min(self._sent_at, default=None)
        for job_id, fence in self._lost_claims.among(owned, known, claiming_since=since, now=now):
            await self._start_lost_job(node, job_id, fence)

    async def _start_lost_job(self, node: str, job_id: str, fence: int) -> None:
        record = await self._storage.job(job_id)
        if record is None or record.state is not JobState.RUNNING or (record.node, record.fence) != (node, fence):
            return
        # Without the lease it does not start: the next heartbeat finds it again.
        if job_id in self._attempts.jobs or job_id in self._recorder.pending or not self._holds_lease():
            return
        job = record.as_claimed()
        self._history_writer.note_started([job])
        # Which job was charged for its call is known only to the claim.
        if self._can_start(job) and not record.is_in_call_of_another:
            self._attempts.start(job)
        else:
            self._attempts.hand_back(job)

    def _can_start(self, job: ClaimedJob) -> bool:
        # Every free slot is reserved for a pending claim.
        return (
            not self.is_claiming
            and self._slots.free_in(job.queue) > 0
            and job.task in self._registry.names
            and not any(ref.limit in self._remote_limits for ref in job.buckets)
            and not self._stopping.is_set()
        )


class LostClaims:
    """Compares, at each heartbeat, the jobs that a node owns with those it holds.

    A job is lost if two checks in a row find it unknown with the same fence, unless a claim is pending that was sent
    before the first check. A job with another fence was returned and claimed again meanwhile; its reply may be pending.
    """

    def __init__(self) -> None:
        self._unknown: set[tuple[str, int]] = set()
        self._checked_at = 0

    def among(
        self, owned: Mapping[str, int], known: Container[str], *, claiming_since: int | None, now: int
    ) -> list[tuple[str, int]]:
        """Return the lost jobs with their fences; `claiming_since` is when the first pending claim was sent."""
        unknown = {(id, fence) for id, fence in owned.items() if id not in known}
        is_pending = claiming_since is not None and claiming_since <= self._checked_at
        lost = set() if is_pending else unknown & self._unknown
        self._unknown, self._checked_at = unknown, now
        return sorted(lost)
