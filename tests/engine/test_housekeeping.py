"""The housekeeper in virtual time: what goes wrong with one of its chores is no reason to leave another one undone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from headgate import JobState
from headgate.clock import SECOND, to_datetime
from headgate.engine import housekeeper
from headgate.engine.housekeeper import PARTS, PAUSE, PRUNE_EVERY, PRUNED_AT_ONCE
from headgate.errors import StorageUnavailable
from headgate.jobs.event import NodeLost, StorageFailed
from headgate.jobs.identity import EPOCH
from headgate.jobs.limit_sets import DeclaredLimitSets
from headgate.storage.records import Claim, Dropped, FreeSlots
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on, store_of, writer_of
from tests.until import result_within


class UnexpirableStorage(MemoryStorage):
    """A memory store that cannot end what has expired."""

    async def expire(self, count: int = 100) -> Sequence[Dropped]:
        raise StorageUnavailable("lock timeout")


def test_a_job_of_a_node_that_does_not_exist_runs_within_a_minute() -> None:
    """The fault: a job stayed running for ever whose node was not stored any more, as nobody watched its lease."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock)
        lost: list[Any] = []
        app.subscribe(lost.append, NodeLost)

        @app.task
        async def work() -> str:
            return "done"

        async with app.open():
            job = await work.enqueue()
            await store.join("ghost", "ghost")
            writer = writer_of(store)
            ((limit_set,),) = writer.execute("SELECT limit_set FROM job")
            limit_sets = DeclaredLimitSets({(work.name, "default"): limit_set})
            claimed = await store.claim(
                Claim("ghost", {"default": FreeSlots(1, True)}, {}, frozenset([work.name]), limit_sets)
            )
            assert [each.id for each in claimed.jobs] == [job.id]
            writer.execute("DELETE FROM node")
        async with app:
            assert await result_within(job, 60) == "done"
        assert [(event.node, event.returned) for event in lost] == [("ghost", 1)]

    run_virtual(main)


def test_old_history_is_deleted_although_no_job_can_expire() -> None:
    """The fault: one late job that was locked for long kept all that was old, for as long."""

    async def main(clock: VirtualClock) -> None:
        app = app_on(UnexpirableStorage(clock), clock=clock, retention=5)
        failures: list[Any] = []
        app.subscribe(failures.append, StorageFailed)

        @app.task
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
            await result_within(job, 5)
            await work.using(delay=3600, expires_at=to_datetime(clock.now() + SECOND)).enqueue()
            await asyncio.sleep(65)
            assert await store_of(app).job(job.id) is None
        assert {failure.doing for failure in failures} == {"expiring jobs"}

    run_virtual(main)


def test_all_ended_jobs_are_read_by_a_round_of_each_day_and_the_last_ones_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On PostgreSQL the others find jobs by the times of their ids, and leave out those that ended long after these.

    The fault: the round of each day read them in one statement, so where a hundred times as many jobs were kept for
    longer, PostgreSQL ended it each time, and SQLite's writers waited for it.
    """

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        rounds: list[list[tuple[int, int]]] = [[]]

        async def prune(before: int, *_: object, since: int, until: int) -> int:
            rounds[-1].append((since, until))
            if until == before:
                rounds.append([])
            return 0

        monkeypatch.setattr(store, "prune", prune)
        monkeypatch.setattr(housekeeper, "PRUNE_OVERLAP", 10 * PRUNE_EVERY * SECOND)
        async with app_on(store, clock=clock):
            await asyncio.sleep(40 * PRUNE_EVERY + 5)
        assert rounds.pop() == []
        assert len(rounds) == 40
        assert [len(parts) for parts in rounds if parts[0][0] == 0] in ([PARTS] * 4, [PARTS] * 5)
        for parts in rounds:
            assert len(parts) == (1 if parts[0][0] else PARTS)
            assert all(before[1] == after[0] for before, after in pairwise(parts)), "nothing is left out"
            assert all(until - since <= (clock.now() - EPOCH) // PARTS for since, until in parts[1:])

    run_virtual(main)


def test_jobs_expire_while_a_backlog_of_old_jobs_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: until all that was old was deleted, which can take an hour, no job expired and no follower started."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        pruned: list[int] = []

        async def prune(*_: object, **__: object) -> int:
            pruned.append(PRUNED_AT_ONCE)
            return PRUNED_AT_ONCE

        monkeypatch.setattr(store, "prune", prune)
        app = app_on(store, clock=clock)

        @app.task
        async def work() -> None: ...

        async with app:
            await asyncio.sleep(PRUNE_EVERY + 5)
            assert pruned
            job = await work.using(delay=3600, expires_at=to_datetime(clock.now() + SECOND)).enqueue()
            await asyncio.sleep(5)
            assert (await job.status()).state is JobState.FAILED

    run_virtual(main)


def test_a_round_of_pruning_ends_while_jobs_end_that_are_not_kept() -> None:
    """The fault: each step found the jobs that had ended since the last one, so no other row was deleted any more."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)
        app = app_on(store, clock=clock, retention=5)

        @app.task
        async def work() -> None: ...

        @app.task(retention=0)
        async def forget() -> None: ...

        async def forget_many() -> None:
            while True:
                await forget.enqueue()
                await asyncio.sleep(PAUSE / 2)

        async with app:
            forgetting = asyncio.create_task(forget_many())
            # After the first round has begun.
            await asyncio.sleep(PRUNE_EVERY + 5)
            job = await work.enqueue()
            await result_within(job, 5)
            await asyncio.sleep(2 * PRUNE_EVERY)
            assert await store.job(job.id) is None
            forgetting.cancel()

    run_virtual(main)


def test_old_rows_are_deleted_although_those_of_one_kind_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: as long as the server ended the statement that looks for old jobs, all other old rows stayed, too."""

    async def main(clock: VirtualClock) -> None:
        store = MemoryStorage(clock)

        async def prune(*_: object, **__: object) -> int:
            raise StorageUnavailable("statement timeout")

        monkeypatch.setattr(store, "prune", prune)
        app = app_on(store, clock=clock, retention=5)
        failures: list[Any] = []
        app.subscribe(failures.append, StorageFailed)

        @app.task(retention=0)
        async def work() -> None: ...

        async with app:
            job = await work.enqueue()
            await result_within(job, 5)
            await asyncio.sleep(65)
            assert await store.job(job.id) is None
        assert {failure.doing for failure in failures} == {"housekeeping"}

    run_virtual(main)
