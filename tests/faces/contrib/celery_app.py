"""What the workers and the tests of the Celery gate run; each start is written to a list in Redis."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from headgate.contrib.celery import CeleryGate
from headgate.limits.strict_rate import StrictRate

URL = os.environ.get("GATE_REDIS_URL", "redis://127.0.0.1:1/0")
GATED = os.environ.get("GATE_OFF") is None

app = Celery("gated", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 4
app.conf.broker_connection_retry_on_startup = True
gate = CeleryGate(app, store=URL) if GATED else None
log = redis.Redis.from_url(URL)


def started(name: str, *told: object) -> None:
    log.rpush(f"starts:{name}", ":".join(map(str, (time.time(), *told))))


@app.task(bind=True, limit=StrictRate(20, per=0.5, key="{tenant}", margin=0.1), ignore_result=True, acks_late=True)
def sync_tenant(self: Any, tenant: str) -> None:
    started(tenant, self.request.id)


@app.task(limit=StrictRate("20/h", key="{tenant}"), ignore_result=True)
def hourly(tenant: str) -> None:
    started(tenant)


@app.task(ignore_result=True)
def unlimited(tag: str) -> None:
    started(f"unlimited-{tag}")


@app.task(limit=StrictRate(2, per=0.4, margin=0.1, key="{0}"))
def doubled(key: str, number: int) -> int:
    started(key, number)
    return 2 * number


@app.task(limit=StrictRate("2/s", key="{key}"))
def slowly(key: str, number: int) -> int:
    started(key, number)
    return 2 * number


@app.task(bind=True, limit=StrictRate(2, per=0.4, margin=0.1, key="{key}"), max_retries=2)
def fails_once(self: Any, key: str) -> int:
    started(key, self.request.retries)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(limit=StrictRate(2, per=0.4, margin=0.1, key="{key}", on_key_error="fail", on_missing_key="fail"))
def needs_a_key(key: str | None) -> None:
    started("needs_a_key", key)


@app.task(bind=True, limit=StrictRate(1, per=0.4, margin=0.1, key="{key}"))
def told(self: Any, key: str) -> dict[str, Any]:
    started(key)
    return {"priority": self.request.delivery_info.get("priority"), "trace": self.request.get("trace")}


@app.task
def summed(numbers: list[int]) -> int:
    return sum(numbers)
