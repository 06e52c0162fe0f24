"""Decisions about jobs under a unique key or an own id, given the jobs that are stored."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.errors import DuplicateJob, IdInUse
from headgate.jobs.job import JobError, JobOptions, NewJob, UniqueTerms
from headgate.jobs.uniqueness import (
    FollowRunning,
    KeepExisting,
    KeyHolders,
    ReplaceWaiting,
    StoreNew,
    decide,
    in_lock_order,
    in_sets,
    is_free,
    postponed,
    require_no_duplicate,
    was_stored,
)

JOB = NewJob(
    id="new",
    task="work",
    queue="default",
    payload="{}",
    priority=0,
    delayed=True,
    run_at=30 * SECOND,
    enqueued_at=20 * SECOND,
    unique_key="acme",
    enqueued_by="web:1",
)
WAITING_ONLY = UniqueTerms(while_running=False)


@pytest.mark.parametrize(
    ("holders", "on_conflict", "expected"),
    [
        (KeyHolders(), "cancel_running", StoreNew()),
        (KeyHolders("w", "r", "k"), "keep", KeepExisting("w")),
        (KeyHolders(None, "r", "k"), "keep", KeepExisting("r")),
        (KeyHolders(None, None, "k"), "keep", KeepExisting("k")),
        (KeyHolders(None, None, "k"), "replace", StoreNew()),
        (KeyHolders(None, "r"), "replace", FollowRunning("r")),
        (KeyHolders("w", "r"), "replace", ReplaceWaiting("w")),
        (KeyHolders(None, None, "k"), "cancel_running", StoreNew()),
        (KeyHolders(None, "r"), "cancel_running", FollowRunning("r", cancels=True)),
        (KeyHolders("w", "r"), "cancel_running", ReplaceWaiting("w", "r")),
        (KeyHolders("w"), "cancel_running", ReplaceWaiting("w")),
    ],
)
def test_what_becomes_of_the_next_job_under_a_key(holders: KeyHolders, on_conflict: Any, expected: object) -> None:
    job = replace(JOB, on_conflict=on_conflict)
    assert decide(job, holders) == expected
    assert is_free(job, holders) is (expected == StoreNew())


@pytest.mark.parametrize(
    ("holders", "holder"), [(KeyHolders("w", "r"), "w"), (KeyHolders(None, "r"), "r"), (KeyHolders(kept_for="k"), "k")]
)
def test_a_duplicate_is_reported_with_the_job_that_holds_the_key(holders: KeyHolders, holder: str) -> None:
    with pytest.raises(DuplicateJob) as caught:
        decide(replace(JOB, on_conflict="raise"), holders)
    assert caught.value.job_id == holder


def test_a_running_job_counts_only_if_the_new_one_asks_for_it() -> None:
    job = replace(JOB, unique_terms=WAITING_ONLY)
    assert decide(job, KeyHolders(None, "r")) == StoreNew()
    assert decide(replace(job, on_conflict="replace"), KeyHolders(None, "r")) == StoreNew()
    assert decide(job, KeyHolders(None, "r", "k")) == KeepExisting("k")


def test_of_several_jobs_of_a_call_each_meets_those_before_it() -> None:
    raising = replace(JOB, id="later", on_conflict="raise")
    with pytest.raises(DuplicateJob) as caught:
        require_no_duplicate([JOB, raising], {})
    assert caught.value.job_id == "new"
    # One that is not stored, because the key is taken, is not the one that is met.
    with pytest.raises(DuplicateJob) as caught:
        require_no_duplicate([JOB, raising], {("work", "acme"): KeyHolders(running="r")})
    assert caught.value.job_id == "r"
    require_no_duplicate([replace(JOB, rejection=JobError("LimitRejected", "no")), raising], {})


def test_jobs_of_different_free_keys_are_stored_by_one_statement_and_others_alone() -> None:
    def jobs(*keys: str | None) -> list[NewJob]:
        return [replace(JOB, id=f"{key}{number}", unique_key=key) for number, key in enumerate(keys)]

    first, again, without = jobs("a", "b"), jobs("a"), jobs(None, None)
    taken, last = jobs("taken"), jobs("d", "e")
    stored = {("work", "taken"): KeyHolders(running="r"), ("work", "d"): KeyHolders()}
    assert in_sets([*first, *again, *without, *taken, *last], stored) == [
        (True, first),
        (False, again),
        (True, without),
        (False, taken),
        (True, last),
    ]


def test_additions_come_to_keys_in_one_order() -> None:
    names = ["b1", "b2", "a1", "-"]
    jobs = [replace(JOB, id=name, unique_key=None if name == "-" else name[0]) for name in names]
    assert [job.id for job in in_lock_order(jobs)] == ["-", "a1", "b1", "b2"]
    own = [replace(JOB, id=id, unique_key=None, has_own_id=True) for id in ("id-2", "id-1")]
    assert [job.id for job in in_lock_order([*own, *jobs])] == ["-", "id-1", "id-2", "a1", "b1", "b2"]


def test_a_start_is_postponed_up_to_the_bound_of_the_first_enqueue() -> None:
    new = replace(JOB, options=JobOptions(timeout=5, latest_start=80 * SECOND), give_up_at=33 * SECOND)
    first = JobOptions(latest_start=28 * SECOND)
    bounded = postponed(new, first, is_tried=False)
    assert (bounded.run_at, bounded.give_up_at) == (28 * SECOND, 31 * SECOND)
    assert bounded.options == JobOptions(timeout=5, latest_start=28 * SECOND)
    later = postponed(new, JobOptions(latest_start=70 * SECOND), is_tried=False)
    assert (later.run_at, later.options) == (30 * SECOND, JobOptions(timeout=5, latest_start=70 * SECOND))


@pytest.mark.parametrize(("moves", "expires"), [(True, 38), (False, 40)])
def test_an_expiry_that_counts_from_the_start_moves_with_it(moves: bool, expires: int) -> None:
    """The fault: a start that was moved earlier, to the bound of the first enqueue, kept the later expiry."""
    terms = UniqueTerms(expires_with_start=moves)
    new = replace(JOB, options=JobOptions(latest_start=80 * SECOND), expires_at=40 * SECOND, unique_terms=terms)
    bounded = postponed(new, JobOptions(latest_start=28 * SECOND), is_tried=False)
    assert (bounded.run_at, bounded.expires_at) == (28 * SECOND, expires * SECOND)


def test_a_start_is_not_bounded_after_an_attempt_nor_by_jobs_that_are_not_debounced() -> None:
    new = replace(JOB, options=JobOptions(latest_start=80 * SECOND))
    assert postponed(new, JobOptions(latest_start=28 * SECOND), is_tried=True) == new
    assert postponed(new, JobOptions(timeout=5), is_tried=False) == new
    assert postponed(new, None, is_tried=False) == new
    assert postponed(JOB, JobOptions(latest_start=28 * SECOND), is_tried=False) == JOB


def test_a_stored_job_is_the_same_enqueue_only_by_its_instant_and_its_process() -> None:
    assert not was_stored(JOB, "work", JOB.enqueued_at, "web:1")
    assert was_stored(JOB, "work", JOB.enqueued_at + 1, "web:1")
    assert was_stored(JOB, "work", JOB.enqueued_at, "web:2")
    with pytest.raises(IdInUse, match="id new belongs to a job of task 'other', not 'work'"):
        was_stored(JOB, "other", JOB.enqueued_at, "web:1")
