"""What people look at, made of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.jobs.audit import AuditLevel
from headgate.jobs.draw_set import union
from headgate.jobs.gating import GatedJob
from headgate.jobs.job import Attempt, Draw, JobError, JobOptions, JobRecord, JobState, Origin, Progress
from headgate.jobs.terms import GateTerms
from headgate.limits.rule import NEVER
from headgate.storage.admission import ask_of
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.rows import readable_error
from headgate.storage.procedures.lanes import lane_of
from headgate.storage.protocol import BucketRecord, Standing
from headgate.storage.row_ids import bucket_id, lane_id
from headgate.storage.stored_rows import RowDecoder, draws_and_terms, note_unreadable

T = TypeVar("T")

_GATED = RowDecoder(GatedJob, "job")


def _decoded(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)


def job_record(row: Any, now: int, limit_now: int) -> JobRecord:
    """A job, with the instant at which its bucket opens as wall time."""
    faults: list[str] = []

    def read(column: str, kind: type[T]) -> T | None:
        try:
            return _decoded(row[column], kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            faults.append(f"{column}: {error}")
            return None

    opens_at = row["opens_at"]
    waits_for = None if row["limit_name"] is None else Draw(row["limit_name"], row["key"])
    record = JobRecord(
        row["id"],
        row["task"],
        row["queue"],
        JobState(row["state"]),
        row["payload"],
        row["priority"],
        row["delayed"],
        row["run_at"],
        row["enqueued_at"],
        row["expires_at"],
        row["attempt"],
        row["fence"],
        row["lost"],
        row["node"],
        row["started_at"],
        row["finished_at"],
        row["cancel_requested"],
        row["result"],
        read("error", JobError),
        read("draws", tuple[Draw, ...]) or (),
        read("headers", dict[str, str]),
        read("options", JobOptions),
        None if opens_at is None or opens_at >= NEVER else now + opens_at - limit_now,
        waits_for,
        row["lane_waiting"],
        read("costs", tuple[int, ...]),
        read("terms", GateTerms),
        row["held"],
        row["charged_at"],
        row["uncharged"],
        row["unique_key"],
        read("origin", Origin),
        AuditLevel(row["audit"]),
        read("progress", Progress),
        row["is_blocked"],
    )
    if not faults:
        return record
    told = "; ".join(faults)[:500]
    note_unreadable("job", record.id, told)
    return replace(record, unreadable=told)


def attempt(row: Any) -> Attempt:
    """An attempt that did not succeed."""
    number, node, started_at, ended_at, outcome, error = row
    return Attempt(number, node, started_at, ended_at, outcome, readable_error(f"attempt {number}", error))


def gated_job(row: Any) -> GatedJob:
    """A waiting job and what it asks of its limits."""
    return _GATED.repaired(tuple(row))


def bucket_record(row: Any) -> BucketRecord:
    """A bucket and who waits behind it."""
    return BucketRecord(
        Draw(row["limit_name"], row["key"]),
        row["state"],
        max(0, row["waiting"]),
        row["opens_at"],
        row["closed_until"],
        row["lanes"],
    )


async def standing(session: Session, job_id: str) -> Standing | None:
    """Where a job stands; None if it does not wait."""
    row = await session.row("standing", id=job_id)
    if row is None:
        return None
    draws, terms = draws_and_terms(job_id, row["draws"], row["terms"])
    passes = union(row["held"], row["passed"])
    lane = lane_of(row["queue"], draws, terms, passes)
    try:
        costs = _decoded(row["costs"], tuple[int, ...])
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("job", job_id, f"costs: {error}")
        costs = None
    return Standing(
        row["place"],
        row["waiting"],
        row["is_due"],
        None if row["limit_name"] is None else Draw(row["limit_name"], row["key"]),
        await _drawn(session, lane.draws),
        ask_of(job_id, costs, terms, passes),
    )


async def outlook(session: Session, queue: str, draws: Sequence[Draw], variant: str) -> Standing:
    """Where a job would stand that was added to a lane now."""
    row = await session.row("outlook", lane=lane_id(queue, tuple(draws), variant))
    behind = None if row["limit_name"] is None else Draw(row["limit_name"], row["key"])
    waiting = row["waiting"] + 1
    return Standing(waiting, waiting, False, behind, await _drawn(session, draws))


async def _drawn(session: Session, draws: Sequence[Draw]) -> list[BucketRecord]:
    rows = await session.fetch(
        "buckets_drawn",
        ids=[bucket_id(draw) for draw in draws],
        limits=[draw.limit for draw in draws],
        keys=[draw.key for draw in draws],
    )
    return [bucket_record(row) for row in rows]
