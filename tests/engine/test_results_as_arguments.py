"""`result_of(…)`: arguments that are results of earlier jobs, read when the job starts."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate import AttemptContext, Headgate, RateLimit, RetryPolicy, StrictRate, Zlib, batch, chain, result_of
from headgate.client.plan import ChainSteps
from headgate.errors import DeclarationError, JobFailed, JobNotFound, PayloadError
from headgate.jobs.event import Event, JobNotMigrated
from headgate.jobs.identity import job_number
from headgate.jobs.state import JobState
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.hooks import JobDraft
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine.conftest import MakeApp
from tests.internals import app_on, client_of
from tests.until import becomes, result_within


class Sums:
    """An app that adds numbers."""

    def __init__(self, app: Headgate) -> None:
        self.app = app

        @self.app.task(retry=RetryPolicy(retries=0))
        async def number(value: int) -> int:
            if value < 0:
                raise ValueError("negative")
            return value

        @self.app.task
        async def add(numbers: list[int], more: int = 0, /, *, name: str = "sum") -> int:
            return sum(numbers) + more

        @self.app.task
        def double(value: int) -> int:
            return 2 * value

        self.number, self.add, self.double = number, add, double


def test_a_step_gets_the_result_of_the_one_before_it_as_an_argument() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        first = own.number.call(4)
        async with own.app:
            stored = await chain(first, own.double.call(result_of(first))).enqueue()
            assert await result_within(stored) == 8
            # It is read when the job starts.
            record = (await own.app.admin.job(stored.jobs[1].id)).record
            assert record.payload == "{}"
            assert record.origin is not None
            assert record.origin.follows == stored.jobs[0].id
            assert record.origin.results == {"value": stored.jobs[0].id}

    run_virtual(main)


def test_results_of_several_calls_and_of_batches_are_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        a, b, some = own.number.call(1), own.number.call(2), batch([own.number.call(n) for n in (3, 4)])
        calls = [
            own.add.call([result_of(a), result_of(b)], result_of(b), name="listed"),
            own.add.call(result_of(some)),
            own.double.call(value=result_of(b)),
        ]
        async with own.app:
            stored = await batch([a, b, some, *calls]).enqueue()
            assert await result_within(stored) == [1, 2, 3, 4, 5, 7, 4]
            again = await chain(own.add.call(result_of(own.app.batch(stored.id)))).enqueue()
            assert await result_within(again) == 26

    run_virtual(main)


def test_a_step_after_a_batch_gets_its_results_as_an_argument() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        seen: list[list[int]] = []

        @own.app.task
        async def note(numbers: list[int], more: int) -> None:
            seen.append([*numbers, more])

        async with own.app:
            pages = batch([own.number.call(n) for n in (3, 4)])
            once = pages.then(note.call(result_of(pages), 1))
            await once.then(note.call(result_of(pages), 2)).then(note.call(result_of(once), 3)).enqueue()
            await asyncio.sleep(60)
            assert sorted(seen) == [[3, 4, 1], [3, 4, 2], [3, 4, 3]]

    run_virtual(main)


def test_the_results_of_an_empty_batch_are_none_wherever_it_stands() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        async with own.app:
            for before in ([], [own.number.call(5)], [batch([own.number.call(5)])]):
                for pages in (batch([]), batch([batch([])]), chain(*before, batch([]))):
                    steps = (pages,) if isinstance(pages, ChainSteps) else (*before, pages)
                    stored = await chain(*steps, own.add.call(result_of(pages), 1)).enqueue()
                    assert await result_within(stored) == 1

    run_virtual(main)


def test_a_batch_that_is_enqueued_with_two_plans_has_no_one_result() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        pages = batch([own.number.call(3)])
        async with own.app:
            with pytest.raises(DeclarationError, match=r"a batch, which is 2 times in what is enqueued"):
                await batch([pages, pages.then(own.add.call(result_of(pages)))]).enqueue()

    run_virtual(main)


async def test_results_in_a_database_are_arguments(make_app: MakeApp) -> None:
    own = Sums(make_app())
    a, bad, some = own.number.call(1), own.number.call(-1), batch([own.number.call(n) for n in (3, 4)])
    calls = [
        own.add.call(result_of(some), result_of(a)),
        own.double.call(result_of(bad)).after(bad, on="final"),
    ]
    async with own.app:
        stored = await batch([a, bad, some, *calls]).enqueue()
        assert await result_within(stored.jobs[-2], 15) == 8
        with pytest.raises(JobFailed, match=f"ResultUnavailable.*job {stored.jobs[1].id}, which failed"):
            await result_within(stored.jobs[-1], 15)
        again = await chain(own.add.call([result_of(stored.jobs[-2])], result_of(stored.jobs[0]))).enqueue()
        assert await result_within(again, 15) == 9


def test_what_is_before_a_step_anyway_needs_no_join() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        a, b = own.number.call(1), own.number.call(2)
        async with own.app:
            stored = await chain(a, b, batch([own.number.call(3)]), own.double.call(result_of(a))).enqueue()
            assert await result_within(stored) == 2
            (leader,) = (await own.app.admin.job(stored.jobs[3].id)).dependencies.leaders
            assert leader.task is None

    run_virtual(main)


def test_a_result_that_is_not_there_fails_the_job_and_says_why() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock))
        bad = own.number.call(-1)
        late = own.double.call(result_of(bad)).after(bad, on="final")
        async with own.app:
            stored = await batch([bad, late]).enqueue()
            with pytest.raises(JobFailed, match=f"ResultUnavailable.*job {stored.jobs[0].id}, which failed"):
                await result_within(stored.jobs[1], 100)
            good = await own.number.enqueue(2)
            await result_within(good)
            after = await chain(own.double.using(delay=60).call(result_of(good))).enqueue()
            assert await client_of(own.app).storage.prune(clock.now() + 1, states=frozenset({JobState.SUCCEEDED})) == 1
            with pytest.raises(JobFailed, match=f"argument 'value' is the result of {good.id}, which has been pruned"):
                await result_within(after, 100)

    run_virtual(main)


def test_results_of_a_batch_of_which_some_are_pruned_are_refused() -> None:
    """The fault: after three hours with a retention of one, the results were a list of the last hour."""

    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock, retention={"succeeded": "1h", "skipped": 60}))

        @own.app.task
        async def late(value: int) -> int:
            await asyncio.sleep(3 * 3600)
            return value

        async with own.app:
            pages = batch([own.number.call(1), late.call(2)])
            stored = await pages.then(own.add.call(result_of(pages))).enqueue()
            inner = await batch([batch([own.number.call(1)]), late.call(2)]).enqueue()
            ready = own.double.call(2)
            join = await batch([ready, late.call(2), own.add.call([]).after(ready, inner)]).enqueue()
            with pytest.raises(
                JobFailed, match=f"ResultUnavailable.*the results of batch {stored.id}, of which some were pruned"
            ):
                await result_within(stored.then[0], 20_000)
            follows = (await own.app.admin.job(join.jobs[-1].id)).record.origin
            assert follows is not None
            for id in (stored.id, inner.id, join.id, follows.follows or ""):
                with pytest.raises(JobNotFound, match=f"results of batch {id} were pruned; give its tasks a longer"):
                    await own.app.batch(id).result()

    run_virtual(main)


def test_results_of_a_batch_are_complete_without_those_that_it_never_had() -> None:
    async def main(clock: VirtualClock) -> None:
        own = Sums(Headgate("memory://", clock=clock, retention={"succeeded": "1h", "skipped": 60}))
        first, empty = own.number.using(delay=2 * 3600).call(4), batch([])
        unneeded = own.double.call(5).after(first, on="failure")
        nested = batch([first, unneeded, batch([batch([])])])
        async with own.app:
            stored = await nested.then(own.add.using(delay=2 * 3600 + 600).call(result_of(nested))).enqueue()
            alone = await empty.then(own.add.using(delay=2 * 3600).call(result_of(empty), 1)).enqueue()
            assert await result_within(stored.then[0], 20_000) == 4
            assert await own.app.batch(stored.id).result() == [4]
            assert await result_within(alone.then[0], 20_000) == 1
            await asyncio.sleep(3 * 3600)
            assert not await own.app.admin.batches()

    run_virtual(main)


def test_hooks_and_limits_see_the_other_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[dict[str, object]] = []

        @app.around_enqueue
        async def note(jobs: Sequence[JobDraft], enqueue: Callable[[], Awaitable[None]]) -> None:
            seen.extend(dict(job.arguments) for job in jobs)
            await enqueue()

        @app.task
        async def fetch(tenant: str) -> int:
            return len(tenant)

        @app.task(limits=[RateLimit("100/s", key="{tenant}")])
        async def store(tenant: str, size: int) -> str:
            return f"{tenant}: {size}"

        @app.task(limits=[RateLimit("100/s", key="{size}")])
        async def by_size(size: int) -> None: ...

        first = fetch.call("acme")
        async with app:
            stored = await chain(first, store.call("acme", result_of(first))).enqueue()
            assert await result_within(stored) == "acme: 4"
            assert seen == [{"tenant": "acme"}, {"tenant": "acme"}]
            with pytest.raises(DeclarationError, match=r"limit 'by_size:rate' .*argument 'size' is result_of"):
                await chain(first, by_size.call(result_of(first))).enqueue()

    run_virtual(main)


@pytest.mark.parametrize("is_limited_from_the_start", [True, False])
def test_a_limit_whose_key_is_empty_is_left_out_of_a_call_with_a_result(is_limited_from_the_start: bool) -> None:
    """The fault: it was refused, and one that a release before had stored without the limit never started."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)

        def release(*limits: RateLimit) -> Headgate:
            app = app_on(store, clock=clock)

            @app.task
            async def fetch() -> int:
                return 4

            @app.task(limits=limits)
            async def keep(tenant: str | None, size: int) -> int:
                return size

            return app

        by_tenant = RateLimit("100/s", key="{tenant}")
        async with (app := release(*[by_tenant][: int(is_limited_from_the_start)])):
            first = app.tasks["fetch"].using(delay=60).call()
            stored = await chain(first, app.tasks["keep"].call(None, result_of(first))).enqueue()
            assert (await app.admin.job(stored.jobs[1].id)).record.buckets == ()
        async with (app := release(by_tenant)):
            assert await app.job(stored.jobs[1].id).result(timeout=1000) == 4

    run_virtual(main)


