"""The workbench: the verbs of a test for an app in which nothing runs by itself.

Inline mode: a job runs when it is enqueued. Manual mode: it runs when a test says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, ParamSpec, TypeVar, cast

from msgspec.structs import replace

from headgate.app import Headgate
from headgate.arguments import parse_duration, parse_instant, parse_seconds
from headgate.client.task import Task
from headgate.clock import SECOND, Clock, Duration, SystemClock, to_datetime
from headgate.engine.enqueuer import CallGroup, StoredCall
from headgate.engine.results import result_of
from headgate.errors import DeclarationError, JobFailed
from headgate.jobs.batch import NewBatch
from headgate.jobs.job import BucketRef, JobState, NewJob
from headgate.jobs.query import JobFilter
from headgate.jobs.uniqueness import replaces
from headgate.jobs.words import parse_tags
from headgate.storage.driver import run_to_end
from headgate.storage.procedures.finish import complete
from headgate.storage.records import Claim, Claimed, FreeSlots
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.call import Call
from headgate.tasks.context import is_in_job
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.leading import results_in
from headgate.tasks.options import merged
from headgate.tasks.signals import Cancel, RateLimited, Snooze
from headgate.testing.enqueued import Enqueued, EnqueuedQuery, enqueued, missing_message, present_message, require_fit
from headgate.testing.in_test import TestApp, in_test
from headgate.testing.manual_clock import ManualClock
from headgate.testing.stepped_node import RunAttempt, SteppedNode

P = ParamSpec("P")
R = TypeVar("R")

Until = datetime | Duration | Literal["idle"]
"""How far time goes while jobs are drained: to an instant, by a duration, or until no job waits for time to pass."""

PAGE = 500
MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The attempts that a drain has run, in order."""

    attempts: tuple[RunAttempt, ...]

    def count(self, state: JobState | str) -> int:
        """Return how many attempts left their job in this state; "waiting" are those that will be retried."""
        if state not in list(JobState):
            raise DeclarationError(f"state={state!r} must be one of {', '.join(JobState)}")
        return sum(each.state == state for each in self.attempts)

    def __len__(self) -> int:
        return len(self.attempts)


