"""What is promised of failures: the newest ones, by index, and their groups by task and root cause."""

from __future__ import annotations

from unittest import mock

from msgspec.structs import replace

from headgate.admin import failures as reading
from headgate.admin.ended import Place, event_of, place_of_end
from headgate.clock import SECOND, to_datetime
from headgate.jobs.audit import AuditLevel
from headgate.jobs.identity import LOWEST
from headgate.jobs.job import ClaimedJob, JobError, JobOptions, JobState, Origin
from headgate.jobs.lifecycle import Finished, Returned
from headgate.jobs.root_cause import CodePlace
from headgate.storage.records import EndedAttempt, StoredEnd
from tests.conformance.storage_suite.store_user import Conformance, StoreUser

HOUR = 3600 * SECOND


def not_found(user: int, line: int = 7) -> JobError:
    """An error whose text differs with the user, and its place with the line."""
    message = f"user {user} not found"
    trace = (
        f'Traceback (most recent call last):\n  File "/srv/shop/users.py", line {line}, in find\nKeyError: {message}\n'
    )
    return JobError("KeyError", message, trace)


async def fail(store_user: StoreUser, job: ClaimedJob, error: JobError) -> None:
    assert await store_user.finish(Finished(job.id, job.fence, JobState.FAILED, error=error)) == [True]


async def fail_for_now(store_user: StoreUser, job: ClaimedJob, error: JobError) -> None:
    """The attempt has failed, and another one follows in a minute."""
    run_at = store_user.clock.now() + 60 * SECOND
    assert await store_user.finish(Returned(job.id, job.fence, "failed", spent=True, run_at=run_at, error=error)) == [
        True
    ]


async def add_failed(store_user: StoreUser, error: JobError, **options: object) -> str:
    """Add a job that fails a second later."""
    queue = str(options.get("queue", "default"))
    id = await store_user.add_one(**options)
    job = await store_user.take_one(queues=(queue,))
    store_user.clock.advance(1)
    await fail(store_user, job, error)
    return id