def total(pages: list[str]) -> int:
    return sum(len(page) for page in pages)


@pytest.mark.parametrize("has_hook", [False, True])
@pytest.mark.parametrize("process", [False, True])
async def test_arguments_that_are_results_may_be_larger_together_than_what_is_stored(
    process: bool, has_hook: bool
) -> None:
    """The fault: a hook that only read them, or a task with an upgrade in a child, made the job fail."""
    app = Headgate("memory://", max_payload=4096)
    task = app.task(process=process, upgrade=dict)(total)

    @app.task
    async def page(number: int) -> str:
        return "x" * 4000

    if has_hook:

        @app.around_attempt
        async def read(job: AttemptContext, run: Callable[[], Awaitable[object]]) -> object:
            assert job.arguments
            return await run()

    async with app:
        pages = batch([page.call(number) for number in range(4)])
        stored = await batch([pages, task.call(result_of(pages))]).enqueue()
        assert await result_within(stored.jobs[-1], 15) == 16_000


async def renamed(customer: int, rows: list[str]) -> None: ...


async def partly_renamed(customer: int, pages: list[str]) -> None: ...


async def retyped(tenant: int, pages: list[str]) -> None: ...


@pytest.mark.parametrize("before", [renamed, partly_renamed, retyped])
def test_a_job_that_takes_a_result_moves_to_the_limits_of_its_upgraded_arguments(before: Callable[..., Any]) -> None:
    """The fault: a renamed argument was no key, so it started without the limit; a retyped one let it wait."""

    async def main(clock: VirtualClock) -> None:
        store, started = MemoryStorage(clock), list[str]()
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)
        tenant, pages = inspect.signature(before).parameters

        async def fetch() -> list[str]:
            return ["page"]

        def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
            return {"tenant": f"t-{stored[tenant]}", "pages": stored[pages]}

        old_fetch, _ = old.task(fetch), new.task(fetch)
        old_send = old.task(name="send", limits=[StrictRate("1/h", key=f"{{{tenant}}}")])(before)

        @new.task(upgrade=upgrade, limits=[StrictRate("1/h", key="tenant {tenant}", margin=0)])
        async def send(tenant: str, pages: list[str]) -> None:
            started.append(f"{tenant} {pages}")

        async with old.open():
            for _ in range(3):
                first = old_fetch.call()
                await chain(first, old_send.call(**{tenant: 7, pages: result_of(first)})).enqueue()
        async with new:
            await asyncio.sleep(60)
            assert started == ["t-7 ['page']"]
            await asyncio.sleep(3600)
            assert len(started) == 2

    run_virtual(main)


