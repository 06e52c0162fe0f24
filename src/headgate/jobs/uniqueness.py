"""At most one job of a task waits under a unique key: what becomes of the next one."""

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
    """The ids of the jobs that stand under a key: of the one that waits, and of one that runs."""

    waiting: str | None = None
    running: str | None = None


@dataclass(frozen=True, slots=True)
class StoreNew:
    """Nothing stands under the key: the job is stored as any other."""


@dataclass(frozen=True, slots=True)
class KeepExisting:
    """Nothing is stored; that job stands for it."""

    id: str


@dataclass(frozen=True, slots=True)
class ReplaceWaiting:
    """That waiting job asks for what this one asks for, and stands for it."""

    id: str


@dataclass(frozen=True, slots=True)
class FollowRunning:
    """That job is running already: this one is stored, and starts when that has ended."""

    id: str


Decision = StoreNew | KeepExisting | ReplaceWaiting | FollowRunning


def key_of(job: NewJob) -> Key | None:
    """What the job must be alone under, if anything."""
    return None if job.unique_key is None else (job.task, job.unique_key)


def decide(job: NewJob, stands: KeyHolders) -> Decision:
    """What becomes of a job with a unique key. Raises DuplicateJob."""
    standing = stands.waiting or stands.running
    if standing is None:
        return StoreNew()
    match job.on_conflict:
        case "keep":
            return KeepExisting(standing)
        case "raise":
            assert job.unique_key is not None
            raise DuplicateJob(standing, job.task, job.unique_key)
        case "replace":
            return FollowRunning(standing) if stands.waiting is None else ReplaceWaiting(standing)
        case _:
            assert_never(job.on_conflict)


def successor(job: NewJob, running: str) -> NewJob:
    """One more run after the one that runs, however that ends. A job that follows another already goes on doing so."""
    origin = job.origin or Origin()
    if origin.follows is not None:
        return job
    return replace(job, origin=replace(origin, follows=running, on="any"))


def following(job: NewJob, others: Mapping[str, str]) -> NewJob:
    """It follows the job that stands for the one it was to follow."""
    leader = None if job.origin is None else job.origin.follows
    if job.origin is None or leader is None or leader not in others:
        return job
    return replace(job, origin=replace(job.origin, follows=others[leader]))


def superseded_error(successor: str) -> JobError:
    """What a job is cancelled with that would wait again where its successor waits already."""
    return JobError(
        type=SUPERSEDED,
        message=f"it would have been tried again, but job {successor} has replaced it meanwhile, and runs instead",
        data={"successor": successor},
    )


def key_taken(job_id: str, waiting: str) -> IllegalTransition:
    """A final job cannot wait again while another one waits under its unique key."""
    return IllegalTransition(
        f"job {job_id} cannot wait again: job {waiting} waits under its unique key; "
        "cancel that one first, or let it run"
    )


def require_no_duplicate(jobs: Iterable[NewJob], standing: Mapping[Key, KeyHolders]) -> None:
    """Raise DuplicateJob if one of the jobs is not to be stored beside what stands, or beside one before it."""
    before = dict(standing)
    for job in jobs:
        key = key_of(job)
        if key is not None:
            stands = before.get(key, KeyHolders())
            decide(job, stands)
            if job.rejection is None:
                before[key] = KeyHolders(stands.waiting or job.id, stands.running)
