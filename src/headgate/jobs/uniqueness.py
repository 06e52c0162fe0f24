"""Unique keys: at most one job of a task waits with a unique key; decides about the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from msgspec.structs import replace

from headgate.errors import DuplicateJob, IllegalTransition
from headgate.jobs.job import JobError, NewJob, Origin

SUPERSEDED = "Superseded"

Key = tuple[str, str]
"""A task and a unique key."""


class KeyHolders(NamedTuple):
    """The ids of the jobs that hold a key: the waiting one, and a running one."""

    waiting: str | None = None
    running: str | None = None


@dataclass(frozen=True, slots=True)
class StoreNew:
    """The key is free: the job is stored like any other."""


@dataclass(frozen=True, slots=True)
class KeepExisting:
    """Nothing is stored; the caller gets the existing job."""

    id: str


@dataclass(frozen=True, slots=True)
class ReplaceWaiting:
    """The waiting job takes the arguments and options of the new one; the caller gets the waiting job."""

    id: str


@dataclass(frozen=True, slots=True)
class FollowRunning:
    """A job with the key runs: the new job is stored, and starts when the running one is final."""

    id: str


Decision = StoreNew | KeepExisting | ReplaceWaiting | FollowRunning


def key_of(job: NewJob) -> Key | None:
    """Return the unique key of the job with its task, or None."""
    return None if job.unique_key is None else (job.task, job.unique_key)


def decide(job: NewJob, holders: KeyHolders) -> Decision:
    """Decide about a job with a unique key, given the holders of the key. Raises DuplicateJob."""
    existing = holders.waiting or holders.running
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
        case _:
            assert_never(job.on_conflict)


def successor(job: NewJob, running: str) -> NewJob:
    """Return the job so that it follows the running one, whatever its outcome; a follower stays as it is."""
    origin = job.origin or Origin()
    if origin.follows is not None:
        return job
    return replace(job, origin=replace(origin, follows=running, on="any"))


def following(job: NewJob, others: Mapping[str, str]) -> NewJob:
    """Return the job with its leader replaced by the existing job that `others` has for it."""
    leader = None if job.origin is None else job.origin.follows
    if job.origin is None or leader is None or leader not in others:
        return job
    return replace(job, origin=replace(job.origin, follows=others[leader]))


def superseded_error(successor: str) -> JobError:
    """Return the error of a job that is cancelled instead of retried because its successor already waits."""
    return JobError(
        type=SUPERSEDED,
        message=f"not retried: job {successor} has replaced it and runs instead",
        data={"successor": successor},
    )


def key_taken(job_id: str, waiting: str) -> IllegalTransition:
    """Return the error for a retry of a final job whose unique key a waiting job holds."""
    return IllegalTransition(
        f"job {job_id} cannot wait again: job {waiting} waits with the same unique key; "
        "cancel that job first, or let it run"
    )


def require_no_duplicate(jobs: Iterable[NewJob], stored: Mapping[Key, KeyHolders]) -> None:
    """Raise DuplicateJob if the key of one of the jobs is held in the store, or by an earlier job in `jobs`."""
    before = dict(stored)
    for job in jobs:
        key = key_of(job)
        if key is not None:
            holders = before.get(key, KeyHolders())
            decide(job, holders)
            if job.rejection is None:
                before[key] = KeyHolders(holders.waiting or job.id, holders.running)
