"""How many decisions a second of a limit that programs share through Redis."""

from __future__ import annotations

import asyncio
import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.redis_server import redis_server
from benchmarks.support import Latencies

if TYPE_CHECKING:
    from benchmarks.peers.redis_limiters import Ask

COUNT, SECONDS = 1000, 60
KEYS = 1000


def headgate(folder: Path, *, rule: str, asks: int) -> dict[str, float]:
    with redis_server(folder) as url:
        return asyncio.run(_headgate(url, rule, asks))


async def _headgate(url: str, name: str, asks: int) -> dict[str, float]:
    from headgate.limits.bucket_store import Bucket
    from headgate.limits.fixed_window import FixedWindow
    from headgate.limits.rate_limit import RateLimit
    from headgate.limits.redis.redis_buckets import RedisBuckets
    from headgate.limits.strict_rate import StrictRate

    declared = {"rate": RateLimit, "strict": StrictRate, "fixed": FixedWindow}[name]
    rule = declared(COUNT, per=SECONDS).rule
    store = RedisBuckets.from_url(url)
    await store.open()
    try:
        return await _measured(lambda key: store.take(Bucket("bench", key, rule)), asks)
    finally:
        await store.close()


def peer(folder: Path, *, name: str, asks: int) -> dict[str, float]:
    maker = getattr(importlib.import_module("benchmarks.peers.redis_limiters"), name)

    async def ask_all(url: str) -> dict[str, float]:
        return await _measured(maker(url, COUNT, SECONDS), asks)

    with redis_server(folder) as url:
        return asyncio.run(ask_all(url))


async def _measured(ask: Ask, asks: int) -> dict[str, float]:
    many = [f"key-{number}" for number in range(KEYS)]
    # Connections and scripts are made ready first.
    await asyncio.gather(*(ask("warm") for _ in range(64)))
    metrics: dict[str, float] = {}
    for prefix, tasks, share, keys in (("one_", 1, 8, ["one"]), ("hot_", 64, 1, ["hot"]), ("keys_", 64, 1, many)):
        latencies = Latencies()
        each = asks // share // tasks
        began = time.perf_counter()
        await asyncio.gather(*(_ask_on(ask, keys, number * 7919, each, latencies) for number in range(tasks)))
        metrics[f"{prefix}rate"] = each * tasks / (time.perf_counter() - began)
        metrics |= latencies.metrics(prefix)
    return metrics


async def _ask_on(ask: Ask, keys: list[str], first: int, asks: int, latencies: Latencies) -> None:
    for number in range(first, first + asks):
        began = time.perf_counter()
        await ask(keys[number % len(keys)])
        latencies.add(time.perf_counter() - began)


_HEADGATE = "benchmarks.questions.shared:headgate"
_PEER = "benchmarks.questions.shared:peer"
_PEERS = {
    "limits, fixed window": ("limits_fixed", "limits.aio, FixedWindowRateLimiter.hit on redis-py"),
    "limits, moving window": ("limits_moving", "limits.aio, MovingWindowRateLimiter.hit on redis-py"),
    "pyrate-limiter, GCRA": (
        "pyrate_gcra",
        "StateBucket.put with RedisStateStore and redis.asyncio; a bucket for each key",
    ),
    "throttled-py, GCRA": ("throttled_gcra", "throttled.asyncio, Throttled(using='gcra').limit"),
    "throttled-py, fixed window": ("throttled_fixed", "the same with using='fixed_window'"),
}
_OURS = {
    "Headgate, RateLimit": "rate",
    "Headgate, StrictRate": "strict",
    "Headgate, FixedWindow": "fixed",
}

QUESTION = Question(
    name="shared",
    asks="How many decisions a second of a limit that programs share through Redis?",
    lead="keys_rate",
    metrics=(
        Metric("one_rate", "1 task /s"),
        Metric("one_p99", "p99 ms", 2),
        Metric("hot_rate", "64 tasks, one key /s"),
        Metric("hot_p99", "p99 ms", 2),
        Metric("keys_rate", "64 tasks, 1,000 keys /s"),
        Metric("keys_p99", "p99 ms", 2),
    ),
    scenarios=(
        *(
            Scenario(
                name=name,
                run=_HEADGATE,
                conditions=f"RedisBuckets.take under {declared}(1000, per=60); answers also say what is left and when",
                params={"rule": rule, "asks": 32_000},
                quick={"asks": 8_000},
                against={"limits": "limits, fixed window", "throttled-py": "throttled-py, GCRA"},
            )
            for name, rule in _OURS.items()
            for declared in [name.removeprefix("Headgate, ")]
        ),
        *(
            Scenario(
                name=name,
                run=_PEER,
                conditions=conditions,
                params={"name": maker, "asks": 32_000},
                quick={"asks": 8_000},
            )
            for name, (maker, conditions) in _PEERS.items()
        ),
    ),
    goals=tuple(
        Goal(
            scenario="Headgate, RateLimit",
            metric=metric,
            text=f"more decisions/s than {peer_name}, {load}",
            over=peer_name,
            at_least=1.0,
        )
        for metric, load in (("one_rate", "1 task"), ("hot_rate", "one key"), ("keys_rate", "1,000 keys"))
        for peer_name in _PEERS
    ),
    notes=(
        "A Valkey server on the same machine, over TCP, nothing kept on disk; 1,000 starts a minute for each key. On "
        "one key most are refused, on 1,000 keys all are granted. Every ask is awaited on its own.",
        "Headgate sends what is asked in one turn of the loop together, on one connection, and asks about one bucket "
        "once; the peers send each ask by itself, on a pool.",
    ),
)
