"""What a running attempt was charged, and how that turns out otherwise: a late start, a settled cost, a refund."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from headgate.jobs.job import ClaimedJob, Draw
from headgate.jobs.lifecycle import Charge
from headgate.limits.limit import AnyRule
from headgate.storage.records import Amendment


class AttemptCharge:
    """The charge of one attempt; every change of it is reported, so that its buckets are told."""

    __slots__ = ("_at", "_costs", "_job", "_kept_elsewhere", "_report")

    def __init__(
        self, job: ClaimedJob, report: Callable[[Amendment], None], kept_elsewhere: Container[str] = ()
    ) -> None:
        self._job = job
        self._kept_elsewhere = kept_elsewhere
        self._report = report
        self._at: int | None = job.charged_at
        self._costs: list[int] | None = None

    @property
    def final(self) -> Charge | None:
        """What it has become; None while it is as it was claimed."""
        if self._at == self._job.charged_at and self._costs is None:
            return None
        return Charge(self._at, None if self._costs is None else tuple(self._costs))

    def start_late(self, now: int) -> None:
        """The start counts as of `now` (limit time)."""
        if self._at is None:
            return
        for index, draw in enumerate(self._job.draws):
            if self._was_charged(index):
                cost = self._cost(index)
                self._report(Amendment(draw, self._instant(index), cost, self._instant(index, now), cost))
        self._at = now

    def settle(self, limit: str, actual: int) -> None:
        """The start cost `actual`; without effect if this attempt was not charged for the limit."""
        for index, draw in enumerate(self._job.draws):
            if draw.limit == limit and self._at is not None:
                if self._was_charged(index):
                    at = self._instant(index)
                    self._report(Amendment(draw, at, self._cost(index), at, actual))
                if self._costs is None:
                    self._costs = [self._cost(each) for each in range(len(self._job.draws))]
                self._costs[index] = actual

    def refund(self) -> None:
        """The attempt never began, or the callee refused it: it counts as nothing."""
        if self._at is None:
            return
        for index, draw in enumerate(self._job.draws):
            if self._was_charged(index):
                at = self._instant(index)
                self._report(Amendment(draw, at, self._cost(index), at, 0))
        self._at = None

    def _was_charged(self, index: int) -> bool:
        """Not if the job runs because the store of the limit could not be asked: what is there belongs to others."""
        if self._job.draws[index].limit not in self._kept_elsewhere:
            return True
        return self._job.elsewhere is not None and self._job.elsewhere[index] is not None

    def _instant(self, index: int, at: int | None = None) -> int:
        """A limit time, or that of the charge, in the time of the store where the draw was charged."""
        local = at if at is not None else self._at
        assert local is not None
        elsewhere = None if self._job.elsewhere is None else self._job.elsewhere[index]
        if elsewhere is None:
            return local
        return elsewhere.at if local == self._job.charged_at else local + elsewhere.ahead

    def _cost(self, index: int) -> int:
        if self._costs is not None:
            return self._costs[index]
        return 1 if self._job.costs is None else self._job.costs[index]


def takes_permit(draw: Draw, rules: Mapping[str, AnyRule]) -> bool:
    """Return whether a start takes a permit of this limit. A limit that is not known here grants none."""
    rule = rules.get(draw.limit)
    return rule is not None and rule.holds_permits
