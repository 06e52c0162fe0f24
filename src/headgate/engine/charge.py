"""The charge of a running attempt, and its changes: a late start, a settled cost, a refund."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from headgate.jobs.job import ClaimedJob, Draw
from headgate.jobs.lifecycle import Charge
from headgate.limits.limit import AnyRule
from headgate.storage.records import Amendment


class AttemptCharge:
    """The charge of one attempt; it passes every change to `report`, so that the buckets are amended."""

    __slots__ = ("_at", "_costs", "_job", "_remote_limits", "_report")

    def __init__(
        self, job: ClaimedJob, report: Callable[[Amendment], None], remote_limits: Container[str] = ()
    ) -> None:
        self._job = job
        self._remote_limits = remote_limits
        self._report = report
        self._at: int | None = job.charged_at
        self._costs: list[int] | None = None

    @property
    def final(self) -> Charge | None:
        """The changed charge; None while it is as it was claimed."""
        if self._at == self._job.charged_at and self._costs is None:
            return None
        return Charge(self._at, None if self._costs is None else tuple(self._costs))

    @property
    def unlimited(self) -> tuple[str, ...]:
        """The limits without which the attempt starts, because their store was unavailable."""
        return tuple([draw.limit for index, draw in enumerate(self._job.draws) if not self._was_charged(index)])

    def start_late(self, now: int) -> None:
        """Move the charge to `now` (limit time)."""
        if self._at is None:
            return
        for index, draw in enumerate(self._job.draws):
            if self._was_charged(index):
                cost = self._cost(index)
                self._report(Amendment(draw, self._instant(index), cost, self._instant(index, now), cost))
        self._at = now

    def settle(self, limit: str, actual: int) -> None:
        """Change the cost of the start to `actual`; no effect if this attempt was not charged for the limit."""
        for index, draw in enumerate(self._job.draws):
            if draw.limit == limit and self._at is not None:
                if self._was_charged(index):
                    at = self._instant(index)
                    self._report(Amendment(draw, at, self._cost(index), at, actual))
                if self._costs is None:
                    self._costs = [self._cost(each) for each in range(len(self._job.draws))]
                self._costs[index] = actual

    def refund(self, *, is_refused: bool = False) -> None:
        """Give back the whole charge: the attempt never started, or the callee refused it."""
        if self._at is None:
            return
        for index, draw in enumerate(self._job.draws):
            if self._was_charged(index):
                at = self._instant(index)
                self._report(Amendment(draw, at, self._cost(index), at, 0, is_refused))
        self._at = None

    def _was_charged(self, index: int) -> bool:
        """Return False if the job runs because the limit's store was unavailable, so nothing was charged there."""
        if self._job.draws[index].limit not in self._remote_limits:
            return True
        return self._job.remote_charges is not None and self._job.remote_charges[index] is not None

    def _instant(self, index: int, at: int | None = None) -> int:
        """Return `at` (default: the charge; limit time) in the time of the store that charged the draw."""
        local = at if at is not None else self._at
        assert local is not None
        remote = None if self._job.remote_charges is None else self._job.remote_charges[index]
        if remote is None:
            return local
        return remote.at if local == self._job.charged_at else local + remote.ahead

    def _cost(self, index: int) -> int:
        if self._costs is not None:
            return self._costs[index]
        return 1 if self._job.costs is None else self._job.costs[index]


def takes_permit(draw: Draw, rules: Mapping[str, AnyRule]) -> bool:
    """Return whether a start takes a permit of this limit; False for an unknown limit."""
    rule = rules.get(draw.limit)
    return rule is not None and rule.holds_permits
