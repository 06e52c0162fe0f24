"""What becomes of a waiting job that is given another time or priority.

It stays in its lane, with its attempts, its unique key and the permits that it holds; its lane keeps its place in line.
No claim that begins after that starts it before its new time, and none that had read it before starts it as it was.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.errors import IllegalTransition
from headgate.jobs.state import JobState


class NewTime(NamedTuple):
    """When a job is ready from now on, whether it has to wait for that, and whether it was another time before."""

    run_at: int
    delayed: bool
    has_changed: bool


def new_time(run_at: int, wanted: int | None, now: int, *, delayed: bool) -> NewTime:
    """The time of a job that was ready at `run_at`, if it is `wanted` to be ready then (None: as before).

    A time that has passed means at once; who is ready by then keeps its place.
    """
    is_ahead = delayed and run_at > now
    if wanted is None or (wanted <= now and not is_ahead):
        return NewTime(run_at, delayed, has_changed=False)
    return NewTime(max(wanted, now), wanted > now, has_changed=True)


def require_waiting(job_id: str, state: JobState) -> None:
    """Raise IllegalTransition unless the job waits, so that it can be given another time or priority."""
    if state is not JobState.WAITING:
        raise IllegalTransition(f"job {job_id} is {state}; only a waiting one can be given another time or priority")
