"""What is promised of the progress and the log lines of running jobs."""

from __future__ import annotations

import pytest

from headgate.jobs.job import ClaimedJob, JobState, Progress
from headgate.jobs.report import (
    HIGHEST_LEVEL,
    PLACES,
    AttemptReport,
    LogLine,
    kept_level,
    kept_line,
    kept_message,
    kept_name,
    too_many,
)
from headgate.testing.manual_clock import ManualClock
from tests.conformance.storage_suite.dependencies import follow
from tests.conformance.storage_suite.store_user import Conformance, StoreUser, recover


def lines(job: ClaimedJob, first: int, count: int, message: str = "line {}") -> tuple[LogLine, ...]:
    places = range(first, first + count)
    number = job.fence * PLACES
    return tuple(LogLine(number + each, 7, job.attempt, 20, "app", message.format(each)) for each in places)


async def report(
    store_user: StoreUser, job: ClaimedJob, *logged: LogLine, most: int = 1000, node: str | None = None
) -> bool | None:
    (written,) = await store_user.storage.report(
        node or store_user.node, [AttemptReport(job.id, job.fence, None, logged)], most
    )
    return bool(written)


async def messages(store_user: StoreUser, job_id: str) -> list[str]:
    return [line.message for line in await store_user.storage.logs(job_id)]


