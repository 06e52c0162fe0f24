"""What the workers and the tests of the Dramatiq gate run; each start is written to a list in Redis."""

from __future__ import annotations

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from headgate.contrib.dramatiq import DramatiqGate
from headgate.limits.strict_rate import StrictRate
from tests.until import patient

URL = os.environ.get("GATE_REDIS_URL", "redis://127.0.0.1:1/0")

broker = RedisBroker(url=URL, heartbeat_timeout=1000, maintenance_chance=200_000)
# redis-py 8 gives a read up after 5 s, also one that blocks for longer: a busy machine may need that to start a worker.
broker.add_middleware(Results(backend=RedisBackend(url=f"{URL}?socket_timeout={patient(60)}")))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
gate = DramatiqGate(broker, store=URL)
log = redis.Redis.from_url(URL)


def started(name: str, *told: object) -> None:
    log.rpush(f"starts:{name}", ":".join(map(str, (time.time(), *told))))


@dramatiq.actor(limit=StrictRate(20, per=0.5, key="{tenant}", margin=0.1))
def sync_tenant(tenant: str) -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None
    started(tenant, message.message_id)


@dramatiq.actor(limit=StrictRate("20/h", key="{tenant}"))
def hourly(tenant: str) -> None:
    started(tenant)


@dramatiq.actor
def unlimited(tag: str) -> None:
    started(f"unlimited-{tag}")


@dramatiq.actor(limit=StrictRate(2, per=0.4, margin=0.1, key="{0}"), store_results=True)
def doubled(key: str, number: int) -> int:
    started(key, number)
    return 2 * number


@dramatiq.actor(limit=StrictRate(2, per=0.4, margin=0.1, key="{key}"), max_retries=2, min_backoff=50, max_backoff=100)
def fails_once(key: str) -> None:
    message = CurrentMessage.get_current_message()
    retries = 0 if message is None else message.options.get("retries", 0)
    started(key, retries)
    if not retries:
        raise RuntimeError("for the first time")


@dramatiq.actor(limit=StrictRate(2, per=0.4, margin=0.1, key="{key}", on_key_error="fail", on_missing_key="fail"))
def needs_a_key(key: str | None) -> None:
    started("needs_a_key", key)