def test_a_job_that_takes_a_result_waits_if_its_other_arguments_do_not_fit() -> None:
    """The fault: it was moved to no limit at all."""

    async def main(clock: VirtualClock) -> None:
        store, received = MemoryStorage(clock), list[Event]()
        old, new = app_on(store, clock=clock), app_on(store, clock=clock)

        async def fetch() -> list[str]:
            return ["page"]

        old_fetch, _ = old.task(fetch), new.task(fetch)
        old_send = old.task(name="send", limits=[StrictRate("1/h", key="{customer}")])(partly_renamed)

        @new.task(limits=[StrictRate("1/h", key="{tenant}")])
        async def send(tenant: int, pages: list[str]) -> None: ...

        new.subscribe(received.append, JobNotMigrated)
        async with old.open():
            first = old_fetch.call()
            stored = await chain(first, old_send.call(7, result_of(first))).enqueue()
        async with new:
            await asyncio.sleep(60)
            record = (await new.admin.job(stored.jobs[1].id)).record
            assert (record.state, record.attempt) == (JobState.WAITING, 0)
            assert [ref.limit for ref in record.buckets] == ["send:rate"]
        assert [event.job_id for event in received] == [stored.jobs[1].id]  # type: ignore[attr-defined]

    run_virtual(main)


