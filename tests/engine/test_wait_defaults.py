"""Defaults of `on_limit` and `max_wait`: of a limit, else of the queue of the job, else of the app."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Headgate, JobState, StrictRate
from headgate.errors import DeclarationError
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import registry_of


async def state_of_second(app: Headgate, queue: str, after: float = 0, **limit: Any) -> JobState:
    """Return the state of a job that finds its limit closed, so many seconds later."""
    name = f"work-{len(app.tasks)}"

    @app.task(name=name, queue=queue, limits=[StrictRate("1/h", **limit)])
    async def work() -> None: ...

    async with app:
        await (await work.enqueue()).result()
        second = await work.enqueue()
        await asyncio.sleep(after + 1)
        return (await second.status()).state


@pytest.mark.parametrize(
    ("of_app", "of_queue", "of_limit", "expected"),
    [
        ({}, {}, {}, JobState.WAITING),
        ({"on_limit": "discard"}, {}, {}, JobState.FAILED),
        ({"on_limit": "discard"}, {"on_limit": "cancel"}, {}, JobState.CANCELLED),
        ({"on_limit": "discard"}, {"on_limit": "wait"}, {}, JobState.WAITING),
        ({"on_limit": "discard"}, {"on_limit": "cancel"}, {"on_limit": "wait"}, JobState.WAITING),
        ({"max_wait": 60}, {}, {}, JobState.FAILED),
        ({"max_wait": 60}, {}, {"on_limit": "wait"}, JobState.WAITING),
        ({"max_wait": 60}, {"max_wait": "2h"}, {}, JobState.WAITING),
        ({"on_limit": "discard"}, {}, {"max_wait": 7200}, JobState.WAITING),
    ],
)
def test_the_first_level_that_sets_either_option_sets_both(
    of_app: dict[str, Any], of_queue: dict[str, Any], of_limit: dict[str, Any], expected: JobState
) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, **of_app)
        app.queue("other", **of_queue)
        assert await state_of_second(app, "other", 300, **of_limit) is expected

    run_virtual(main)


def test_the_queue_of_the_job_counts_and_not_that_of_its_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.queue("polling", on_limit="discard")

        @app.task(limits=[StrictRate("1/h", name="api")])
        async def work() -> None: ...

        async with app:
            await (await work.enqueue()).result()
            waits, discarded = await work.enqueue(), await work.using(queue="polling").enqueue()
            await asyncio.sleep(1)
            assert (await waits.status()).state is JobState.WAITING
            assert (await discarded.status()).state is JobState.FAILED

    run_virtual(main)


def test_jobs_wait_for_the_concurrency_and_the_order_of_their_queue_whatever_the_default_says() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, on_limit="discard")
        app.queue("one", global_concurrency=1, fair_by="{tenant}")

        @app.task(queue="one")
        async def work(tenant: str) -> None:
            await asyncio.sleep(60)

        async with app:
            await work.enqueue_many([("acme",), ("globex",)])
            await asyncio.sleep(130)
            (counts,) = await app.admin.counts()
            assert counts.succeeded == 2

    run_virtual(main)


def test_a_default_applies_to_permits() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, on_limit="cancel")

        @app.task(limits=[Concurrency(1)])
        async def work() -> None:
            await asyncio.sleep(60)

        async with app:
            await work.enqueue()
            await asyncio.sleep(1)
            second = await work.enqueue()
            await asyncio.sleep(1)
            assert (await second.status()).state is JobState.CANCELLED

    run_virtual(main)


def test_a_changed_default_is_another_limit_set_so_that_waiting_jobs_get_it() -> None:
    def limit_set(**options: Any) -> str:
        app = Headgate("memory://", **options)

        @app.task(limits=[StrictRate("1/h")])
        async def work() -> None: ...

        return registry_of(app).limit_set_name("work", "default")

    assert limit_set() == limit_set(on_limit="wait")
    assert len({limit_set(), limit_set(max_wait=60), limit_set(max_wait=61), limit_set(on_limit="discard")}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_limit": "drop"}, "the app: on_limit='drop' must be one of 'wait', 'discard', 'cancel'"),
        ({"on_limit": "discard", "max_wait": 5}, "does not wait"),
        ({"max_wait": 0}, "must be above 0; use on_limit='discard'"),
    ],
)
def test_defaults_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Headgate("memory://", **options)
    with pytest.raises(DeclarationError, match=message.replace("the app", "queue 'other'")):
        Headgate("memory://").queue("other", **options)


def test_a_default_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_MAX_WAIT", "90s")
    app = Headgate("memory://")

    @app.task(limits=[StrictRate("1/h")])
    async def work() -> None: ...

    (bound,) = registry_of(app).limit_set(work, "default").limits
    assert bound.wait_terms.describe() == "waits at most 90 s, by the app"
