"""Resources: opened when they are needed, given by type, closed however things end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any, NewType

import pytest

from headgate import (
    INJECTED,
    AttemptContext,
    DeclarationError,
    Handler,
    Headgate,
    JobCancelled,
    JobFailed,
    JobState,
    RetryPolicy,
    Snooze,
    StrictRate,
)
from headgate.clock import SECOND
from headgate.jobs.event import Event, ResourceFailed
from headgate.tasks.resource import Resource, Scope
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.until import patient, result_within, until


class Pool:
    """What a program opens once."""

    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Session:
    """What each attempt has its own of."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool


class ResourceApp:
    """An app with a pool for the node and a session for each attempt, and what became of them."""

    def __init__(self, clock: VirtualClock | None, **settings: Any) -> None:
        self.happened: list[str] = []
        self.app = Headgate("memory://", clock=clock, **settings)

        @self.app.resource
        async def pool() -> AsyncIterator[Pool]:
            self.happened.append("pool opened")
            await asyncio.sleep(1)
            try:
                yield Pool()
            finally:
                await asyncio.sleep(1)
                self.happened.append("pool closed")

        @self.app.resource(scope="attempt")
        async def session(pool: Pool) -> AsyncIterator[Session]:
            self.happened.append("opened")
            try:
                yield Session(pool)
            except BaseException as error:
                self.happened.append(f"rolled back: {type(error).__name__}")
                raise
            else:
                self.happened.append("committed")
            finally:
                await asyncio.sleep(2)
                self.happened.append("closed")


def test_a_nodes_resource_is_opened_once_and_closed_with_the_node() -> None:
    async def main(clock: VirtualClock) -> None:
        resources = ResourceApp(clock)
        pools: list[Pool] = []

        @resources.app.task
        async def work(number: int, pool: Pool = INJECTED) -> int:
            pools.append(pool)
            return number

        async with resources.app:
            await asyncio.sleep(10)
            assert not resources.happened, "it is opened when it is first needed"
            jobs = await work.enqueue_many([(number,) for number in range(20)])
            assert [await job.result() for job in jobs] == list(range(20))
            assert resources.happened == ["pool opened"]
        assert len(set(map(id, pools))) == 1
        assert resources.happened == ["pool opened", "pool closed"]

    run_virtual(main)


def test_an_attempts_resource_is_its_own_and_closed_when_it_ends() -> None:
    async def main(clock: VirtualClock) -> None:
        resources = ResourceApp(clock)
        sessions: list[Session] = []

        @resources.app.task
        async def work(session: Session, again: Session, pool: Pool) -> None:
            assert session is again, "one attempt has one"
            assert session.pool is pool
            sessions.append(session)

        async with resources.app:
            for _ in range(2):
                await (await work.enqueue()).result()  # type: ignore[call-arg]
        assert sessions[0] is not sessions[1]
        assert resources.happened == ["pool opened", *["opened", "committed", "closed"] * 2, "pool closed"]

    run_virtual(main)


@pytest.mark.parametrize("how", ["error", "timeout", "cancel", "snooze", "shutdown", "unstorable"])
def test_an_attempts_resource_sees_how_it_ended_and_is_closed_to_the_end(how: str) -> None:
    """The fault: a session stayed open when its job was cancelled, or a second cancellation cut its closing short."""

    async def main(clock: VirtualClock) -> None:
        resources = ResourceApp(clock, grace=0.5)

        @resources.app.task(timeout=10 if how == "timeout" else None, retry=RetryPolicy(retries=0))
        async def work(session: Session = INJECTED) -> Any:
            match how:
                case "error":
                    raise ValueError
                case "snooze":
                    raise Snooze(1000)
                case "unstorable":
                    return object()
                case _:
                    return await asyncio.sleep(1000)

        async with resources.app:
            job = await work.enqueue()
            await asyncio.sleep(5)
            if how == "cancel":
                await job.cancel()
                with pytest.raises(JobCancelled):
                    await result_within(job, 5)
            if how == "timeout":
                with pytest.raises(JobFailed, match="its timeout of 10 s"):
                    await job.result()
        seen = {"error": "ValueError", "snooze": "Snooze", "unstorable": "_Unstorable"}.get(how, "CancelledError")
        assert resources.happened == ["pool opened", "opened", f"rolled back: {seen}", "closed", "pool closed"]

    run_virtual(main)


