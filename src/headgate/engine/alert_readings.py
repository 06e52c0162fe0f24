"""Reads the values that alerts watch from the store, each kind once for all alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

from headgate.clock import SECOND, Clock
from headgate.engine.bus import EventBus, publish_storage_failure
from headgate.jobs.alert import LOST_FOR, Condition, Reading
from headgate.jobs.history import ALL, KEPT_FOR, step_at
from headgate.schedules.schedule import LATE
from headgate.storage.store import Store

SEEN_WITHIN = 40 * SECOND
"""How long ago a failure may be that no look has seen (microseconds). Its count is stored within 20 seconds, and nodes
look every ten, or after 20 if the one that looked has died."""


class AlertReadings:
    """The readings of one moment. `limits_away` are the limits whose stores this node cannot reach."""

    def __init__(self, storage: Store, limits_away: Collection[str], *, clock: Clock, bus: EventBus) -> None:
        self._storage = storage
        self._limits_away = limits_away
        self._clock = clock
        self._bus = bus
        self._known: dict[object, Sequence[Reading] | None] = {}

    async def holding(self, condition: Condition) -> Sequence[Reading] | None:
        """Return the subjects for which the condition holds; None if they cannot be read, which is published."""
        is_failures = condition.kind == "failures"
        about = (condition.kind, condition.subject, condition.period) if is_failures else condition.kind
        if about not in self._known:
            self._known[about] = await self._try_read(condition)
        readings = self._known[about]
        return None if readings is None else condition.holding(readings)

    async def _try_read(self, condition: Condition) -> Sequence[Reading] | None:
        try:
            return await self._read(condition)
        except Exception as error:
            # The count of a large backlog may take too long, which is no reason to miss a lost node.
            publish_storage_failure(self._bus, self._clock, f"reading {condition.kind} for alerts", error)
            return None

    async def _read(self, condition: Condition) -> Sequence[Reading]:
        storage, now = self._storage, self._storage.now()
        match condition.kind:
            case "queue_lag":
                queues = await storage.queues()
                return [
                    Reading(queue.queue, (now - queue.ready_at) / SECOND)
                    for queue in queues
                    if queue.ready_at is not None
                ]
            case "waiting":
                waiting = Counter[str]()
                for each in await storage.views():
                    if each.view in ("ready", "throttled"):
                        waiting[each.queue] += each.jobs
                return [Reading(queue, jobs) for queue, jobs in waiting.items()]
            case "failures":
                return [await self._failures(condition.subject, condition.period or 0, now)]
            case "node_lost":
                return [Reading(name) for name in await storage.lost_nodes(now - LOST_FOR)]
            case "schedule_overdue":
                # Of the schedules of any task: which of them this node could fire does not matter.
                overdue = await storage.overdue_schedules(frozenset(), before=now - LATE)
                return [Reading(record.name) for record in overdue]
            case "limit_unavailable":
                return [Reading(limit) for limit in sorted(self._limits_away)]
        assert_never(condition.kind)

    async def _failures(self, task: str | None, period: int, now: int) -> Reading:
        # The shortest steps that are kept for so long.
        step = min(
            length for length, kept in KEPT_FOR.items() if kept * SECOND >= SEEN_WITHIN + _touched(period, length)
        )
        ends = range(step_at(now - SEEN_WITHIN, step), now + 1, step * SECOND)
        since = ends[0] + step * SECOND - _touched(period, step)
        failed = Counter[int]()
        for each in await self._storage.jobs_history(step, ALL, task or ALL, since):
            failed[each.at] += each.failed
        return Reading(task or "", most_failed(failed, ends, period, step))


def most_failed(failed: Mapping[int, int], ends: Sequence[int], period: int, step: int) -> int:
    """Return the most failures within `period` of the times that end in one of the steps that begin at `ends`.

    `failed` has the failures of each step, by its beginning. The first step of such a time, and the last, count as a
    whole. So it is never too few, and failures that are less than two steps further apart may be counted together.
    """
    length = _touched(period, step)
    return max(sum(many for at, many in failed.items() if end - length < at <= end) for end in ends)


def _touched(period: int, step: int) -> int:
    """Return how many microseconds the steps of `step` seconds last that a time of `period` microseconds can touch."""
    return (-(-period // (step * SECOND)) + 1) * step * SECOND
