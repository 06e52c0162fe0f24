"""What is promised of schedules: each occurrence is enqueued once, and what its jobs come to is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.clock import SECOND
from headgate.jobs.batch import NewBatch
from headgate.jobs.history import ALL
from headgate.jobs.job import JobError, JobState, NewJob, Origin
from headgate.jobs.lifecycle import Finished
from headgate.jobs.scheduled import ScheduledCall
from headgate.jobs.terms import LimitTerms
from headgate.schedules.schedule import ScheduleProgress, ScheduleRules
from headgate.storage.records import Fired, ScheduleRecord
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import batch_of, new_batch_id
from tests.conformance.storage_suite.store_user import BOOM, Conformance, StoreUser, strict

WORK = frozenset({"work"})
SKIPPING = LimitTerms().skipping()


class ScheduleUser:
    """What these tests do with a store, in few words."""

    def __init__(self, store_user: StoreUser, clock: ManualClock) -> None:
        self.store_user = store_user
        self.storage = store_user.storage
        self.clock = clock

    def record(
        self, name: str = "s", *, due_in: float | None = 0, task: str = "work", **options: Any
    ) -> ScheduleRecord:
        now = self.clock.now()
        return ScheduleRecord(
            name,
            ScheduledCall(task, "default", '{"a":"é"}', headers={"tenant": "ä"}),
            ScheduleRules('{"kind":"every","minutes":1}', **options),
            ScheduleProgress(now, None if due_in is None else now + round(due_in * SECOND)),
        )

    async def put(self, name: str = "s", **options: Any) -> None:
        assert await self.storage.put_schedule(self.record(name, **options), replaces=None)

    async def read(self, name: str = "s") -> ScheduleRecord:
        (record,) = await self.storage.schedules(name=name)
        return record

    def job(self, record: ScheduleRecord, occurs_at: int, **options: Any) -> NewJob:
        origin = Origin(on="final", schedule=record.name, occurs_at=occurs_at)
        return replace(self.store_user.new(task=record.call.task, **options), origin=origin, terms=SKIPPING)

    def fired(self, record: ScheduleRecord, jobs: int = 1, next_in: float | None = 60, **options: Any) -> Fired:
        now = self.clock.now()
        made = [self.job(record, record.course.next_at or now, **options) for _ in range(jobs)]
        return Fired(
            record.name, record.revision, None if next_in is None else now + round(next_in * SECOND), now, made
        )

    async def fire(self, name: str = "s", jobs: int = 1, **options: Any) -> Sequence[NewJob]:
        fired = self.fired(await self.read(name), jobs, **options)
        assert await self.storage.fire([fired]) == [True]
        return fired.jobs

    async def counts(self, name: str = "s") -> tuple[int, int]:
        course = (await self.read(name)).course
        return course.runs, course.open

    async def due(self, **options: Any) -> list[str]:
        return [record.name for record in (await self.storage.due_schedules(WORK, **options)).due]


class SchedulesConformance(Conformance):
    async def test_an_occurrence_of_several_jobs_is_enqueued_once_and_its_batch_counts(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        user = ScheduleUser(store_user, clock)
        await user.put()
        record = await user.read()
        fired = user.fired(record, 2)
        run = new_batch_id(store_user)
        jobs = [replace(job, origin=replace(job.origin, batch=run)) for job in fired.jobs if job.origin is not None]
        graph = msgspec.structs.replace(fired, jobs=jobs, batches=[NewBatch(run, 2, clock.now(), schedule="s")])
        assert await store_user.storage.fire([graph]) == [True]
        assert await store_user.storage.fire([graph]) == [False]
        assert ((await user.read()).course.open, (await user.read()).last_job) == (1, run)
        one, two = await store_user.take()
        await store_user.succeed(one)
        assert ((await user.read()).course.open, (await user.read()).course.runs) == (1, 0)
        await store_user.fail(two)
        assert ((await user.read()).course.open, (await user.read()).course.runs) == (0, 1)
        assert (await batch_of(store_user, run)).schedule == "s"
        await store_user.storage.retry(two.id)
        assert ((await user.read()).course.open, (await user.read()).course.runs) == (1, 0)
        # Under its new name it has the same runs.
        record = await user.read()
        renamed = replace(record, name="t")
        assert await store_user.storage.take_over_schedule(renamed, was="s", replaces=record.revision)
        await store_user.storage.cancel(two.id)
        after = await user.read("t")
        assert (after.course.open, after.course.runs) == (0, 1)

    async def test_an_occurrence_whose_jobs_are_all_rejected_is_not_open(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        user = ScheduleUser(store_user, clock)
        await user.put()
        fired = user.fired(await user.read())
        run = new_batch_id(store_user)
        job = replace(fired.jobs[0], origin=Origin(batch=run, schedule="s"), rejection=BOOM, terms=None)
        batch = NewBatch(run, 1, clock.now(), schedule="s")
        await store_user.storage.fire([msgspec.structs.replace(fired, jobs=[job], batches=[batch])])
        assert ((await user.read()).course.open, (await user.read()).course.runs) == (0, 0)

    async def test_a_schedule_is_read_as_it_was_stored(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        record = own.record(until=clock.now() + SECOND, max_runs=3, misfire="skip", overlap="queue", first_at=5)
        record = replace(record, is_declared=True, formerly="é", skipped="overlap", skipped_at=7)
        assert await store_user.storage.put_schedule(record, replaces=None)
        (stored,) = await store_user.storage.schedules()
        assert stored == replace(record, revision=1)
        changed = replace(stored, is_declared=False, formerly=None, skipped=None, skipped_at=None)
        assert await store_user.storage.put_schedule(changed, replaces=1)
        assert await store_user.storage.schedules() == [replace(changed, revision=2)]
        assert await store_user.storage.schedules(name="other") == []

    async def test_schedules_are_listed_by_name_and_page_by_page(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        for name in ("b", "a", "Z", "ä", "c"):
            await own.put(name)
        names = [record.name for record in await store_user.storage.schedules()]
        assert names == ["Z", "a", "b", "c", "ä"]
        page = await store_user.storage.schedules(after="a", count=2)
        assert [record.name for record in page] == ["b", "c"]

    async def test_a_concurrent_change_is_not_overwritten(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        assert not await store_user.storage.put_schedule(own.record(max_runs=9), replaces=None)
        first = await own.read()
        assert await store_user.storage.put_schedule(replace(first, paused_at=clock.now()), replaces=first.revision)
        assert not await store_user.storage.put_schedule(replace(first, last_job="x"), replaces=first.revision)
        second = await own.read()
        assert (second.paused_at, second.last_job, second.rules.max_runs) == (clock.now(), None, None)
        assert not await store_user.storage.put_schedule(replace(first, name="new"), replaces=1)
        assert await store_user.storage.schedules(name="new") == []

    async def test_schedules_are_due_from_their_instant_on(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("later", due_in=120)
        await own.put("soon", due_in=60)
        await own.put("never", due_in=None)
        await own.put("of another task", due_in=1, task="other")
        paused = replace(own.record("paused", due_in=1), paused_at=clock.now())
        assert await store_user.storage.put_schedule(paused, replaces=None)
        found = await store_user.storage.due_schedules(WORK)
        assert (list(found.due), found.next_at) == ([], clock.now() + 60 * SECOND)
        clock.advance(60)
        assert await own.due() == ["soon"]
        clock.advance(60)
        assert await own.due() == ["soon", "later"]
        assert await own.due(count=1) == ["soon"]
        assert await own.due(unable=frozenset({"soon"})) == ["later"]
        assert (await store_user.storage.due_schedules(WORK)).next_at is None
        assert list((await store_user.storage.due_schedules(frozenset())).due) == []

    async def test_an_occurrence_is_enqueued_once_however_many_see_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        for name in ("a", "b", "c"):
            await own.put(name)
        seen = (await store_user.storage.due_schedules(WORK)).due
        nodes = [[own.fired(record) for record in seen] for _ in range(4)]
        written = await asyncio.gather(*(store_user.storage.fire(fired) for fired in nodes))
        assert [sum(flags) for flags in zip(*written, strict=True)] == [1, 1, 1]
        assert len(await store_user.take()) == 3
        assert await own.due() == []
        # A repeat whose reply was lost adds nothing either.
        assert await store_user.storage.fire(nodes[0]) == [False, False, False]
        assert await store_user.take() == []
        await store_user.storage.gather_history()
        assert sum(row.enqueued for row in await store_user.storage.jobs_history(3600, ALL, ALL, 0)) == 3

    async def test_jobs_and_advance_are_one_commit(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        (job,) = await own.fire()
        record = await own.read()
        assert (record.course.next_at, record.course.last_at) == (clock.now() + 60 * SECOND, clock.now())
        assert (record.last_job, record.course.open) == (job.id, 1)
        stored = await store_user.storage.job(job.id)
        assert stored is not None
        assert (stored.origin, stored.terms) == (job.origin, SKIPPING)
        # What fires nothing advances as well, and leaves the last job what it was.
        assert await store_user.storage.fire([own.fired(record, 0, next_in=None)]) == [True]
        record = await own.read()
        assert (record.course.next_at, record.last_job) == (None, job.id)
        assert await own.due() == []

    async def test_an_occurrence_that_follows_another_waits_for_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        fired = own.fired(await own.read(), 3)
        one, two, three = fired.jobs
        in_line = [
            replace(job, origin=Origin(follows=before, on="final", schedule="s", occurs_at=1))
            for job, before in ((one, None), (two, one.id), (three, two.id))
        ]
        assert await store_user.storage.fire([replace(fired, jobs=in_line)]) == [True]
        for count, job in enumerate((one, two, three)):
            assert await own.counts() == (count, 3 - count)
            (taken,) = await store_user.take()
            assert taken.id == job.id
            await store_user.storage.finish(
                store_user.node, [Finished(job.id, taken.fence, JobState.FAILED, error=BOOM)]
            )
        assert await own.counts() == (3, 0)

    async def test_a_deleted_schedule_fires_nothing(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        fired = own.fired(await own.read())
        assert await store_user.storage.remove_schedule("s")
        assert not await store_user.storage.remove_schedule("s")
        assert await store_user.storage.fire([fired]) == [False]
        assert await store_user.take() == []

    async def test_only_jobs_that_ran_count_as_runs(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        store_user.rules = {"api": strict(1)}
        await own.put()
        await own.fire(jobs=3)
        one, two, three = await store_user.take()
        assert await own.counts() == (0, 3)
        await store_user.succeed(one)
        assert await own.counts() == (1, 2)
        await store_user.storage.finish(store_user.node, [Finished(two.id, two.fence, JobState.FAILED, error=BOOM)])
        assert await own.counts() == (2, 1)
        await store_user.storage.finish(store_user.node, [Finished(three.id, three.fence, JobState.CANCELLED)])
        assert await own.counts() == (2, 0)
        # Cancelled while it waited, expired, and rejected as it came.
        (job,) = await own.fire()
        assert await own.counts() == (2, 1)
        await store_user.storage.cancel(job.id)
        (job,) = await own.fire(expires_in=5)
        clock.advance(6)
        dropped = await store_user.storage.expire()
        assert [(each.id, each.state) for each in dropped] == [(job.id, JobState.CANCELLED)]
        (job,) = await own.fire(rejection=JobError(type="LimitRejected", message="no"))
        record = await store_user.storage.job(job.id)
        assert record is not None
        assert record.state is JobState.CANCELLED
        assert await own.counts() == (2, 0)

    async def test_an_expired_occurrence_that_a_claim_meets_is_skipped(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire(expires_in=5)
        clock.advance(6)
        claimed = await store_user.claim()
        assert list(claimed.jobs) == []
        await store_user.storage.expire()
        assert await own.counts() == (0, 0)

    async def test_a_job_that_an_operator_retries_is_open_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire(jobs=2)
        one, two = await store_user.take()
        await store_user.storage.finish(store_user.node, [Finished(one.id, one.fence, JobState.FAILED, error=BOOM)])
        await store_user.storage.finish(store_user.node, [Finished(two.id, two.fence, JobState.CANCELLED)])
        assert await own.counts() == (1, 0)
        await store_user.storage.retry(one.id)
        await store_user.storage.retry(two.id)
        assert await own.counts() == (0, 2)
        for job in await store_user.take():
            await store_user.succeed(job)
        assert await own.counts() == (2, 0)

    async def test_the_jobs_of_a_dead_node_stay_open_until_they_end(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire()
        await store_user.take()
        await store_user.storage.leave(store_user.node)
        assert await own.counts() == (0, 1)
        await store_user.storage.join(store_user.node, "a")
        (job,) = await store_user.take()
        await store_user.succeed(job)
        assert await own.counts() == (1, 0)

    async def test_declaring_again_keeps_the_count_unless_it_begins_again(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire(jobs=3)
        one, two, _ = await store_user.take()
        stale = await own.read()
        await store_user.succeed(one)
        # It was read before that job ended, and must not undo its count.
        assert await store_user.storage.put_schedule(replace(stale, last_job="x"), replaces=stale.revision)
        assert await own.counts() == (1, 2)
        await store_user.succeed(two)
        again = await own.read()
        anew = replace(again, course=replace(again.course, runs=0))
        assert await store_user.storage.put_schedule(anew, replaces=again.revision, anew=True)
        assert await own.counts() == (0, 1)

    async def test_a_schedule_that_is_added_again_finds_its_old_jobs(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire(jobs=3)
        one, two, three = await store_user.take()
        await store_user.succeed(one)
        await store_user.storage.remove_schedule("s")
        await store_user.succeed(two)
        await own.put()
        assert await own.counts() == (0, 1)
        await store_user.succeed(three)
        assert await own.counts() == (1, 0)

    async def test_pruned_jobs_stay_counted(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        await own.fire()
        (job,) = await store_user.take()
        await store_user.succeed(job)
        clock.advance(10)
        assert await store_user.storage.prune(clock.now()) == 1
        assert await own.counts() == (1, 0)

    async def test_the_last_skipped_occurrence_stays_recorded(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        skipping = replace(own.fired(await own.read(), jobs=0), skipped="misfire", skipped_at=7, skips=3)
        assert await store_user.storage.fire([skipping]) == [True]
        await own.fire()
        record = await own.read()
        assert (record.skipped, record.skipped_at, record.skips) == ("misfire", 7, 3)

    async def test_skipped_occurrences_are_counted(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put()
        for skips in (1, 10**6):
            skipping = replace(own.fired(await own.read(), jobs=0), skipped="overlap", skipped_at=7, skips=skips)
            assert await store_user.storage.fire([skipping, skipping]) == [True, True]
        assert (await own.read()).skips == 1_000_001

    async def test_a_schedule_replaces_another_with_its_jobs_and_its_count(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("old")
        await own.fire("old", jobs=4)
        one, two, _, _ = await store_user.take()
        await store_user.succeed(one)
        known = await own.read("old")
        new = replace(known, name="new", formerly="old", course=replace(known.course, next_at=clock.now() + 9))
        await store_user.succeed(two)
        assert not await store_user.storage.take_over_schedule(new, was="other", replaces=known.revision)
        assert not await store_user.storage.take_over_schedule(new, was="old", replaces=known.revision - 1)
        assert await own.counts("old") == (2, 2)
        assert await store_user.storage.take_over_schedule(new, was="old", replaces=known.revision)
        (stored,) = await store_user.storage.schedules()
        assert (stored.name, stored.formerly, stored.course.next_at) == ("new", "old", clock.now() + 9)
        assert list(await store_user.storage.schedules(formerly="old")) == [stored]
        assert list(await store_user.storage.schedules(formerly="new")) == []
        assert await own.counts("new") == (2, 2)
        assert await store_user.storage.check() == []
        # Read before the name was another one: it is enqueued under neither.
        assert await store_user.storage.fire([own.fired(known)]) == [False]

    async def test_jobs_that_run_while_their_schedule_gets_another_name_are_counted_under_it(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("old")
        await own.fire("old", jobs=2)
        one, two = await store_user.take()
        known = await own.read("old")
        assert await store_user.storage.take_over_schedule(
            replace(known, name="new"), was="old", replaces=known.revision
        )
        await store_user.succeed(one)
        await store_user.storage.finish(store_user.node, [Finished(two.id, two.fence, JobState.FAILED, error=BOOM)])
        assert await own.counts("new") == (2, 0)
        job = await store_user.storage.job(one.id)
        assert job is not None
        assert job.origin is not None
        assert job.origin.schedule == "new"
        assert job.origin.occurs_at is not None
        assert await store_user.storage.check() == []

    async def test_a_taken_name_is_not_given_to_another_schedule(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("old")
        await own.put("new", max_runs=3)
        known = await own.read("old")
        assert not await store_user.storage.take_over_schedule(
            replace(known, name="new"), was="old", replaces=known.revision
        )
        assert [record.name for record in await store_user.storage.schedules()] == ["new", "old"]

    async def test_of_many_concurrent_takeovers_of_a_schedule_one_succeeds(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("old")
        await own.fire("old", jobs=3)
        known = await own.read("old")
        done = await asyncio.gather(
            *(
                store_user.storage.take_over_schedule(replace(known, name="new"), was="old", replaces=known.revision)
                for _ in range(4)
            )
        )
        assert sorted(done) == [False, False, False, True]
        assert [record.name for record in await store_user.storage.schedules()] == ["new"]
        assert await own.counts("new") == (0, 3)

    async def test_schedules_that_no_node_can_fire_are_overdue(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("later", task="other", due_in=50)
        await own.put("known", due_in=1)
        await own.put("unable", due_in=2)
        await own.put("other", task="other", due_in=1)
        await own.put("over", task="other", due_in=None)
        paused = replace(own.record("paused", task="other"), paused_at=clock.now())
        assert await store_user.storage.put_schedule(paused, replaces=None)

        async def overdue(**options: Any) -> list[str]:
            before = clock.now() + 10 * SECOND
            return [each.name for each in await store_user.storage.overdue_schedules(WORK, before=before, **options)]

        assert await overdue() == ["other"]
        assert await overdue(unable=frozenset({"unable"})) == ["other", "unable"]
        assert await overdue(unable=frozenset({"unable"}), count=1) == ["other"]
        assert list(await store_user.storage.overdue_schedules(WORK, before=clock.now() + SECOND)) == []

    async def test_schedules_that_a_clock_has_carried_ahead_are_found(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        own = ScheduleUser(store_user, clock)
        await own.put("right")
        await own.put("fired")
        clock.step_wall(86400)
        await own.put("declared")
        await own.put("other", task="other")
        record = await own.read("fired")
        fired = own.fired(record, jobs=0)
        assert await store_user.storage.fire([fired]) == [True]
        clock.step_wall(-86400)

        async def ahead(**options: Any) -> list[str]:
            after = clock.now() + 60 * SECOND
            return [each.name for each in await store_user.storage.schedules_ahead(WORK, after=after, **options)]

        assert await ahead() == ["declared", "fired"]
        assert await ahead(count=1) == ["declared"]
        assert await ahead(beyond="declared") == ["fired"]
        assert await ahead(unable=frozenset({"fired"})) == ["declared"]

    async def test_watchers_are_woken(self, store_user: StoreUser, clock: ManualClock) -> None:
        own = ScheduleUser(store_user, clock)
        woken: list[int] = []
        unwatch = store_user.storage.watch(lambda: woken.append(1))
        try:
            await own.put()
            assert woken
            woken.clear()
            await own.fire()
            assert woken
        finally:
            unwatch()
