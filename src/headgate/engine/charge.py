"""The charge of an attempt, and its changes: a late start, a settled cost, a refund.

A limit counts a start at the instant of its charge, and its margin allows for a short delay until the call. When a slow
disk, a late reply or a busy event loop makes the delay longer, the next start has to be measured from the actual start.

The invariant: a handler is called only while the charge that the store of the jobs holds is at most this short delay
old. So whatever happens to the process a moment later, no charge is earlier than its rule allows, and a job that is
taken back from a dead node keeps its charge. An older charge is moved first, and the call waits for that commit. A
limit in another store has its charge moved after the call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from enum import Enum

from headgate.clock import SECOND
from headgate.engine.fetcher import Fetcher
from headgate.engine.recorder import Recorder
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.job import BucketRef, ClaimedJob
from headgate.jobs.lifecycle import Charge, Correction
from headgate.limits.limit import AnyRule
from headgate.storage.batcher import Batcher
from headgate.storage.live_rules import LiveRules
from headgate.storage.records import Amendment, StartMove

TOLERATED = SECOND // 4
"""How late a start may be (µs) under a limit without a margin. More than the delay under normal load, because each late
start costs one more write."""

MOVES = 5
"""How often the charge of a start is moved before the job is returned, if the store is slower each time."""

MOVE_AGAIN = 0.1
"""Seconds until a charge is moved again that the store could not move."""


class AttemptCharge:
    """The charge of one attempt; it passes settled costs to `report`, so that the buckets are amended."""

    __slots__ = ("_costs", "_is_refunded", "_job", "_kept", "_remote_limits", "_report", "moved_to")

    def __init__(
        self, job: ClaimedJob, report: Callable[[Amendment], None], remote_limits: Container[str] = ()
    ) -> None:
        self._job = job
        self._remote_limits = remote_limits
        self._report = report
        self._is_refunded = False
        # The limits that have counted the call of the attempt: that charge stays, whatever becomes of this job.
        self._kept: tuple[str, ...] = ()
        self._costs: list[int] | None = None
        # The limit time to which it was moved, because the attempt starts late; None: it is where the claim made it, or
        # where a commit has moved it whose reply is pending or was lost.
        self.moved_to: int | None = None

    @property
    def attempt(self) -> tuple[str, int]:
        """The attempt, by the id and the fence of its job."""
        return self._job.id, self._job.fence

    @property
    def final(self) -> Charge | None:
        """The changed charge; None while it is as it was claimed."""
        at = None if self._is_refunded else self._charged_at
        if at == self._job.charged_at and self._costs is None:
            return None
        return Charge(at, None if self._costs is None else tuple(self._costs))

    @property
    def unlimited(self) -> tuple[str, ...]:
        """The limits without which the attempt starts, because their store was unavailable."""
        return tuple([ref.limit for index, ref in enumerate(self._job.buckets) if not self._was_charged(index)])

    def start_move(self, rules: Mapping[str, AnyRule], ahead: int) -> StartMove | None:
        """Return the move of its starts in the store of the jobs, to `ahead` microseconds after its commit.

        None if no rate there was charged for it.
        """
        moved = [
            (ref, self._cost(index))
            for index, ref in enumerate(self._job.buckets)
            if ref.limit not in self._remote_limits and (rule := rules.get(ref.limit)) is not None and rule.period
        ]
        if not moved:
            return None
        return StartMove(*self.attempt, [ref for ref, _ in moved], [cost for _, cost in moved], ahead)

    def move(self, at: int) -> list[Amendment]:
        """Note that the start counts at `at` (limit time), and return what that changes in each bucket."""
        if self._is_refunded:
            return []
        before = [self._instant(index) for index in range(len(self._job.buckets))]
        self.moved_to = at
        return [
            Amendment(ref, before[index], self._cost(index), self._instant(index), self._cost(index))
            for index, ref in enumerate(self._job.buckets)
            if self._was_charged(index)
        ]

    def settle(self, limit: str, actual: int) -> None:
        """Change the cost of the start to `actual`; no effect if this attempt was not charged for the limit."""
        for index, ref in enumerate(self._job.buckets):
            if ref.limit == limit and not self._is_refunded:
                if self._was_charged(index):
                    at = self._instant(index)
                    self._report(Amendment(ref, at, self._cost(index), at, actual))
                self._set_cost(index, actual)

    def use_for_call(self, limits: tuple[str, ...], *, is_needed: bool) -> None:
        """Use the charge in these limits for a call that begins now, or give it back if another charge is used."""
        if is_needed:
            self._kept = limits
            return
        for limit in limits:
            self.settle(limit, 0)

    def refund(self, *, is_refused: bool = False) -> list[Amendment]:
        """Give back the charge: the attempt never started, or the callee refused it. Returns what that changes.

        The charge of a call that was made for other jobs too stays.
        """
        changes: list[Amendment] = []
        if self._is_refunded:
            return changes
        for index, ref in enumerate(self._job.buckets):
            at, cost = self._instant(index), self._cost(index)
            actual = cost if ref.limit in self._kept else 0
            if self._was_charged(index) and (actual != cost or is_refused):
                changes.append(Amendment(ref, at, cost, at, actual, is_refused))
            if self._kept:
                self._set_cost(index, actual)
        self._is_refunded = not self._kept
        return changes

    def _set_cost(self, index: int, actual: int) -> None:
        if self._costs is None:
            self._costs = [self._cost(each) for each in range(len(self._job.buckets))]
        self._costs[index] = actual

    def _was_charged(self, index: int) -> bool:
        """Return False if the job runs because the limit's store was unavailable, so nothing was charged there."""
        if self._job.buckets[index].limit not in self._remote_limits:
            return True
        return self._job.remote_charges is not None and self._job.remote_charges[index] is not None

    @property
    def _charged_at(self) -> int:
        return self._job.charged_at if self.moved_to is None else self.moved_to

    def _instant(self, index: int) -> int:
        """Return when the start counts in a bucket, in the time of the store that charged it."""
        remote = None if self._job.remote_charges is None else self._job.remote_charges[index]
        if remote is None:
            return self._charged_at
        return remote.at if self.moved_to is None else self.moved_to + remote.ahead

    def _cost(self, index: int) -> int:
        if self._costs is not None:
            return self._costs[index]
        return 1 if self._job.costs is None else self._job.costs[index]


