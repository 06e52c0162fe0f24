"""The limiters of other libraries, each made ready to be asked for a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

Ask = Callable[[str], Any]


def limits_fixed(count: int, per: int) -> Ask:
    return _limits("FixedWindowRateLimiter", count, per)


def limits_moving(count: int, per: int) -> Ask:
    return _limits("MovingWindowRateLimiter", count, per)


def limits_sliding(count: int, per: int) -> Ask:
    return _limits("SlidingWindowCounterRateLimiter", count, per)


def _limits(strategy: str, count: int, per: int) -> Ask:
    from limits import RateLimitItemPerSecond, storage, strategies

    limiter = getattr(strategies, strategy)(storage.MemoryStorage())
    return partial(limiter.hit, RateLimitItemPerSecond(count, per))


def pyrate_log(count: int, per: float) -> Ask:
    from pyrate_limiter import InMemoryBucket, Rate

    rate = Rate(count, round(per * 1000))
    return _pyrate(lambda: InMemoryBucket([rate]))


def pyrate_gcra(count: int, per: int) -> Ask:
    from pyrate_limiter import GCRA, Rate, StateBucket

    rate, algorithm = Rate(count, per * 1000), GCRA()
    return _pyrate(lambda: StateBucket([rate], algorithm=algorithm))


def _pyrate(new_bucket: Callable[[], Any]) -> Ask:
    from pyrate_limiter import BucketFactory, Limiter, MonotonicClock, RateItem

    clock = MonotonicClock()

    class BucketPerKey(BucketFactory):
        """As its manual has it, but without the thread that leaks buckets."""

        def __init__(self) -> None:
            self.by_key: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            return RateItem(name, clock.now(), weight=weight)

        def get(self, item: RateItem) -> Any:
            bucket = self.by_key.get(item.name)
            if bucket is None:
                bucket = self.by_key[item.name] = new_bucket()
            return bucket

    return partial(Limiter(BucketPerKey()).try_acquire, blocking=False)


def throttled(using: str, count: int, per: int) -> Ask:
    from throttled import MemoryStore, Throttled, rate_limiter

    quota = rate_limiter.per_duration(timedelta(seconds=per), count)
    return Throttled(using=using, quota=quota, store=MemoryStore(options={"MAX_SIZE": 1_000_000})).limit


def was_granted(answer: Any) -> bool:
    """Of any of them: a bool, a result that says `limited`, or a decision."""
    return not answer.limited if hasattr(answer, "limited") else bool(answer)


# ------------------------------------------------------------------------------------- those that make tasks wait

Wait = Callable[[], Awaitable[object]]


def aiolimiter_line(rate: int) -> Wait:
    from aiolimiter import AsyncLimiter

    return AsyncLimiter(1, 1 / rate).acquire


def pyrate_line(rate: int) -> Wait:
    from pyrate_limiter import GCRA, Limiter, Rate, StateBucket

    bucket = StateBucket([Rate(rate, 1000, burst=1)], algorithm=GCRA())
    # Its default of 50 ms is added to every wait.
    return partial(Limiter(bucket, buffer_ms=0).try_acquire_async, "a")


def throttled_line(rate: int) -> Wait:
    from throttled.asyncio import MemoryStore, Throttled, rate_limiter

    quota = rate_limiter.per_sec(rate, burst=1)
    limiter = Throttled(using="gcra", quota=quota, store=MemoryStore(), timeout=600)
    return partial(limiter.limit, "a")
