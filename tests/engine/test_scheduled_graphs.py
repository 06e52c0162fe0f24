"""Chains, batches and graphs under a schedule: each occurrence enqueues all of it, once, and counts as one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Every,
    Headgate,
    JobState,
    Mutex,
    RetryPolicy,
    StrictRate,
    Zlib,
    batch,
    chain,
    current_job,
    result_of,
)
from headgate.clock import SECOND, to_datetime
from headgate.jobs.event import Event, ScheduleFailed, ScheduleTooFast
from headgate.schedules.schedule import MAX_PER_COMMIT, ScheduleRules, ready_at
from headgate.storage.records import Fired
from headgate.storage.store import Store
from headgate.testing.virtual_time import START, VirtualClock, run_virtual
from tests.internals import registry_of, store_of
from tests.until import result_within


class Recorded:
    """An app whose task notes what ran, takes so many seconds, and fails for what begins with "bad"."""

    def __init__(self, clock: VirtualClock, **options: Any) -> None:
        self.app = Headgate("memory://", clock=clock, **options)
        self.ran: list[str] = []

        @self.app.task(retry=RetryPolicy(retries=0))
        async def work(name: str, seconds: float = 0) -> str:
            self.ran.append(name)
            await asyncio.sleep(seconds)
            if name.startswith("bad"):
                raise ValueError(name)
            return name

        @self.app.task
        async def add_up(names: list[str], first: str) -> str:
            self.ran.append("add_up")
            return first + "=" + "".join(names)

        self.work = work
        self.add_up = add_up


def test_each_occurrence_enqueues_the_whole_graph_once_and_counts_as_one_run() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock, codec=[Zlib()])
        seen: list[tuple[str | None, datetime | None]] = []

        @own.app.task
        async def note() -> None:
            job = current_job()
            assert job.schedule is not None
            seen.append((job.schedule, job.occurs_at))

        a, others = own.work.call("a"), batch([own.work.call("b"), own.work.call("c")])
        graph = batch([a, others, own.add_up.call(result_of(others), result_of(a))]).then(note.call(), on="final")
        own.app.schedule(Every(minutes=10), graph, name="graph")
        async with own.app:
            await asyncio.sleep(1210)
            status = await own.app.admin.schedules.status("graph")
            assert (status.runs, status.open, status.jobs, status.last_job) == (2, 0, 5, None)
            assert status.tasks == ["work", "add_up", "note"]
            assert sorted(own.ran) == sorted(["a", "b", "c", "add_up"] * 2)
            assert [name for name, _ in seen] == ["graph", "graph"]
            assert status.last_batch is not None
            run = await own.app.admin.batch(status.last_batch)
            assert (run.state, run.schedule) == (JobState.SUCCEEDED, "graph")
            assert await own.app.batch(status.last_batch).result() == ["a", "b", "c", "a=bc", None]
            assert len(await own.app.admin.jobs(schedule="graph")) == 10
            assert list(await store_of(own.app).check()) == []
            # As at the next start of the same code: nothing is declared anew.
            assert (await store_of(own.app).schedules(name="graph"))[0].revision == 3

    run_virtual(main)


def test_occurrences_of_a_chain_are_skipped_or_wait_until_the_whole_chain_before_is_final() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        slow = chain(own.work.call("one", 400), own.work.call("two", 400))
        own.app.schedule(Every(minutes=10), slow, name="skips", max_runs=2)
        async with own.app:
            queued = await slow.schedule("queues", Every(minutes=10), overlap="queue", max_runs=2).enqueue()
            await asyncio.sleep(605)
            assert own.ran == ["one", "one"]
            await asyncio.sleep(605)
            status = await own.app.admin.schedules.status("skips")
            assert (status.runs, status.open, status.skipped) == (0, 1, "overlap")
            assert (await queued.status()).open == 2
            assert own.ran == ["one", "one", "two", "two"]
            await asyncio.sleep(205)
            assert own.ran == ["one", "one", "two", "two", "one"], "the second of the queue has begun"
            await asyncio.sleep(1200)
            status = await queued.status()
            assert (status.runs, status.open, status.state) == (2, 0, "finished")
            await asyncio.sleep(1200)
            assert (await own.app.admin.schedules.status("skips")).state == "finished"
        assert sorted(own.ran) == ["one"] * 4 + ["two"] * 4

    run_virtual(main)


@pytest.mark.parametrize(
    "begin",
    [
        lambda: [batch([])],
        lambda: [batch([]), batch([batch([])])],
        lambda: [batch([batch([]), batch([])])],
    ],
)
def test_a_job_after_an_empty_batch_with_which_a_plan_begins_waits_for_the_run_before(
    begin: Callable[[], list[Any]],
) -> None:
    """The fault: it followed the empty batch only, so two runs went on at the same time."""

    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        plan = chain(*begin(), own.work.call("one", 700), own.work.call("two"))
        own.app.schedule(Every(minutes=10), plan, name="queue", overlap="queue", max_runs=2)
        async with own.app:
            await asyncio.sleep(1210)
            assert own.ran == ["one"]
            await asyncio.sleep(100)
            assert own.ran == ["one", "two", "one"]

    run_virtual(main)


def test_jitter_and_end_apply_to_a_job_after_empty_batches_and_later_jobs_expire_after_the_jitter() -> None:
    """The fault: it started at the exact occurrence, and also after the end; the job after it expired before that."""

    async def main(clock: VirtualClock) -> None:
        own, until = Recorded(clock), START + 900 * SECOND
        nobody, no_one = batch([]), batch([])
        first = own.work.call("first").after(nobody, no_one)
        never = own.work.call("never").after(nobody, on="failure")
        later = own.add_up.using(expires_in=1).call(result_of(nobody), "none").after(first)
        plan = batch([nobody, no_one, first, never, later])
        own.app.schedule(Every(minutes=10), plan, name="late", jitter=300, until=to_datetime(until))
        ready = ready_at("late", ScheduleRules("", until=until, jitter=300 * SECOND), START + 600 * SECOND)
        assert ready > START + 602 * SECOND
        async with own.app:
            await asyncio.sleep(601)
            jobs = [(await own.app.admin.job(job.id)).record for job in await own.app.admin.jobs()]
            assert {(job.task, str(job.state), job.expires_at) for job in jobs} == {
                ("work", "waiting", until),
                ("work", "skipped", None),
                ("add_up", "waiting", ready + SECOND),
            }
            assert {job.run_at for job in jobs if job.task == "work" and job.state is JobState.WAITING} == {ready}
            assert own.ran == []
            await asyncio.sleep(300)
            assert own.ran == ["first", "add_up"]

    run_virtual(main)


def test_a_chain_that_fails_is_a_run_and_one_that_is_cancelled_is_not() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        own.app.schedule(Every(minutes=10), chain(own.work.call("bad"), own.work.call("never")), name="bad")
        async with own.app:
            await asyncio.sleep(605)
            assert ((await own.app.admin.schedules.status("bad")).runs, own.ran) == (1, ["bad"])
            (_, first) = await own.app.admin.jobs(schedule="bad")
            await own.app.admin.retry(first.id)
            assert (await own.app.admin.schedules.status("bad")).open == 1
            await asyncio.sleep(1)
            assert (await own.app.admin.schedules.status("bad")).runs == 1
            waiting = (
                await chain(own.work.using(queue="default").call("x", 1000))
                .schedule("slow", Every(hours=1), first="now")
                .enqueue()
            )
            await asyncio.sleep(1)
            status = await waiting.status()
            assert status.open == 1
            assert status.last_batch is not None
            assert await own.app.batch(status.last_batch).cancel() == 1
            await asyncio.sleep(2)
            assert ((await waiting.status()).runs, (await waiting.status()).open) == (0, 0)

    run_virtual(main)


def test_a_triggered_graph_answers_with_its_last_job_and_missed_ones_are_caught_up() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        async with own.app.open():
            plan = chain(own.work.call("one"), own.work.call("two"))
            schedule = await plan.schedule("s", Every(minutes=10), misfire="run_all", overlap="allow").enqueue()
            job = await schedule.trigger()
            assert (await job.status()).is_blocked
            await asyncio.sleep(1805)
        async with own.app:
            await asyncio.sleep(5)
            assert await result_within(job) == "two"
            assert (await schedule.status()).runs == 4
            assert await schedule.remove()
            assert len(await own.app.admin.jobs(schedule="s")) == 8
        assert sorted(own.ran) == ["one"] * 4 + ["two"] * 4

    run_virtual(main)


def commits_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of jobs of each commit that enqueues occurrences."""
    commits: list[int] = []
    fire = Store.fire

    async def counted(store: Store, fired: Sequence[Fired]) -> Sequence[bool]:
        commits.append(sum(len(each.jobs) for each in fired))
        return await fire(store, fired)

    monkeypatch.setattr(Store, "fire", counted)
    return commits


