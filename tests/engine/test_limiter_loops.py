"""A limiter with a store of its own outlives event loops: each that ends is replaced by the loop of the next caller."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from uuid import uuid4

import pytest
import redis

from headgate import Headgate, LeaseLost, Limiter, Mutex, StrictRate
from headgate.errors import GateClosed, HeadgateError, StorageUnavailable
from headgate.limits.standalone.limiter import open_store
from tests.durability.threads import InThread
from tests.engine.conftest import MakeApp
from tests.forked import answer_of_forked_child
from tests.internals import client_of
from tests.until import becomes, patient, until_now


def limiter_at(url: str, rate: str = "5/h") -> Limiter:
    """A limiter with a name that no other test has."""
    return Limiter(StrictRate(rate, name=f"loops-{uuid4().hex}"), store=url)


def test_a_second_asyncio_run_continues_with_the_same_budget(redis_url: str) -> None:
    """The fault: the second raised an error of the first loop, which was closed."""
    limiter = limiter_at(redis_url, "3/h")

    async def main() -> list[bool]:
        return [bool(await limiter.try_acquire("acme")) for _ in range(2)]

    assert asyncio.run(main()) == [True, True]
    assert asyncio.run(main()) == [True, False]
    assert not limiter.sync.try_acquire("acme")
    assert limiter.sync.try_acquire("globex")
    limiter.sync.close()
    with pytest.raises(GateClosed):
        asyncio.run(main())


def test_a_limiter_whose_thread_could_not_be_started_starts_it_at_the_next_call(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the next call waited for ever, for a loop that did not run."""
    limiter = limiter_at(redis_url)

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            limiter.sync.try_acquire("acme")
    InThread(lambda: limiter.sync.acquire("acme")).end(10)
    limiter.sync.close()


def test_the_connection_of_a_loop_ends_with_it_and_those_after_it_share_one(redis_url: str) -> None:
    limiter = limiter_at(redis_url)
    with redis.Redis.from_url(redis_url) as server:
        before = {client["id"] for client in server.client_list()}

        async def new_ones() -> int:
            return len({client["id"] for client in server.client_list()} - before)

        async def main() -> None:
            await limiter.try_acquire("acme")
            # The server notices a little later that the connection of the loop before has ended.
            await becomes(new_ones, 1)

        for _ in range(5):
            asyncio.run(main())
        limiter.sync.close()


def test_views_with_loops_of_their_own_share_the_budget_whichever_ends_first(redis_url: str) -> None:
    """Flask runs each `async def` view on a loop of its own, in a thread of the server."""
    limiter = limiter_at(redis_url, "100/h")

    async def view() -> int:
        return sum([bool(await limiter.acquire("acme", timeout=0)) for _ in range(5)])

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: asyncio.run(view()), range(30)))
    granted = sum(taken)
    # A start whose answer was lost with the first loop is charged: one for each of the seven other threads at most.
    assert 93 <= granted <= 100
    limiter.sync.close()


@pytest.mark.parametrize("is_thread", [False, True], ids=["loop", "thread"])
def test_a_caller_that_waits_on_a_loop_that_ends_waits_on_another(redis_url: str, is_thread: bool) -> None:
    limiter = limiter_at(redis_url, "1/h")
    waiting, ends = threading.Event(), threading.Event()

    async def first() -> None:
        assert await limiter.try_acquire("acme")
        waiting.set()
        await asyncio.to_thread(ends.wait)

    async def second() -> bool:
        return bool(await limiter.acquire("acme"))

    with ThreadPoolExecutor(2) as threads:
        home = threads.submit(asyncio.run, first())
        assert waiting.wait(patient(10))
        call: Callable[[], bool] = (
            (lambda: bool(limiter.sync.acquire("acme"))) if is_thread else (lambda: asyncio.run(second()))
        )
        waiter = threads.submit(call)
        # It waits on the first loop when its line is there.
        budget: Any = limiter._budget
        until_now(lambda: budget.home._home.calls)
        ends.set()
        home.result(patient(10))
        assert not waiter.done()
        limiter.sync.reset("acme")
        assert waiter.result(patient(10))
    limiter.sync.close()


def test_a_thread_gives_its_lease_back_after_the_loop_that_renewed_it_has_ended(redis_url: str) -> None:
    limiter = Limiter(Mutex(uuid4().hex), store=redis_url)
    block = limiter.sync.hold("acme")

    async def main() -> None:
        await limiter.snapshot("acme")
        await asyncio.to_thread(block.__enter__)

    asyncio.run(main())
    with pytest.raises(LeaseLost):
        block.__exit__(None, None, None)
    with limiter.sync.hold("acme", timeout=10):
        pass
    limiter.sync.close()


