"""Celery, Dramatiq or Taskiq (GATE_FRAMEWORK) at GATE_REDIS, with its own means or with a gate (GATE_ON=1)."""

from __future__ import annotations

import os
import time

import redis

from headgate import Limiter, StrictRate

FRAMEWORK = os.environ["GATE_FRAMEWORK"]
GATED = os.environ["GATE_ON"] == "1"
URL = os.environ["GATE_REDIS"]
RATE = 20

log = redis.Redis.from_url(URL)
limit = StrictRate(f"{RATE}/s", key="{tenant}")


def started(kind: str) -> None:
    log.rpush(f"starts:{kind}", time.monotonic_ns() // 1000)


if FRAMEWORK == "celery":
    from celery import Celery

    from headgate.contrib.celery import CeleryGate

    app = Celery("bench", broker=URL)
    app.conf.task_ignore_result = True
    if GATED:
        CeleryGate(app, store=URL)

    @app.task(**({"limit": limit} if GATED else {"rate_limit": f"{RATE}/s"}))
    def call(tenant: str) -> None:
        started(tenant)

    @app.task
    def unrelated() -> None:
        started("unrelated")

    async def send(count: int, others: int) -> None:
        for _ in range(count):
            call.delay("busy")
        for _ in range(others):
            unrelated.delay()

elif FRAMEWORK == "dramatiq":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.rate_limits import WindowRateLimiter
    from dramatiq.rate_limits.backends import RedisBackend

    from headgate.contrib.dramatiq import DramatiqGate

    broker = RedisBroker(url=URL)
    dramatiq.set_broker(broker)
    if GATED:
        DramatiqGate(broker, store=URL)
    window = WindowRateLimiter(RedisBackend(url=URL), "busy", limit=RATE, window=1)

    @dramatiq.actor(**({"limit": limit} if GATED else {"max_retries": None}))
    def call(tenant: str) -> None:
        if GATED:
            started(tenant)
            return
        # As its documentation says: a refused message is retried.
        with window.acquire():
            started(tenant)

    @dramatiq.actor
    def unrelated() -> None:
        started("unrelated")

    async def send(count: int, others: int) -> None:
        for _ in range(count):
            call.send("busy")
        for _ in range(others):
            unrelated.send()

else:
    from taskiq_redis import RedisStreamBroker

    from headgate.contrib.taskiq import TaskiqGate

    broker = RedisStreamBroker(URL)
    gate = TaskiqGate(broker, store=URL) if GATED else None
    limiter = Limiter(StrictRate(f"{RATE}/s", name="busy"), URL)

    async def _call(tenant: str) -> None:
        if gate is None:
            # It has no limits: the task waits.
            await limiter.acquire()
        started(tenant)

    call = broker.task(task_name="call")(gate.limit(limit)(_call) if gate else _call)

    @broker.task
    async def unrelated() -> None:
        started("unrelated")

    async def send(count: int, others: int) -> None:
        await broker.startup()
        for _ in range(count):
            await call.kiq("busy")
        for _ in range(others):
            await unrelated.kiq()
        await broker.shutdown()