def test_a_commit_of_missed_graphs_is_bounded_by_their_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a thousand graphs were one commit, however many jobs each had."""
    commits = commits_of(monkeypatch)

    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        async with own.app.open():
            plan = batch([own.work.call(f"{number}") for number in range(30)])
            every = Every(minutes=1)
            await plan.schedule("graphs", every, misfire="run_all", overlap="allow").enqueue()
            await own.work.schedule("alone", every, misfire="run_all", overlap="allow").enqueue("alone")
            await asyncio.sleep(100 * 60 + 5)
        async with own.app:
            await asyncio.sleep(20)
            assert (await own.app.admin.schedules.status("graphs")).runs == 100
            assert (await own.app.admin.schedules.status("alone")).runs == 100
        assert len(own.ran) == 31 * 100
        assert sum(commits) == 31 * 100
        assert max(commits) <= MAX_PER_COMMIT

    run_virtual(main)


def test_a_commit_of_many_graphs_that_are_due_together_is_bounded_by_their_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: the nightly graphs of 100 tenants were one commit, which PostgreSQL rolls back if it takes 5 s."""
    commits = commits_of(monkeypatch)

    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        async with own.app:
            plan = batch([own.work.call(f"{number}") for number in range(50)])
            for number in range(60):
                await plan.schedule(f"of {number}", Every(hours=1, start=to_datetime(START))).enqueue()
            await asyncio.sleep(3605)
            assert {each.runs for each in await own.app.admin.schedules.list()} == {1}
        assert sum(commits) == len(own.ran) == 60 * 50
        assert max(commits) <= MAX_PER_COMMIT + 50

    run_virtual(main)


