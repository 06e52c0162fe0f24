"""Triggers: when a schedule runs, as a pure function of time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Trigger(Protocol):
    """The instants of a schedule, in microseconds of wall time since the Unix epoch.

    `Cron`, `Every` and `Calendar` are triggers. Any object with these methods is a custom trigger: the store keeps its
    description, and nodes that declare the schedule in their code call the object. Two calls with the same instant must
    return the same result, in every process.
    """

    def next_after(self, instant: int) -> int | None:
        """Return the first instant later than this one, or None if there is none."""
        ...

    def latest_at_or_before(self, instant: int) -> int | None:
        """Return the last instant that is not later than this one, or None; used to skip downtime."""
        ...

    def describe(self) -> str:
        """Return the trigger in a few words, for display and to compare declarations."""
        ...