class FailuresConformance(Conformance):
    async def test_the_jobs_that_failed_last_come_first_whatever_their_queue(self, store_user: StoreUser) -> None:
        assert await store_user.storage.newest_failed(0, 10) == []
        begun = store_user.clock.now()
        late, early = await store_user.add(2)
        jobs = {job.id: job for job in await store_user.take()}
        await fail(store_user, jobs[early], not_found(1))
        store_user.clock.advance(1)
        other = await add_failed(store_user, not_found(2), queue="mail")
        await fail(store_user, jobs[late], not_found(3))
        cancelled = await store_user.add_one()
        await store_user.storage.cancel(cancelled)
        await store_user.add_one()
        await store_user.succeed(await store_user.take_one())
        newest = await store_user.storage.newest_failed(0, 10)
        assert set(newest[:2]) == {other, late}
        assert newest[2:] == [early]
        assert set(await store_user.storage.newest_failed(begun + 1, 10)) == {other, late}
        assert await store_user.storage.newest_failed(0, 2) == newest[:2]
        assert await store_user.storage.newest_failed(store_user.clock.now() + 1, 10) == []

    async def test_ends_are_returned_in_their_order_in_pages_of_any_length(self, store_user: StoreUser) -> None:
        storage, clock = store_user.storage, store_user.clock
        assert (await storage.ended(0, 0, 10)).ends == []
        expected: dict[str, str] = {}
        # Many in one microsecond, in several queues and states; then hours without an end.
        for wait in (0, 1, 0, 7 * 3600, 0.5):
            clock.advance(wait)
            for queue in ("default", "mail"):
                await store_user.add(4, queue=queue)
                one, two, three, four = await store_user.take(queues=(queue,))
                await store_user.succeed(one, two)
                await store_user.fail(three)
                await fail(store_user, four, not_found(1))
                expected |= {job.id: state for job, state in zip((one, two, three, four), "ssff", strict=True)}
            cancelled = await store_user.add_one(queue="mail")
            await storage.cancel(cancelled)
            expected[cancelled] = "c"
        running = await store_user.add_one()
        await store_user.take_one()
        clock.advance(60)
        whole = await storage.ended(0, LOWEST, 500)
        places = [place_of_end(end) for end in whole.ends]
        assert {end.id: end.state[0] for end in whole.ends} == expected
        assert running not in expected
        assert places == sorted(set(places))
        assert (whole.is_full, whole.now) == (False, clock.now())
        for count in (1, 2, 7, len(places)):
            place, more = Place(0), True
            paged: list[StoredEnd] = []
            while more:
                read = await storage.ended(place.at, place.number, count)
                paged += read.ends
                more, place = read.is_full, place_of_end(read.ends[-1]) if read.ends else place
            assert paged == whole.ends
        # What is deleted, or retried, is no longer an end.
        await storage.retry(whole.ends[-1].id)
        assert [end.id for end in (await storage.ended(0, LOWEST, 500)).ends] == [end.id for end in whole.ends[:-1]]

    async def test_an_end_has_what_its_event_shows(self, store_user: StoreUser) -> None:
        id = await add_failed(store_user, not_found(1), options=JobOptions(tags=("vip",)))
        late = await store_user.add_one(expires_in=0.5)
        store_user.clock.advance(1)
        await store_user.storage.expire()
        failed, expired = (await store_user.storage.ended(0, LOWEST, 10)).ends
        event = event_of(failed, place_of_end(failed))
        assert (event.job, event.kind, event.error, event.attempt, event.tags) == (
            id,
            "failed",
            "KeyError",
            1,
            ("vip",),
        )
        event = event_of(expired, place_of_end(expired))
        assert (event.job, event.kind, event.state) == (late, "expired", "failed")

    async def test_a_retried_job_is_no_longer_among_the_failed_ones(self, store_user: StoreUser) -> None:
        id = await add_failed(store_user, not_found(1))
        await store_user.storage.retry(id)
        assert await store_user.storage.newest_failed(0, 10) == []
        (record,) = await store_user.storage.job_errors([id, "nobody"])
        assert (record.state, record.attempt, record.error) == (JobState.WAITING, 0, not_found(1))

    async def test_the_attempts_that_ended_last_come_first(self, store_user: StoreUser) -> None:
        id = await store_user.add_one()
        await fail_for_now(store_user, await store_user.take_one(), not_found(1))
        first = store_user.clock.now()
        store_user.clock.advance(61)
        await store_user.give_back(await store_user.take_one())
        await fail(store_user, await store_user.take_one(), not_found(1))
        last = store_user.clock.now()
        assert await store_user.storage.newest_attempts(10) == [
            EndedAttempt(id, 2, last, True),
            EndedAttempt(id, 2, last, False),
            EndedAttempt(id, 1, first, True),
        ]
        assert len(await store_user.storage.newest_attempts(2)) == 2

    async def test_the_errors_of_jobs_in_any_state_are_read(self, store_user: StoreUser) -> None:
        leader = store_user.new()
        follower = replace(store_user.new(), origin=Origin(follows=leader.id))
        await store_user.storage.add([leader, follower])
        found = {each.id: each for each in await store_user.storage.job_errors([leader.id, follower.id])}
        assert [found[id].state for id in (leader.id, follower.id)] == [JobState.WAITING] * 2
        assert {each.id for each in await store_user.storage.jobs_by_id([leader.id, "nobody"])} == {leader.id}

    async def test_failures_are_grouped_by_task_and_root_cause(self, store_user: StoreUser) -> None:
        store_user.tasks = {"work", "other"}
        begun = store_user.clock.now()
        ids = [await add_failed(store_user, not_found(user)) for user in range(3)]
        ids.append(await add_failed(store_user, not_found(9), queue="mail"))
        elsewhere = await add_failed(store_user, not_found(1, line=8))
        other = await add_failed(store_user, not_found(1), task="other")
        bare = await add_failed(store_user, JobError("JobExpired", "not started by 12:00"))
        report = await reading.failures(store_user.storage, HOUR)
        assert [group.newest.status.id for group in report.groups] == [ids[-1], bare, other, elsewhere]
        assert (report.total, report.read, report.is_cut) == (4, 7, False)
        assert report.since == to_datetime(store_user.clock.now() - HOUR)
        group = report.groups[0]
        assert (group.task, group.queues, group.failed, group.retrying) == ("work", ["default", "mail"], 4, 0)
        assert (group.cause.type, group.cause.message) == ("KeyError", "user # not found")
        assert group.cause.place == CodePlace("/srv/shop/users.py", 7, "find")
        assert (group.first_at, group.last_at) == (to_datetime(begun + SECOND), to_datetime(begun + 4 * SECOND))
        assert group.newest.status.error == not_found(9)
        assert report.groups[1].cause.place is None

    async def test_only_failures_of_the_time_are_read_and_counted_in_its_steps(self, store_user: StoreUser) -> None:
        await add_failed(store_user, not_found(1))
        store_user.clock.advance(1800)
        await add_failed(store_user, not_found(2))
        await add_failed(store_user, not_found(3))
        (group,) = (await reading.failures(store_user.storage, 600 * SECOND)).groups
        assert (group.failed, sum(group.trend), group.trend[-1]) == (2, 2, 2)
        report = await reading.failures(store_user.storage, HOUR)
        assert report.step == 120
        (group,) = report.groups
        # Half an hour ago and a few seconds is in the step before the middle.
        assert {at: count for at, count in enumerate(group.trend) if count} == {14: 1, 29: 2}
        kept = await reading.failures(store_user.storage, None)
        assert [each.failed for each in kept.groups] == [3]
        assert kept.since == kept.groups[0].first_at
        assert (kept.groups[0].trend[0], kept.groups[0].trend[-1]) == (1, 2)

    async def test_a_root_cause_is_new_or_back_again_or_steady(self, store_user: StoreUser) -> None:
        store_user.tasks = {"work", "other", "third"}
        day = 86_400
        await add_failed(store_user, not_found(1))
        await add_failed(store_user, not_found(1), task="other")
        for _ in range(2):
            store_user.clock.advance(day - 600)
            await add_failed(store_user, not_found(2), task="other")
        await add_failed(store_user, not_found(3))
        await add_failed(store_user, not_found(1), task="third")

        async def found(span: int | None) -> dict[str, tuple[str | None, int]]:
            groups = (await reading.failures(store_user.storage, span)).groups
            now = to_datetime(store_user.clock.now())
            return {
                each.task: (each.recurrence, round((now - each.first_ever_at).total_seconds() / 3600))
                for each in groups
            }

        of_last_hour = await found(HOUR)
        assert of_last_hour == {"work": ("back again", 48), "other": ("steady", 48), "third": ("new", 0)}
        assert await found(None) == of_last_hour
        # What has not failed for a day is none of these, and of a report that is cut nothing is said.
        with mock.patch.object(reading, "MOST_READ", 2):
            assert {each for each, _ in (await found(HOUR)).values()} == {None}
        store_user.clock.advance(day + 1)
        assert await found(None) == {"work": (None, 72), "other": (None, 72), "third": (None, 24)}

    async def test_jobs_that_wait_for_a_retry_after_a_failure_belong_to_the_groups(self, store_user: StoreUser) -> None:
        retrying = await store_user.add_one()
        await fail_for_now(store_user, await store_user.take_one(), not_found(1))
        failed = await add_failed(store_user, not_found(2))
        snoozed = await store_user.add_one()
        await store_user.give_back(await store_user.take_one(), "snoozed", run_at=store_user.clock.now() + HOUR)
        (group,) = (await reading.failures(store_user.storage, HOUR)).groups
        assert (group.failed, group.retrying, sum(group.trend)) == (1, 1, 2)
        details = await reading.failures_like(store_user.storage, await store_user.record(retrying), HOUR, 10)
        assert details is not None
        assert [(job.id, job.is_retrying) for job in details.jobs] == [(failed, False), (retrying, True)]
        assert await reading.failures_like(store_user.storage, await store_user.record(snoozed), HOUR, 10) is None
        # Once it runs again, it is no failure until that attempt ends.
        store_user.clock.advance(61)
        job = await store_user.take_one()
        assert job.id == retrying
        (group,) = (await reading.failures(store_user.storage, HOUR)).groups
        assert (group.failed, group.retrying) == (1, 0)
        await store_user.succeed(job)
        (group,) = (await reading.failures(store_user.storage, HOUR)).groups
        assert (group.failed, group.retrying) == (1, 0)

    async def test_a_job_whose_attempts_are_not_kept_belongs_to_a_group_once_it_has_failed(
        self, store_user: StoreUser
    ) -> None:
        await store_user.storage.add([replace(store_user.new(), audit=AuditLevel.NONE)])
        await fail_for_now(store_user, await store_user.take_one(), not_found(1))
        assert (await reading.failures(store_user.storage, HOUR)).groups == []
        store_user.clock.advance(61)
        await fail(store_user, await store_user.take_one(), not_found(1))
        (group,) = (await reading.failures(store_user.storage, HOUR)).groups
        assert (group.failed, group.retrying) == (1, 0)

    async def test_the_newest_failures_are_read_if_there_are_more(self, store_user: StoreUser) -> None:
        ids = [await add_failed(store_user, not_found(user)) for user in range(5)]
        with mock.patch.multiple(reading, MOST_READ=3, PORTION=2):
            report = await reading.failures(store_user.storage, HOUR)
            assert (report.read, report.is_cut, report.groups[0].failed) == (3, True, 3)
            assert report.groups[0].newest.status.id == ids[-1]
        with mock.patch.multiple(reading, MOST_READ=5, PORTION=2):
            report = await reading.failures(store_user.storage, HOUR)
            assert (report.read, report.is_cut) == (5, False)
        for line in range(3):
            await add_failed(store_user, not_found(1, line=100 + line))
        with mock.patch.object(reading, "MOST_GROUPS", 2):
            report = await reading.failures(store_user.storage, HOUR)
            assert (report.total, [group.failed for group in report.groups]) == (4, [5, 1])

    async def test_the_failures_like_one_are_those_of_its_task_and_root_cause(self, store_user: StoreUser) -> None:
        storage = store_user.storage
        old = await add_failed(store_user, not_found(1))
        store_user.clock.advance(7200)
        ids = [await add_failed(store_user, not_found(user)) for user in range(3)]
        await add_failed(store_user, not_found(1, line=8))
        details = await reading.failures_like(storage, await store_user.record(ids[0]), HOUR, 2)
        assert details is not None
        assert (details.group.failed, [job.id for job in details.jobs]) == (3, [ids[2], ids[1]])
        assert details.group.newest.status.error == not_found(2)
        # One that failed before that time belongs to its own group, whose time then begins with it.
        details = await reading.failures_like(storage, await store_user.record(old), HOUR, 10)
        assert details is not None
        assert [job.id for job in details.jobs] == [*ids[::-1], old]
        assert details.since == details.group.first_at
        await storage.retry(old)
        assert await reading.failures_like(storage, await store_user.record(old), HOUR, 10) is None
