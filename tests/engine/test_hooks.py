"""Hooks: functions around enqueues and attempts, and at the start and the end of nodes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    AttemptContext,
    Every,
    Headgate,
    HeadgateError,
    Job,
    JobDraft,
    JobFailed,
    JobState,
    Mutex,
    PayloadError,
    RetryPolicy,
    Snooze,
    StrictRate,
    batch,
    chain,
    current_job,
    header,
)
from headgate.clock import SECOND, SystemClock
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.jobs.event import Event, NodeCrashed, NodeStarted, ShutdownFailed
from headgate.jobs.job import JobRecord
from headgate.jobs.query import JobFilter
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine import hooked_bodies
from tests.internals import app_on, new_node, registry_of, store_of
from tests.until import patient, result_within, until

Enqueue = Callable[[], Awaitable[None]]
Run = Callable[[], Awaitable[Any]]

ONCE = RetryPolicy(retries=0)

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def tag_tenant(app: Headgate) -> list[list[str]]:
    """Give each job the tenant of its caller; return the ids of each commit."""
    commits: list[list[str]] = []

    @app.around_enqueue
    async def tag(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
        for job in jobs:
            assert job.id is None
            job.headers["tenant"] = tenant.get()
        await enqueue()
        commits.append([str(job.id) for job in jobs])

    return commits


async def stored(app: Headgate, job: Job[Any]) -> JobRecord:
    record = await store_of(app).job(job.id)
    assert record is not None
    return record


def declare_whose(app: Headgate, **options: Any) -> Any:
    @app.task(**options)
    async def whose(number: int = 0) -> str:
        return current_job().headers["tenant"]

    return whose


# ----------------------------------------------------------------------------------------------- around an enqueue


def test_every_way_to_enqueue_goes_through_the_functions_once_for_each_commit() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        commits, whose = tag_tenant(app), declare_whose(app)
        tenant.set("acme")
        async with app:
            one = await whose.enqueue()
            many = await whose.enqueue_many([(1,), whose.using(delay=5).call(2), (3,)])
            ended = await chain(whose.call(4), batch([whose.call(5), whose.call(6)]).then(whose.call(7))).enqueue()
            await asyncio.to_thread(whose.sync.enqueue, 8)
            jobs = [one, *many, *ended.jobs]
            assert {await job.result() for job in jobs} == {"acme"}
        assert [len(ids) for ids in commits] == [1, 3, 4, 1]
        assert commits[:3] == [[one.id], [job.id for job in many], [job.id for job in ended.jobs]]

    run_virtual(main)


def test_the_first_declared_is_the_outermost_and_limits_see_what_they_all_changed() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        order: list[str] = []

        @app.around_enqueue
        async def outer(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
            order.append("outer")
            jobs[0].headers["tenant"] = "acme"
            await enqueue()
            order.append("outer done")

        @app.around_enqueue
        async def inner(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
            order.append("inner")
            del jobs[0].headers["secret"]
            jobs[0].headers["tenant"] += "-eu"
            jobs[0].arguments["page"] = 7
            await enqueue()
            order.append("inner done")

        @app.task(limits=[StrictRate("1/s", key=header("tenant")), Mutex("page:{page}")])
        async def sync(name: str, /, page: int = 1) -> int:
            return page

        async with app.open():
            job = await sync.using(headers={"secret": "x"}).enqueue("a")
            record = await stored(app, job)
        assert order == ["outer", "inner", "inner done", "outer done"]
        assert record.headers == {"tenant": "acme-eu"}
        assert [ref.key for ref in record.buckets] == ["acme-eu", "page:7"]
        assert record.payload == '{"name":"a","page":7}'

    run_virtual(main)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("job.arguments['page'] = 'two'", PayloadError, "argument 'page' of task 'sync' does not fit its annotation"),
        ("job.arguments['pages'] = 2", TypeError, "has no argument 'pages'"),
        ("job.headers['tenant'] = 7", DeclarationError, "header 'tenant'=7 is not text"),
        ("raise LookupError('no tenant')", LookupError, "no tenant"),
        ("return", HeadgateError, "returned without `await enqueue()`, so nothing is stored"),
        ("await enqueue()", HeadgateError, "called its second argument twice"),
    ],
)
async def test_what_a_function_does_wrong_is_raised_to_the_caller_and_nothing_is_stored(
    change: str, error: type[Exception], message: str
) -> None:
    app = Headgate("memory://")
    program = f"async def tag(jobs, enqueue):\n    job = jobs[0]\n    {change}\n    await enqueue()\n"
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    app.around_enqueue(namespace["tag"])

    @app.task
    async def sync(page: int) -> None: ...

    async with app.open():
        with pytest.raises(error, match=re.escape(message)):
            await sync.enqueue(1)
        is_twice = change == "await enqueue()"
        assert len(await app.admin.jobs()) == is_twice


async def test_a_failure_to_store_is_raised_even_if_a_function_suppresses_it() -> None:
    class Down(MemoryStorage):
        async def add(self, *args: Any, **kwargs: Any) -> Any:
            raise StorageUnavailable("down")

    app = app_on(Down(SystemClock()))
    seen: list[str] = []

    @app.around_enqueue
    async def note(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
        try:
            await enqueue()
        except StorageUnavailable as error:
            seen.append(str(error))

    sync = app.task(_nothing)
    async with app.open():
        with pytest.raises(StorageUnavailable):
            await sync.enqueue()
    assert seen == ["down"]


async def _nothing() -> None: ...


def test_ten_thousand_jobs_are_one_commit_for_a_function() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        commits, whose = tag_tenant(app), declare_whose(app)
        async with app.open():
            jobs = await whose.enqueue_many([(number,) for number in range(10_000)])
        assert [len(ids) for ids in commits] == [10_000]
        assert commits[0][-1] == jobs[-1].id

    run_virtual(main)


def test_jobs_of_a_callers_transaction_are_changed_as_well_and_rolled_back_with_it(tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path / 'jobs.db'}")
    commits, whose = tag_tenant(app), declare_whose(app)
    threads: list[str] = []

    @app.around_enqueue
    async def wait(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
        await asyncio.sleep(0.001)
        threads.append(threading.current_thread().name)
        await enqueue()

    tenant.set("acme")
    with app.open():
        connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        for end in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN")
            job = whose.using(connection=connection).sync.enqueue()
            connection.execute(end)
        connection.close()
        records = app.sync.run(store_of(app).jobs(JobFilter()))
    assert [(record.id, record.headers) for record in records] == [(job.id, {"tenant": "acme"})]
    assert len(commits) == 2
    assert threads == ["headgate-sync"] * 2, "they run on the event loop, and the statements in the caller's thread"


async def test_jobs_on_postgresql_have_the_headers_of_the_functions(postgres_url: str, postgres_schema: str) -> None:
    import asyncpg

    app = Headgate(postgres_url, schema=postgres_schema)
    tag_tenant(app)
    seen: list[str] = []

    @app.around_attempt
    async def note(job: AttemptContext, run: Run) -> Any:
        seen.append(job.headers["tenant"])
        return await run()

    whose = declare_whose(app)
    tenant.set("acme")
    async with app:
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                job = await whose.using(connection=connection).enqueue()
        finally:
            await connection.close()
        assert await result_within(job) == "acme"
    assert seen == ["acme"]


# ---------------------------------------------------------------------------------------------- around an attempt


class Pool:
    """A resource."""


def test_a_function_is_around_every_kind_of_task_on_the_loop_of_the_node() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        loop_thread, threads, seen = threading.get_ident(), set[int](), list[str]()

        @app.around_attempt
        async def shout(job: AttemptContext, run: Run) -> Any:
            threads.add(threading.get_ident())
            tenant.set("set by the hook")
            seen.append(f"{job.task} {job.attempt} {current_job() is job}")
            return str(await run()).upper()

        @app.resource
        async def pool() -> AsyncIterator[Pool]:
            yield Pool()

        @app.task
        async def on_loop() -> str:
            return f"loop, {tenant.get()}"

        @app.task
        def in_thread() -> str:
            return f"thread, {tenant.get()}"

        @app.task
        async def with_pool(pool: Pool) -> str:
            return f"pool, {tenant.get()}"

        @app.task
        def thread_with_pool(pool: Pool) -> str:
            return f"both, {tenant.get()}"

        tasks: list[Any] = [on_loop, in_thread, with_pool, thread_with_pool]
        async with app:
            results = [await (await task.enqueue()).result() for task in tasks]
        assert results == [f"{what}, SET BY THE HOOK" for what in ("LOOP", "THREAD", "POOL", "BOTH")]
        assert threads == {loop_thread}
        assert seen == [f"{task.name} 1 True" for task in tasks]

    run_virtual(main)


def test_changed_arguments_and_headers_are_those_of_the_attempt_and_checked() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=ONCE)

        @app.around_attempt
        async def decrypt(job: AttemptContext, run: Run) -> Any:
            assert "pages" not in job.arguments, "a retry begins with what is stored"
            job.arguments["text"] = job.arguments["text"][::-1]
            if job.arguments["text"] == "":
                job.arguments["pages"] = 1
            job.headers["seen"] = "yes"
            return await run()

        @app.task
        async def read(text: str, /) -> str:
            return f"{text} {current_job().headers['seen']}"

        async with app:
            job = await read.enqueue("cba")
            assert await job.result() == "abc yes"
            assert (await stored(app, job)).payload == '{"text":"cba"}'
            with pytest.raises(JobFailed, match="has no argument 'pages'"):
                await (await read.enqueue("")).result()

    run_virtual(main)


def test_a_function_changes_the_outcome() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=1, give_up_on=(LookupError,)))
        completed: list[object] = []

        @app.around_attempt
        async def judge(job: AttemptContext, run: Run) -> Any:
            if job.arguments["what"] == "skip":
                return "skipped"
            try:
                return await run()
            except ZeroDivisionError:
                return "swallowed"
            except ValueError as error:
                raise LookupError("instead") from error
            except KeyError:
                raise Snooze(60) from None

        @app.task(limits=[StrictRate("1/h", key="{what}", name="hourly")])
        async def work(what: str) -> str:
            if what == "value":
                raise ValueError
            if what == "snooze" and clock.monotonic() < 60_000_000:
                raise KeyError
            return str(1 / 0)

        work.on_completed(lambda job, result: completed.append(result))
        async with app:
            jobs = {what: await work.enqueue(what) for what in ("skip", "zero", "value", "snooze")}
            assert await jobs["skip"].result() == "skipped"
            assert await jobs["zero"].result() == "swallowed"
            with pytest.raises(JobFailed, match="instead") as failed:
                await jobs["value"].result()
            assert failed.value.error_type == "LookupError"
            assert (await jobs["value"].status()).attempt == 1, "the filters of the task see the new error"
            assert (await stored(app, jobs["snooze"])).attempt == 0
            assert await (await work.enqueue("skip")).result() == "skipped"
            assert clock.monotonic() < 60_000_000, "a job that is skipped gives its charge back"
            await asyncio.sleep(1)
        assert sorted(completed, key=str) == ["skipped", "skipped", "swallowed"]

    run_virtual(main)


def test_an_error_of_a_function_is_an_error_of_the_attempt_and_its_charge_is_given_back() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        runs: list[int] = []

        @app.around_attempt
        async def fail_once(job: AttemptContext, run: Run) -> Any:
            if job.attempt == 1:
                raise ConnectionError("no tenant today")
            return await run()

        @app.task(limits=[StrictRate("1/h")], retry=RetryPolicy(delays=[1]))
        async def work() -> None:
            runs.append(current_job().attempt)

        async with app:
            job = await work.enqueue()
            await result_within(job)
            (failed, *_) = await store_of(app).attempts(job.id)
        assert failed.error is not None
        assert failed.error.message == "no tenant today"
        assert runs == [2]

    run_virtual(main)


@pytest.mark.parametrize("is_before_run", [False, True])
@pytest.mark.parametrize("how", ["timeout", "cancel", "shutdown"])
def test_a_cancellation_passes_through_and_counts_whatever_a_function_returns(how: str, is_before_run: bool) -> None:
    """The fault: if it came before `run()`, the job was stored as succeeded although its handler had not run."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=ONCE, grace=1)
        seen: list[str] = []

        @app.around_attempt
        async def suppress(job: AttemptContext, run: Run) -> Any:
            try:
                if is_before_run:
                    await asyncio.sleep(3600)
                return await run()
            except BaseException as error:
                seen.append(type(error).__name__)
                return "fine"

        @app.task(timeout=5 if how == "timeout" else None)
        async def work() -> str:
            await asyncio.sleep(3600)
            return "done"

        async with app.open():
            async with app:
                job = await work.enqueue()
                await asyncio.sleep(2)
                if how == "cancel":
                    await job.cancel()
                await asyncio.sleep(10 if how == "timeout" else 1)
            record = await stored(app, job)
        assert seen == ["TimeoutError" if how == "timeout" and not is_before_run else "CancelledError"]
        assert record.state == {"timeout": "failed", "cancel": "cancelled", "shutdown": "waiting"}[how]
        assert (record.error is not None and record.error.type == "TimeoutError") == (how == "timeout")

    run_virtual(main)


