"""Unique keys: at most one job of a task waits with a unique key; decides about the next one.

Also ids that callers choose: decides whether a stored job is the one that is enqueued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from headgate.errors import DuplicateJob, IdInUse, IllegalTransition
from headgate.jobs.job import JobError, JobOptions, NewJob, Origin

SUPERSEDED = "Superseded"

Key = tuple[str, str]
"""A task and a unique key."""


class KeyHolders(NamedTuple):
    """The ids of the jobs that hold a key: the waiting one, a running one, and the one for which it stays taken.

    The last one may be in any state, and pruned.
    """

    waiting: str | None = None
    running: str | None = None
    kept_for: str | None = None


@dataclass(frozen=True, slots=True)
class StoreNew:
    """The key is free: the job is stored like any other."""


@dataclass(frozen=True, slots=True)
class KeepExisting:
    """Nothing is stored; the caller gets the existing job."""

    id: str


@dataclass(frozen=True, slots=True)
class ReplaceWaiting:
    """The waiting job takes the arguments and options of the new one; the caller gets the waiting job.

    The running job `cancels`, if there is one, is cancelled.
    """

    id: str
    cancels: str | None = None


@dataclass(frozen=True, slots=True)
class FollowRunning:
    """A job with the key runs: the new job is stored, and starts when the running one is final.

    If it `cancels`, the running job is cancelled.
    """

    id: str
    cancels: bool = False


Decision = StoreNew | KeepExisting | ReplaceWaiting | FollowRunning


def key_of(job: NewJob) -> Key | None:
    """Return the unique key of the job with its task, or None."""
    return None if job.unique_key is None else (job.task, job.unique_key)


def may_have_duplicates(jobs: Iterable[NewJob]) -> bool:
    """Whether other jobs may be returned for some of these, which are more than insertions."""
    return any(job.unique_key is not None or job.has_own_id for job in jobs)


def replaces(job: NewJob) -> bool:
    """Whether it replaces the job that waits under its key, so that its arguments are never dropped."""
    return job.on_conflict in ("replace", "cancel_running")


def is_free(job: NewJob, holders: KeyHolders) -> bool:
    """Whether the job is stored like any other, given the holders of its key."""
    return _existing(job, holders) is None


def decide(job: NewJob, holders: KeyHolders) -> Decision:
    """Decide about a job with a unique key, given the holders of the key. Raises DuplicateJob."""
    existing = _existing(job, holders)
    if existing is None:
        return StoreNew()
    match job.on_conflict:
        case "keep":
            return KeepExisting(existing)
        case "raise":
            assert job.unique_key is not None
            raise DuplicateJob(existing, job.task, job.unique_key)
        case "replace":
            return FollowRunning(existing) if holders.waiting is None else ReplaceWaiting(existing)
        case "cancel_running":
            if holders.waiting is None:
                return FollowRunning(existing, cancels=True)
            return ReplaceWaiting(existing, holders.running)
        case _:
            assert_never(job.on_conflict)


def _existing(job: NewJob, holders: KeyHolders) -> str | None:
    """Return the id of the job that the new one meets under its key."""
    running = holders.running if job.unique_terms.while_running else None
    # A job that has ended cannot be replaced.
    return holders.waiting or running or (None if replaces(job) else holders.kept_for)


def postponed(new: NewJob, waiting: JobOptions | None, *, is_tried: bool) -> NewJob:
    """Return the job that replaces a waiting one with these options, not later than its first enqueue allows.

    The window of the first enqueue ends with the first attempt: for a job that `is_tried`, a new one begins.
    """
    latest = None if waiting is None or is_tried else waiting.latest_start
    if latest is None or new.options is None or new.options.latest_start is None:
        return new
    early = max(0, new.run_at - latest)
    expires_at = new.expires_at
    if expires_at is not None and new.unique_terms.expires_with_start:
        expires_at -= early
    return replace(
        new,
        run_at=new.run_at - early,
        expires_at=expires_at,
        give_up_at=None if new.give_up_at is None else new.give_up_at - early,
        options=replace(new.options, latest_start=latest),
    )


def was_stored(job: NewJob, task: str, enqueued_at: int, enqueued_by: str | None) -> bool:
    """Whether another enqueue has stored the job of its id, given that job; False for a repeat after a lost reply.

    Raises IdInUse if that is a job of another task.
    """
    if task != job.task:
        raise IdInUse(job.id, job.task, task)
    return (enqueued_at, enqueued_by) != (job.enqueued_at, job.enqueued_by)


def successor(job: NewJob, running: str) -> NewJob:
    """Return the job so that it follows the running one, whatever its outcome."""
    return replace(job, origin=Origin(follows=running, on="final"))


def superseded_error(successor: str) -> JobError:
    """Return the error of a job that is cancelled instead of retried because its successor already waits."""
    return JobError(
        type=SUPERSEDED,
        message=f"not retried: job {successor} has replaced it and runs instead",
        data={"successor": successor},
    )


class KeyTaken(IllegalTransition):
    """A final job is not retried, because a waiting job holds its unique key."""

    def __init__(self, job_id: str, waiting: str) -> None:
        super().__init__(
            f"job {job_id} cannot wait again: job {waiting} waits with the same unique key; "
            "cancel that job first, or let it run"
        )


def in_lock_order(jobs: Iterable[NewJob]) -> list[NewJob]:
    """Return the jobs by their keys, else their own ids, so that of two additions that meet one waits for the other.

    Jobs under one key keep their order.
    """
    return sorted(jobs, key=lambda job: key_of(job) or ("", job.id if job.has_own_id else ""))


def in_sets(jobs: Iterable[NewJob], stored: Mapping[Key, KeyHolders]) -> list[tuple[bool, list[NewJob]]]:
    """Group consecutive jobs, each group with whether one statement may store it.

    It may if the jobs have no keys, or if all have different keys that nobody holds.
    """
    seen: set[Key] = set()

    def kind(job: NewJob) -> str:
        key = key_of(job)
        if key is None:
            return "without keys"
        is_first = key not in seen
        seen.add(key)
        return "free" if is_first and is_free(job, stored.get(key, KeyHolders())) else "others"

    return [(name != "others", list(group)) for name, group in groupby(jobs, key=kind)]


def require_no_duplicate(jobs: Iterable[NewJob], stored: Mapping[Key, KeyHolders]) -> None:
    """Raise DuplicateJob if the key of one of the jobs is held in the store, or by an earlier job in `jobs`."""
    before = dict(stored)
    for job in jobs:
        key = key_of(job)
        if key is not None:
            holders = before.get(key, KeyHolders())
            decision = decide(job, holders)
            if isinstance(decision, StoreNew | FollowRunning) and job.rejection is None:
                before[key] = holders._replace(waiting=job.id)
