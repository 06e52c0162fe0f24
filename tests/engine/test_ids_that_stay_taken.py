"""A producer whose new ids are always taken gets an error: it does not try for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headgate import Batch, Every, Headgate, StorageUnavailable, Task, batch, chain
from headgate.jobs.identity import NEW_IDS_TRIES, IdTaken
from tests.internals import store_of

Enqueue = Callable[[Headgate, Task[[int], None], Batch], Awaitable[object]]


async def by_itself(app: Headgate, send: Task[[int], None], grown: Batch) -> object:
    return await send.enqueue(1)


async def in_a_chain(app: Headgate, send: Task[[int], None], grown: Batch) -> object:
    return await chain(send.call(1), send.call(2)).enqueue()


async def in_a_batch(app: Headgate, send: Task[[int], None], grown: Batch) -> object:
    return await batch([send.call(1), send.call(2)]).enqueue()


async def in_a_batch_that_grows(app: Headgate, send: Task[[int], None], grown: Batch) -> object:
    return await grown.add([send.call(1)])


async def of_a_schedule(app: Headgate, send: Task[[int], None], grown: Batch) -> object:
    return await app.admin.schedules.trigger("hourly")


@pytest.mark.parametrize("enqueue", [by_itself, in_a_chain, in_a_batch, in_a_batch_that_grows, of_a_schedule])
async def test_enqueueing_ends_with_an_error(enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Headgate("memory://")
    tries = 0

    @app.task
    async def send(number: int) -> None: ...

    async def refuse(*jobs: object) -> None:
        nonlocal tries
        tries += 1
        raise IdTaken(["0123456789abc"])

    async with app:
        await send.schedule("hourly", Every(hours=1)).enqueue(1)
        grown = await batch([send.call(0)]).enqueue()
        for verb in ("add", "fire"):
            monkeypatch.setattr(store_of(app), verb, refuse)
        with pytest.raises(StorageUnavailable, match="another producer has just stored a job"):
            await enqueue(app, send, grown)
    assert tries == NEW_IDS_TRIES + 1
