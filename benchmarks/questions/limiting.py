"""How fast limiters decide in memory, and how exactly they release waiting callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers import limiters
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import percentile
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.standalone.limiter import Limiter
from headgate.limits.strict_rate import StrictRate

HOUR = 3600
PLENTY = 100_000_000


def _headgate(limit: Callable[..., Limit], count: int, per: float) -> limiters.Ask:
    return Limiter(limit(count, per=per)).sync.try_acquire


_CONTENDERS: dict[str, Callable[[int, Any], limiters.Ask]] = {
    "RateLimit": partial(_headgate, RateLimit),
    "StrictRate": partial(_headgate, partial(StrictRate, margin=0)),
    "FixedWindow": partial(_headgate, FixedWindow),
    "SlidingWindow": partial(_headgate, SlidingWindow),
    "limits fixed": limiters.limits_fixed,
    "limits moving": limiters.limits_moving,
    "limits sliding": limiters.limits_sliding,
    "pyrate log": limiters.pyrate_log,
    "pyrate gcra": limiters.pyrate_gcra,
    "throttled gcra": partial(limiters.throttled, "gcra"),
    "throttled token bucket": partial(limiters.throttled, "token_bucket"),
    "throttled fixed": partial(limiters.throttled, "fixed_window"),
    "throttled sliding": partial(limiters.throttled, "sliding_window"),
}


def decide(
    _: Path, *, contender: str, calls: int, keys: int, plenty: int = PLENTY, in_turn: int | None = None
) -> dict[str, float]:
    """Decisions per second of one caller, without awaiting; `in_turn` granted calls to a key before the next one."""
    new = _CONTENDERS[contender]

    def hot(ask: limiters.Ask, granted: bool, names: list[str]) -> float:
        each = range(calls // len(names))
        began = time.perf_counter()
        for name in names:
            for _ in each:
                ask(name)
        seconds = time.perf_counter() - began
        _check(contender, [ask(names[0] if in_turn is None or not granted else "another")], granted)
        return calls / seconds

    used_up = new(10, HOUR)
    for _ in range(10):
        used_up("user:42")
    names = [f"user:{number}" for number in range(keys)]
    wide = new(5, HOUR)

    def sweep() -> float:
        began = time.perf_counter()
        for name in names:
            wide(name)
        return keys / (time.perf_counter() - began)

    before = _resident()
    first = sweep()
    held = _resident() - before
    return {
        "granted": hot(new(plenty, HOUR), True, [f"hot:{number}" for number in range(calls // (in_turn or calls))]),
        "denied": hot(used_up, False, ["user:42"]),
        "first": first,
        "later": sum(sweep() for _ in range(3)) / 3,
        "bytes": held / keys,
    }


def decide_headgate_async(_: Path, *, calls: int, keys: int) -> dict[str, float]:
    new: Callable[..., Limiter] = lambda count: Limiter(RateLimit(count, per=HOUR))  # noqa: E731
    granting, used_up, wide = new(PLENTY), new(10), new(5)
    return asyncio.run(_decide_async(calls, keys, granting.try_acquire, used_up.try_acquire, wide.try_acquire))


def decide_aiolimiter(_: Path, *, calls: int, keys: int) -> dict[str, float]:
    from aiolimiter import AsyncLimiter

    async def main() -> dict[str, float]:
        granting, used_up = AsyncLimiter(PLENTY, HOUR), AsyncLimiter(10, HOUR)
        by_key: dict[str, AsyncLimiter] = {}

        async def granted(_: str) -> None:
            await granting.acquire()

        async def used(_: str) -> bool:
            if used_up.has_capacity():
                await used_up.acquire()
                return True
            return False

        async def wide(key: str) -> None:
            limiter = by_key.get(key)
            if limiter is None:
                limiter = by_key[key] = AsyncLimiter(5, HOUR)
            await limiter.acquire()

        return await _decide_async(calls, keys, granted, used, wide)

    return asyncio.run(main())


async def _decide_async(
    calls: int,
    keys: int,
    granting: Callable[[str], Awaitable[object]],
    used_up: Callable[[str], Awaitable[object]],
    wide: Callable[[str], Awaitable[object]],
) -> dict[str, float]:
    async def hot(ask: Callable[[str], Awaitable[object]]) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await ask("user:42")
        return calls / (time.perf_counter() - began)

    for _ in range(10):
        await used_up("user:42")
    names = [f"user:{number}" for number in range(keys)]

    async def sweep() -> float:
        began = time.perf_counter()
        for name in names:
            await wide(name)
        return keys / (time.perf_counter() - began)

    before = _resident()
    first = await sweep()
    held = _resident() - before
    _check("async", [await used_up("user:42")], False)
    return {
        "granted": await hot(granting),
        "denied": await hot(used_up),
        "first": first,
        "later": sum([await sweep() for _ in range(3)]) / 3,
        "bytes": held / keys,
    }


def _check(contender: str, answers: list[object], granted: bool) -> None:
    if [limiters.was_granted(answer) for answer in answers] != [granted] * len(answers):
        raise RuntimeError(f"{contender} answered {answers} where it was to be {granted}: not what is measured")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _scenario(name: str, contender: str, conditions: str, *, against: tuple[str, ...] = (), **params: Any) -> Scenario:
    return Scenario(
        name=name,
        run="benchmarks.questions.limiting:decide",
        conditions=conditions,
        params={"contender": contender, **_CALLS, **params},
        quick=_QUICK,
        against={other: other for other in against},
    )


_CALLS = {"calls": 200_000, "keys": 100_000}
_QUICK = {"calls": 20_000, "keys": 10_000}
# What a log costs depends on its length.
_LOG = "100 calls to each of 2,000 keys in turn, 100 an hour for each"
_IN_TURN = {"plenty": 100, "in_turn": 100}

DECISIONS = Question(
    name="decisions",
    asks="How many decisions a second does a limiter make in memory, one caller, one after the other?",
    lead="granted",
    metrics=(
        Metric("granted", "granted/s"),
        Metric("denied", "denied/s"),
        Metric("first", "100,000 keys, first touch/s"),
        Metric("later", "later touches/s"),
        Metric("bytes", "bytes a key"),
    ),
    scenarios=(
        _scenario(
            "Headgate RateLimit",
            "RateLimit",
            "limiter.sync.try_acquire(key)",
            against=("throttled gcra", "throttled token bucket", "pyrate gcra"),
        ),
        Scenario(
            name="Headgate RateLimit, async",
            run="benchmarks.questions.limiting:decide_headgate_async",
            conditions="await limiter.try_acquire(key)",
            params=_CALLS,
            quick=_QUICK,
            against={"aiolimiter": "aiolimiter"},
        ),
        Scenario(
            name="aiolimiter",
            run="benchmarks.questions.limiting:decide_aiolimiter",
            conditions="await acquire(); denied is has_capacity(), which only reads: it has no call that is refused; "
            "a dict of limiters for the keys",
            params=_CALLS,
            quick=_QUICK,
        ),
        _scenario("throttled gcra", "throttled gcra", "throttled-py, Throttled.limit(key), room for a million keys"),
        _scenario("throttled token bucket", "throttled token bucket", "the same, its default algorithm"),
        _scenario("pyrate gcra", "pyrate gcra", "pyrate-limiter, try_acquire(key, blocking=False), a bucket for each"),
        _scenario(
            "Headgate StrictRate",
            "StrictRate",
            f"limiter.sync.try_acquire(key); granted: {_LOG}",
            against=("limits moving", "pyrate log"),
            **_IN_TURN,
        ),
        _scenario(
            "limits moving", "limits moving", "limits, MovingWindowRateLimiter.hit(); granted: the same", **_IN_TURN
        ),
        _scenario("pyrate log", "pyrate log", "pyrate-limiter's default bucket; granted: the same", **_IN_TURN),
        _scenario(
            "Headgate FixedWindow",
            "FixedWindow",
            "limiter.sync.try_acquire(key)",
            against=("limits fixed", "throttled fixed"),
        ),
        _scenario("limits fixed", "limits fixed", "limits, FixedWindowRateLimiter.hit()"),
        _scenario("throttled fixed", "throttled fixed", "throttled-py, fixed_window"),
        _scenario(
            "Headgate SlidingWindow",
            "SlidingWindow",
            "60 slices",
            against=("limits sliding", "throttled sliding"),
        ),
        _scenario("limits sliding", "limits sliding", "limits, SlidingWindowCounterRateLimiter.hit(): two windows"),
        _scenario("throttled sliding", "throttled sliding", "throttled-py, sliding_window: two windows"),
    ),
    goals=tuple(
        Goal(scenario=ours, over=other, metric=metric, text=f"{ours}: {what} at least 2 × {other}", at_least=2)
        for ours, others in (
            ("Headgate RateLimit", ("throttled gcra", "throttled token bucket", "pyrate gcra")),
            ("Headgate RateLimit, async", ("aiolimiter",)),
            ("Headgate StrictRate", ("limits moving", "pyrate log")),
            ("Headgate FixedWindow", ("limits fixed", "throttled fixed")),
            ("Headgate SlidingWindow", ("limits sliding", "throttled sliding")),
        )
        for other in others
        for metric, what in (("granted", "granted"), ("denied", "denied"), ("later", "100,000 keys"))
    ),
    notes=(
        "Granted: one key, a budget that is never used up, but for logs. Denied: one key, 10 an hour, used up. 100,000 "
        "keys: one sweep, then three more, 5 an hour for each; bytes are the growth of resident memory in the first "
        "sweep, without the keys' own text.",
        "limits sweeps its keys from a timer thread; pyrate's leaking thread is left out.",
    ),
)


# ------------------------------------------------------------------------------------------------------- in line


def line(_: Path, *, contender: str, tasks: int, rate: int) -> dict[str, float]:
    """So many tasks wait on one key from the start; the n-th has its slot at n / rate."""
    return asyncio.run(_line(_LINES[contender](rate), tasks, rate))


async def _line(wait: limiters.Wait, tasks: int, rate: int) -> dict[str, float]:
    passed: list[tuple[int, float]] = []
    joined = 0.0

    async def one(number: int) -> None:
        nonlocal joined
        joined = time.perf_counter()
        await wait()
        passed.append((number, time.perf_counter()))

    cpu = time.process_time()
    await asyncio.gather(*(one(number) for number in range(tasks)))
    cpu = time.process_time() - cpu
    # Until all have joined, the event loop is busy with that.
    in_line = [at for _, at in passed if at > joined]
    against_slots = [at * 1000 - place * 1000 / rate for place, at in enumerate(in_line)]
    late = [at - min(against_slots) for at in against_slots]
    order = [number for number, _ in passed]
    return {
        "rate": (len(in_line) - 1) / (in_line[-1] - in_line[0]),
        "late_p50": percentile(late, 0.5),
        "late_p99": percentile(late, 0.99),
        "inversions": sum(later < earlier for earlier, later in pairwise(order)),
        "cpu": cpu / tasks * 1e6,
    }


def _headgate_line(rate: int) -> limiters.Wait:
    return partial(Limiter(RateLimit(rate, per=1, burst=1)).acquire, "a")


_LINES: dict[str, Callable[[int], limiters.Wait]] = {
    "Headgate": _headgate_line,
    "aiolimiter": limiters.aiolimiter_line,
    "pyrate": limiters.pyrate_line,
    "throttled": limiters.throttled_line,
}


def _in_line(name: str, contender: str, conditions: str, against: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        name=name,
        run="benchmarks.questions.limiting:line",
        conditions=conditions,
        params={"contender": contender, "tasks": 10_000, "rate": 2_500},
        quick={"tasks": 1_000},
        against={other: other for other in against},
    )


LINE = Question(
    name="line",
    asks="10,000 tasks wait for one key that lets 2,500 a second pass, evenly spaced: how late, and in order?",
    lead="rate",
    metrics=(
        Metric("rate", "passed/s"),
        Metric("late_p50", "late p50 ms", 2),
        Metric("late_p99", "late p99 ms", 2),
        Metric("inversions", "order inversions"),
        Metric("cpu", "CPU µs each", 1),
    ),
    scenarios=(
        _in_line(
            "Headgate",
            "Headgate",
            "await limiter.acquire(key), RateLimit with burst=1",
            ("aiolimiter", "pyrate-limiter", "throttled-py"),
        ),
        _in_line("aiolimiter", "aiolimiter", "AsyncLimiter(1, 1 / 2500)"),
        _in_line("pyrate-limiter", "pyrate", "try_acquire_async, GCRA with burst=1, buffer_ms=0"),
        _in_line("throttled-py", "throttled", "throttled.asyncio, GCRA with burst=1, timeout=600"),
    ),
    goals=(
        Goal(scenario="Headgate", metric="rate", text="at least 99 % of 2,500 a second", at_least=2475),
        Goal(scenario="Headgate", metric="late_p99", text="p99 at most 5 ms late", at_most=5),
        Goal(scenario="Headgate", metric="inversions", text="no caller is overtaken", at_most=0),
    ),
    notes=(
        "limits has no way to wait. Measured from when all have joined; a task is late by how much longer it took, for "
        "its place in line, than the one that was most on time.",
    ),
)
