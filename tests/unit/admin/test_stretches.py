"""The stretches of a job's life, made from its stored records."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headgate.admin.timeline import stretches
from headgate.clock import SECOND
from headgate.jobs.audit import AuditLevel
from headgate.jobs.job import AttemptRecord, BucketRef, JobState, Origin
from tests.unit.admin.test_timeline import NEW, attempt

API = BucketRef("api", "acme")


def stretches_of(*attempts: AttemptRecord, now: float = 100, **fields: Any) -> list[tuple[Any, ...]]:
    """Return kind, begin, end and what is known beside them; times are given and returned in seconds."""
    for name in ("enqueued_at", "run_at", "started_at", "finished_at"):
        if fields.get(name) is not None:
            fields[name] = int(fields[name] * SECOND)
    found = stretches(replace(NEW, **fields), attempts, int(now * SECOND))
    return [
        (
            each.kind,
            each.begins_at.timestamp(),
            None if each.ends_at is None else each.ends_at.timestamp(),
            *(detail for detail in (each.attempt, each.outcome, each.limit, each.key) if detail is not None),
            *(["limited"] if each.is_limited else []),
        )
        for each in found
    ]


def test_a_job_that_is_ready_waits_for_what_is_not_stored() -> None:
    assert stretches_of() == [("waiting", 0, None)]


def test_a_scheduled_job_waits_from_its_time_on() -> None:
    assert stretches_of(run_at=60, delayed=True, now=10) == [("scheduled", 0, 60)]
    assert stretches_of(run_at=60, delayed=True) == [("scheduled", 0, 60), ("waiting", 60, None)]


def test_a_running_attempt_has_no_end() -> None:
    running: dict[str, Any] = {"state": JobState.RUNNING, "node": "node-1", "attempt": 1, "fence": 1, "started_at": 5}
    assert stretches_of(**running) == [("waiting", 0, 5), ("attempt", 5, None, 1)]


def test_the_backoff_of_the_last_retry_is_known_and_earlier_ones_are_not() -> None:
    done: dict[str, Any] = {
        "state": JobState.SUCCEEDED,
        "attempt": 3,
        "fence": 3,
        "started_at": 30,
        "finished_at": 31,
        "run_at": 25,
    }
    assert stretches_of(attempt(1, 1, 2), attempt(2, 10, 11), **done) == [
        ("waiting", 0, 1),
        ("attempt", 1, 2, 1, "failed"),
        ("waiting", 2, 10),
        ("attempt", 10, 11, 2, "failed"),
        ("backoff", 11, 25),
        ("waiting", 25, 30),
        ("attempt", 30, 31, 3, "succeeded"),
    ]


def test_a_retry_that_is_not_due_is_a_backoff_with_its_end() -> None:
    waiting: dict[str, Any] = {"attempt": 1, "fence": 1, "started_at": 1, "run_at": 50, "delayed": True}
    assert stretches_of(attempt(1, 1, 2), now=20, **waiting) == [
        ("waiting", 0, 1),
        ("attempt", 1, 2, 1, "failed"),
        ("backoff", 2, 50),
    ]


def test_a_lost_attempt_has_no_backoff() -> None:
    again: dict[str, Any] = {
        "state": JobState.RUNNING,
        "attempt": 1,
        "fence": 2,
        "lost": 1,
        "node": "b",
        "started_at": 40,
    }
    assert stretches_of(attempt(1, 1, 30, "lost"), **again) == [
        ("waiting", 0, 1),
        ("attempt", 1, 30, 1, "lost"),
        ("waiting", 30, 40),
        ("attempt", 40, None, 1),
    ]


def test_a_snoozed_job_sleeps_until_its_time() -> None:
    snoozed: dict[str, Any] = {"attempt": 0, "fence": 1, "started_at": 1, "run_at": 50, "delayed": True}
    assert stretches_of(attempt(1, 1, 2, "snoozed"), **snoozed)[2:] == [("snoozed", 2, 50), ("waiting", 50, None)]


def test_a_follower_was_blocked_and_then_throttled() -> None:
    follower: dict[str, Any] = {"origin": Origin(follows="job-0"), "run_at": 20, "buckets": (API,)}
    assert stretches_of(is_blocked=True, origin=Origin(follows="job-0")) == [("blocked", 0, None)]
    assert stretches_of(waits_for=API, **follower) == [
        ("blocked", 0, 20),
        ("waiting", 20, None, "api", "acme", "limited"),
    ]
    started: dict[str, Any] = {
        "state": JobState.RUNNING,
        "node": "node-1",
        "attempt": 1,
        "fence": 1,
        "started_at": 30,
        "deferrals": 1,
    }
    assert stretches_of(**follower, **started) == [
        ("blocked", 0, 20),
        ("waiting", 20, 30, "api", "acme", "limited"),
        ("attempt", 30, None, 1),
    ]


def test_which_of_several_limits_delayed_a_start_is_not_known() -> None:
    started: dict[str, Any] = {"state": JobState.RUNNING, "node": "node-1", "attempt": 1, "fence": 1, "started_at": 30}
    two: dict[str, Any] = {"buckets": (API, BucketRef("other", "")), **started}
    assert stretches_of(deferrals=1, **two)[0] == ("waiting", 0, 30, "limited")
    assert stretches_of(**two)[0] == ("waiting", 0, 30)


def test_which_of_several_starts_was_delayed_is_not_known() -> None:
    again: dict[str, Any] = {
        "state": JobState.RUNNING,
        "node": "node-1",
        "attempt": 2,
        "fence": 2,
        "started_at": 30,
        "deferrals": 1,
    }
    found = stretches_of(attempt(1, 1, 2), buckets=(API,), **again)
    assert found[0] == ("waiting", 0, 1)
    assert found[2] == ("waiting", 2, 30)


def test_a_job_that_expired_or_was_cancelled_waited_until_then() -> None:
    ended: dict[str, Any] = {"state": JobState.CANCELLED, "finished_at": 9}
    assert stretches_of(**ended) == [("waiting", 0, 9)]
    assert stretches_of(run_at=60, delayed=True, **ended) == [("scheduled", 0, 9)]
    assert stretches_of(attempt(1, 1, 2), run_at=5, attempt=1, fence=1, started_at=1, **ended) == [
        ("waiting", 0, 1),
        ("attempt", 1, 2, 1, "failed"),
        ("backoff", 2, 5),
        ("waiting", 5, 9),
    ]


def test_a_skipped_job_was_blocked_to_its_end() -> None:
    assert stretches_of(state=JobState.SKIPPED, finished_at=9, origin=Origin(follows="a")) == [("blocked", 0, 9)]


def test_a_failed_job_ends_with_its_last_attempt() -> None:
    failed: dict[str, Any] = {"state": JobState.FAILED, "attempt": 1, "fence": 1, "started_at": 1, "finished_at": 2}
    assert stretches_of(attempt(1, 1, 2), **failed) == [("waiting", 0, 1), ("attempt", 1, 2, 1, "failed")]


def test_a_job_that_an_operator_retried_was_final_until_then() -> None:
    retried: dict[str, Any] = {"attempt": 0, "fence": 1, "started_at": 1, "run_at": 50}
    assert stretches_of(attempt(1, 1, 2), **retried)[2:] == [("final", 2, 50), ("waiting", 50, None)]
    again: dict[str, Any] = {
        "state": JobState.RUNNING,
        "node": "b",
        "attempt": 1,
        "fence": 2,
        "started_at": 60,
        "run_at": 50,
    }
    assert stretches_of(attempt(1, 1, 2), **again)[2:] == [
        ("final", 2, 50),
        ("waiting", 50, 60),
        ("attempt", 60, None, 1),
    ]


def test_attempts_that_are_not_kept_leave_a_gap() -> None:
    last: dict[str, Any] = {
        "state": JobState.SUCCEEDED,
        "attempt": 2,
        "fence": 2,
        "started_at": 30,
        "finished_at": 31,
        "run_at": 25,
    }
    assert stretches_of(audit=AuditLevel.NONE, **last) == [
        ("not stored", 0, 25),
        ("waiting", 25, 30),
        ("attempt", 30, 31, 2, "succeeded"),
    ]