def test_a_loop_that_was_closed_without_its_generators_is_replaced(redis_url: str) -> None:
    limiter = limiter_at(redis_url)
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(limiter.try_acquire("acme"))
    # Between two runs of one loop a thread does not wait for it.
    assert limiter.sync.try_acquire("acme")
    assert loop.run_until_complete(limiter.try_acquire("acme"))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert asyncio.run(_once(limiter))
    limiter.sync.close()


def test_a_store_given_by_the_caller_stays_with_its_loop(redis_url: str) -> None:
    store = open_store(redis_url, None)
    limiter = Limiter(StrictRate("5/h", name=uuid4().hex), store=store)

    async def main() -> None:
        await limiter.try_acquire("acme")
        await store.close()

    asyncio.run(main())
    with pytest.raises(HeadgateError, match="has ended; make another"):
        asyncio.run(_once(limiter))


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("is_thread", [False, True], ids=["loop", "thread"])
def test_a_limiter_can_be_closed_after_the_loop_of_its_own_store(
    redis_url: str, *, is_thread: bool, is_used: bool
) -> None:
    """The fault: each call of `close` raised that another limiter is to be made."""
    store = open_store(redis_url, None)
    limiter = Limiter(StrictRate("5/h", name=uuid4().hex), store=store)

    async def main() -> None:
        await limiter.try_acquire("acme")
        await store.close()

    asyncio.run(main())
    if is_used:
        with pytest.raises(HeadgateError, match="has ended; make another"):
            asyncio.run(_once(limiter))
    for _ in range(2):
        if is_thread:
            limiter.sync.close()
        else:
            asyncio.run(limiter.close())
    with pytest.raises(GateClosed):
        asyncio.run(_once(limiter))


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="new in Python 3.12")
async def test_callers_wait_on_a_loop_that_starts_its_tasks_at_once(redis_url: str) -> None:
    """The fault: the line of a key ended before its first caller was in it, and that waited for ever."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009  # unknown to the types of 3.11
    limiter = limiter_at(redis_url)
    async with asyncio.timeout(patient(5)):
        assert [bool(each) for each in await asyncio.gather(*[limiter.acquire("acme") for _ in range(3)])] == [True] * 3
    await limiter.close()
    loop.set_task_factory(None)


async def _once(limiter: Limiter) -> bool:
    return bool(await limiter.try_acquire("acme"))


async def test_sync_on_the_loop_that_runs_the_limiter_is_refused_with_what_to_write(redis_url: str) -> None:
    limiter = limiter_at(redis_url)
    assert await limiter.try_acquire("acme")
    with pytest.raises(HeadgateError, match=r"write `await`, without \.sync, as in `await limiter\.acquire"):
        limiter.sync.try_acquire("acme")
    await limiter.close()


def test_a_thread_for_which_asyncio_names_the_loop_of_the_limiter_uses_it_as_others_do(redis_url: str) -> None:
    """The fault: under gevent, whose threads are one to asyncio, each call but the first was refused."""
    limiter = limiter_at(redis_url)
    assert limiter.sync.try_acquire("acme")
    asyncio._set_running_loop(cast(Any, limiter)._budget.home._home.loop)
    try:
        assert limiter.sync.try_acquire("acme")
    finally:
        asyncio._set_running_loop(None)
    limiter.sync.close()


async def test_a_limiter_whose_close_was_refused_on_its_loop_can_still_be_used_and_closed(redis_url: str) -> None:
    """The fault: it counted as closed, so `await limiter.close()` left its connection open."""
    limiter = limiter_at(redis_url)
    assert await limiter.try_acquire("acme")
    with pytest.raises(HeadgateError, match=r"write `await`, without \.sync"):
        limiter.sync.close()
    assert await limiter.try_acquire("acme")
    await limiter.close()
    with pytest.raises(GateClosed):
        await limiter.try_acquire("acme")


def test_of_two_threads_that_come_first_after_a_fork_one_makes_the_home(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: the other one dropped the home of the first, with a start that was waited for on it."""
    parent, is_asked, is_used = os.getpid(), threading.Event(), threading.Event()

    def child() -> int:
        if threading.current_thread().name.startswith("late") and not is_asked.is_set():
            is_asked.set()
            is_used.wait(patient(5))
        return parent + 1

    limiter = limiter_at(redis_url)
    home = cast(Any, limiter)._budget.home
    monkeypatch.setattr(os, "getpid", child)
    with ThreadPoolExecutor(1, "late") as late:
        second = late.submit(limiter.sync.try_acquire, "acme")
        assert is_asked.wait(patient(5))
        assert limiter.sync.try_acquire("acme")
        first = home._home
        is_used.set()
        assert second.result(patient(5))
    assert home._home is first
    limiter.sync.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_limiter_that_was_used_before_a_fork_continues_in_both_processes(redis_url: str) -> None:
    limiter = limiter_at(redis_url, "4/h")
    assert limiter.sync.try_acquire("acme")

    def child() -> str:
        held = (limiter.sync.try_acquire("acme"), asyncio.run(limiter.try_acquire("acme")))
        limiter.sync.close()
        gc.collect()
        return str([bool(each) for each in held])

    assert answer_of_forked_child(child) == "[True, True]"
    assert [bool(limiter.sync.try_acquire("acme")) for _ in range(2)] == [True, False]
    limiter.sync.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_lock_that_its_parent_held(redis_url: str) -> None:
    limiter = limiter_at(redis_url)
    with cast(Any, limiter)._budget.home._lock:
        assert answer_of_forked_child(lambda: str(bool(limiter.sync.try_acquire("acme")))) == "True"
    limiter.sync.close()