def test_a_resource_that_swallows_errors_does_not_turn_a_failure_into_a_success() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.resource(scope="attempt")
        async def greedy() -> AsyncIterator[Session]:
            try:
                yield Session(Pool())
            except BaseException:
                return

        @app.task
        async def fails(session: Session = INJECTED) -> None:
            raise ValueError("seen by nobody?")

        @app.task
        async def waits(session: Session = INJECTED) -> None:
            await asyncio.sleep(1000)

        async with app:
            with pytest.raises(JobFailed, match="seen by nobody"):
                await (await fails.enqueue()).result()
            job = await waits.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result()

    run_virtual(main)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_an_attempt_whose_commit_fails_has_failed_also_behind_a_resource_that_swallows(kind: str) -> None:
    """The fault: a span around the session swallowed that it could not commit, and the job had succeeded."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.resource(scope="attempt")
        async def pool() -> AsyncIterator[Pool]:
            with contextlib.suppress(OSError):
                yield Pool()

        if kind == "async":

            @app.resource(scope="attempt")
            async def session(pool: Pool) -> AsyncIterator[Session]:
                yield Session(pool)
                raise OSError("commit failed")
        else:

            @app.resource(scope="attempt")
            def session_too(pool: Pool) -> Iterator[Session]:
                yield Session(pool)
                raise OSError("commit failed")

        @app.task
        async def work(session: Session = INJECTED) -> None:
            pass

        async with app:
            with pytest.raises(JobFailed, match="commit failed"):
                await (await work.enqueue()).result()

    run_virtual(main)


def test_a_nodes_resource_that_ends_on_its_own_is_opened_again_for_the_next_attempt() -> None:
    """The fault: a connection whose reader died was given, closed, to each attempt until the node was started anew."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        opened: list[str] = []
        closed: list[str] = []

        async def lose_the_server() -> None:
            await asyncio.sleep(5)
            raise ConnectionError("the server went away")

        @app.resource
        async def pool() -> AsyncIterator[Pool]:
            name = f"pool {len(opened)}"
            opened.append(name)
            try:
                async with asyncio.TaskGroup() as background:
                    if name == "pool 0":
                        background.create_task(lose_the_server())
                    yield Pool(name)
            finally:
                closed.append(name)

        @app.resource
        async def session(pool: Pool) -> AsyncIterator[Session]:
            yield Session(pool)
            closed.append(f"session of {pool.name}")

        @app.task
        async def work(session: Session = INJECTED) -> str:
            return session.pool.name

        async with app:
            for name in ("pool 0", "pool 0"):
                assert await (await work.enqueue()).result() == name
            await asyncio.sleep(10)
            for name in ("pool 1", "pool 1"):
                assert await (await work.enqueue()).result() == name
        assert opened == ["pool 0", "pool 1"]
        assert closed == ["pool 0", "session of pool 1", "pool 1", "session of pool 0"]

    run_virtual(main)


@pytest.mark.parametrize("scope", ["node", "attempt"])
def test_a_resource_that_fails_to_open_fails_the_attempt_and_is_tried_again(scope: Any) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        tries: list[int] = []

        @app.resource(scope=scope)
        async def pool() -> AsyncIterator[Pool]:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("the database is away")
            yield Pool()

        @app.task(retry=RetryPolicy(delays=[1, 1]), limits=[StrictRate("1/h", charge_retries=True)])
        async def work(pool: Pool = INJECTED) -> str:
            return pool.name

        async with app:
            job = await work.enqueue()
            assert await job.result() == "pool"
            attempts = (await app.admin.job(job.id)).attempts
            assert [a.error and a.error.message for a in attempts] == ["the database is away"] * 2
            assert clock.monotonic() < 10 * SECOND, "what never began has charged no limit"

    run_virtual(main)


def test_an_attempt_that_is_cancelled_while_a_resource_opens_does_not_close_it_for_others() -> None:
    """The fault: its error had no word of the resource, and its traceback only lines of Headgate.

    So it was not to be seen why a connection that hangs failed job after job.
    """

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        opened: list[int] = []

        @app.resource
        async def pool() -> AsyncIterator[Pool]:
            await asyncio.sleep(10)
            opened.append(1)
            yield Pool()

        @app.task
        async def work(pool: Pool = INJECTED) -> str:
            return pool.name

        async with app:
            hasty, patient = await work.using(timeout=5).enqueue(), await work.enqueue()
            with pytest.raises(JobFailed, match="its timeout of 5 s, before its handler was called") as failed:
                await hasty.result()
            assert "resource 'pool' was still opening" in (failed.value.traceback or "")
            assert await patient.result() == "pool"
            assert opened == [1]

    run_virtual(main)


