"""Permits without holder names: a `Concurrency` outside of jobs."""

from __future__ import annotations

from typing import ClassVar

from headgate.errors import CostExceedsLimit
from headgate.limits.rule import NEVER, Rule, Snapshot


class LocalPermits(Rule[int], frozen=True, tag="permits", tag_field="kind"):
    """Grants a permit while fewer than `count` are held. The state is the number held; time returns none."""

    count: int

    kind: ClassVar[str] = "permits"
    holds_permits: ClassVar[bool] = True

    @property
    def period(self) -> int:
        return 0

    def take(self, state: int | None, now: int, cost: int = 1) -> tuple[int, int]:
        self.check_cost(cost)
        held = (state or 0) + cost
        return now if held <= self.count else NEVER, held

    def check_cost(self, cost: int) -> None:
        if cost > self.count:
            raise CostExceedsLimit(
                f"a cost of {cost} can never be granted by a concurrency of {self.count}; raise it or lower the cost"
            )

    def counts_until(self, charged_at: int) -> int:
        return NEVER

    def amend(self, state: int, charged_at: int, cost: int, started_at: int, actual: int) -> int:
        return state + actual - cost

    def snapshot(self, state: int | None, now: int) -> Snapshot:
        used = state or 0
        available = max(0, self.count - used)
        return Snapshot(used=used, available=available, opens_at=now if available else NEVER)

    def bound(self, window: int) -> int:
        return self.count

    def idle_at(self, state: int) -> int:
        return NEVER if state else 0

    def dump(self, state: int) -> str:
        return f"1:{self.kind}:{state}"

    def load(self, stored: str, now: int) -> int:
        # Under another kind of rule there were no permits.
        head = f"1:{self.kind}:"
        return int(stored[len(head) :]) if stored.startswith(head) else 0

    def describe(self) -> str:
        return f"{self.count} at once"