# ------------------------------------------------------------------------------------------- limiters of an app


def limited(app: Headgate) -> Headgate:
    app.limit("api", StrictRate("4/h", margin=0))
    return app


def test_threads_use_the_limiter_of_an_app_that_sync_code_opens_again_and_again(make_app: MakeApp) -> None:
    """The fault: the limiter had a loop of its own, to which the store of the app does not belong."""
    app = limited(make_app())
    limiter = app.limiter("api")
    for _ in range(2):
        with app.open(migrate=True):
            assert limiter.sync.try_acquire()
    with app.open(), ThreadPoolExecutor(4) as pool:
        assert sorted(bool(each) for each in pool.map(lambda _: limiter.sync.try_acquire(), range(4))) == [
            *[False] * 2,
            *[True] * 2,
        ]


def test_a_limiter_that_a_thread_has_used_first_serves_the_loops_on_which_its_app_is_opened(make_app: MakeApp) -> None:
    app = limited(make_app())
    limiter = app.limiter("api")

    async def main() -> list[bool]:
        async with app.open(migrate=True):
            in_thread = await asyncio.to_thread(limiter.sync.try_acquire)
            with pytest.raises(HeadgateError, match="in a coroutine write `await`"):
                limiter.sync.try_acquire()
            return [bool(in_thread), bool(await limiter.try_acquire())]

    assert asyncio.run(main()) == [True, True]
    assert asyncio.run(main()) == [True, True]
    assert asyncio.run(main()) == [False, False]


def test_the_first_call_of_a_thread_opens_the_app_of_a_limiter(make_app: MakeApp) -> None:
    """The fault: it raised that the store is not open, and a middleware let all requests pass until the first job."""
    app = limited(make_app(migrate=True))
    limiter = app.limiter("api")
    for _ in range(2):
        assert limiter.sync.try_acquire()
        app.sync.close()
    limiter.sync.close()
    assert client_of(app).lifecycle.loop is None


async def test_a_limiter_in_redis_is_used_again_when_its_app_is_opened_again(redis_url: str) -> None:
    """The fault: on the same event loop, as in a notebook, its calls raised StorageUnavailable from then on.

    Later it also opened the store while the app was closed, or not open yet: nobody closed that, and no other event
    loop could use it.
    """
    app = Headgate("memory://")
    name = f"loops-{uuid4().hex}"
    app.limit(name, StrictRate("2/h", store=redis_url))
    limiter, taken = app.limiter(name), list[bool]()
    for _ in range(3):
        with pytest.raises(StorageUnavailable, match="not open"):
            await limiter.try_acquire()
        async with app:
            taken.append(bool(await limiter.try_acquire()))
    assert taken == [True, True, False]


def test_a_coroutine_uses_the_limiter_of_an_app_that_is_open_on_another_loop(make_app: MakeApp) -> None:
    app = limited(make_app())

    async def ask(limiter: Limiter) -> bool:
        return bool(await limiter.try_acquire())

    with app.open(migrate=True):
        limiter = app.limiter("api")
        assert [asyncio.run(ask(limiter)) for _ in range(5)] == [*[True] * 4, False]


@pytest.mark.parametrize("is_thread", [False, True], ids=["loop", "thread"])
def test_a_caller_that_waits_on_the_loop_of_an_app_learns_that_it_has_ended(make_app: MakeApp, is_thread: bool) -> None:
    """The fault: a task of another loop got a CancelledError, although nobody had cancelled it."""
    app = limited(make_app())
    limiter = app.limiter("api")
    used, ends = threading.Event(), threading.Event()

    async def opened() -> None:
        async with app.open(migrate=True):
            async with limiter.hold(cost=4):
                used.set()
            await asyncio.to_thread(ends.wait)

    async def wait() -> None:
        await limiter.acquire()

    with ThreadPoolExecutor(2) as threads:
        home = threads.submit(asyncio.run, opened())
        assert used.wait(patient(10))
        waiter: Any = threads.submit(limiter.sync.acquire if is_thread else lambda: asyncio.run(wait()))
        budget: Any = limiter._budget
        until_now(lambda: budget.home._home.calls)
        ends.set()
        home.result(patient(10))
        with pytest.raises(GateClosed, match="make a new one, or open the app again"):
            waiter.result(patient(10))
