"""The timeline of a job, made from its stored records."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.admin.timeline import restarts, timeline
from headgate.clock import SECOND
from headgate.jobs.audit import AuditEntry
from headgate.jobs.job import AttemptRecord, JobError, JobRecord, JobState

NEW = JobRecord(
    "job-1", "work", "default", JobState.WAITING, "{}", 0, False, 0, 0, None, 0, 0, 0, None, None, None, False, None,
    None, (), None, None, None, None, 1,
)  # fmt: skip
NO = JobError("ValueError", "no")


def timeline_of(record: JobRecord, *known: AttemptRecord | AuditEntry) -> list[tuple[float, str]]:
    attempts = [each for each in known if isinstance(each, AttemptRecord)]
    entries = [each for each in known if isinstance(each, AuditEntry)]
    return [(moment.at.timestamp(), moment.what) for moment in timeline(record, attempts, entries)]


def attempt(number: int, began: int, ended: int, outcome: str = "failed") -> AttemptRecord:
    return AttemptRecord(number, "node-1", began * SECOND, ended * SECOND, outcome, NO)


def test_a_job_that_waits_was_enqueued() -> None:
    assert timeline_of(NEW) == [(0, "enqueued")]


def test_the_story_of_a_running_job_has_its_start() -> None:
    running = replace(NEW, state=JobState.RUNNING, node="node-1", attempt=1, started_at=5 * SECOND)
    assert timeline_of(running) == [(0, "enqueued"), (5, "started"), (5, "is running")]
    assert timeline_of(replace(running, cancel_requested=True))[-1] == (
        5,
        "is running, and its cancellation was requested",
    )


def test_the_story_of_a_success_after_failures_is_in_order() -> None:
    done = replace(NEW, state=JobState.SUCCEEDED, attempt=3, started_at=30 * SECOND, finished_at=31 * SECOND)
    assert timeline_of(done, attempt(1, 1, 2), attempt(2, 10, 11)) == [
        (0, "enqueued"),
        (1, "started"),
        (2, "failed"),
        (10, "started"),
        (11, "failed"),
        (30, "started"),
        (31, "final: succeeded"),
    ]


def test_a_failure_names_its_last_attempt_once() -> None:
    failed = replace(NEW, state=JobState.FAILED, attempt=1, started_at=SECOND, finished_at=2 * SECOND, error=NO)
    assert timeline_of(failed, attempt(1, 1, 2)) == [
        (0, "enqueued"),
        (1, "started"),
        (2, "failed"),
        (2, "final: failed"),
    ]
    # Of a job whose attempts are not kept, the row still knows the last one.
    assert timeline_of(failed) == [(0, "enqueued"), (1, "started"), (2, "final: failed")]


def test_actions_of_people_are_in_order_of_time() -> None:
    cancelled = replace(NEW, state=JobState.CANCELLED, attempt=1, started_at=SECOND, finished_at=9 * SECOND)
    entry = AuditEntry(7, 5 * SECOND, "ada@here", "cancel", "job", "job-1", "it was late")
    moments = timeline(cancelled, [attempt(1, 1, 2, "snoozed")], [entry])
    assert [(moment.what, moment.actor, moment.detail) for moment in moments] == [
        ("enqueued", None, None),
        ("started", None, None),
        ("snoozed", None, "ValueError: no"),
        ("cancel", "ada@here", "it was late"),
        ("final: cancelled", None, None),
    ]


def test_attempts_after_a_retry_by_an_operator_are_told_from_those_before() -> None:
    running = replace(NEW, state=JobState.RUNNING, node="node-1", attempt=1, started_at=60 * SECOND)
    # A snoozed attempt is not spent, so the next one has its number.
    known = [attempt(1, 1, 2), attempt(2, 10, 11, "snoozed"), attempt(2, 20, 21), attempt(1, 40, 41)]
    assert restarts(known) == [0, 0, 0, 1]
    moments = timeline(running, known, [])
    assert [(moment.attempt, moment.restart) for moment in moments if moment.what == "started"] == [
        (1, 0),
        (2, 0),
        (2, 0),
        (1, 1),
        (1, 2),
    ]
    assert (moments[-1].what, moments[-1].restart) == ("is running", 2)
    # The same attempt, by its row and as it is stored.
    failed = replace(NEW, state=JobState.FAILED, attempt=1, started_at=40 * SECOND, finished_at=41 * SECOND, error=NO)
    assert [moment.restart for moment in timeline(failed, known, [])][-2:] == [1, 0]
    assert restarts([]) == []