def takes_permit(ref: BucketRef, rules: Mapping[str, AnyRule]) -> bool:
    """Return whether a start takes a permit of this limit; False for an unknown limit."""
    rule = rules.get(ref.limit)
    return rule is not None and rule.holds_permits


_Move = tuple[Sequence[AttemptCharge], int]
"""Charges to move, and how far ahead of the commit (µs)."""


class ChargeRouter(WithServices):
    """Amends local charges through the recorder, and those of `remote_limits` through the fetcher.

    Charges of late starts are moved at once, in groups: those that wait during one commit share the next.
    """

    def __init__(
        self, services: Services, recorder: Recorder, fetcher: Fetcher, remote_limits: Collection[str]
    ) -> None:
        super().__init__(services)
        self._recorder = recorder
        self._fetcher = fetcher
        self._remote_limits = remote_limits
        self._moves: Batcher[_Move] = Batcher(self._commit_moves)
        self._loop: asyncio.AbstractEventLoop | None = None
        # Bound once: a bound method for each job would be work for the garbage collector.
        self._report = self._amend_from_any_thread

    def charge_of(self, job: ClaimedJob) -> AttemptCharge | None:
        """Return the charge of an attempt that starts now; None if the job uses no limit."""
        if not job.buckets:
            return None
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        charge = AttemptCharge(job, self._report, self._remote_limits)
        if self._remote_limits and charge.unlimited:
            self._history_writer.note_unlimited(charge.unlimited)
        return charge

    async def move(self, charges: Sequence[AttemptCharge], ahead: int = 0) -> None:
        """Move the charges to one instant, `ahead` microseconds after the commit, and return after the commit.

        Those that the store did not move have not changed. If it failed, they may have: then only the store knows.
        """
        await self._moves.write((charges, ahead))

    async def _commit_moves(self, moves: Sequence[_Move]) -> Sequence[None]:
        local = [
            (charge, start)
            for charges, ahead in moves
            for charge in charges
            if (start := charge.start_move(self._registry.rules, ahead)) is not None
        ]
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
                    self._publish_failure("moving the charges of late starts", error)
                return [None] * len(moves)
        now = self._storage.limit_now()
        unmoved = {charge.attempt for charge, _ in local if charge.attempt not in moved}
        for charges, _ in moves:
            for charge in charges:
                if charge.attempt not in unmoved:
                    for amendment in charge.move(moved.get(charge.attempt, now)):
                        self._note(amendment)
        return [None] * len(moves)

    def refund(self, charge: AttemptCharge, *, is_refused: bool = False) -> tuple[Correction, ...]:
        """Give back the charge of an attempt that never started or was refused.

        Returns what its ending corrects in the store of the jobs. That store knows when the start counts, even if the
        reply to its last move was lost; and the job is in line again before the next one of its key can start.
        """
        corrections: list[Correction] = []
        for change in charge.refund(is_refused=is_refused):
            self._note(change)
            if change.ref.limit not in self._remote_limits:
                corrections.append(Correction(change.ref, change.cost, change.actual, change.is_refused))
        return tuple(corrections)

    def refund_unstarted(self, job: ClaimedJob) -> tuple[Charge | None, tuple[Correction, ...]]:
        """Give back the charge of a claimed job that does not start; return the final charge and the corrections."""
        charge = AttemptCharge(job, self._report, self._remote_limits)
        corrections = self.refund(charge)
        return charge.final, corrections

    def penalize(self, job: ClaimedJob, closed_for: int) -> None:
        """Close the remote buckets of the job for `closed_for` microseconds."""
        for ref in job.buckets:
            if ref.limit in self._remote_limits:
                self._fetcher.by_limit[ref.limit].penalize(ref, closed_for)

    def _amend_from_any_thread(self, amendment: Amendment) -> None:
        # Handlers in threads settle their costs, too. A thread that outlives its attempt may outlive the loop as well.
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._amend, amendment)

    def _amend(self, amendment: Amendment) -> None:
        if amendment.ref.limit not in self._remote_limits:
            self._recorder.amend(amendment)
        self._note(amendment)

    def _note(self, amendment: Amendment) -> None:
        """Count an amendment in the history, and send it to the remote store that made the charge."""
        is_remote = amendment.ref.limit in self._remote_limits
        self._history_writer.note_amended(amendment, is_local=not is_remote)
        if is_remote:
            self._fetcher.by_limit[amendment.ref.limit].amend(amendment)


