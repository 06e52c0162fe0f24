"""A trigger: the *when* of a schedule, a pure function of time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Trigger(Protocol):
    """The instants of a schedule, in microseconds of wall time since the Unix epoch.

    `Cron`, `Every` and `Calendar` are triggers. An object of your own may stand in their place if it has these methods:
    the store keeps its description, and nodes that declare the schedule in their code ask the object. Two calls with
    the same instant must give the same answer, in every process.
    """

    def next_after(self, instant: int) -> int | None:
        """The first instant later than this one, or None if there is none any more."""
        ...

    def latest_at_or_before(self, instant: int) -> int | None:
        """The last instant that is not later than this one, or None if there is none; how downtime is skipped."""
        ...

    def describe(self) -> str:
        """The trigger in a few words, for people and to tell one declaration from another."""
        ...
