"""Schedules for code that cannot await: the same verbs, run through the app's portal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, ParamSpec, TypeVar

from headgate.tasks.portal import Portal
from headgate.tasks.schedule import Schedule, TaskSchedule
from headgate.tasks.status import ScheduleStatus
from headgate.tasks.sync_job import SyncJob

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SyncSchedule(Generic[R_co]):
    """A stored schedule, controlled from code that cannot await."""

    __slots__ = ("_portal", "_schedule", "name")

    def __init__(self, schedule: Schedule[R_co], portal: Portal) -> None:
        self.name: str = schedule.name
        self._schedule = schedule
        self._portal = portal

    def status(self) -> ScheduleStatus:
        """Same as `Schedule.status`."""
        return self._portal.run(self._schedule.status())

    def next_runs(self, count: int = 5) -> Sequence[datetime]:
        """Same as `Schedule.next_runs`."""
        return self._portal.run(self._schedule.next_runs(count))

    def pause(self) -> bool:
        """Same as `Schedule.pause`."""
        return self._portal.run(self._schedule.pause())

    def resume(self) -> bool:
        """Same as `Schedule.resume`."""
        return self._portal.run(self._schedule.resume())

    def trigger(self) -> SyncJob[R_co]:
        """Same as `Schedule.trigger`."""
        return SyncJob(self._portal.run(self._schedule.trigger()), self._portal)

    def remove(self) -> bool:
        """Same as `Schedule.remove`."""
        return self._portal.run(self._schedule.remove())

    def __repr__(self) -> str:
        return f"SyncSchedule({self.name!r})"


class SyncTaskSchedule(Generic[P, R]):
    """`TaskSchedule` for code that cannot await."""

    __slots__ = ("_portal", "_schedule")

    def __init__(self, schedule: TaskSchedule[P, R], portal: Portal) -> None:
        self._schedule = schedule
        self._portal = portal

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncSchedule[R]:
        """Same as `TaskSchedule.enqueue`."""
        return SyncSchedule(self._portal.run(self._schedule.enqueue(*args, **kwargs)), self._portal)