class StartDecision(Enum):
    """How a claimed job may start."""

    ON_TIME = "on time"
    LATE = "late"
    TOO_LATE = "too late"


def decide_start(
    job: ClaimedJob, rules: Mapping[str, AnyRule], live: LiveRules, now: int, moved_to: int | None = None
) -> StartDecision:
    """Return whether `job` may start at limit time `now`, and whether its charge has to be moved first.

    On time: within half of each limit's margin, or a quarter of a second without a margin. Late: the job may start once
    it is stored that its charge was moved. Too late, as after a freeze of the process: the delay exceeds half of the
    time until the charge makes room, so the job is returned and no attempt is spent. `moved_to` is the limit time to
    which the charge was moved already.
    """
    start = StartDecision.ON_TIME
    for index, ref in enumerate(job.buckets):
        declared = rules.get(ref.limit)
        # Permits have no period: the time at which they were taken does not matter.
        if declared is None or not declared.period:
            continue
        rule = live.rule(ref, declared)
        at, ahead = job.charged_at, 0
        if job.remote_charges is not None and (remote := job.remote_charges[index]) is not None:
            at, ahead = remote.at - remote.ahead, remote.ahead
        charged_at = at if moved_to is None else moved_to
        lateness = now - charged_at
        if lateness <= (rule.margin // 2 if rule.margin else TOLERATED):
            continue
        # Windows begin and end by the time of the store that counts in them.
        if 2 * lateness > rule.counts_until(charged_at + ahead) - (charged_at + ahead):
            return StartDecision.TOO_LATE
        start = StartDecision.LATE
    return start
