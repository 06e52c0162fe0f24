"""Durations, instants and counts: one reading for all public calls, and one error that says what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headgate import (
    DeclarationError,
    DynamicWindow,
    Every,
    FixedWindow,
    Headgate,
    JobCancelled,
    Limiter,
    RateGate,
    RateLimit,
    RateLimited,
    Retry,
    RetryPolicy,
    SlidingWindow,
    Snooze,
    StrictRate,
    limit_rate,
)
from headgate.arguments import duration_in, parse_bytes, parse_count, parse_duration, parse_instant
from headgate.clock import FARTHEST, LAST, SECOND, from_datetime, to_datetime
from headgate.contrib.aiohttp import LimitedRequests
from headgate.contrib.httpx import LimitedTransport, SyncLimitedTransport
from headgate.contrib.requests import LimitedAdapter
from headgate.jobs.retention import Retention
from headgate.limits.redis.redis_buckets import RedisBuckets
from headgate.observe.metrics import PrometheusMetrics
from headgate.settings import load_settings
from headgate.storage.postgres.shared_buckets import PostgresBuckets

HUNDRED_YEARS = 100 * 365 * 86400

FORMS: list[tuple[Any, float]] = [
    (90, 90),
    (0.5, 0.5),
    (Fraction(1, 2), 0.5),
    (timedelta(minutes=5), 300),
    ("90", 90),
    ("90s", 90),
    ("5m", 300),
    ("1.5h", 5400),
    ("1h30m", 5400),
    ("1h 30m", 5400),
    (" 2 d ", 2 * 86400),
    ("1w", 7 * 86400),
    ("250ms", 0.25),
    ("5 minutes", 300),
    ("1 hour 30 min", 5400),
    ("2days", 2 * 86400),
    (".5s", 0.5),
    (HUNDRED_YEARS, HUNDRED_YEARS),
]

NO_DURATIONS: list[Any] = [
    float("nan"), float("inf"), -float("inf"), True, None, "", " ", "soon", "5 parsecs", "5 months", "minutes", "5M",
    "m5", "1h30", "5mm", "1e3", "\u0665m", "nan", "inf", "9" * 100, [5], b"5m", Decimal("NaN"), 1j,
]  # fmt: skip

TOO_LONG: list[Any] = [HUNDRED_YEARS + 1, 1e300, 10**400, timedelta.max, "6000w", "99999999999999999999d"]


@pytest.mark.parametrize(("value", "seconds"), FORMS, ids=repr)
def test_a_duration_is_seconds_a_timedelta_or_text(value: Any, seconds: float) -> None:
    assert parse_duration(value, "delay") == seconds * SECOND


@pytest.mark.parametrize("value", NO_DURATIONS, ids=lambda value: f"{value!r:.30}")
def test_an_invalid_duration_is_refused_with_what_to_write(value: Any) -> None:
    shown = re.escape(repr(value)[:70])
    with pytest.raises(DeclarationError, match=rf"^task 'x': delay={shown}.* (is not a duration|is not finite); write"):
        parse_duration(value, "delay", "task 'x'")


@pytest.mark.parametrize("value", TOO_LONG, ids=lambda value: f"{value!r:.30}")
def test_a_duration_of_more_than_a_hundred_years_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^delay=.* is more than a hundred years"):
        parse_duration(value, "delay")


@pytest.mark.parametrize("value", [-1, -0.5, timedelta(seconds=-1), "-5m", -(10**400), timedelta.min])
def test_a_negative_duration_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^delay=.* cannot be negative"):
        parse_duration(value, "delay")


@given(st.integers(0, FARTHEST))
def test_microseconds_survive_as_text_and_as_a_timedelta(length: int) -> None:
    assert parse_duration(timedelta(microseconds=length), "delay") == length
    seconds, rest = divmod(length, SECOND)
    assert duration_in(f"{seconds}.{rest:06}s") == duration_in(f"{seconds}.{rest:06}") == length


@given(st.text(alphabet="0123456789.smhdw -e", max_size=70))
def test_no_text_breaks_the_reading_of_a_duration(text: str) -> None:
    found = duration_in(text)
    assert found is None or found >= 0


# ------------------------------------------------------------------------------------------- every public duration


async def _nothing() -> None: ...


def _declared(app: Headgate) -> Any:
    return app.task(name="declared")(_nothing)


def _open(value: Any, verb: Callable[[Headgate, Any], Awaitable[Any]]) -> Awaitable[Any]:
    async def run() -> Any:
        app = Headgate("memory://")
        async with app.open():
            return await verb(app, value)

    return run()


async def _result(app: Headgate, value: Any) -> Any:
    job = await _declared(app).enqueue()
    with pytest.raises(TimeoutError):
        await job.result(timeout=0)
    await job.cancel()
    with pytest.raises(JobCancelled):
        await job.result(timeout=value)


async def _wait(app: Headgate, value: Any) -> Any:
    from headgate import batch

    made = await batch([_declared(app).call()]).enqueue()
    await made.cancel()
    return await made.wait(timeout=value)


async def _reschedule(app: Headgate, value: Any) -> Any:
    job = await _declared(app).using(delay="1h").enqueue()
    await app.admin.reschedule(job.id, delay=value)


PLACES: dict[str, Callable[[Any], Any]] = {
    "per of StrictRate": lambda value: StrictRate(15, per=value),
    "per of RateLimit": lambda value: RateLimit(15, per=value, burst=1),
    "per of FixedWindow": lambda value: FixedWindow(15, per=value),
    "per of SlidingWindow": lambda value: SlidingWindow(15, per=value),
    "per of DynamicWindow": lambda value: DynamicWindow(per=value, capacity=5, key="{0}"),
    "per of RateGate": lambda value: RateGate(5, per=value),
    "per of limit_rate": lambda value: limit_rate([1], 5, per=value),
    "margin": lambda value: StrictRate("15/m", margin=value),
    "max_wait": lambda value: StrictRate("15/m", max_wait=value),
    "timeout of RateGate": lambda value: RateGate("5/s").wait(timeout=value),
    "timeout of Limiter": lambda value: Limiter(RateLimit("5/s")).sync.acquire(timeout=value),
    "timeout of hold": lambda value: Limiter(RateLimit("5/s")).sync.hold(timeout=value).__enter__(),
    "penalize": lambda value: Limiter(RateLimit("5/s")).sync.penalize("key", value),
    "timeout in the URL of Redis": lambda value: RedisBuckets.from_url(f"redis://localhost?timeout={value}"),
    "timeout of buckets in PostgreSQL": lambda value: PostgresBuckets("postgresql://localhost/x", timeout=value),
    "timeout of httpx": lambda value: LimitedTransport(Limiter(RateLimit("5/s")), timeout=value),
    "timeout of httpx, sync": lambda value: SyncLimitedTransport(Limiter(RateLimit("5/s")), timeout=value),
    "timeout of requests": lambda value: LimitedAdapter(Limiter(RateLimit("5/s")), timeout=value),
    "timeout of aiohttp": lambda value: LimitedRequests(Limiter(RateLimit("5/s")), timeout=value),
    "deadline of metrics": lambda value: PrometheusMetrics(registry=CollectorRegistry(), deadline=value),
    "max_age of metrics": lambda value: PrometheusMetrics(registry=CollectorRegistry(), max_age=value),
    "base": lambda value: RetryPolicy(base=value),
    "cap": lambda value: RetryPolicy(cap=value),
    "delay of RetryPolicy": lambda value: RetryPolicy(delay=value),
    "delays": lambda value: RetryPolicy(delays=[1, value]),
    "Retention": lambda value: Retention(succeeded=value),
    "retention": lambda value: Headgate("memory://", retention=value),
    "retention by state": lambda value: Headgate("memory://", retention={"failed": value}),
    "timeout of the app": lambda value: Headgate("memory://", timeout=value),
    "lease": lambda value: Headgate("memory://", lease=value, heartbeat="0.1s"),
    "heartbeat": lambda value: Headgate("memory://", heartbeat=value, lease="100w"),
    "grace": lambda value: Headgate("memory://", grace=value),
    "timeout of a task": lambda value: Headgate("memory://").task(timeout=value)(_nothing),
    "retention of a task": lambda value: Headgate("memory://").task(retention=value)(_nothing),
    "retention of a task by state": lambda value: Headgate("memory://").task(retention={"failed": value})(_nothing),
    "expires_in of a task": lambda value: Headgate("memory://").task(expires_in=value)(_nothing),
    "using(retention=)": lambda value: _declared(Headgate("memory://")).using(retention=value),
    "using(expires_in=)": lambda value: _declared(Headgate("memory://")).using(expires_in=value),
    "timeout of a queue": lambda value: Headgate("memory://").queue("mail", timeout=value),
    "using(delay=)": lambda value: _declared(Headgate("memory://")).using(delay=value),
    "using(timeout=)": lambda value: _declared(Headgate("memory://")).using(timeout=value),
    "Snooze": Snooze,
    "RateLimited": lambda value: RateLimited(retry_after=value),
    "Retry": Retry,
    "job.result": lambda value: _open(value, _result),
    "batch.wait": lambda value: _open(value, _wait),
    "reschedule": lambda value: _open(value, _reschedule),
    "purge": lambda value: _open(value, lambda app, value: app.admin.purge(older_than=value)),
    "HEADGATE_LEASE": lambda value: load_settings({"heartbeat": "0.1s"}, {"HEADGATE_LEASE": str(value)}),
    "HEADGATE_RETENTION": lambda value: load_settings({}, {"HEADGATE_RETENTION": f"failed={value}"}),
    "HEADGATE_RETRY": lambda value: load_settings({}, {"HEADGATE_RETRY": f"retries=2,delay={value}"}),
}


async def _asked(place: str, value: Any) -> None:
    made = PLACES[place](value)
    if inspect.isawaitable(made):
        await made


@pytest.mark.parametrize("place", PLACES)
async def test_every_public_duration_takes_seconds_a_timedelta_and_text(place: str) -> None:
    for value in (
        (300, 300.5, "5m", "1h30m") if "HEADGATE" in place or "URL" in place else (300, "5m", timedelta(0, 300))
    ):
        await _asked(place, value)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "", "5 parsecs"], ids=repr)
async def test_every_public_duration_refuses_invalid_values(place: str, value: Any) -> None:
    if ("HEADGATE" in place or "URL" in place) and value == "":
        pytest.skip("an empty variable or option is one that is not set")
    with pytest.raises(DeclarationError) as caught:
        await _asked(place, value)
    assert repr(value).strip("'") in str(caught.value)


CLAMPED = ("timeout of", "Snooze", "RateLimited", "Retry", "penalize", "job.result", "batch.wait")
"""What programs compute from a deadline or from what a callee says."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", [HUNDRED_YEARS + 1, timedelta.max, 1e300], ids=repr)
async def test_no_public_duration_is_longer_than_a_hundred_years(place: str, value: Any) -> None:
    text = f"{HUNDRED_YEARS + 1}s" if "HEADGATE" in place or "URL" in place else value
    is_computed = place in ("timeout of RateGate", "timeout of Limiter", "timeout of hold") or place in CLAMPED[1:]
    if is_computed:
        await _asked(place, text)
    else:
        with pytest.raises(DeclarationError, match=r"hundred years|cannot be read"):
            await _asked(place, text)