async def test_a_job_that_takes_a_result_and_has_no_object_as_its_payload_is_unreadable(tmp_path: Path) -> None:
    """The fault: it failed with msgspec.DecodeError, and the retries of its task followed."""
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db", synchronous="OFF")

    @app.task
    async def text(length: int, before: str = "") -> str:
        return before + "x" * length

    first = text.call(1)
    async with app.open():
        stored = await chain(first, text.call(2, before=result_of(first))).enqueue()
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
            connection.execute("UPDATE job SET payload = '[2]' WHERE id = ?", (job_number(stored.last.id),))
        async with app:

            async def outcomes() -> list[str]:
                return [attempt.outcome for attempt in (await app.admin.job(stored.last.id)).attempts]

            await becomes(outcomes, ["unreadable"])
            error = (await app.admin.job(stored.last.id)).record.error
    assert error is not None
    assert error.type == "headgate.errors.PayloadError"
    assert error.message == f"the payload of job {stored.last.id} is not a JSON object: Expected `object`, got `array`"


def test_encoded_results_are_arguments() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, codec=Zlib(above=1))

        @app.task
        async def text(length: int, before: str = "") -> str:
            return before + "x" * length

        first = text.call(1000)
        async with app:
            stored = await chain(first, text.call(2, before=result_of(first))).enqueue()
            assert await result_within(stored) == "x" * 1002
            record = (await app.admin.job(stored.jobs[0].id)).record
            assert record.result is not None
            assert record.result.startswith("encoded:")

    run_virtual(main)


def test_a_result_as_an_argument_that_cannot_be_is_refused() -> None:
    app = Headgate("memory://")

    @app.task(keep_result=False)
    async def forgets() -> int:
        return 1

    @app.task
    async def work(value: int) -> int:
        return value

    with pytest.raises(DeclarationError, match="keep_result=False"):
        result_of(forgets.call())
    with pytest.raises(DeclarationError, match="not 'x'"):
        result_of("x")  # type: ignore[call-overload]  # what somebody writes by mistake

    async def main(clock: VirtualClock) -> None:
        async with app.open():
            with pytest.raises(PayloadError, match=r"argument 'value' of .* is result_of\(…\)"):
                await work.enqueue(result_of(work.call(1)))
            with pytest.raises(DeclarationError, match="which is not enqueued with it"):
                await chain(work.call(result_of(work.call(1)))).enqueue()

    run_virtual(main)
