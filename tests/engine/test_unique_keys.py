"""Unique keys as an app uses them, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headgate import DeclarationError, DuplicateJob, Headgate, batch, chain
from headgate.jobs.event import Event, JobEnqueued, JobReplaced
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on


def test_handles_and_events_show_whether_a_job_was_stored_kept_or_replaced() -> None:
    async def main(clock: VirtualClock) -> None:
        app = app_on(MemoryStorage(clock), clock=clock)

        @app.task
        async def sync(page: int) -> int:
            return page

        received: list[Event] = []
        app.subscribe(received.append, JobEnqueued, JobReplaced)
        async with app.open():
            unique = sync.using(unique_key="acme")
            first = await unique.enqueue(1)
            assert await unique.enqueue(2) == first
            assert await unique.using(on_conflict="replace", delay=60).enqueue(3) == first
            with pytest.raises(DuplicateJob) as caught:
                await unique.using(on_conflict="raise").enqueue(4)
            assert caught.value.job_id == first.id
            many = await sync.using(unique_key="globex", on_conflict="replace").enqueue_many([(5,), (6,), (7,)])
            assert len(set(many)) == 1
            await asyncio.sleep(1)
        assert [(type(event), event.job_id) for event in received if isinstance(event, JobEnqueued | JobReplaced)] == [
            (JobEnqueued, first.id),
            (JobReplaced, first.id),
            (JobEnqueued, many[0].id),
            (JobReplaced, many[0].id),
            (JobReplaced, many[0].id),
        ]
        async with app:
            assert [await first.result(), await many[0].result()] == [3, 7]

    run_virtual(main)


@pytest.mark.parametrize("key", ["", "x" * 201, "a\x00b", "\ud800", 3])
def test_a_key_that_cannot_be_kept_is_refused_at_once(key: object) -> None:
    app = Headgate("memory://")

    @app.task
    async def sync() -> None: ...

    with pytest.raises(DeclarationError, match="unique_key"):
        sync.using(unique_key=key)  # type: ignore[arg-type]


def test_on_conflict_needs_a_key_and_is_one_of_four_values() -> None:
    app = Headgate("memory://")

    @app.task
    async def sync() -> None: ...

    with pytest.raises(DeclarationError, match="unique_key"):
        sync.using(on_conflict="raise")
    with pytest.raises(DeclarationError, match="replace"):
        sync.using(unique_key="k", on_conflict="drop")  # type: ignore[arg-type]
    assert sync.using(unique_key="x" * 200).using(on_conflict="replace")


def test_a_call_of_a_chain_or_a_batch_has_neither_a_key_nor_a_connection() -> None:
    app = Headgate("memory://")

    @app.task
    async def sync() -> None: ...

    with pytest.raises(DeclarationError, match="unique_key"):
        chain(sync.call(), sync.using(unique_key="k").call())
    with pytest.raises(DeclarationError, match="connection"):
        batch([sync.using(connection=object()).call()])