def test_what_programs_compute_is_bounded_instead_of_refused() -> None:
    assert Snooze(-5).delay == Retry(-5).delay == 0
    assert Snooze(timedelta.max).delay == RateLimited(retry_after=1e300).retry_after == FARTHEST
    assert RateGate("1/h").wait(timeout=-1)
    assert Limiter(StrictRate("1/h", cost=1)).sync.acquire(cost=1, timeout=0) is not None


# ---------------------------------------------------------------------------------------------------------- instants


def test_a_number_in_place_of_an_instant_is_refused_with_what_to_write() -> None:
    task = _declared(Headgate("memory://"))
    for option in ("at", "expires_at"):
        with pytest.raises(DeclarationError, match=rf"{option}=1700000000.0 is a number; pass an aware datetime"):
            task.using(**{option: 1700000000.0})
        with pytest.raises(DeclarationError, match=rf"{option}='tomorrow' is not a datetime; pass an aware datetime"):
            task.using(**{option: "tomorrow"})
        with pytest.raises(DeclarationError, match=rf"{option}=.* has no time zone; pass an aware datetime"):
            task.using(**{option: datetime(2030, 1, 1)})  # noqa: DTZ001
    for option in ("first", "until"):
        with pytest.raises(DeclarationError, match=rf"{option}=1700000000"):
            task.schedule("name", Every("5m"), **{option: 1700000000})


