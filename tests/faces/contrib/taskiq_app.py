"""What the workers and the tests of the Taskiq gate run; each start is written to a list in Redis."""

from __future__ import annotations

import os
import time
from typing import Annotated

import redis
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from headgate.contrib.taskiq import TaskiqGate
from headgate.limits.strict_rate import StrictRate

URL = os.environ.get("GATE_REDIS_URL", "redis://127.0.0.1:1/0")

broker = (
    RedisStreamBroker(URL, idle_timeout=1000)
    .with_result_backend(RedisAsyncResultBackend(URL))
    .with_middlewares(SimpleRetryMiddleware())
)
gate = TaskiqGate(broker, store=URL)
log = redis.Redis.from_url(URL)


def started(name: str, *told: object) -> None:
    log.rpush(f"starts:{name}", ":".join(map(str, (time.time(), *told))))


@broker.task
@gate.limit(StrictRate(20, per=0.5, key="{tenant}", margin=0.1))
async def sync_tenant(tenant: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    started(tenant, context.message.task_id)


@broker.task
@gate.limit(StrictRate("20/h", key="{tenant}"))
async def hourly(tenant: str) -> None:
    started(tenant)


@broker.task
async def unlimited(tag: str) -> None:
    started(f"unlimited-{tag}")


@broker.task
@gate.limit(StrictRate(2, per=0.4, margin=0.1, key="{0}"))
def doubled(key: str, number: int) -> int:
    started(key, number)
    return 2 * number


@broker.task(retry_on_error=True, max_retries=3, told="something")
@gate.limit(StrictRate(2, per=0.4, margin=0.1, key="{key}"))
async def fails_once(key: str, context: Annotated[Context, TaskiqDepends()]) -> None:
    retries = int(context.message.labels.get("_retries", 0))
    # Labels are those of the task, however it came.
    started(key, retries if context.message.labels["told"] == "something" else "without its label")
    if not retries:
        raise RuntimeError("for the first time")
