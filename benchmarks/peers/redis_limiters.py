"""Other limiters over Redis, each asked without waiting, through its asyncio interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import Redis

Ask = Callable[[str], Awaitable[Any]]


def limits_fixed(url: str, count: int, seconds: int) -> Ask:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    item = RateLimitItemPerSecond(count, seconds)
    return lambda key: limiter.hit(item, key)


def limits_moving(url: str, count: int, seconds: int) -> Ask:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    item = RateLimitItemPerSecond(count, seconds)
    return lambda key: limiter.hit(item, key)


def pyrate_gcra(url: str, count: int, seconds: int) -> Ask:
    from pyrate_limiter import GCRA, Rate, RateItem, RedisStateStore, StateBucket
    from pyrate_limiter.clocks import WallClock

    redis = Redis.from_url(url)
    clock = WallClock()
    buckets: dict[str, StateBucket] = {}

    def ask(key: str) -> Awaitable[Any]:
        # Its Limiter takes turns under one lock: the buckets themselves are faster.
        bucket = buckets.get(key)
        if bucket is None:
            store = RedisStateStore(redis, key)
            bucket = buckets[key] = StateBucket([Rate(count, seconds * 1000)], GCRA(), store)
        answer: Any = bucket.put(RateItem(key, clock.now(), 1))
        return answer

    return ask


def throttled_gcra(url: str, count: int, seconds: int) -> Ask:
    return _throttled(url, count, seconds, "gcra")


def throttled_fixed(url: str, count: int, seconds: int) -> Ask:
    return _throttled(url, count, seconds, "fixed_window")


def _throttled(url: str, count: int, seconds: int, algorithm: str) -> Ask:
    from datetime import timedelta

    from throttled.asyncio import RedisStore, Throttled, per_duration

    quota = per_duration(timedelta(seconds=seconds), limit=count, burst=count)
    return Throttled(using=algorithm, quota=quota, store=RedisStore(server=url)).limit