def test_a_start_that_a_function_makes_too_late_is_returned_unspent_whatever_the_function_does() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        delays, seen = [8, 3, 0], list[str]()

        @app.around_attempt
        async def wait(job: AttemptContext, run: Run) -> Any:
            await asyncio.sleep(delays.pop(0))
            try:
                return await run()
            except Exception:
                seen.append("an error")
                raise
            except BaseException:
                return "swallowed"

        @app.task(limits=[StrictRate("1/10s", margin=0)])
        async def work() -> float:
            return clock.monotonic() / SECOND

        async with app:
            first, second = await work.enqueue_many([()] * 2)
            starts = [await first.result(), await second.result()]
            assert starts[1] - starts[0] >= 10, "a late start moves its charge"
            assert (await first.status()).attempt == (await second.status()).attempt == 1
        assert seen == []
        assert delays == []

    run_virtual(main)


def test_an_attempt_calls_its_handler_once() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=ONCE)

        @app.around_attempt
        async def again(job: AttemptContext, run: Run) -> Any:
            await run()
            return await run()

        work = app.task(_nothing)
        async with app:
            with pytest.raises(JobFailed, match="called its second argument twice"):
                await (await work.enqueue()).result()

    run_virtual(main)


async def test_process_tasks_have_the_functions_in_the_node_and_startup_functions_in_each_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_TEST_FOLDER", str(tmp_path))
    app = Headgate("memory://", retry=ONCE)
    app.on_shutdown(scope="child")(hooked_bodies.stop)
    app.on_startup(scope="child")(hooked_bodies.start)
    seen: list[BaseException] = []

    @app.around_attempt
    async def change(job: AttemptContext, run: Run) -> Any:
        job.arguments["text"] = job.arguments["text"].upper()
        job.headers["tenant"] = "acme"
        try:
            return f"<{await run()}>"
        except ValueError as error:
            seen.append(error)
            raise

    describe = app.task(process=True)(hooked_bodies.describe)
    fail = app.task(process=True)(hooked_bodies.fail)
    async with app:
        results = [await result_within(await describe.enqueue("a"), 15) for _ in range(2)]
        pid = results[0].rpartition(" ")[2].rstrip(">")
        assert results == [f"<A acme ['started'] {pid}>"] * 2
        with pytest.raises(JobFailed, match="ValueError: B") as failed:
            await result_within(await fail.enqueue("b"), 15)
        assert str(seen) == "[ValueError('B')]"
        assert "in fail" in str(failed.value.traceback), "the traceback is that of the child"
        assert hooked_bodies.started == []
    assert list(tmp_path.iterdir()) == [tmp_path / f"stopped-{pid}"]  # noqa: ASYNC240