class Workbench:
    """The jobs enqueued in a test, and the ways to run them. `manual(app)` and `inline(app)` make it.

    `clock` is the time of the app. It moves only in `drain(until=…)` and `travel(…)`.
    """

    def __init__(self, app: TestApp, storage: SharedMemory, clock: ManualClock) -> None:
        self.clock: ManualClock = clock
        self._app = app
        self._storage = storage
        app._client.rollbacks = storage.rollbacks

    @property
    def sync(self) -> SyncWorkbench:
        """The same verbs for tests that cannot await; plain functions run in the thread of the test."""
        return SyncWorkbench(self)

    @property
    def now(self) -> datetime:
        """The time of the app, as an aware datetime."""
        return to_datetime(self.clock.now())

    # ------------------------------------------------------------------------------------------- what there is

    def all_enqueued(
        self, task: Task[..., Any] | None = None, *, state: JobState | str | None = None
    ) -> list[Enqueued]:
        """Return all jobs of this test, oldest first, in every state; of one task, or in one state, if given."""
        name = None if task is None else self._own(task).name
        run_to_end(self._storage.remove_rolled_back())
        filter = JobFilter(task=name, state=cast("JobState | None", state), oldest_first=True, count=PAGE)
        records = page = run_to_end(self._storage.jobs(filter))
        while len(page) == PAGE:
            page = run_to_end(self._storage.jobs(replace(filter, cursor=page[-1].id)))
            records = [*records, *page]
        find, connections, new = self._app._registry.find, self._app._client.connections, self._storage.new
        return [
            enqueued(record, find(record.task), connections.get(record.id), new.get(record.id)) for record in records
        ]

    def assert_enqueued(
        self,
        what: Task[..., Any] | Call[Any],
        /,
        *args: Any,
        queue: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1.0,
        priority: int | None = None,
        headers: dict[str, str] | None = None,
        tags: Collection[str] | None = None,
        unique_key: str | None = None,
        connection: Any = None,
        count: int | None = None,
        **kwargs: Any,
    ) -> Enqueued:
        """Return the first job that was enqueued like this; raise AssertionError, with the enqueued jobs, without one.

        `assert_enqueued(sync_tenant, "acme", delay=60)`: arguments and options that are not given match anything.
        `sync_tenant.call("acme")` instead of the task matches exactly that call, checked by the type checker. Options
        of `using(…)` count, too. `delay` and `at` match `within` a second. `count`: exactly so many. A job counts
        whether it has run or not.
        """
        __tracebackhide__ = True
        if count == 0:
            raise TypeError("assert_enqueued needs a job; for none write refute_enqueued(…)")
        expected = self._expected(what, args, kwargs, locals())
        jobs = self.all_enqueued()
        found = [job for job in jobs if not expected.differences(job)]
        if not found or (count is not None and len(found) != count):
            raise AssertionError(missing_message(expected, jobs, len(found), count))
        return found[0]

    def refute_enqueued(
        self,
        what: Task[..., Any] | Call[Any],
        /,
        *args: Any,
        queue: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        within: Duration = 1.0,
        priority: int | None = None,
        headers: dict[str, str] | None = None,
        tags: Collection[str] | None = None,
        unique_key: str | None = None,
        connection: Any = None,
        **kwargs: Any,
    ) -> None:
        """Raise AssertionError if a job was enqueued like this, as `assert_enqueued` would find it."""
        __tracebackhide__ = True
        expected = self._expected(what, args, kwargs, locals())
        found = [job for job in self.all_enqueued() if not expected.differences(job)]
        if found:
            raise AssertionError(present_message(expected, found))

    def _expected(
        self, what: Task[..., Any] | Call[Any], args: tuple[Any, ...], kwargs: Any, given: Mapping[str, Any]
    ) -> EnqueuedQuery:
        task = self._own(what.task if isinstance(what, Call) else what)
        own = merged(task.options, {name: value for name, value in given.items() if value is not None})
        options: dict[str, Any] = {name: value for name, value in own.items() if name in EnqueuedQuery.__slots__}
        options["within"] = parse_seconds(given["within"], "within", "assert_enqueued")
        if "tags" in options:
            options["tags"] = parse_tags(options["tags"], "assert_enqueued")
        if "delay" in options:
            options["delay"] = parse_seconds(options["delay"], "delay", "assert_enqueued")
        if "at" in options:
            options["at"] = to_datetime(parse_instant(options["at"], "at", "assert_enqueued"))
        if isinstance(what, Call):
            if args or kwargs:
                raise TypeError("pass task.call(…) alone, or a task and its arguments")
            # Those that are `result_of(…)` are no arguments of the stored job yet.
            bound = task.payload.bind(what.args, what.kwargs)
            known = {name: value for name, value in bound.items() if not results_in(value)}
            _, arguments = task.payload.encode_part(known, frozenset(bound.keys() - known.keys()))
            return EnqueuedQuery(task=task.name, arguments=arguments, **options)
        names = task.payload.parameters
        for name in {*names} & {"count", *EnqueuedQuery.__slots__} - {"within"}:
            if given.get(name) is not None:
                raise TypeError(
                    f"{name!r} is an argument of task {task.name!r} and an option here; write task.call(…), with all "
                    "arguments, and the options beside it"
                )
        unknown = [name for name in kwargs if name not in names]
        if unknown or len(args) > len(names):
            raise TypeError(
                f"task {task.name!r} has no argument {', '.join(map(repr, unknown)) or f'number {len(args)}'}; it has: "
                f"{', '.join(names) or 'none'}"
            )
        for name in kwargs.keys() & {*names[: len(args)]}:
            raise TypeError(f"task {task.name!r} got argument {name!r} twice")
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, value in arguments.items():
            require_fit(task.payload, name, value)
        return EnqueuedQuery(task=task.name, arguments=arguments, **options)

    # ------------------------------------------------------------------------------------------------ running

    async def drain(self, *, until: Until | None = None, raising: bool = True) -> DrainResult:
        """Run the jobs that are due, and what follows: the jobs they enqueue, following jobs, retries.

        They run one after the other, on this event loop. Without `until` time does not move, so delayed jobs and
        retries stay. With it the clock goes on to that instant, by that duration, or ("idle") until no job waits for
        time to pass; each job, retry, schedule and limit has its own instant. Unless `raising` is False, it raises
        JobFailed at the end for the first job that failed for good; its cause is the handler's exception.
        """
        async with self._app.node() as node:
            await self._run_until(node, until)
            performed = tuple(node.performed)
        if raising:
            await self._raise_first(performed)
        return DrainResult(performed)

    async def travel(self, to: datetime | None = None, *, raising: bool = True, **duration: float) -> DrainResult:
        """Let time pass, as `drain(until=…)`: `travel(hours=1)`, `travel(days=2, minutes=5)`, `travel(to=instant)`."""
        if (to is None) == (not duration):
            raise TypeError("travel takes to=instant, or a duration as timedelta does: travel(hours=1)")
        return await self.drain(until=timedelta(**duration) if to is None else to, raising=raising)

    async def run_job(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one job of the task, at once and alone, and return its result; it is not among those enqueued.

        Arguments and result go through JSON as in production. It raises what the handler raises, Snooze, RateLimited,
        Retry, Fail and Cancel included; limits, delay and retries are ignored. Raises TypeError and PayloadError for
        arguments that cannot be enqueued.
        """
        task = self._own(task)
        now = self.clock.now()
        client = self._app._client
        new: list[NewJob] = []

        async def keep(task: TaskDefinition, groups: Sequence[CallGroup]) -> list[StoredCall]:
            new.extend(client.enqueuer._jobs_of(task, groups))
            return [StoredCall(job.id) for job in new]

        await client._enqueue(task, [Call(args, kwargs, task)], keep)
        (job,) = new
        job = replace(job, delayed=False, run_at=now, expires_at=None, unique_key=None, limit_set="")
        scratch = SharedMemory(self.clock, gated=False)
        await scratch.add([job])
        async with self._app.node(scratch) as node:
            claimed = await scratch.claim(Claim(node.id, {job.queue: FreeSlots(1)}, {}, frozenset([job.task])))
            attempt = await node.perform(claimed.jobs[0])
        if attempt.kept is not None:
            raise attempt.kept
        record = await scratch.job(job.id)
        assert record is not None
        result: R = result_of(record, task)
        return result

    def _own(self, task: Any) -> Any:
        """Return a task of the app, or the one that runs a task of Django's. Raises TypeError for anything else."""
        if not isinstance(task, Task) and hasattr(task, "get_backend"):
            backend = task.get_backend()
            if not hasattr(backend, "app_task"):
                kind = type(backend)
                raise TypeError(
                    f"{task.module_path!r} is a task of {kind.__module__}.{kind.__qualname__}, and so no task of this "
                    "app; in these tests the BACKEND in TASKS has to be headgate.contrib.django.HeadgateBackend"
                )
            task = backend.app_task(task)
        if not isinstance(task, Task):
            raise TypeError(f"{task!r:.80} is no task; pass a function with @app.task, or the .task of a handler")
        if not self._app._registry.declares(task):
            raise TypeError(
                f"task {task.name!r} of module {task.function.__module__} belongs to another app than that of this "
                "test; a module that is imported under two names makes two apps"
            )
        return task

    async def _run_until(self, node: SteppedNode, until: Until | None) -> None:
        end: int | None
        match until:
            case None:
                end = self.clock.now()
            case "idle":
                end = None
            case datetime():
                end = parse_instant(until, "until", "drain")
                if end < self.clock.now():
                    raise DeclarationError(f"drain: until={until} is before {self.now}, and time does not go back")
            case _:
                end = self.clock.now() + parse_duration(until, "until", "drain")
        while True:
            upcoming = await node.run_due()
            # An occurrence alone is not waited for: there is always a next one.
            is_awaited = end is not None or upcoming.job_at is not None
            next_at = min((at for at in upcoming if at is not None and is_awaited), default=None)
            if next_at is None or (end is not None and next_at > end):
                if end is None or end <= self.clock.now():
                    break
                # Jobs that expire have no event of their own: they end before `end` is over.
                next_at = end
            if end is None and len(node.performed) > MOST_ATTEMPTS:
                raise AssertionError(
                    f"{MOST_ATTEMPTS:,} attempts were run, and jobs keep coming; the last was of task "
                    f"{node.performed[-1].task!r}"
                )
            self.clock.advance(max(0, next_at - self.clock.now()) / SECOND)

    async def _raise_first(self, performed: tuple[RunAttempt, ...]) -> None:
        failed = [each for each in {each.job_id: each for each in performed}.values() if each.state is JobState.FAILED]
        if not failed:
            return
        record = await self._storage.job(failed[0].job_id)
        assert record is not None
        assert record.error is not None
        error = JobFailed(record.id, record.error.type, record.error.message, record.error.traceback)
        if len(failed) > 1:
            error.add_note(f"{len(failed) - 1} more jobs failed in this drain; raising=False returns them all")
        raise error from failed[0].error


class SyncWorkbench:
    """A workbench for tests that cannot await."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def drain(self, *, until: Until | None = None, raising: bool = True) -> DrainResult:
        """Same as `Workbench.drain`."""
        return self._bench._app.sync.run(self._bench.drain(until=until, raising=raising))

    def travel(self, to: datetime | None = None, *, raising: bool = True, **duration: float) -> DrainResult:
        """Same as `Workbench.travel`."""
        return self._bench._app.sync.run(self._bench.travel(to, raising=raising, **duration))

    def run_job(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Same as `Workbench.run_job`."""
        return self._bench._app.sync.run(self._bench.run_job(task, *args, **kwargs))


@contextlib.contextmanager
def manual(app: Headgate, *, now: datetime | None = None) -> Iterator[Workbench]:
    """Keep in memory what is enqueued on this app until the block ends; nothing runs before `drain()`.

    `with manual(app) as jobs:` around the code that enqueues, then `jobs.assert_enqueued(…)`. The app counts as open;
    its own store, and the stores of its limits, are never connected to. Time does not move, from `now` (default: the
    current time), which is 1970 or later. With `using(connection=…)` the connection is not used: the job is kept at
    once, whatever the transaction does. Raises HeadgateError for an app that is open.
    """
    clock = ManualClock(SystemClock().now() if now is None else parse_instant(now, "now", "a test"))
    storage = SharedMemory(clock)
    with in_test(app, TestApp, storage, clock) as test_app:
        yield Workbench(test_app, storage, clock)


class InlineTestApp(TestApp):
    """An app that runs what is enqueued, before `enqueue` returns."""

    raising: bool

    async def after_enqueueing(self, stored: Sequence[StoredCall]) -> None:
        # One that was there before may be the job whose handler enqueues it again, so no handler waits for it.
        before = {each.id: self.performed.get(each.id) for each in stored if not each.is_new}
        async with self.node() as node:
            await node.run_due()
        for job_id, is_new, _ in stored:
            # A concurrent caller may have claimed it first, and runs it.
            nodes = self.at_work if is_new or not is_in_job() else ()
            for recorded in filter(None, [each.recorded.get(job_id) for each in nodes]):
                await asyncio.wait([asyncio.wrap_future(recorded)])
            performed = self.performed.get(job_id)
            error = None if performed is None or performed is before.get(job_id) else performed.error
            # These are no errors; the caller, which may be a handler, would be snoozed or cancelled as well.
            if self.raising and error is not None and not isinstance(error, (Snooze, RateLimited, Cancel)):
                raise error


@contextlib.contextmanager
def inline(app: Headgate, *, now: datetime | None = None, raising: bool = True) -> Iterator[Workbench]:
    """Run what is enqueued on this app at once, in the caller's loop or thread, until the block ends.

    A job runs as in production: arguments and result go through JSON, callbacks are called, following jobs run as well,
    a failed one waits for its retry. `enqueue` raises what the handler raised, unless `raising` is False; a Snooze, a
    RateLimited or a Cancel is no error. Limits do not delay jobs. A delayed job waits until `travel(…)` or
    `drain(until=…)`. All else is as in `manual(app)`. Raises HeadgateError for an app that is open.
    """
    clock = ManualClock(SystemClock().now() if now is None else parse_instant(now, "now", "a test"))
    storage = SharedMemory(clock, gated=False)
    with in_test(app, InlineTestApp, storage, clock) as test_app:
        test_app.raising = raising
        yield Workbench(test_app, storage, clock)


class SharedMemory(MemoryStorage):
    """The store of a test in which nothing runs by itself. With `gated=False` limits do not delay added jobs.

    `left_out` has the buckets of these, `new` the jobs as they were enqueued last.
    `rollbacks` has jobs of transactions elsewhere, with functions that return whether these were rolled back.
    """

    def __init__(self, clock: Clock, *, gated: bool = True) -> None:
        super().__init__(clock)
        self._gated = gated
        self.left_out: dict[str, tuple[BucketRef, ...]] = {}
        self.new: dict[str, NewJob] = {}
        self.rollbacks: dict[str, Callable[[], bool]] = {}

    async def add(self, jobs: Sequence[NewJob], batches: Sequence[NewBatch] = ()) -> Mapping[str, str]:
        # A store knows a second enqueue under an own id by its instant, and here that is the first one's.
        stored = {job.id: job.id for job in jobs if job.has_own_id and await self.job(job.id) is not None}
        if not self._gated:
            self.left_out |= {job.id: job.buckets for job in jobs}
            jobs = [
                replace(job, buckets=(), costs=None, terms=None, wait_mode="", give_up_at=None, rejection=None)
                for job in jobs
            ]
        duplicates = {**stored, **await super().add(jobs, batches)}
        for job in jobs:
            if job.id not in duplicates or replaces(job):
                self.new[duplicates.get(job.id, job.id)] = job
        return duplicates

    async def claim(self, claim: Claim) -> Claimed:
        await self.remove_rolled_back()
        return await super().claim(claim)

    async def remove_rolled_back(self) -> None:
        """Remove the jobs whose transactions were rolled back, as a database would have done."""
        removed = [job_id for job_id, is_rolled_back in self.rollbacks.items() if is_rolled_back()]
        for job_id in removed:
            del self.rollbacks[job_id]
            await self.cancel(job_id)
        if removed:
            await self.delete(removed, finished_before=self.now() + 1)

    async def complete_in(self, connection: Any, job_id: str, fence: int) -> bool:
        """Complete the job at once: a test does not use the connections of the code that it tests."""
        return await self.write(lambda tx: complete(tx, job_id, fence))
