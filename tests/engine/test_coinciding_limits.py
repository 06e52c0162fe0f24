"""Limits of one job that come out as one bucket: the job uses it once, as the strictest of them says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, DeclarationError, Headgate, Mutex, PayloadError, batch
from headgate.clock import SystemClock
from headgate.jobs.terms import PermitTerms
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import app_on, store_of
from tests.until import patient, result_within


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Headgate:
    if request.param == "memory":
        return app_on(MemoryStorage(SystemClock()))
    if request.param == "sqlite":
        return Headgate(f"sqlite:///{tmp_path / 'jobs.db'}")
    schema = request.getfixturevalue("postgres_schema")
    return Headgate(request.getfixturevalue("postgres_url"), schema=schema)


class Occupancy:
    """Who is inside at once."""

    def __init__(self) -> None:
        self.owners: list[str] = []
        self.met: list[frozenset[str]] = []

    async def stay(self, owner: str) -> None:
        self.owners.append(owner)
        self.met.append(frozenset(self.owners))
        await asyncio.sleep(0.05)
        self.owners.remove(owner)


async def test_two_mutexes_with_the_same_key_admit_one_owner_at_a_time(app: Headgate) -> None:
    inside = Occupancy()

    @app.task(limits=[Mutex("orders:{a}", owner="{owner}"), Mutex("orders:{b}", owner="{owner}")])
    async def merge(a: int, b: int, owner: str) -> None:
        await inside.stay(owner)

    async with app:
        jobs = [await merge.enqueue(1, 1, f"owner {number % 3}") for number in range(9)]
        for job in jobs:
            await result_within(job)
        assert await store_of(app).check() == []
    assert max(len(owners) for owners in inside.met) == 1


async def test_two_owners_of_one_key_are_refused_when_a_call_is_enqueued(app: Headgate) -> None:
    @app.task(limits=[Mutex("orders:{a}", owner="{first}"), Mutex("orders:{b}", owner="{second}")])
    async def merge(a: int, b: int, first: str, second: str) -> None: ...

    async with app:
        await result_within(await merge.enqueue(1, 2, "x", "y"))
        await result_within(await merge.enqueue(1, 1, "x", "x"))
        with pytest.raises(
            PayloadError, match=r"'mutex'.*the same key, 'orders:1', but two owners, 'x' and 'y'.*holds a permit once"
        ):
            await merge.enqueue(1, 1, "x", "y")
        assert len(await app.admin.jobs()) == 2


async def test_mutexes_of_a_task_and_its_queue_are_one_if_their_keys_are_equal(app: Headgate) -> None:
    inside = Occupancy()
    app.queue("orders", limits=[Mutex("orders:{order}")])

    @app.task(queue="orders", limits=[Mutex("orders:{order}", owner="{owner}")])
    async def ship(order: int, owner: str) -> None:
        await inside.stay(owner)

    async with app:
        jobs = [await ship.enqueue(1, "one") for _ in range(4)]
        for job in jobs:
            await result_within(job)
        assert await store_of(app).check() == []
    # The queue's mutex is for one job at a time, whatever the owner.
    assert max(len(owners) for owners in inside.met) == 1
    assert len(inside.met) == 4
    assert inside.met == [frozenset({"one"})] * 4


async def test_a_batch_that_holds_what_its_jobs_use_twice_holds_it_once(app: Headgate) -> None:
    ran: list[int] = []

    @app.task(limits=[Mutex("orders:{a}"), Mutex("orders:{b}")])
    async def merge(a: int, b: int) -> None:
        ran.append(a)

    async with app:
        together = await batch([merge.call(1, 1), merge.call(1, 1)], limits=[Mutex("orders:1")]).enqueue()
        await together.wait(timeout=patient(10))
        await result_within(await merge.enqueue(1, 1))
        assert await store_of(app).check() == []
    assert ran == [1, 1, 1]


def test_limits_that_always_have_one_key_and_two_owners_are_refused() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match=r"of task 'ship' has the key 'orders:\{order\}' twice.*same owner="):

        @app.task(limits=[Mutex("orders:{order}", owner="{x}"), Mutex("orders:{order}", owner="{y}")])
        async def ship(order: int, x: str, y: str) -> None: ...

    app.queue("orders", limits=[Mutex("orders:{order}", owner="{x}")])
    with pytest.raises(DeclarationError, match=r"twice, with the owners '\{y\}' and '\{x\}'"):

        @app.task(queue="orders", limits=[Mutex("orders:{order}", owner="{y}")])
        async def send(order: int, x: str, y: str) -> None: ...


@pytest.mark.parametrize(
    ("limits", "costs", "holdings"),
    [
        ([Mutex("a"), Mutex("a")], None, [PermitTerms()]),
        ([Mutex("a"), Mutex("{key}"), Mutex("b")], None, [PermitTerms(), PermitTerms()]),
        ([Mutex("a"), Mutex("a", hold="until_final")], None, [PermitTerms("until_final")]),
        ([Mutex("a", hold="until_success"), Mutex("a", hold="until_final")], None, [PermitTerms("until_success")]),
        ([Mutex("a", owner="{key}"), Mutex("a")], None, [PermitTerms()]),
        ([Mutex("{key}", owner="{key}"), Mutex("a", owner="a")], None, [PermitTerms("running", "a")]),
        ([Mutex("a"), Mutex("a"), Concurrency(5, cost=3)], (1, 3), [PermitTerms(), PermitTerms()]),
    ],
)
def test_the_strictest_of_coinciding_limits_applies_to_a_job(
    limits: Any, costs: tuple[int, ...] | None, holdings: list[PermitTerms]
) -> None:
    app = Headgate("memory://")

    @app.task(limits=limits)
    async def work(key: str) -> None: ...

    asked = work.limit_set.ask({"key": "a"}, {}, lambda _limit, _reason: None)
    assert len(asked.buckets) == len(set(asked.buckets)) == len(holdings)
    assert asked.costs == costs
    assert asked.terms is not None
    assert list(asked.terms.holds) == holdings


def test_the_shortest_max_wait_of_coinciding_limits_applies_to_a_job() -> None:
    app = Headgate("memory://")

    @app.task(limits=[Mutex("a", max_wait=60), Mutex("a", on_limit="cancel")])
    async def work() -> None: ...

    terms = work.limit_set.ask({}, {}, lambda _limit, _reason: None).terms
    assert terms is not None
    assert (terms.patience, terms.cancels) == (0, True)