class Text(str):
    """As a template engine or a parser returns it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "shown"


def test_headers_that_a_function_sets_may_be_of_a_subclass_of_text() -> None:
    """The enqueue raised TypeError: "Encoding objects of type SafeString is unsupported"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.around_enqueue
        async def tag(jobs: Sequence[JobDraft], enqueue: Enqueue) -> None:
            for job in jobs:
                job.headers[Text("tenant")] = Text("acme")
            await enqueue()

        @app.task
        async def work() -> None: ...

        async with app.open():
            record = (await app.admin.job((await work.enqueue()).id)).record
            assert record.headers == {"tenant": "acme"}

    run_virtual(main)


async def test_headers_that_a_function_sets_for_a_process_are_plain_text() -> None:
    """The attempt failed: "Encoding objects of type SafeString is unsupported"; with 5, the child ended with code 1."""
    app = Headgate("memory://", retry=ONCE)
    values: list[Any] = [Text("acme"), 5]

    @app.around_attempt
    async def change(job: AttemptContext, run: Run) -> Any:
        job.headers["tenant"] = values.pop()
        return await run()

    describe = app.task(process=True)(hooked_bodies.describe)
    async with app:
        with pytest.raises(JobFailed, match="header 'tenant'=5 is not text"):
            await result_within(await describe.enqueue("a"), 15)
        assert (await result_within(await describe.enqueue("a"), 15)).startswith("a acme ")


