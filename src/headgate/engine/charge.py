"""The charge of a running attempt, and its changes: a late start, a settled cost, a refund."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from headgate.jobs.job import ClaimedJob, Draw
from headgate.jobs.lifecycle import Charge
from headgate.limits.limit import AnyRule
from headgate.storage.records import Amendment, StartMove


class AttemptCharge:
    """The charge of one attempt; it passes settled costs and refunds to `report`, so that the buckets are amended."""

    __slots__ = ("_costs", "_is_refunded", "_job", "_remote_limits", "_report", "is_uncertain", "moved_to")

    def __init__(
        self, job: ClaimedJob, report: Callable[[Amendment], None], remote_limits: Container[str] = ()
    ) -> None:
        self._job = job
        self._remote_limits = remote_limits
        self._report = report
        self._is_refunded = False
        self._costs: list[int] | None = None
        # The limit time to which it was moved, because the attempt starts late; None: it is where the claim made it.
        self.moved_to: int | None = None
        # Whether it may have been moved by a commit whose reply is pending or was lost.
        self.is_uncertain = False

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
        return tuple([draw.limit for index, draw in enumerate(self._job.draws) if not self._was_charged(index)])

    def start_move(self, rules: Mapping[str, AnyRule], ahead: int) -> StartMove | None:
        """Return the move of its starts in the store of the jobs, to `ahead` microseconds after its commit.

        None if no rate there was charged for it.
        """
        moved = [
            (draw, self._cost(index))
            for index, draw in enumerate(self._job.draws)
            if draw.limit not in self._remote_limits and (rule := rules.get(draw.limit)) is not None and rule.period
        ]
        if not moved:
            return None
        return StartMove(*self.attempt, [draw for draw, _ in moved], [cost for _, cost in moved], ahead)

    def move(self, at: int) -> list[Amendment]:
        """Note that the start counts at `at` (limit time), and return what that changes in each bucket."""
        self.is_uncertain = False
        if self._is_refunded:
            return []
        before = [self._instant(index) for index in range(len(self._job.draws))]
        self.moved_to = at
        return [
            Amendment(draw, before[index], self._cost(index), self._instant(index), self._cost(index))
            for index, draw in enumerate(self._job.draws)
            if self._was_charged(index)
        ]

    def settle(self, limit: str, actual: int) -> None:
        """Change the cost of the start to `actual`; no effect if this attempt was not charged for the limit."""
        for index, draw in enumerate(self._job.draws):
            if draw.limit == limit and not self._is_refunded:
                if self._was_charged(index) and (actual >= self._cost(index) or self._can_give_back(index)):
                    at = self._instant(index)
                    self._report(Amendment(draw, at, self._cost(index), at, actual))
                if self._costs is None:
                    self._costs = [self._cost(each) for each in range(len(self._job.draws))]
                self._costs[index] = actual

    def refund(self, *, is_refused: bool = False) -> None:
        """Give back the whole charge: the attempt never started, or the callee refused it.

        A charge that may have been moved or not stays where it is.
        """
        if self._is_refunded:
            return
        for index, draw in enumerate(self._job.draws):
            if self._was_charged(index) and self._can_give_back(index):
                at = self._instant(index)
                self._report(Amendment(draw, at, self._cost(index), at, 0, is_refused))
        self._is_refunded = True

    def _was_charged(self, index: int) -> bool:
        """Return False if the job runs because the limit's store was unavailable, so nothing was charged there."""
        if self._job.draws[index].limit not in self._remote_limits:
            return True
        return self._job.remote_charges is not None and self._job.remote_charges[index] is not None

    def _can_give_back(self, index: int) -> bool:
        """Return whether it is known when the start counts; elsewhere, another start would be given back."""
        return not self.is_uncertain or self._job.draws[index].limit in self._remote_limits

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


def takes_permit(draw: Draw, rules: Mapping[str, AnyRule]) -> bool:
    """Return whether a start takes a permit of this limit; False for an unknown limit."""
    rule = rules.get(draw.limit)
    return rule is not None and rule.holds_permits
