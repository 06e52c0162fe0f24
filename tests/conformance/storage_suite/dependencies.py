"""What the tests of followers and of batches do with a store, in few words."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.identity import IdSource
from headgate.jobs.job import JobError, JobState, NewJob, Origin
from headgate.jobs.terms import LimitTerms, PermitTerms
from tests.conformance.storage_suite.store_user import StoreUser

On = Literal["success", "failure", "final"]
_ids = IdSource(producer=0)

MUTEX = [("mutex", "a")]


def following(
    store_user: StoreUser, leader: str, on: On = "success", *, batch: str | None = None, **options: Any
) -> NewJob:
    """A job that follows another one."""
    return replace(store_user.new(**options), origin=Origin(follows=leader, on=on, batch=batch))


async def follow(store_user: StoreUser, leader: str, on: On = "success", **options: Any) -> str:
    job = following(store_user, leader, on, **options)
    await store_user.storage.add([job])
    return job.id


async def chain(store_user: StoreUser, count: int, on: On = "success", **options: Any) -> list[str]:
    """Jobs that follow each other, enqueued at once."""
    jobs = [store_user.new(**options)]
    for _ in range(count - 1):
        jobs.append(following(store_user, jobs[-1].id, on, **options))
    await store_user.storage.add(jobs)
    return [job.id for job in jobs]


def new_batch_id(store_user: StoreUser) -> str:
    return _ids.next(store_user.clock.now())


async def add_batch(
    store_user: StoreUser, count: int, leader: str | None = None, **options: Any
) -> tuple[str, list[str]]:
    """A batch of so many jobs; its id and theirs."""
    id = new_batch_id(store_user)
    jobs = [replace(store_user.new(**options), origin=Origin(follows=leader, batch=id)) for _ in range(count)]
    await store_user.storage.add(jobs, [NewBatch(id, count, store_user.clock.now())])
    return id, [job.id for job in jobs]


async def hold(store_user: StoreUser, *members: int | dict[str, Any]) -> tuple[str, list[str]]:
    """A batch that holds the mutex "a": so many jobs, or one of each of these options."""
    id = new_batch_id(store_user)
    wanted = [{}] * members[0] if isinstance(members[0], int) else list(members)
    jobs: list[NewJob] = []
    for options in wanted:
        assert isinstance(options, dict)
        job = store_user.new(**{"buckets": MUTEX, **options})
        terms = replace(job.terms or LimitTerms(), holds=(PermitTerms("batch", id), *(None for _ in job.buckets[1:])))
        jobs.append(replace(job, terms=terms, wait_mode=terms.wait_mode(), origin=Origin(batch=id)))
    await store_user.storage.add(jobs, [NewBatch(id, len(jobs), store_user.clock.now())])
    return id, [job.id for job in jobs]


async def is_blocked(store_user: StoreUser, id: str) -> bool:
    record = await store_user.record(id)
    assert record.state is JobState.WAITING or not record.is_blocked
    return record.is_blocked


async def why(store_user: StoreUser, id: str) -> tuple[JobState, str | None, str | int | None]:
    """Its state, what kind of error it has, and the leader that the error names."""
    record = await store_user.record(id)
    if record.error is None:
        return record.state, None, None
    return record.state, record.error.type, (record.error.data or {}).get("leader")


async def error_of(store_user: StoreUser, id: str) -> JobError:
    error = (await store_user.record(id)).error
    assert error is not None
    return error


async def batch_of(store_user: StoreUser, id: str) -> BatchRecord:
    record = await store_user.storage.batch(id)
    assert record is not None
    return record


async def die(store_user: StoreUser, node: str) -> None:
    """The node is found dead."""
    (beat,) = [record.beat for record in await store_user.storage.nodes() if record.id == node]
    assert await store_user.storage.recover(node, beat) is not None
