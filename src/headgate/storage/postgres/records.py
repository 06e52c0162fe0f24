"""What people look at, made of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headgate.jobs.audit import AuditLevel
from headgate.jobs.gating import GatedJob
from headgate.jobs.job import Attempt, Draw, JobError, JobOptions, JobRecord, JobState, Origin, Progress
from headgate.limits.rule import NEVER
from headgate.storage.admission import ask_of
from headgate.storage.postgres.arrivals import lane_of
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.rows import bucket_id, decode_draws, lane_id, optional_terms
from headgate.storage.protocol import BucketRecord, Standing

T = TypeVar("T")


def _decoded(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else msgspec.json.decode(text, type=kind)


def job_record(row: Any, now: int, limit_now: int) -> JobRecord:
    """A job, with the instant at which its bucket opens as wall time."""
    opens_at = row["opens_at"]
    waits_for = None if row["limit_name"] is None else Draw(row["limit_name"], row["key"])
    return JobRecord(
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
        _decoded(row["error"], JobError),
        decode_draws(row["draws"]),
        _decoded(row["headers"], dict[str, str]),
        _decoded(row["options"], JobOptions),
        None if opens_at is None or opens_at >= NEVER else now + opens_at - limit_now,
        waits_for,
        row["lane_waiting"],
        _decoded(row["costs"], tuple[int, ...]),
        optional_terms(row["terms"]),
        row["held"],
        row["charged_at"],
        row["uncharged"],
        row["unique_key"],
        _decoded(row["origin"], Origin),
        AuditLevel(row["audit"]),
        _decoded(row["progress"], Progress),
        row["is_blocked"],
    )


def attempt(row: Any) -> Attempt:
    """An attempt that did not succeed."""
    number, node, started_at, ended_at, outcome, error = row
    return Attempt(number, node, started_at, ended_at, outcome, _decoded(error, JobError))


def gated_job(row: Any) -> GatedJob:
    """A waiting job and what it asks of its limits."""
    return GatedJob(
        row["id"],
        row["task"],
        row["queue"],
        row["payload"],
        _decoded(row["headers"], dict[str, str]),
        decode_draws(row["draws"]),
        _decoded(row["costs"], tuple[int, ...]),
        optional_terms(row["terms"]),
    )


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
    terms = optional_terms(row["terms"])
    passes = row["held"] | row["passed"]
    lane = lane_of(row["queue"], decode_draws(row["draws"]), terms, passes)
    costs = _decoded(row["costs"], tuple[int, ...])
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
