"""An app as users declare it: at import time, with the URL of a server that no test may ever reach."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, clock_gettime

from headgate import (
    INJECTED,
    Concurrency,
    Every,
    Headgate,
    JobContext,
    RateLimit,
    RetryPolicy,
    Snooze,
    StrictRate,
    chain,
    current_job,
)

app = Headgate("postgresql://nobody@127.0.0.1:1/production", limits_url="redis://127.0.0.1:1")
seen: list[object] = []
app.limit("outside", RateLimit("10/m"))
outside = app.limiter("outside")


@dataclass
class Order:
    id: int
    lines: list[str]


@app.task
async def greet(name: str, polite: bool = False) -> str:
    seen.append((name, polite))
    return f"dear {name}" if polite else name


@app.task
def where(name: str) -> str:
    seen.append(threading.current_thread().name)
    seen.append("loop" if asyncio._get_running_loop() else "no loop")
    return name


class Session:
    is_open = True


@app.resource
async def session() -> AsyncIterator[Session]:
    opened = Session()
    seen.append("opened")
    yield opened
    opened.is_open = False
    seen.append("closed")


@app.task
async def with_session(session: Session = INJECTED) -> bool:
    return session.is_open


@with_session.on_completed
def told(job: JobContext, result: bool) -> None:
    seen.append(("told", result))


@app.task
async def hang() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        seen.append("ended")


@app.task
async def ship(order: Order) -> int:
    assert isinstance(order, Order)
    return order.id


@app.task(retry=RetryPolicy(retries=2, base=60, jitter=False))
async def flaky(fails: int) -> int:
    attempt = current_job().attempt
    if attempt <= fails:
        raise ConnectionError(f"attempt {attempt}")
    return attempt


@app.task(retry=RetryPolicy(retries=0))
async def broken() -> None:
    raise ValueError("broken")


@app.task(limits=[StrictRate("15/m", key="{tenant}", margin=0)])
async def sync_tenant(tenant: str) -> None:
    seen.append(tenant)


@app.task(limits=[StrictRate(2, per=0.03, key="{tenant}")])
async def quickly(tenant: str) -> None:
    seen.append(clock_gettime(CLOCK_MONOTONIC))


@app.task(limits=[Concurrency(1, name="one")])
async def alone() -> None: ...


@app.task
async def fan_out(names: list[str]) -> None:
    await greet.enqueue_many([(name,) for name in names])


@app.task
def fan_out_blocking(names: list[str]) -> None:
    for name in names:
        greet.sync.enqueue(name)


@app.task
async def slow(number: int) -> int:
    for _ in range(number * 50):
        await asyncio.sleep(0)
    return number


@app.task
async def later() -> None:
    raise Snooze(30)


@app.task(process=True)
def compute(number: int) -> int:
    return number * threading.active_count()


@app.schedule(Every(hours=1))
async def report() -> None:
    seen.append("report")


async def greet_twice(name: str) -> None:
    await chain(greet.call(name), greet.call(name, polite=True)).enqueue()