async def test_a_startup_function_that_raises_in_a_child_fails_the_attempt() -> None:
    app = Headgate("memory://", retry=ONCE)
    app.on_startup(scope="child")(hooked_bodies.refuse)
    describe = app.task(process=True)(hooked_bodies.describe)
    async with app:
        with pytest.raises(JobFailed, match="startup function 'refuse' raised in a child process: LookupError: no mod"):
            await result_within(await describe.enqueue("a"), 15)


# ------------------------------------------------------------------------------------------- startup and shutdown


def test_startup_functions_come_before_the_first_job_and_shutdown_functions_after_the_last() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        happened: list[str] = []

        @app.on_startup
        async def connect() -> None:
            await asyncio.sleep(3)
            happened.append("connect")

        @app.on_shutdown
        async def disconnect() -> None:
            happened.append("disconnect")

        @app.on_startup
        def load() -> None:
            happened.append(f"load in {threading.current_thread().name[:13]}")

        @app.on_shutdown
        def unload() -> None:
            happened.append("unload")

        @app.task
        async def work() -> None:
            await asyncio.sleep(5)
            happened.append("job")

        @work.on_completed
        async def note(job: Any, result: None) -> None:
            await asyncio.sleep(1)
            happened.append("callback")

        async with app.open():
            await work.enqueue()
            async with app:
                assert happened == ["connect", "load in headgate-hook"], "the block begins after them"
                await asyncio.sleep(1)
        assert happened[2:] == ["job", "callback", "unload", "disconnect"]

    run_virtual(main)


