"""What the tests of followers and of batches do with a store, in few words."""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from headgate.jobs.batch import BatchRecord, NewBatch
from headgate.jobs.identity import IdSource
from headgate.jobs.job import JobError, JobState, NewJob, Origin
from headgate.jobs.terms import GateTerms, PermitTerms
from tests.conformance.storage_suite.hands import Hands

On = Literal["success", "any"]
_ids = IdSource()

MUTEX = [("mutex", "a")]


def following(hands: Hands, leader: str, on: On = "success", *, batch: str | None = None, **options: Any) -> NewJob:
    """A job that follows another one."""
    return replace(hands.new(**options), origin=Origin(follows=leader, on=on, batch=batch))


async def follow(hands: Hands, leader: str, on: On = "success", **options: Any) -> str:
    job = following(hands, leader, on, **options)
    await hands.storage.add([job])
    return job.id


async def chain(hands: Hands, count: int, on: On = "success", **options: Any) -> list[str]:
    """Jobs that follow each other, enqueued at once."""
    jobs = [hands.new(**options)]
    for _ in range(count - 1):
        jobs.append(following(hands, jobs[-1].id, on, **options))
    await hands.storage.add(jobs)
    return [job.id for job in jobs]


def new_batch_id(hands: Hands) -> str:
    return _ids.next(hands.clock.now())


async def add_batch(hands: Hands, count: int, leader: str | None = None, **options: Any) -> tuple[str, list[str]]:
    """A batch of so many jobs; its id and theirs."""
    id = new_batch_id(hands)
    jobs = [replace(hands.new(**options), origin=Origin(follows=leader, batch=id)) for _ in range(count)]
    await hands.storage.add(jobs, [NewBatch(id, count, hands.clock.now())])
    return id, [job.id for job in jobs]


async def hold(hands: Hands, *members: int | dict[str, Any]) -> tuple[str, list[str]]:
    """A batch that holds the mutex "a": so many jobs, or one of each of these options."""
    id = new_batch_id(hands)
    wanted = [{}] * members[0] if isinstance(members[0], int) else list(members)
    jobs: list[NewJob] = []
    for options in wanted:
        assert isinstance(options, dict)
        job = hands.new(**{"draws": MUTEX, **options})
        terms = replace(job.terms or GateTerms(), holds=(PermitTerms("batch", id), *(None for _ in job.draws[1:])))
        jobs.append(replace(job, terms=terms, variant=terms.variant(), origin=Origin(batch=id)))
    await hands.storage.add(jobs, [NewBatch(id, len(jobs), hands.clock.now())])
    return id, [job.id for job in jobs]


async def is_blocked(hands: Hands, id: str) -> bool:
    record = await hands.record(id)
    assert record.state is JobState.WAITING or not record.is_blocked
    return record.is_blocked


async def why(hands: Hands, id: str) -> tuple[JobState, str | None, str | int | None]:
    """Its state, what kind of error it has, and the leader that the error names."""
    record = await hands.record(id)
    if record.error is None:
        return record.state, None, None
    return record.state, record.error.type, (record.error.data or {}).get("leader")


async def error_of(hands: Hands, id: str) -> JobError:
    error = (await hands.record(id)).error
    assert error is not None
    return error


async def batch_of(hands: Hands, id: str) -> BatchRecord:
    record = await hands.storage.batch(id)
    assert record is not None
    return record


async def die(hands: Hands, node: str) -> None:
    """The node is found dead."""
    (beat,) = [record.beat for record in await hands.storage.nodes() if record.id == node]
    assert await hands.storage.recover(node, beat) is not None