def test_a_step_whose_limit_cannot_be_computed_fails_and_its_run_is_over() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        fails: list[bool] = []

        def key(name: str) -> str:
            if fails:
                raise ValueError("no key")
            return name

        @own.app.task(limits=[StrictRate("1/h", key=key, on_key_error="fail")], retry=RetryPolicy(retries=0))
        async def limited(name: str) -> None: ...

        own.app.schedule(Every(minutes=10), chain(limited.call("a"), own.work.call("b")), name="limited")
        events: list[Event] = []
        own.app.subscribe(events.append)
        async with own.app:
            await asyncio.sleep(1)
            fails.append(True)
            await asyncio.sleep(605)
            status = await own.app.admin.schedules.status("limited")
            assert (status.open, status.runs) == (0, 0)
            assert list(await store_of(own.app).check()) == []
            states = {each.state for each in await own.app.admin.jobs(schedule="limited")}
            assert states == {JobState.FAILED, JobState.CANCELLED}
        assert [event.limit for event in events if isinstance(event, ScheduleTooFast)] == ["limited:rate"]

    run_virtual(main)


def test_a_node_that_lacks_a_task_of_the_graph_leaves_the_schedule_to_others() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Recorded(clock)
        events: list[Event] = []
        own.app.subscribe(events.append)
        async with own.app.open():
            plan = chain(own.work.call("one"), own.add_up.call([], "x"))
            await plan.schedule("s", Every(minutes=10)).enqueue()
        registry_of(own.app)._remove_task(own.add_up)
        async with own.app:
            await asyncio.sleep(605)
            assert own.ran == []
            (failed,) = [event for event in events if isinstance(event, ScheduleFailed)]
            assert "enqueues task 'add_up', which this app does not declare" in failed.error
            assert "does not declare task 'add_up'" in str((await own.app.admin.schedules.status("s")).problem)

    run_virtual(main)