def test_a_startup_function_that_raises_ends_the_node_and_undoes_what_came_before_it() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        happened, events = list[str](), list[Event]()
        app.on_startup(_nothing)

        @app.on_shutdown
        async def undo() -> None:
            happened.append("undo")

        @app.on_startup
        def connect() -> None:
            raise OSError("no route")

        @app.on_shutdown
        async def never() -> None:
            happened.append("never")

        work = app.task(name="work")(_nothing)
        app.subscribe(events.append, NodeCrashed, NodeStarted)
        async with app.open():
            job = await work.enqueue()
            with pytest.raises(HeadgateError, match=r"startup function 'connect' raised OSError: no route") as raised:
                async with app:
                    raise AssertionError
            assert isinstance(raised.value.__cause__, OSError)
            assert (await job.status()).state is JobState.WAITING
        assert happened == ["undo"]
        assert [type(event) for event in events] == [NodeCrashed]

    run_virtual(main)


def test_a_startup_function_that_cancels_itself_ends_the_node_with_an_error() -> None:
    """The fault: a worker ended without a word, with exit code 0, and a block of an app ran on without a worker."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.on_startup
        async def connect() -> None:
            connecting = asyncio.ensure_future(asyncio.sleep(3600))
            connecting.cancel()
            await connecting

        with pytest.raises(
            HeadgateError, match=r"startup function 'connect' raised asyncio\.exceptions\.CancelledError"
        ):
            async with app:
                raise AssertionError

    run_virtual(main)


def test_a_stop_during_the_startup_cancels_it_and_a_shutdown_function_that_hangs_or_raises_is_told() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, grace=20)
        events: list[ShutdownFailed] = []
        app.subscribe(events.append, ShutdownFailed)

        @app.on_shutdown
        async def has_no_time_left() -> None:
            await asyncio.sleep(0.1)

        @app.on_shutdown
        async def hangs_too() -> None:
            await asyncio.sleep(3600)

        @app.on_shutdown
        async def ends() -> None:
            # The fault: one that hung left the others no time at all, so that they could not close a connection.
            await asyncio.sleep(0.5)
            events.append(ShutdownFailed(at=0, function="ends", error=""))

        @app.on_shutdown
        def exits() -> None:
            raise SystemExit(3)

        @app.on_shutdown
        async def hangs() -> None:
            await asyncio.sleep(3600)

        @app.on_startup
        async def connect() -> None:
            await asyncio.sleep(3600)

        async with app.open():
            node = new_node(app)
            running = asyncio.create_task(node.run())
            await asyncio.sleep(1)
            began = clock.monotonic()
            node.stop()
            await running
            assert clock.monotonic() - began == 21_000_000, "within the grace, but for a second"
            assert await app.admin.nodes() == []
        assert sorted((event.function, event.error.split(":")[0]) for event in events) == [
            ("ends", ""),
            ("exits", "SystemExit"),
            ("hangs", "cancelled"),
            ("hangs_too", "cancelled"),
            ("has_no_time_left", "cancelled"),
        ]

    run_virtual(main)


def test_a_second_signal_cancels_a_shutdown_function_and_leaves_the_others_a_second() -> None:
    """The fault: a shutdown function that hung kept a worker for the rest of its grace, however many signals came."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, grace=600)
        ended: list[str] = []

        @app.on_shutdown
        async def takes_too_long() -> None:
            await asyncio.sleep(2)
            ended.append("takes_too_long")

        @app.on_shutdown
        async def disconnect() -> None:
            await asyncio.sleep(0.5)
            ended.append("disconnect")

        @app.on_shutdown
        async def hangs() -> None:
            await asyncio.sleep(3600)

        async with app.open():
            node = new_node(app)
            running = asyncio.create_task(node.run())
            await asyncio.sleep(1)
            node.stop()
            await asyncio.sleep(10)
            began = clock.monotonic()
            node.abort()
            await running
            assert clock.monotonic() - began == SECOND
        assert ended == ["disconnect"]

    run_virtual(main)


