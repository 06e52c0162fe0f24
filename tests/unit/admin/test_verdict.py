"""What an overview says first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.admin.alerts import AlertStatus
from headgate.admin.limits import KeyStatus, LimitStatus
from headgate.admin.overview import BlockerStatus, JobTotals, NodeCounts, Overview, QueueOverview, queue_overview
from headgate.admin.queues import QueueStatus
from headgate.admin.verdict import verdict

NOW = datetime(2026, 5, 1, 18, 0, tzinfo=UTC)
CLEAR = NOW + timedelta(minutes=112)
ALIVE = NodeCounts(alive=2, slots=8)
ACME = KeyStatus("acme", 2026, CLEAR)
SHOP = LimitStatus("shop-api", "15/m", 2471, 3, worst=[ACME, KeyStatus("hooli", 445, None)])
IDLE = LimitStatus("stripe", "100/s", 0, 0)
ALERT = AlertStatus(
    id="a1",
    alert="ops",
    state="firing",
    condition="queue_lag > 60 s",
    subject="mail",
    value=90.0,
    text="mail lags",
    started_at=NOW,
    seen_at=NOW,
    ended_at=None,
    sent=1,
    sent_at=NOW,
    tries=0,
    error=None,
    retry_at=None,
)
BLOCKER = BlockerStatus("blocks", 7, NOW, 42.0, "holds a lock")


def queue(name: str, **values: Any) -> QueueOverview:
    return replace(queue_overview(QueueStatus(name, 0, 0, 0, 0, 0), {}), **values)


def seen(**values: Any) -> Overview:
    calm = Overview(
        now=NOW,
        store="memory://",
        totals=JobTotals(),
        queues=[],
        nodes=ALIVE,
        throttled=[],
        unknown_tasks=[],
        overdue_schedules=[],
        blockers=[],
        failed_last_hour=0,
        finals_at=NOW,
        counted_at=NOW,
        tasks_at=NOW,
    )
    return replace(calm, **values)


@pytest.mark.parametrize(
    ("overview", "said"),
    [
        (seen(), ["Nothing waits."]),
        (seen(limits=[IDLE]), ["Nothing waits."]),
        (seen(totals=JobTotals(waiting=39, scheduled=39)), ["Nothing waits but 39 jobs for their time."]),
        (seen(totals=JobTotals(waiting=4, blocked=4)), ["Nothing waits but 4 jobs for another job."]),
        (
            seen(totals=JobTotals(waiting=3, scheduled=2, blocked=1)),
            ["Nothing waits but 2 jobs for their time and 1 job for another job."],
        ),
        (seen(totals=JobTotals(waiting=1, ready=1)), ["1 job is ready for a free slot."]),
        (seen(totals=JobTotals(None, None, None), counted_at=None), ["Jobs are being counted."]),
        (seen(nodes=NodeCounts()), ["No worker is running."]),
        (
            seen(nodes=NodeCounts(), totals=JobTotals(waiting=1304, ready=1204, scheduled=100)),
            ["No worker is running. 1,204 jobs are ready."],
        ),
        # The fault: "100 jobs are ready" of a paused queue, so that somebody started a worker, and nothing started.
        (
            seen(
                nodes=NodeCounts(),
                totals=JobTotals(waiting=140, ready=100, throttled=40),
                queues=[queue("mail", waiting=100, ready=100, is_paused=True), queue("default", waiting=40)],
            ),
            ["No worker is running. 140 jobs are waiting.", "Queue mail is paused; 100 jobs wait in it."],
        ),
        # The fault: "Jobs in queue mail wait 13 s for a free slot", and an operator had made all workers quiet.
        (
            seen(
                nodes=replace(ALIVE, quiet=2),
                totals=JobTotals(waiting=5, ready=5),
                queues=[queue("mail", waiting=5, ready=5, lag=13.0)],
            ),
            ["2 workers are quiet and claim no jobs; no other is running."],
        ),
        (
            seen(
                nodes=replace(ALIVE, quiet=1),
                totals=JobTotals(waiting=5, ready=5),
                queues=[queue("mail", waiting=5, ready=5, lag=13.0)],
            ),
            ["Jobs in queue mail wait 13 s for a free slot."],
        ),
        (seen(nodes=replace(ALIVE, quiet=2)), ["Nothing waits."]),
        # The fault: "No worker is running", of workers that could not write to a full disk.
        (
            seen(nodes=NodeCounts(silent=2), totals=JobTotals(waiting=1, scheduled=1)),
            ["No worker responds. 1 job is waiting."],
        ),
        # Without a worker, tasks that no worker declares are no trouble of their own, nor is a lag.
        (
            seen(
                nodes=NodeCounts(),
                totals=JobTotals(waiting=5, undeclared=5),
                queues=[queue("mail", waiting=5, undeclared=5, lag=900.0)],
            ),
            ["No worker is running. 5 jobs are ready."],
        ),
        # The fault: "Jobs in queue mail wait 900 s for a free slot", and they lacked a worker that declares their task.
        (
            seen(totals=JobTotals(waiting=5, undeclared=5), queues=[queue("mail", waiting=5, undeclared=5, lag=900.0)]),
            ["5 jobs wait for a worker that serves the queue and declares the task."],
        ),
        (
            seen(limits=[SHOP, IDLE], totals=JobTotals(waiting=2471, throttled=2471)),
            ["3 keys wait for shop-api; acme is clear at 2026-05-01 19:52:00 UTC."],
        ),
        (
            seen(limits=[replace(SHOP, worst=[replace(ACME, clears_at=None)], keys=1)]),
            ["1 key waits for shop-api; acme has most jobs."],
        ),
        (seen(limits=[replace(SHOP, is_paused=True)]), ["Limit shop-api is paused; 2,471 jobs wait for it."]),
        (
            seen(queues=[queue("mail", lag=4.0), queue("sync", lag=720.0), queue("web", lag=60.0)]),
            ["Jobs in queue sync wait 720 s for a free slot.", "Jobs in queue web wait 60 s for a free slot."],
        ),
        (
            seen(queues=[queue("mail", is_paused=True), queue("sync", is_paused=True, waiting=2)]),
            ["Queue sync is paused; 2 jobs wait in it."],
        ),
        (seen(retried_lately=19), ["Nothing waits."]),
        (seen(retried_lately=500, succeeded_lately=500), ["Nothing waits."]),
        (
            seen(retried_lately=1204, succeeded_lately=1),
            ["In the last 5 minutes 1,204 attempts failed and will be retried; 1 job succeeded."],
        ),
        (seen(failed_last_hour=165), ["165 jobs failed in the last hour."]),
        (seen(failed_last_hour=10_000, is_failed_cut=True), ["10,000 jobs or more failed in the last hour."]),
        # An alert that has ended is no trouble.
        (seen(alerts=[replace(ALERT, state="resolved")]), ["Nothing waits."]),
        # Worst first, and at most three.
        (
            seen(
                totals=JobTotals(waiting=2473, throttled=2471, undeclared=2),
                nodes=replace(ALIVE, silent=1),
                limits=[SHOP],
                alerts=[ALERT, replace(ALERT, id="a2")],
                blockers=[BLOCKER],
                failed_last_hour=1,
            ),
            [
                "2 alerts are firing: ops.",
                "A database session has delayed the store for 42 s.",
                "1 worker does not respond.",
            ],
        ),
        (
            seen(totals=JobTotals(waiting=2, undeclared=2), limits=[SHOP], failed_last_hour=1),
            [
                "2 jobs wait for a worker that serves the queue and declares the task.",
                "3 keys wait for shop-api; acme is clear at 2026-05-01 19:52:00 UTC.",
                "1 job failed in the last hour.",
            ],
        ),
    ],
)
def test_the_verdict_names_the_worst_first(overview: Overview, said: list[str]) -> None:
    assert [str(each) for each in verdict(overview)] == said


def test_a_store_that_does_not_answer_precedes_the_last_known_state() -> None:
    since = NOW + timedelta(seconds=131)
    silent = "The store has not answered since 2026-05-01 18:02:11 UTC."
    assert [str(each) for each in verdict(seen(), since)] == [silent]
    many = seen(limits=[SHOP, replace(SHOP, limit="other")], failed_last_hour=1)
    found = verdict(many, since)
    assert [each.kind for each in found] == ["store_silent", "limit", "limit"]
    assert found[0].at == since


def test_workers_that_something_blocks_are_not_said_to_be_gone() -> None:
    """The fault: a frozen process held the SQLite file, and the verdict began "No worker is running"."""
    blocked = seen(nodes=NodeCounts(silent=3), totals=JobTotals(waiting=9, ready=9), blockers=[BLOCKER])
    assert [each.kind for each in verdict(blocked)] == ["blocked", "workers_silent"]


def test_limits_that_jobs_wait_for_leave_room_for_what_is_wrong() -> None:
    """The fault: an API failed, nearly all attempts with it, and the verdict had three limits or lags to name."""
    many = [SHOP, replace(SHOP, limit="stripe"), replace(SHOP, limit="openai")]
    late = [queue(name, lag=90.0) for name in ("mail", "sync", "web")]
    outage = seen(limits=many, queues=late, retried_lately=1204, succeeded_lately=1, alerts=[ALERT])
    assert [each.kind for each in verdict(outage)] == ["alerts", "retrying", "lag"]
    overdue = seen(limits=many, overdue_schedules=[None])
    assert [each.kind for each in verdict(overdue)] == ["overdue", "limit", "limit"]


def test_numbers_names_and_times_are_parts_of_a_sentence() -> None:
    (found,) = verdict(seen(limits=[SHOP]))
    assert (found.kind, found.count, found.name, found.key, found.at) == ("limit", 3, "shop-api", "acme", CLEAR)


def test_without_a_worker_no_key_is_clear_at_a_time() -> None:
    """The fault: "No worker is running. 240 jobs are waiting. …; acme is clear at 18:52", of jobs that none starts."""
    first, second = verdict(seen(totals=JobTotals(waiting=2471, throttled=2471), nodes=NodeCounts(), limits=[SHOP]))
    assert str(first) == "No worker is running. 2,471 jobs are waiting."
    assert (second.kind, second.at) == ("limit", None)
    assert str(second) == "3 keys wait for shop-api; acme has most jobs."