def test_what_no_occurrence_can_have_is_refused_where_it_is_declared() -> None:
    app, other = Headgate("memory://"), Headgate("memory://")

    @app.task
    async def load(names: list[str] | None = None) -> str:
        return ""

    @other.task
    async def foreign() -> None: ...

    hourly, stored = Every(hours=1), app.job("0190-id")
    for plan, words in (
        (chain(load.call().after(stored)), r"load.call\(…\) is after a stored job, chain or batch, which occurs once"),
        (batch([load.call(), load.call().after(stored, app.job("other"))]), "is after a stored job"),
        (chain(load.call(result_of(stored))), r"is after a stored job"),
        (batch([load.call()], limits=[Mutex("m")]), "limits= of a batch belong to one batch"),
        (chain(load.using(delay=5).call(), load.call()), "delay, at and expires_at are options of one job"),
        (chain(foreign.call()), "the calls belong to another app"),
        (chain(load.call(), foreign.call()), "belong to several apps"),
        (load, r"is no chain and no batch; write chain"),
        (batch([]), "has no calls"),
    ):
        with pytest.raises(DeclarationError, match=words):
            app.schedule(hourly, plan, name="s")  # type: ignore[arg-type]  # a task is a mistake
    with pytest.raises(DeclarationError, match="has no name of its own; add name="):
        app.schedule(hourly, chain(load.call()))  # type: ignore[call-overload]  # a mistake
    with pytest.raises(DeclarationError, match="leave out args, kwargs"):
        app.schedule(hourly, chain(load.call()), name="s", args=[1])  # type: ignore[call-overload]  # a mistake
    with pytest.raises(DeclarationError, match="is not a trigger"):
        chain(load.call()).schedule("s", "hourly")  # type: ignore[arg-type]  # a mistake

    async def main() -> None:
        async with app.open():
            schedule = await batch([load.call()]).schedule("s", hourly).enqueue()
            with pytest.raises(DeclarationError, match="enqueues a graph, whose calls have their arguments"):
                await app.admin.schedules.edit("s", payload={"names": []})
            await app.admin.schedules.edit("s", Every(hours=2))
            assert (await schedule.status()).jobs == 1
            assert await app.admin.schedules.reencode() == 0

    asyncio.run(main())


def test_unique_keys_and_what_needs_them_are_refused_in_chains_batches_and_schedules() -> None:
    app = Headgate("memory://")

    @app.task(unique_key="{name}", unique_for=60)
    async def keyed(name: str) -> None: ...

    @app.task
    async def plain(name: str) -> None: ...

    own: list[dict[str, Any]] = [
        {},
        {"unique_for": 60},
        {"on_conflict": "replace"},
        {"debounce": 5},
        {"unique_while": ("waiting",)},
    ]
    calls = [keyed.call("a"), *(plain.using(unique_key="k", **options).call("a") for options in own)]
    for call in calls:
        for make in (chain, lambda step: batch([step]), lambda step: batch([plain.call("b")]).then(step)):
            with pytest.raises(DeclarationError, match="has a unique_key: another job may stand for it"):
                make(call)
    with pytest.raises(DeclarationError, match="declares a unique_key, which jobs of a schedule do not"):
        app.schedule(Every(hours=1), name="keyed", args=["a"])(keyed)
    with pytest.raises(DeclarationError, match="unique_key and connection are options of one job"):
        app.schedule(Every(hours=1), name="plain", args=["a"])(plain.using(unique_key="k"))
