"""What type checkers see of enqueueing, chains, limits, schedules and operating: never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, assert_type
from uuid import uuid4

from headgate import (
    Batch,
    Chain,
    Concurrency,
    Cron,
    DynamicWindow,
    Every,
    FixedWindow,
    Headgate,
    Job,
    JobStatus,
    Limiter,
    Mutex,
    RateLimit,
    RetryPolicy,
    Schedule,
    StrictRate,
    Task,
    batch,
    chain,
)
from headgate.client.handles import SyncJob
from headgate.tasks.call import Call

app = Headgate("memory://", concurrency=5)


@app.task(limits=[StrictRate("15/m", key="{tenant}"), "shared"], retry=RetryPolicy(retries=3), timeout=timedelta(30))
async def sync(tenant: str, page: int = 1, *, full: bool = False) -> float:
    return page / 2


@app.task
def plain(tenant: str) -> str:
    return tenant


async def enqueueing() -> None:
    assert_type(await sync.enqueue("acme", 2, full=True), Job[float])
    assert_type(await sync.using(delay=5, queue="mail").enqueue("acme"), Job[float])
    assert_type(await plain.using(unique_key="a", on_conflict="replace").enqueue("acme"), Job[str])
    assert_type(sync.call("acme"), Call[float])
    assert_type(plain.sync.enqueue("acme").result(), str)
    assert_type(await (await plain.enqueue("acme")).status(), JobStatus)

    sync("acme")  # type: ignore[operator]
    sync.delay("acme")  # type: ignore[attr-defined]
    sync.apply_async("acme")  # type: ignore[attr-defined]
    plain.sync.send("acme")  # type: ignore[attr-defined]
    await (await sync.enqueue("acme")).result(timeout=timedelta(minutes=5))
    await sync.enqueue()  # type: ignore[call-arg]
    await sync.enqueue(7)  # type: ignore[arg-type]
    await sync.enqueue("acme", pge=2)  # type: ignore[call-arg]
    await sync.enqueue("acme", 2, True)  # type: ignore[call-arg]
    sync.using(dely=5)  # type: ignore[call-arg]
    sync.using(delay="5m", timeout="90s")
    sync.using(delay=[5])  # type: ignore[arg-type]
    sync.using(id=uuid4(), unique_key="a", unique_for="5m", unique_while=("waiting",))
    sync.using(unique_key="a", debounce=timedelta(seconds=5), debounce_max=60)
    sync.using(id=17)  # type: ignore[arg-type]
    sync.using(on_conflict="merge")  # type: ignore[arg-type]
    plain.sync.enqueue(b"acme")  # type: ignore[arg-type]
    await plain.enqueue_many([sync.call("acme")])  # type: ignore[list-item]


async def flows() -> None:
    ended = await chain(plain.call("a"), sync.call("b")).enqueue()
    assert_type(ended, Chain[float])
    assert_type(await ended.result(), float)
    assert_type(chain(sync.call("b"), batch([sync.call("c")]), plain.call("a")).sync.enqueue().result(), str)
    assert_type(await (await chain(sync.call("b"), chain(plain.call("a"))).enqueue()).result(), str)
    assert_type(await chain(sync.call("b"), batch([sync.call("c")])).enqueue(), Chain[Any])
    assert_type(await batch([plain.call("a")]).then(sync.call("b")).enqueue(), Batch)
    graph = sync.call("b").after(plain.call("a"), chain(plain.call("c")), batch([sync.call("d")]), ended)
    assert_type(graph, Call[float])

    sync.call("b").after(plain)  # type: ignore[arg-type]
    chain(plain)  # type: ignore[call-overload]
    batch(plain.call("a"))  # type: ignore[arg-type]
    batch([plain.call("a")]).then(sync.call("b"), on="any")  # type: ignore[arg-type]


async def schedules() -> None:
    assert_type(await plain.schedule("acme", Every(minutes=5), max_runs=3).enqueue("acme"), Schedule[str])

    Every("5m")
    Every(timedelta(minutes=5))
    Every(5)  # type: ignore[arg-type]
    Every(fortnights=1)  # type: ignore[call-arg]
    Cron(6)  # type: ignore[arg-type]
    plain.schedule("acme", "0 6 * * *")  # type: ignore[arg-type]
    await plain.schedule("acme", Every(minutes=5)).enqueue(5)  # type: ignore[arg-type]
    plain.schedule("acme", Every(minutes=5), overlap="never")  # type: ignore[arg-type]


async def limits() -> None:
    assert_type(Limiter(RateLimit(100, per=60)), Limiter)
    FixedWindow("15/m", on_limit="discard", max_wait=60)
    Mutex("orders:{order}", hold="until_final")
    DynamicWindow(per=60, capacity=100, max_count=10)

    StrictRate(15, pre=60)  # type: ignore[call-arg]
    StrictRate("15/m", on_limit="drop")  # type: ignore[arg-type]
    Concurrency(2, hold="for_ever")  # type: ignore[arg-type]
    app.task(limits=StrictRate("15/m"))  # type: ignore[call-overload]


async def operating() -> None:
    assert_type(await app.admin.status("id"), JobStatus)
    assert_type(await app.admin.limits.pause("shared"), None)
    assert_type(app.tasks, Mapping[str, Task[Any, Any]])

    await app.admin.cancel(5)  # type: ignore[arg-type]
    await app.admin.limits.set("shared", count="many")  # type: ignore[call-arg]


_: Sequence[SyncJob[str]] = plain.sync.enqueue_many([("acme",)])


def synchronous() -> None:
    with app.sync:
        plain.sync.enqueue("acme").result(timeout="5m")
    with app as running, app.open() as opened:
        assert_type(running, Headgate)
        assert_type(opened, Headgate)
    assert_type(app.sync.admin.status("id"), JobStatus)
    assert_type(app.sync.admin.limits.pause("shared", key="acme"), None)
    app.sync.admin.cancel(5)  # type: ignore[arg-type]
    app.sync.admin.by("ada").limits.set("shared", count="many")  # type: ignore[call-arg]
