"""Writes that share a commit on SQLite: one that is bad fails alone, and a finish is the word of its attempt only."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headgate import RateLimit
from headgate.errors import IllegalTransition, StorageUnavailable
from headgate.jobs.audit import AuditRecord
from headgate.jobs.job import BucketRef, JobError, JobState, NewJob
from headgate.jobs.lifecycle import Finished, Returned
from headgate.jobs.scheduled import ScheduledCall
from headgate.limits.kinds import dump_rule
from headgate.limits.limit import AnyRule
from headgate.schedules.schedule import ScheduleProgress, ScheduleRules
from headgate.storage.live_rules import LimitSetting
from headgate.storage.procedures import add
from headgate.storage.records import Claim, FreeSlots, ScheduleRecord
from headgate.storage.sqlite.storage import SqliteStorage
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.tags import statements
from tests.internals import writer_of
from tests.limit_settings import change

CLAIM = Claim("node-a", {"default": FreeSlots(100)}, {}, frozenset({"work"}))
TOO_LATE = 86_400_000_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def storage(clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(tmp_path / "jobs.db", clock, synchronous="OFF")
    await storage.open()
    await storage.join("node-a", "a")
    yield storage
    assert list(await storage.check()) == []
    await storage.close()


def job(id: str, clock: ManualClock, *, run_at: int | None = None, buckets: tuple[BucketRef, ...] = ()) -> NewJob:
    now = clock.now()
    return NewJob(
        id=id,
        task="work",
        queue="default",
        payload="{}",
        priority=0,
        delayed=run_at is not None,
        run_at=now if run_at is None else run_at,
        enqueued_at=now,
        buckets=buckets,
    )


@pytest.mark.parametrize("place", [0, 3, 6])
async def test_an_add_that_breaks_a_constraint_fails_its_caller_only(
    storage: SqliteStorage, clock: ManualClock, place: int
) -> None:
    adds = [[job(f"{number}.{part}", clock) for part in range(2)] for number in range(7)]
    # An instant beyond 64 bits: SQLite would store it as a float, which cannot be read again.
    adds[place][1] = job("bad", clock, run_at=TOO_LATE)
    results = await asyncio.gather(*(storage.add(jobs) for jobs in adds), return_exceptions=True)
    for number, result in enumerate(results):
        if number == place:
            assert isinstance(result, sqlite3.IntegrityError)
            assert await storage.job(f"{number}.0") is None, "an add is all or nothing"
        else:
            assert result == {}
            assert await storage.job(f"{number}.0") is not None
            assert await storage.job(f"{number}.1") is not None
    assert len((await storage.claim(CLAIM)).jobs) == 12


async def test_a_bad_add_does_not_keep_other_verbs_of_its_group_from_happening(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    await storage.add([job("first", clock), job("second", clock)])
    bad, cancelled, good, retried, claimed = await asyncio.gather(
        storage.add([job("bad", clock, run_at=TOO_LATE)]),
        storage.cancel("first"),
        storage.add([job("good", clock)]),
        storage.retry("second"),
        storage.claim(CLAIM),
        return_exceptions=True,
    )
    assert isinstance(bad, sqlite3.IntegrityError)
    assert cancelled is JobState.WAITING
    assert good == {}
    assert isinstance(retried, IllegalTransition)
    assert not isinstance(claimed, BaseException)
    assert {each.id for each in claimed.jobs} == {"second", "good"}


async def test_the_same_job_added_twice_at_once_is_stored_once(storage: SqliteStorage, clock: ManualClock) -> None:
    buckets = (BucketRef("calls", "acme"),)
    await asyncio.gather(*(storage.add([job("same", clock, buckets=buckets)]) for _ in range(5)))
    ((_, waiting, *_),) = [(c.queue, c.waiting) for c in await storage.counts()]
    assert waiting == 1


async def test_many_jobs_are_stored_in_portions_all_or_none(
    storage: SqliteStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add, "INSERTED_AT_ONCE", 2.1 * add.CHARACTERS_OF_JOB)
    jobs = [job(str(number), clock) for number in range(5)]
    with pytest.raises(sqlite3.IntegrityError):
        await storage.add([*jobs, job("bad", clock, run_at=TOO_LATE)])
    assert await storage.jobs_by_id([each.id for each in jobs]) == []
    with statements() as counted:
        # A job that comes again, in another portion, is stored once.
        await storage.add([*jobs, jobs[0]])
    assert counted["add_jobs"] == 3
    assert [count.waiting for count in await storage.counts()] == [5]
    assert len((await storage.claim(CLAIM)).jobs) == 5


async def test_endings_of_two_attempts_of_one_job_are_distinguished(storage: SqliteStorage, clock: ManualClock) -> None:
    await storage.add([job("one", clock), job("two", clock)])
    first = {each.id: each for each in (await storage.claim(CLAIM)).jobs}
    await storage.finish("node-a", [Returned(id, each.fence, "interrupted", spent=False) for id, each in first.items()])
    second = {each.id: each for each in (await storage.claim(CLAIM)).jobs}
    late = JobError(type="Late", message="of an attempt that is over")
    written = await storage.finish(
        "node-a",
        [
            Finished("one", first["one"].fence, JobState.FAILED, error=late),
            Finished("one", second["one"].fence, JobState.SUCCEEDED, result="1"),
            Finished("two", second["two"].fence, JobState.SUCCEEDED, result="2"),
            Returned("two", first["two"].fence, "failed", spent=True, run_at=clock.now(), error=late),
        ],
    )
    assert list(written) == [False, True, True, False]
    for id in ("one", "two"):
        record = await storage.job(id)
        assert record is not None
        assert (record.state, record.error) == (JobState.SUCCEEDED, None)
        assert [attempt.outcome for attempt in await storage.attempts(id)] == ["interrupted"]


async def test_limit_time_does_not_go_back_when_a_boot_begins_with_an_earlier_wall_clock(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    clock.advance(100)
    await storage.add([job("gated", clock)])
    connection = writer_of(storage)
    assert connection is not None
    used = storage.limit_now()
    await asyncio.get_running_loop().run_in_executor(
        storage._write_thread, connection.execute, f"UPDATE limit_time SET last_used = {used}"
    )

    class NextBoot(ManualClock):
        def boot_id(self) -> str:
            return "the next"

    later = SqliteStorage(storage.path, NextBoot(clock.now() - 3_600_000_000), synchronous="OFF")
    await later.open()
    try:
        assert later.limit_now() >= used
    finally:
        await later.close()


def commits_of(storage: SqliteStorage) -> list[str]:
    """Grows by each commit of the store."""
    commits: list[str] = []
    writer_of(storage).set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    return commits


async def test_a_call_that_raises_shares_the_commit_of_its_group(storage: SqliteStorage, clock: ManualClock) -> None:
    await storage.add([job("running", clock)])
    await storage.claim(CLAIM)
    commits = commits_of(storage)
    results = await asyncio.gather(
        *(
            storage.add([job(f"{number}", clock)]) if number % 10 else storage.retry("running")
            for number in range(1, 301)
        ),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, IllegalTransition)]
    assert len(refused) == 30
    assert [result for result in results if result != {}] == refused
    assert len(commits) <= 4, "the first call goes alone, the others gather"
    assert len((await storage.claim(Claim("node-a", {"default": FreeSlots(500)}, {}, frozenset({"work"})))).jobs) == 270


async def test_a_call_that_raises_after_writing_is_rolled_back_alone_in_its_group(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    commits = commits_of(storage)
    bad = {17, 140}
    results = await asyncio.gather(
        *(
            storage.add([job(f"{number}", clock), job(f"{number}+", clock, run_at=TOO_LATE if number in bad else None)])
            for number in range(200)
        ),
        return_exceptions=True,
    )
    assert {number for number, result in enumerate(results) if isinstance(result, sqlite3.IntegrityError)} == bad
    assert len(commits) <= 4
    assert await storage.job("17") is None
    assert len((await storage.claim(Claim("node-a", {"default": FreeSlots(500)}, {}, frozenset({"work"})))).jobs) == 396


async def test_a_setting_whose_group_was_rolled_back_is_not_cached(storage: SqliteStorage, clock: ManualClock) -> None:
    """The next change gets the same revision, so what was read of the one that was undone must be forgotten."""
    fast, slow = RateLimit("100/s", burst=100).rule, RateLimit("1/h").rule
    rules: dict[str, AnyRule] = {"api": fast}
    claim = Claim("node-a", {"default": FreeSlots(100)}, rules, frozenset({"work"}))
    call = ScheduledCall(task="work", queue="default", payload="x" * 10_000_000)
    huge = ScheduleRecord("huge", call, ScheduleRules(trigger="{}"), ScheduleProgress(0, None))
    await storage.add([job(f"{number}", clock, buckets=(BucketRef("api", ""),)) for number in range(100)])
    writer = writer_of(storage)
    assert writer is not None

    # The disk gets full in the group of a change and a claim, which has read the new setting by then.
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    results = await asyncio.gather(
        storage.add_audit_record(AuditRecord("ada", "look", "job", "1")),
        change(storage, LimitSetting("api", "all", rule=dump_rule(fast))),
        storage.claim(claim),
        storage.put_schedule(huge, replaces=None),
        return_exceptions=True,
    )
    assert all(isinstance(result, StorageUnavailable) for result in results[1:])
    writer.execute("PRAGMA max_page_count = 1000000")
    await change(storage, LimitSetting("api", "all", rule=dump_rule(slow)))
    assert len((await storage.claim(claim)).jobs) == 1


async def test_a_setting_of_a_call_that_was_rolled_back_is_not_cached(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    fast, slow = RateLimit("100/s", burst=100).rule, RateLimit("1/h").rule
    claim = Claim("node-a", {"default": FreeSlots(100)}, {"api": fast}, frozenset({"work"}))
    await storage.add([job(f"{number}", clock, buckets=(BucketRef("api", ""),)) for number in range(100)])

    def fails(_: object) -> None:
        raise ValueError("no")

    # Together: a change, a look that reads it, and an addition that is undone after it has written.
    results = await asyncio.gather(
        storage.add_audit_record(AuditRecord("ada", "look", "job", "1")),
        change(storage, LimitSetting("api", "all", rule=dump_rule(slow))),
        storage.visit(BucketRef("api", ""), {"api": fast}, fails),
        storage.add([job("bad", clock, run_at=TOO_LATE)]),
        storage.claim(claim),
        return_exceptions=True,
    )
    assert isinstance(results[2], ValueError)
    assert isinstance(results[3], sqlite3.IntegrityError)
    assert not isinstance(results[4], BaseException)
    assert len(results[4].jobs) == 1
    assert (await storage.claim(claim)).jobs == []