class ReportsConformance(Conformance):
    async def test_progress_is_seen_while_the_job_runs_and_afterwards(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await store_user.add_one()
        assert (await store_user.record(id)).progress is None
        job = await store_user.take_one()
        for fraction, word in ((0.25, None), (0.5, "halfway")):
            said = Progress(fraction, word, clock.now())
            assert list(await store_user.storage.report(store_user.node, [AttemptReport(id, job.fence, said)], 10)) == [
                True
            ]
            assert (await store_user.record(id)).progress == said
        await store_user.succeed(job)
        assert (await store_user.record(id)).progress == said

    async def test_a_job_that_is_retried_by_hand_begins_without_progress(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        await store_user.storage.report(
            store_user.node, [AttemptReport(id, job.fence, Progress(1.0, None, clock.now()))], 10
        )
        await store_user.fail(job)
        await store_user.storage.retry(id)
        assert (await store_user.record(id)).progress is None

    async def test_a_follower_that_is_retried_by_hand_is_blocked_without_progress(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        first = await store_user.add_one()
        second = await follow(store_user, first, "final")
        await store_user.fail(await store_user.take_one())
        job = await store_user.take_one()
        await store_user.storage.report(
            store_user.node, [AttemptReport(second, job.fence, Progress(1.0, None, clock.now()))], 10
        )
        await store_user.fail(job)
        await store_user.storage.retry(first)
        await store_user.storage.retry(second)
        record = await store_user.record(second)
        assert (record.is_blocked, record.progress) == (True, None)

    async def test_lines_are_read_back_as_they_were_logged(self, store_user: StoreUser, clock: ManualClock) -> None:
        unusual = ["", "line\nbreak\ttab", "ünïcödé 🚦", "'; DROP TABLE job; --", '{"a": [1]}', "x" * 8192]
        id = await store_user.add_one()
        job = await store_user.take_one()
        logged = [
            LogLine(PLACES + place, clock.now() + place, 1, 10 + place, f"app.{place}", text)
            for place, text in enumerate(unusual)
        ]
        assert await report(store_user, job, *logged)
        assert list(await store_user.storage.logs(id)) == logged

    async def test_lines_are_read_from_a_level_on(self, store_user: StoreUser) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        logged = [LogLine(PLACES + place, 7, 1, level, "app", "hi") for place, level in enumerate((10, 30, 20, 40, 30))]
        assert await report(store_user, job, *logged)
        assert list(await store_user.storage.logs(id, level=30)) == [logged[1], logged[3], logged[4]]
        assert list(await store_user.storage.logs(id, level=30, count=2, newest=True)) == [logged[3], logged[4]]
        assert list(await store_user.storage.logs(id, level=30, after=PLACES + 1, count=1)) == [logged[3]]
        assert list(await store_user.storage.logs(id, level=HIGHEST_LEVEL)) == []

    @pytest.mark.parametrize("level", [-(10**30), -1, 0, 32767, 40_000, 1 << 31, 1 << 63, 10**30])
    async def test_a_line_of_any_level_is_kept(self, store_user: StoreUser, level: int) -> None:
        """A level that the store had no room for (any code may log at 40,000) ended the node that ran the job."""
        id = await store_user.add_one()
        job = await store_user.take_one()
        assert await report(store_user, job, LogLine(PLACES, 7, 1, kept_level(level), "app", "hi"))
        assert [line.level for line in await store_user.storage.logs(id)] == [min(max(level, 0), HIGHEST_LEVEL)]

    @pytest.mark.parametrize("text", ["\x00", "\ud800 alone", "\x00\udfff" * 5000, "ü" * 1_000_000, "\ufffe\U0010ffff"])
    async def test_any_text_is_kept_cut_and_cleaned(self, store_user: StoreUser, clock: ManualClock, text: str) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        said = Progress(1e-300, kept_message(text), clock.now())
        line = LogLine(PLACES, clock.now(), 1, 20, kept_name(text), kept_line(text))
        assert list(
            await store_user.storage.report(store_user.node, [AttemptReport(id, job.fence, said, (line,))], 10)
        ) == [True]
        assert list(await store_user.storage.logs(id)) == [line]
        assert (await store_user.record(id)).progress == said

    async def test_one_report_stores_the_lines_of_many_jobs(self, store_user: StoreUser) -> None:
        await store_user.add(3)
        jobs = await store_user.take()
        reports = [AttemptReport(job.id, job.fence, None, lines(job, 0, 2, job.id + " {}")) for job in jobs]
        assert list(await store_user.storage.report(store_user.node, reports, 10)) == [True] * 3
        for job in jobs:
            assert await messages(store_user, job.id) == [f"{job.id} 0", f"{job.id} 1"]

    async def test_the_log_of_a_job_continues_over_its_attempts(
        self, store_user: StoreUser, clock: ManualClock
    ) -> None:
        id = await store_user.add_one()
        first = await store_user.take_one()
        await report(store_user, first, *lines(first, 0, 2, "first {}"))
        await store_user.retry_later(first)
        clock.advance(10)
        second = await store_user.take_one()
        await report(store_user, second, *lines(second, 0, 2, "second {}"))
        await store_user.fail(second)
        assert await messages(store_user, id) == ["first 0", "first 1", "second 0", "second 1"]
        assert [line.attempt for line in await store_user.storage.logs(id)] == [1, 1, 2, 2]

    async def test_logs_are_read_by_pages_and_from_their_end(self, store_user: StoreUser) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        await report(store_user, job, *lines(job, 0, 25))
        seen: list[str] = []
        after = 0
        while page := await store_user.storage.logs(id, after=after, count=10):
            seen += [line.message for line in page]
            after = page[-1].number
        assert seen == [f"line {number}" for number in range(25)]
        newest = [line.message for line in await store_user.storage.logs(id, count=3, newest=True)]
        assert newest == ["line 22", "line 23", "line 24"]
        assert list(await store_user.storage.logs("nobody")) == []

    @pytest.mark.parametrize("sizes", [(8,), (3, 5), (5, 3), (4, 1, 3), (1,) * 8, (6, 2), (7, 1)])
    async def test_the_first_lines_are_kept_and_one_counts_the_rest(
        self, store_user: StoreUser, sizes: tuple[int, ...]
    ) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        first = 0
        for size in sizes:
            assert await report(store_user, job, *lines(job, first, size), most=5)
            first += size
        assert await messages(store_user, id) == [*(f"line {number}" for number in range(5)), too_many(5)]

    async def test_exactly_the_maximum_of_lines_adds_no_line_about_more(self, store_user: StoreUser) -> None:
        id = await store_user.add_one()
        job = await store_user.take_one()
        await report(store_user, job, *lines(job, 0, 5), most=5)
        assert await messages(store_user, id) == [f"line {number}" for number in range(5)]

    async def test_the_bound_is_one_for_all_attempts(self, store_user: StoreUser, clock: ManualClock) -> None:
        id = await store_user.add_one()
        for _ in range(4):
            job = await store_user.take_one()
            await report(store_user, job, *lines(job, 0, 2), most=5)
            await store_user.retry_later(job)
            clock.advance(10)
        assert await messages(store_user, id) == ["line 0", "line 1", "line 0", "line 1", "line 0", too_many(5)]

    @pytest.mark.parametrize("most", [1000, 3])
    async def test_a_report_that_is_repeated_changes_nothing(self, store_user: StoreUser, most: int) -> None:
        """Its reply may have been lost with the connection."""
        id = await store_user.add_one()
        job = await store_user.take_one()
        await report(store_user, job, *lines(job, 0, 2), most=most)
        for _ in range(3):
            assert await report(store_user, job, *lines(job, 2, 3), most=most)
            kept = await messages(store_user, id)
        assert kept == ([f"line {n}" for n in range(5)] if most > 5 else ["line 0", "line 1", "line 2", too_many(3)])

    async def test_a_node_that_lost_its_job_cannot_report(self, store_user: StoreUser, clock: ManualClock) -> None:
        """A node that stood still and was declared dead must not write into what another one does."""
        id = await store_user.add_one()
        zombie = await store_user.take_one()
        await recover(store_user)
        said = [AttemptReport(id, zombie.fence, Progress(0.9, "zombie", clock.now()), lines(zombie, 0, 1, "zombie"))]
        assert list(await store_user.storage.report(store_user.node, said, 10)) == [False]
        job = await store_user.take_one(node="node-b")
        assert list(await store_user.storage.report(store_user.node, said, 10)) == [False]
        assert list(await store_user.storage.report("node-b", said, 10)) == [False]
        assert not await report(store_user, job, *lines(job, 0, 1))
        assert await report(store_user, job, *lines(job, 0, 1, "owner"), node="node-b")
        assert await messages(store_user, id) == ["owner"]
        assert (await store_user.record(id)).progress is None

    async def test_a_report_of_a_job_that_does_not_run_is_refused(self, store_user: StoreUser) -> None:
        done, waiting, _ = await store_user.add(3)
        job = await store_user.take_one()
        await store_user.succeed(job)
        assert not await report(store_user, job, *lines(job, 0, 1))
        reports = [
            AttemptReport(waiting, 0, None, lines(job, 0, 1)),
            AttemptReport("nobody", 1, None, lines(job, 0, 1)),
        ]
        assert list(await store_user.storage.report(store_user.node, reports, 10)) == [False, False]
        assert await messages(store_user, done) == await messages(store_user, waiting) == []
        assert (await store_user.record(done)).state is JobState.SUCCEEDED

    async def test_a_refused_report_does_not_affect_the_others(self, store_user: StoreUser) -> None:
        await store_user.add(2)
        gone, runs = await store_user.take()
        await store_user.succeed(gone)
        reports = [AttemptReport(job.id, job.fence, None, lines(job, 0, 1)) for job in (gone, runs)]
        assert list(await store_user.storage.report(store_user.node, reports, 10)) == [False, True]
        assert await messages(store_user, runs.id) == ["line 0"]
        assert list(await store_user.storage.report(store_user.node, [], 10)) == []
