"""Unique keys of tasks, keys that stay taken, own ids and debounced jobs, as an app uses them in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

from headgate import (
    DeclarationError,
    DuplicateJob,
    Every,
    Handler,
    Headgate,
    IdInUse,
    JobCancelled,
    JobNotFound,
    JobState,
    PayloadError,
    RateLimit,
    RetryPolicy,
    batch,
    chain,
)
from headgate.clock import to_datetime
from headgate.jobs.event import Event, JobEnqueued, JobReplaced
from headgate.jobs.query import JobFilter
from headgate.limits.key import header
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import client_of, store_of

SHOP = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")

ALL = JobFilter(count=100)


@dataclass
class Order:
    number: int
    tenant: str | None = "acme"


# ------------------------------------------------------------------------------------------- keys of tasks


def test_nothing_is_predicted_for_a_key_whose_job_has_been_pruned() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retention="1m")

        @app.task(unique_key="only", unique_for="1h", limits=[RateLimit("10/s")])
        async def work() -> None: ...

        async with app:
            first = await work.enqueue()
            await asyncio.sleep(200)
            again = await work.using(predict=True).enqueue()
            assert (again, again.is_new, again.prediction) == (first, False, None)

    run_virtual(main)


def test_the_key_of_a_task_is_computed_from_the_arguments_of_each_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="order:{order.number}")
        async def ship(order: Order, note: str = "") -> str:
            return note

        @app.task(unique_key=lambda tenant, page: f"{tenant}/{page}" if page else None)
        async def sync(tenant: str, page: int = 0) -> None: ...

        @app.task(unique_key="nightly")
        async def clean(folder: str) -> None: ...

        @app.handler(unique_key="{number}")
        class Pack(Handler[Order]):
            async def run(self, payload: Order) -> None: ...

        async with app.open():
            first = await ship.enqueue(Order(1), note="first")
            assert await ship.enqueue(Order(1), note="second") == first
            many = await ship.enqueue_many([(Order(1),), (Order(2),), (Order(2),)])
            assert many[0] == first != many[1] == many[2]
            assert await sync.enqueue("acme", 1) == await sync.enqueue("acme", page=1)
            assert await sync.enqueue("acme") != await sync.enqueue("acme"), "None is no key"
            assert await clean.enqueue("/tmp") == await clean.enqueue("/var")
            assert await Pack.enqueue(Order(1)) == await Pack.enqueue(Order(1, "globex"))
            keys = {record.unique_key for record in await store_of(app).jobs(ALL)}
            assert keys == {"order:1", "order:2", "acme/1", None, "nightly", "1"}
        async with app:
            assert await first.result() == "first"

    run_virtual(main)


def test_a_key_that_is_too_long_is_hashed_and_an_empty_one_is_none() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{name}")
        async def work(name: str | None) -> None: ...

        async with app.open():
            for name in ("x" * 201, "a\x00b", "\N{SNOWMAN}" * 200):
                assert await work.enqueue(name) == await work.enqueue(name)
            for nothing in ("", None):
                assert await work.enqueue(nothing) != await work.enqueue(nothing)
            keys = [record.unique_key or "" for record in await store_of(app).jobs(ALL)]
            assert max(map(len, keys)) == 200

    run_virtual(main)


def test_options_of_a_call_override_those_that_the_task_declares() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{tenant}", on_conflict="replace")
        async def sync(tenant: str, page: int) -> int:
            return page

        async with app.open():
            first = await sync.enqueue("acme", 1)
            assert await sync.enqueue("acme", 2) == first
            with pytest.raises(DuplicateJob):
                await sync.using(on_conflict="raise").enqueue("acme", 3)
            other = await sync.using(unique_key="mine").enqueue("acme", 4)
            assert other != first
            # A call with a key of its own has none of the options of the other key.
            mixed = sync.using(unique_key="mine", on_conflict="keep")
            assert await mixed.enqueue_many([sync.using(unique_key="acme").call("acme", 5), ("acme", 6)]) == [
                first,
                other,
            ]
        async with app:
            assert [await first.result(), await other.result()] == [5, 4]

    run_virtual(main)


def test_a_key_that_cannot_be_computed_stores_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key=lambda tenants: tenants[0])
        async def sync(tenants: list[str]) -> None: ...

        async with app.open():
            with pytest.raises(PayloadError, match="the unique_key of task 'sync' could not be computed: IndexError"):
                await sync.enqueue_many([(["acme"],), ([],)])
            with pytest.raises(PayloadError, match="unique_key"):
                client_of(app).check(sync, sync.call([]))
            assert await store_of(app).jobs(ALL) == []

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique_key": "{oder_id}"}, "of the unique_key of task 'work' names 'oder_id'"),
        ({"unique_key": "{order.nummer}"}, "of the unique_key of task 'work' names 'order.nummer'"),
        ({"unique_key": "order_id"}, 'write "{order_id}"'),
        ({"unique_key": lambda other: other}, "unknown parameters: other"),
        ({"unique_key": 7}, 'is not a template such as "{order_id}", nor a function'),
        ({"unique_key": header("tenant")}, 'is not a template such as "{order_id}", nor a function'),
        ({"unique_key": ""}, "is empty; leave it out"),
        ({"unique_for": 60}, "unique_for=60 has no effect without a unique_key"),
        ({"debounce": 5}, "debounce=5 has no effect without a unique_key"),
        ({"unique_key": "{order_id}", "on_conflict": "drop"}, '"keep", "replace", "raise" or "cancel_running"'),
        ({"unique_key": "{order_id}", "unique_for": 0}, "unique_for=0 must be above 0 seconds"),
        ({"unique_key": "{order_id}", "unique_for": "soon"}, "is not a duration"),
        (
            {"unique_key": "{order_id}", "unique_for": 60, "on_conflict": "replace"},
            'unique_for and on_conflict="replace" contradict each other',
        ),
        ({"unique_key": "{order_id}", "unique_for": 60, "debounce": 5}, "unique_for and debounce contradict"),
        ({"unique_key": "{order_id}", "unique_while": "waiting"}, 'write unique_while=("waiting",)'),
        ({"unique_key": "{order_id}", "unique_while": ("wating",)}, "names 'wating'; write (\"waiting\",) or"),
        ({"unique_key": "{order_id}", "unique_while": ["waiting", "succeeded"]}, "unique_for= keeps the key taken"),
        ({"unique_key": "{order_id}", "unique_while": ["running"]}, "use limits=[Mutex("),
        ({"unique_key": "{order_id}", "unique_while": []}, 'lacks "waiting"'),
        (
            {"unique_key": "{order_id}", "unique_while": ["waiting"], "on_conflict": "cancel_running"},
            'needs unique_while=("waiting", "running")',
        ),
        ({"unique_key": "{order_id}", "debounce_max": 60}, "debounce_max=60 has no effect without debounce"),
        ({"unique_key": "{order_id}", "debounce": 0}, "debounce=0 must be above 0 seconds"),
        ({"unique_key": "{order_id}", "debounce": 60, "debounce_max": 5}, "debounce_max=5 is less than debounce=60"),
        ({"unique_key": "{order_id}", "debounce": 5, "on_conflict": "raise"}, "debounce replaces the waiting job"),
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_declared(options: dict[str, Any], message: str) -> None:
    app = Headgate("memory://")

    async def work(order_id: int, order: Order) -> None: ...

    with pytest.raises(DeclarationError, match=re.escape(message)):
        app.task(**options)(work)
    assert app.tasks == {}


def test_a_debounced_call_takes_no_other_time() -> None:
    app = Headgate("memory://")

    @app.task(unique_key="{order_id}", debounce=5)
    async def work(order_id: int) -> None: ...

    with pytest.raises(DeclarationError, match="pass neither delay nor at with it"):
        work.using(delay=60)


def test_jobs_of_chains_and_schedules_take_no_key() -> None:
    app = Headgate("memory://")

    @app.task(unique_key="{order_id}")
    async def ship(order_id: int = 1) -> None: ...

    @app.task
    async def plain() -> None: ...

    with pytest.raises(DeclarationError, match=r"has a unique_key.*use a task that declares none"):
        chain(plain.call(), ship.call(1))
    with pytest.raises(DeclarationError, match="'ship' declares a unique_key, which jobs of a schedule do not take"):
        app.schedule(Every(hours=1))(ship)
    with pytest.raises(DeclarationError, match="id is an option of one job"):
        app.schedule(Every(hours=1))(plain.using(id=uuid4()))
    with pytest.raises(DeclarationError, match="has an id"):
        batch([plain.using(id=uuid4()).call()])


# ----------------------------------------------------------------------------------------- keys for some time


@pytest.mark.nightly
def test_a_task_runs_once_in_an_hour_for_each_key_although_its_jobs_are_not_kept() -> None:
    async def main(clock: VirtualClock) -> None:
        ran: list[str] = []
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{tenant}", unique_for=timedelta(hours=1), retention=0, retry=RetryPolicy(retries=0))
        async def report(tenant: str, *, fails: bool = False) -> None:
            ran.append(tenant)
            if fails:
                raise ValueError(tenant)

        async with app:
            first = await report.enqueue("acme")
            failing = await report.enqueue("globex", fails=True)
            await asyncio.sleep(120)
            with pytest.raises(JobNotFound):
                await first.status()
            for _ in range(11):
                assert await report.enqueue("acme") == first
                assert await report.enqueue("globex") == failing
                await asyncio.sleep(300)
            assert ran == ["acme", "globex"]
            with pytest.raises(DuplicateJob):
                await report.using(on_conflict="raise").enqueue("acme")
            await asyncio.sleep(181)
            assert await report.enqueue("acme") != first
            await asyncio.sleep(1)
        assert ran == ["acme", "globex", "acme"]

    run_virtual(main)


def test_a_key_that_is_held_while_waiting_lets_one_more_run_beside_the_running_one() -> None:
    async def main(clock: VirtualClock) -> None:
        ran: list[tuple[int, str]] = []
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{tenant}", unique_while=["waiting"])
        async def sync(tenant: str, page: int) -> None:
            ran.append((page, "begins"))
            await asyncio.sleep(10)
            ran.append((page, "ends"))

        async with app:
            first = await sync.enqueue("acme", 1)
            await asyncio.sleep(1)
            second = await sync.enqueue("acme", 2)
            assert second != first
            await second.result()
        assert ran == [(1, "begins"), (2, "begins"), (1, "ends"), (2, "ends")]

    run_virtual(main)


def test_cancel_running_stops_the_running_job_and_starts_the_new_one_after_it() -> None:
    async def main(clock: VirtualClock) -> None:
        ran: list[tuple[int, str]] = []
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{document}", on_conflict="cancel_running")
        async def index(document: str, version: int) -> int:
            ran.append((version, "begins"))
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # A handler may take its time to end.
                await asyncio.sleep(3)
                ran.append((version, "is cancelled"))
                raise
            return version

        async with app:
            first = await index.enqueue("a", 1)
            await asyncio.sleep(1)
            second = await index.enqueue("a", 2)
            assert second != first
            assert await index.enqueue("a", 3) == second
            assert await second.result() == 3
            with pytest.raises(JobCancelled):
                await first.result()
        assert ran == [(1, "begins"), (1, "is cancelled"), (3, "begins")]

    run_virtual(main)


# ------------------------------------------------------------------------------------------------ debounced


@pytest.mark.parametrize(("bound", "started_at"), [(None, 23), (12, 12)])
def test_a_debounced_job_runs_once_with_the_last_arguments(bound: int | None, started_at: int) -> None:
    async def main(clock: VirtualClock) -> None:
        ran: list[tuple[str, int, float]] = []
        app = Headgate("memory://", clock=clock)
        began = clock.now()

        @app.task
        async def index(document: str, version: int) -> None:
            ran.append((document, version, (clock.now() - began) / 1_000_000))

        debounced = index.using(unique_key="a", debounce=5, debounce_max=bound)
        async with app:
            for version in range(10 if bound is None else 6):
                await debounced.enqueue("a", version)
                await asyncio.sleep(2)
            await asyncio.sleep(20)
        (only,) = ran
        assert only[:2] == ("a", 9 if bound is None else 5)
        assert started_at <= only[2] < started_at + 1

    run_virtual(main)


def test_a_debounced_job_expires_as_long_after_its_bounded_start_as_after_any_other() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{document}", debounce=5, debounce_max=8, expires_in=60)
        async def index(document: str) -> None: ...

        async with app.open():
            for _ in range(3):
                job = await index.enqueue("a")
                await asyncio.sleep(3)
            record = (await app.admin.job(job.id)).record
            assert record.expires_at is not None
            assert record.expires_at - record.run_at == 60_000_000
            fixed = await index.using(expires_at=to_datetime(clock.now() + 90_000_000)).enqueue("a")
            record = (await app.admin.job(fixed.id)).record
            assert record.expires_at == clock.now() + 90_000_000

    run_virtual(main)


def test_a_window_that_was_bounded_is_followed_by_another_one() -> None:
    async def main(clock: VirtualClock) -> None:
        ran: list[int] = []
        app = Headgate("memory://", clock=clock)

        @app.task(unique_key="{document}", debounce=5, debounce_max=20)
        async def index(document: str, version: int) -> None:
            ran.append(version)

        async with app:
            for version in range(30):
                await index.enqueue("a", version)
                await asyncio.sleep(2)
            await asyncio.sleep(20)
        assert len(ran) == 3
        assert ran[-1] == 29
        assert ran == sorted(ran)

    run_virtual(main)


# --------------------------------------------------------------------------------------------------- own ids


def test_an_id_of_the_caller_makes_an_enqueue_idempotent() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        ran: list[int] = []

        @app.task
        async def charge(invoice: int) -> int:
            ran.append(invoice)
            return invoice

        @app.task
        async def refund(invoice: int) -> None: ...

        received: list[Event] = []
        app.subscribe(received.append, JobEnqueued, JobReplaced)
        name = uuid5(SHOP, "charge:17")
        async with app:
            first = await charge.using(id=name).enqueue(17)
            assert first.id == str(name)
            assert await first.result() == 17
            await asyncio.sleep(1)
            again = await charge.using(id=str(name).upper()).enqueue(18)
            assert again == first
            assert await again.result() == 17
            many = await charge.enqueue_many([charge.using(id=name).call(19), charge.using(id=uuid4()).call(20)])
            assert many[0] == first
            with pytest.raises(IdInUse, match=r"of task 'charge', not 'refund'.*uuid5\(NAMESPACE_URL, \"refund:"):
                await refund.using(id=name).enqueue(17)
            await asyncio.sleep(1)
        assert ran == [17, 20]
        assert [event.job_id for event in received if isinstance(event, JobEnqueued)] == [first.id, many[1].id]

    run_virtual(main)


def test_an_id_is_free_again_after_the_retention_of_its_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retention=60)
        ran: list[int] = []

        @app.task
        async def charge(invoice: int) -> None:
            ran.append(invoice)

        name = uuid4()
        async with app:
            job = await charge.using(id=name).enqueue(1)
            await job.result()
            await asyncio.sleep(200)
            assert await charge.using(id=name).enqueue(2) == job
            await asyncio.sleep(1)
        assert ran == [1, 2]

    run_virtual(main)


@pytest.mark.parametrize("id", ["", "invoice-17", 17, "0190", b"x", "g" * 32])
def test_an_id_that_is_no_uuid_is_refused_at_once(id: object) -> None:
    app = Headgate("memory://")

    @app.task
    async def charge() -> None: ...

    with pytest.raises(DeclarationError, match=r"is not a UUID; make one from it: .*id=uuid5\(NAMESPACE_URL"):
        charge.using(id=id)  # type: ignore[arg-type]


def test_an_id_is_that_of_one_job() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def charge(invoice: int) -> None: ...

        mine = charge.using(id=uuid4())
        calls: list[Callable[[], Any]] = [
            lambda: mine.enqueue_many([(1,), (2,)]),
            lambda: charge.enqueue_many([mine.call(1), (2,), mine.using(priority=3).call(3)]),
        ]
        async with app.open():
            for call in calls:
                with pytest.raises(DeclarationError, match="is for one job"):
                    await call()
            assert await store_of(app).jobs(ALL) == []
            assert (await (await mine.enqueue(1)).status()).state is JobState.WAITING

    run_virtual(main)