@pytest.mark.parametrize("offset", [-23, -1, 0, 1, 23])
def test_the_first_and_the_last_instant_anywhere_are_instants(offset: int) -> None:
    zone = timezone(timedelta(hours=offset))
    for instant in (datetime.min, datetime.max):  # noqa: DTZ901
        read = parse_instant(instant.replace(tzinfo=zone), "at")
        assert abs(to_datetime(read).replace(tzinfo=None) - instant) <= timedelta(hours=23)
    assert to_datetime(LAST + FARTHEST) == datetime.max.replace(tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_comes_back_as_it_was(instant: datetime) -> None:
    assert to_datetime(from_datetime(instant)) == instant


# ------------------------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(
    "value",
    [True, 0, -1, 1.0, "5", None, 10**12 + 1, 10**5000],
    ids=lambda value: f"{value!r:.9}" if value != 10**5000 else "huge",
)
def test_a_count_that_no_store_holds_is_refused(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^queue 'mail': max_backlog=.* (at least 1|more than 1,000)"):
        parse_count(value, "max_backlog", "queue 'mail'")
    with pytest.raises(DeclarationError, match="max_backlog="):
        Headgate("memory://").queue("mail", max_backlog=0 if value is None else value)


# ------------------------------------------------------------------------------------------------------------- every


def test_a_period_is_one_text_or_a_timedelta_too() -> None:
    assert Every("5m") == Every(timedelta(minutes=5)) == Every(minutes=5)
    assert Every("1h30m").describe() == "every 90 minutes"
    assert Every("1.5s").period == 1_500_000
    assert repr(Every("2w")) == "Every(weeks=2)"
    assert hash(Every("5m")) == hash(Every(minutes=5))


@pytest.mark.parametrize("value", [5, 5.0, "5", True])
def test_a_period_without_its_unit_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"does not name a unit; write Every\(minutes=5\)"):
        Every(value)


@pytest.mark.parametrize("value", ["often", "", "5 parsecs"])
def test_a_period_that_cannot_be_read_is_refused(value: str) -> None:
    with pytest.raises(DeclarationError, match="Every"):
        Every(value)
    with pytest.raises(DeclarationError, match="two lengths"):
        Every("5m", seconds=3)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (1, 1),
        ("4096", 4096),
        ("200MB", 200_000_000),
        ("200 mb", 200_000_000),
        ("1.5GB", 1_500_000_000),
        ("2KiB", 2048),
        ("1GiB", 2**30),
        (" 7 B ", 7),
    ],
)
def test_sizes_are_bytes_or_text_with_a_unit(value: Any, size: int) -> None:
    assert parse_bytes(value, "max_memory") == size


@pytest.mark.parametrize("value", ["", "much", "200 M", "-1", "1e9", "9" * 100, True, 1.5, None, 0, -7, 10**13])
def test_a_value_that_is_no_size_is_refused_with_what_to_write(value: Any) -> None:
    what = r'(write bytes, or text like "200MB"|must be from)'
    with pytest.raises(DeclarationError, match=f"^worker: max_memory=.*{what}"):
        parse_bytes(value, "max_memory", "worker")
