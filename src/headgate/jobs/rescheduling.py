"""Changing the time or priority of a waiting job.

The job stays in its lane, with its attempts, its unique key and its permits; the lane keeps its place. A claim that
begins after the change does not start the job before its new time; a claim that read it before does not start it.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.errors import IllegalTransition
from headgate.jobs.state import JobState


class NewTime(NamedTuple):
    """The new time of a job, whether it has to wait for it, and whether the time has changed."""

    run_at: int
    delayed: bool
    has_changed: bool


def new_time(run_at: int, requested: int | None, now: int, *, delayed: bool) -> NewTime:
    """Return the new time of a job that was ready at `run_at`; `requested` is the new time, or None for no change.

    A time in the past means at once; a job that is ready already keeps its place.
    """
    is_ahead = delayed and run_at > now
    if requested is None or (requested <= now and not is_ahead):
        return NewTime(run_at, delayed, has_changed=False)
    return NewTime(max(requested, now), requested > now, has_changed=True)


def require_waiting(job_id: str, state: JobState) -> None:
    """Raise IllegalTransition unless the job waits; only then its time and priority can be changed."""
    if state is not JobState.WAITING:
        raise IllegalTransition(f"job {job_id} is {state}; only the time or priority of a waiting job can be changed")