async def test_a_stop_during_a_plain_startup_function_that_hangs_calls_the_shutdown_functions_at_once() -> None:
    """The fault: they waited for its thread, for the rest of the grace, and were not called."""
    app = Headgate("memory://", grace=600)
    happened: list[str] = []
    release = threading.Event()

    @app.on_shutdown
    def disconnect() -> None:
        happened.append("disconnected")

    @app.on_startup
    def connect() -> None:
        happened.append("connecting")
        release.wait(patient(60))

    try:
        async with app.open():
            node = new_node(app)
            running = asyncio.create_task(node.run())
            await until(lambda: bool(happened))
            node.stop()
            await asyncio.wait([running], timeout=patient(15))
            assert running.done()
    finally:
        release.set()
    assert happened == ["connecting", "disconnected"]


# ------------------------------------------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("@app.around_enqueue\ndef tag(jobs, enqueue): ...", "'tag' must be an async def (jobs, enqueue)"),
        ("@app.around_attempt\nasync def time(job): ...", "'time' gets (job, run): too many positional arguments"),
        ("@app.around_attempt\nasync def time(job, run) -> None: ...", "would be the result of every job; write"),
        ("@app.on_startup\nasync def start(app): ...", "'start' gets (): missing a required argument: 'app'"),
        ('@app.on_startup(scope="process")\ndef start(): ...', 'scope=\'process\' must be "node" or "child"'),
        ('@app.on_startup(scope="child")\nasync def start(): ...', "a child process runs no event loop"),
        ('class Place:\n    app.on_startup(scope="child")(lambda: None)', "cannot be found in a function or lambda"),
        (
            '@app.on_startup(scope="child")\ndef set_up(): ...\n@app.on_shutdown(scope="child")\ndef set_up(): ...',
            "two functions for child processes are 'set_up' in module 'tests.engine.test_hooks', where a child",
        ),
        ("@app.on_shutdown\n@app.on_shutdown\ndef stop(): ...", "'stop' is declared twice"),
        ("app.on_startup(3)", "@app.on_startup needs a function, not 3"),
    ],
)
def test_a_hook_that_can_never_work_is_refused_when_it_is_declared(written: str, message: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        exec(written, {"app": Headgate("memory://"), "__name__": __name__})
    assert message in str(refused.value)


def test_a_cell_of_a_notebook_that_is_run_again_replaces_its_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)
    app = Headgate("memory://")
    cell = (
        "@app.on_startup\n@app.on_shutdown\ndef start(): ...\n"
        "@app.around_enqueue\n@app.around_attempt\nasync def tag(first, second): ...\n"
    )
    for _ in range(2):
        exec(cell, {"app": app, "__name__": "__main__"})
    hooks = registry_of(app).hooks
    assert [len(each) for each in (hooks.around_enqueue, hooks.around_attempt, hooks.lifecycle)] == [1, 1, 2]


async def test_the_functions_of_one_app_are_not_those_of_another() -> None:
    one, other = Headgate("memory://"), Headgate("memory://")
    commits = tag_tenant(one)
    work = other.task(_nothing)
    async with other:
        await result_within(await work.enqueue())
    assert commits == []


async def test_occurrences_of_schedules_are_not_enqueued_through_the_functions_but_attempted_through_them() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        commits, attempts = tag_tenant(app), list[str]()

        @app.around_attempt
        async def note(job: AttemptContext, run: Run) -> Any:
            attempts.append(job.task)
            return await run()

        app.schedule(Every(minutes=1))(app.task(name="tick")(_nothing))
        async with app:
            await asyncio.sleep(150)
        assert commits == []
        assert attempts == ["tick", "tick"]

    await asyncio.to_thread(run_virtual, main)