@pytest.mark.parametrize("is_user", [True, False])
def test_a_thread_is_not_started_once_its_attempt_is_over(is_user: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The fault: a resource that opened all the same started the handler of a job that was cancelled, or tried again.

    `asyncio.wait_for` of Python 3.11 drops a cancellation that comes as what it waits for ends.
    """

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        happened: list[str] = []

        @app.resource(scope="attempt")
        async def pool() -> AsyncIterator[Pool]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            happened.append("opened")
            yield Pool()

        @app.task(timeout=None if is_user else 2)
        def work(pool: Pool = INJECTED) -> None:
            happened.append("called")

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(1)
            if is_user:
                await job.cancel()
            with pytest.raises((JobCancelled, JobFailed)):
                await job.result()
            await asyncio.sleep(5)
        assert happened == ["opened"]
        gc.collect()

    run_virtual(main)
    assert "never retrieved" not in caplog.text


def test_a_node_that_stops_while_a_resource_opens_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The fault: its log ended with a KeyError that nobody had raised on purpose."""

    async def main(clock: VirtualClock) -> None:
        app, happened = Headgate("memory://", clock=clock, grace=5), list[str]()

        @app.resource
        async def pool() -> AsyncIterator[Pool]:
            try:
                await asyncio.sleep(3600)
                yield Pool()
            finally:
                happened.append("given up")

        @app.task
        async def work(pool: Pool = INJECTED) -> None: ...

        async with app.open():
            async with app:
                job = await work.enqueue()
                await asyncio.sleep(1)
            assert (await job.status()).state is JobState.WAITING
        assert happened == ["given up"]
        gc.collect()

    run_virtual(main)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_resource_that_still_opens_when_the_node_stops_is_given_up_before_those_that_it_takes() -> None:
    async def main(clock: VirtualClock) -> None:
        app, happened = Headgate("memory://", clock=clock, grace=5), list[str]()

        @app.resource
        async def settings() -> AsyncIterator[str]:
            yield "dsn"
            happened.append("settings")

        @app.resource
        async def pool(settings: str) -> AsyncIterator[Pool]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(3)
                happened.append("given up")
            yield Pool(settings)
            happened.append("pool")

        @app.task
        async def work(pool: Pool = INJECTED) -> None: ...

        async with app:
            await work.enqueue()
            await asyncio.sleep(1)
        assert happened == ["given up", "pool", "settings"]

    run_virtual(main)


def test_resources_of_a_node_close_in_reverse_order_of_their_opening_and_in_their_own_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        happened: list[str] = []
        tasks: list[object] = []

        @app.resource
        async def settings() -> AsyncIterator[str]:
            yield "dsn"
            happened.append("settings")

        @app.resource
        async def pool(settings: str) -> AsyncIterator[Pool]:
            # Cancel scopes and task groups must be left by the task that entered them.
            tasks.append(asyncio.current_task())
            async with asyncio.TaskGroup():
                yield Pool(settings)
            tasks.append(asyncio.current_task())
            happened.append("pool")

        @app.task
        async def work(pool: Pool = INJECTED) -> str:
            return pool.name

        async with app:
            assert await (await work.enqueue()).result() == "dsn"
        assert happened == ["pool", "settings"]
        assert tasks[0] is tasks[1]

    run_virtual(main)


def test_a_resource_that_hangs_or_raises_in_closing_does_not_stop_the_node_from_ending() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[Event] = []
        app.subscribe(received.append, ResourceFailed)

        @app.resource
        async def hangs() -> AsyncIterator[Pool]:
            yield Pool()
            await asyncio.Event().wait()

        @app.resource
        async def raises() -> AsyncIterator[str]:
            yield "text"
            raise OSError("gone")

        @app.task
        async def work(pool: Pool = INJECTED, text: str = INJECTED) -> str:
            return text

        async with app:
            assert await (await work.enqueue()).result() == "text"
            began = clock.monotonic()
        assert clock.monotonic() - began <= 10 * SECOND
        assert {"hangs", "raises"} == {event.resource for event in received if isinstance(event, ResourceFailed)}

    run_virtual(main)


async def test_resources_of_a_thread_stay_open_until_the_thread_ends() -> None:
    """The fault: the session was closed when the attempt's time was up, under the thread that still used it."""
    # In real time: virtual time does not advance while a thread works.
    app = Headgate("memory://", concurrency=1)
    happened: list[str] = []
    release = threading.Event()

    @app.resource(scope="attempt")
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
        finally:
            happened.append("closed")

    @app.task(timeout=0.05, retry=RetryPolicy(retries=0))
    def stubborn(session: Session = INJECTED) -> str:
        release.wait(patient(10))
        happened.append("used")
        return session.pool.name

    @app.task
    def next_one(session: Session = INJECTED) -> str:
        return session.pool.name

    async with app:
        try:
            job, after = await stubborn.enqueue(), await next_one.enqueue()
            with pytest.raises(JobFailed, match="its timeout"):
                await result_within(job, 5)
            assert happened == []
            assert (await after.status()).state is JobState.WAITING, "its slot is not free either"
        finally:
            release.set()
        assert await result_within(after, 5) == "pool"
        assert happened == ["used", "closed", "closed"]


@pytest.mark.parametrize("is_user", [False, True], ids=["timeout", "cancelled"])
async def test_a_thread_that_ends_after_its_attempt_commits_nothing(is_user: bool) -> None:
    """The fault: a job that had timed out was tried again, and what both attempts had written was committed."""
    app = Headgate("memory://", concurrency=1)
    happened: list[str] = []
    started, release = threading.Event(), threading.Event()

    @app.resource(scope="attempt")
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
            happened.append("committed")
        except asyncio.CancelledError:
            happened.append("rolled back")
            raise

    @app.task(retry=RetryPolicy(retries=0))
    def stubborn(session: Session = INJECTED) -> None:
        started.set()
        release.wait(patient(10))

    @app.task
    async def next_one() -> None: ...

    async with app:
        try:
            job, after = await stubborn.using(timeout=60 if is_user else 0.2).enqueue(), await next_one.enqueue()
            if is_user:
                assert await asyncio.to_thread(started.wait, patient(10))
                await job.cancel()
            with pytest.raises(JobCancelled if is_user else JobFailed):
                await result_within(job, 5)
        finally:
            release.set()
        await result_within(after, 5)
        assert happened == ["rolled back"]


async def test_a_thread_that_a_function_around_its_attempt_has_left_commits_nothing() -> None:
    """The fault: the function gave up after a while, the job failed, and its session was committed later."""
    app = Headgate("memory://")
    happened, release = list[str](), threading.Event()

    @app.around_attempt
    async def give_up(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(0.2):
            return await run()

    @app.resource(scope="attempt")
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
            happened.append("committed")
        except asyncio.CancelledError:
            happened.append("rolled back")
            raise

    @app.task(retry=RetryPolicy(retries=0))
    def stubborn(session: Session = INJECTED) -> None:
        release.wait(patient(10))

    async with app:
        job = await stubborn.enqueue()
        with pytest.raises(JobFailed, match="TimeoutError"):
            await result_within(job, 5)
        release.set()
        await until(lambda: bool(happened))
    assert happened == ["rolled back"]


def test_handlers_and_plain_generators_work_the_same() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        happened: list[str] = []

        @app.resource(scope="attempt")
        def counter() -> Iterator[dict[str, int]]:
            happened.append("opened")
            yield {"one": 1}
            happened.append("closed")

        @app.handler
        class Work(Handler[str]):
            async def run(self, payload: str, counter: dict[str, int] = INJECTED) -> int:
                return counter[payload]

        async with app:
            assert await (await Work.enqueue("one")).result() == 1
        assert happened == ["opened", "closed"]

    run_virtual(main)


Replica = NewType("Replica", Pool)


async def test_a_thread_with_a_resource_that_leaves_the_program_ends_only_its_attempt() -> None:
    """The fault: the error left an inner task, where asyncio passes SystemExit on to end the whole program."""
    app = Headgate("memory://", retry=RetryPolicy(retries=0))

    @app.resource(scope="attempt")
    def pool() -> Iterator[Pool]:
        yield Pool()

    @app.task
    def leave(pool: Pool = INJECTED) -> None:
        sys.exit(3)

    async with app:
        with pytest.raises(JobFailed) as failed:
            await result_within(await leave.enqueue(), 5)
        assert failed.value.error_type == "SystemExit"


def test_resources_of_one_type_are_distinguished_by_name() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.resource
        async def pool() -> AsyncIterator[Pool]:
            yield Pool("first")

        with pytest.raises(DeclarationError, match="resource 'second' yields Pool, as resource 'pool' does"):

            @app.resource
            async def second() -> AsyncIterator[Pool]:
                yield Pool()

        @app.resource
        async def replica() -> AsyncIterator[Replica]:
            yield Replica(Pool("replica"))

        @app.resource
        async def archive() -> AsyncIterator[Annotated[Pool, "archive"]]:
            yield Pool("archive")

        @app.task
        async def work(
            one: Pool = INJECTED, two: Replica = INJECTED, three: Annotated[Pool, "archive"] = INJECTED
        ) -> list[str]:
            return [one.name, two.name, three.name]

        async with app:
            assert await (await work.enqueue()).result() == ["first", "replica", "archive"]

    run_virtual(main)


async def test_a_resource_is_not_an_argument_of_its_task() -> None:
    resources = ResourceApp(None)

    @resources.app.task(limits=[StrictRate("1/h", key="{tenant}")])
    async def work(tenant: str, session: Session = INJECTED) -> None: ...

    assert work.payload.parameters == ("tenant",)
    async with resources.app.open():
        with pytest.raises(TypeError, match="has no argument 'session'; it has: tenant"):
            await work.enqueue("acme", session=Session(Pool()))
        with pytest.raises(TypeError, match="takes 1 positional argument but"):
            await work.enqueue("acme", Session(Pool()))
    with pytest.raises(DeclarationError, match="names 'session', which is not among its arguments"):
        resources.app.task(name="other", limits=[StrictRate("1/h", key="{session}")])(work.function)


def test_a_resource_that_can_never_be_injected_is_refused_at_declaration() -> None:
    app = ResourceApp(None).app

    async def plain() -> int:
        return 1

    async def untyped():  # type: ignore[no-untyped-def]
        yield 1

    async def nothing() -> AsyncIterator[Any]:
        yield 1

    async def takes_an_argument(dsn: str) -> AsyncIterator[int]:
        yield 1

    async def takes_a_session(session: Session) -> AsyncIterator[int]:
        yield 1

    for function, message in (
        (plain, "must be a generator"),
        (untyped, "does not say what it yields"),
        (nothing, "which is not a specific type"),
        (takes_an_argument, "takes 'dsn', which is not a resource"),
        (takes_a_session, "is opened once for the node and cannot take 'session'"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.resource(function)  # type: ignore[type-var]
    with pytest.raises(DeclarationError, match="scope='job' must be"):
        app.resource(scope="job")(takes_an_argument)  # type: ignore[call-overload]


def test_a_task_declared_before_its_resource_is_an_error_that_says_so() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=r"is declared with @app\.resource before the task"):

        @app.task
        async def work(session: Session) -> None: ...


def test_a_process_task_gets_no_resources() -> None:
    with pytest.raises(DeclarationError, match="runs in a child process, where resource 'session' is not open"):
        ResourceApp(None).app.task(process=True)(in_a_child)


def in_a_child(session: Session) -> None: ...


def test_a_resource_that_cannot_be_passed_by_name_is_an_error() -> None:
    """The fault: each attempt failed with a TypeError; only a task with `/` was refused."""
    app = ResourceApp(None).app

    async def by_position(session: Session, /, tenant: str) -> None: ...

    async def many(*session: Session) -> None: ...

    async def named(**session: Session) -> None: ...

    async def taken(session: Session, /) -> AsyncIterator[int]:
        yield 1

    for function in (by_position, many, named):
        with pytest.raises(DeclarationError, match="'session' is passed by name"):
            app.task(function)
    with pytest.raises(DeclarationError, match="resource 'taken': resource 'session' is passed by name"):
        app.resource(scope="attempt")(taken)


def test_a_deep_web_of_resources_is_declared_at_once() -> None:
    """The fault: each path through it was followed, so that forty resources, each with two users, took hours."""
    resource = bottom = Resource("bottom", int, Scope.NODE, {}, contextlib.nullcontext)
    for number in range(60):
        resource = Resource(
            f"of {number}", int, Scope.NODE, {"left": resource, "right": resource}, contextlib.nullcontext
        )
    assert resource.requires(bottom)
    assert not resource.requires(None)


@pytest.mark.parametrize("kind", ["loop", "thread", "resource"])
async def test_what_a_failed_handler_has_opened_is_freed_without_the_garbage_collector(kind: str) -> None:
    """The fault: a thread's files and sockets stayed open, until a worker had no more descriptors for anything."""
    resources = ResourceApp(None, retry=RetryPolicy(retries=0))
    opened: list[weakref.ref[Pool]] = []

    def fail() -> None:
        file = Pool()
        opened.append(weakref.ref(file))
        raise ValueError(file.name)

    async def on_the_loop() -> None:
        fail()

    async def with_a_resource(session: Session = INJECTED) -> None:
        fail()

    task = resources.app.task({"loop": on_the_loop, "thread": fail, "resource": with_a_resource}[kind])
    async with resources.app:
        gc.collect()
        gc.disable()
        try:
            job = await task.enqueue()
            with pytest.raises(JobFailed, match="pool"):
                await result_within(job)
            await until(lambda: opened[0]() is None)
        finally:
            gc.enable()
