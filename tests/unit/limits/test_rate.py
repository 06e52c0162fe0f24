"""Rate strings: what is accepted, what it means, and the errors of mistakes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headgate import AdaptiveRate, FixedWindow, RateLimit, SlidingWindow, StrictRate
from headgate.clock import SECOND, Duration
from headgate.errors import DeclarationError
from headgate.limits.rate import Rate, parse_rate


@pytest.mark.parametrize(
    ("text", "count", "seconds"),
    [
        ("10/s", 10, 1),
        ("15/m", 15, 60),
        ("500/h", 500, 3600),
        ("1000/d", 1000, 86400),
        ("15/30s", 15, 30),
        ("3/2h", 3, 7200),
        ("1/1s", 1, 1),
        (" 15/m ", 15, 60),
        ("2/w", 2, 7 * 86400),
        ("15/1m30s", 15, 90),
        ("15/0.5s", 15, 0.5),
        ("15/250ms", 15, 0.25),
        ("3000000/s", 3_000_000, 1),
    ],
)
def test_a_rate_is_a_count_per_period(text: str, count: int, seconds: float) -> None:
    assert parse_rate(text, None) == Rate(count, round(seconds * SECOND))


@pytest.mark.parametrize(
    ("per", "period"),
    [(60, 60 * SECOND), (0.5, SECOND // 2), (timedelta(minutes=1), 60 * SECOND), (1e-6, 1), ("5m", 300 * SECOND)],
)
def test_a_count_takes_its_period_apart(per: Duration, period: int) -> None:
    assert parse_rate(15, per) == Rate(15, period)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "15",
        "15/",
        "/m",
        "15/x",
        "15/M",
        "1.5/s",
        "-1/s",
        "15/m/s",
        "m/15",
        "15/1x",
        "15/h1",
        "9" * 20 + "/m",
    ],
)
def test_a_text_that_is_not_a_rate_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(
        DeclarationError, match=r'"10/s", "100/m", "500/h", "1000/d", "15/30s" or "15 per minute"'
    ) as caught:
        parse_rate(text, None)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("rate", [15.0, None, True, ("15", "m")])
def test_a_value_that_is_not_a_rate_is_refused_with_the_accepted_forms(rate: object) -> None:
    with pytest.raises(DeclarationError, match=r'"15 per minute", or as a count with per=60'):
        parse_rate(rate, 60)  # type: ignore[arg-type]


def test_a_count_without_a_period_is_refused_with_the_accepted_forms() -> None:
    with pytest.raises(DeclarationError, match=r"a rate of 15 needs its period.*or as a count with per=60"):
        parse_rate(15, None)


def test_a_rate_string_has_one_period_only() -> None:
    with pytest.raises(DeclarationError, match="already names its period"):
        parse_rate("15/m", 60)


@pytest.mark.parametrize(("rate", "per"), [("0/m", None), (0, 60), (-1, 60)])
def test_a_count_below_one_is_refused(rate: str | int, per: Duration | None) -> None:
    with pytest.raises(DeclarationError, match="at least 1"):
        parse_rate(rate, per)


@pytest.mark.parametrize(("rate", "per"), [("15/0s", None), (15, 0), (15, 1e-9), (15, timedelta(0))])
def test_a_period_without_length_is_refused(rate: str | int, per: Duration | None) -> None:
    with pytest.raises(DeclarationError, match="above 0"):
        parse_rate(rate, per)


@pytest.mark.parametrize(
    "per", [-1, timedelta(seconds=-1), 101 * 365 * 86400, "6000w", timedelta.max, 10**30, True, ""]
)
def test_a_period_that_no_store_can_hold_is_refused_with_the_argument_and_the_value(per: Duration) -> None:
    with pytest.raises(DeclarationError, match=r"a rate of 15: per=.*(negative|hundred years|is not a duration)"):
        parse_rate(15, per)


@pytest.mark.parametrize("rate", ["15/6000w", "1/999999999999999999d"])
def test_a_rate_over_more_than_a_hundred_years_is_refused(rate: str) -> None:
    with pytest.raises(DeclarationError, match="more than a hundred years"):
        parse_rate(rate, None)


def test_a_count_that_no_store_counts_to_is_refused() -> None:
    for rate, per in ((10**13, 60), ("10000000000000/m", None), (10**5000, 1)):
        with pytest.raises(DeclarationError, match=r"1,000,000,000,000"):
            parse_rate(rate, per)


@pytest.mark.parametrize("per", [float("inf"), float("-inf"), float("nan")])
def test_a_period_that_is_not_finite_is_refused(per: float) -> None:
    with pytest.raises(DeclarationError, match=r"per=.* is not finite"):
        parse_rate(15, per)


def test_a_mistaken_rate_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate("often", None)


@pytest.mark.parametrize("text", ["10/s", "15/m", "500/h", "1000/d", "15/30s", "15/90s", "3/2h", "7/10d"])
def test_a_rate_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse_rate(text, None)) == text


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("15/min", "15/m"),
        ("15/minute", "15/m"),
        ("15 / m", "15/m"),
        ("15 per minute", "15/m"),
        ("15 per 5 minutes", "15/5m"),
        ("10/sec", "10/s"),
        ("500 per hour", "500/h"),
        ("1000/day", "1000/d"),
        ("1/week", "1/7d"),
    ],
)
def test_a_rate_may_be_written_in_words(text: str, short: str) -> None:
    assert str(parse_rate(text, None)) == short


@pytest.mark.parametrize("per", [60, "60", "m", "minute", "1m", "1 minute", timedelta(minutes=1)])
def test_a_period_may_be_the_second_argument(per: Duration) -> None:
    for kind in (RateLimit, StrictRate, FixedWindow, SlidingWindow, AdaptiveRate):
        assert kind(15, per) == kind("15/m")


@pytest.mark.parametrize("text", ["15/M", "15/month", "15/mo", "15 minute", "15per minute", "15 per", "15/ ", "15/5"])
def test_a_rate_in_other_words_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="is not a rate; write it as"):
        parse_rate(text, None)


def test_a_rate_is_named_by_its_largest_whole_unit() -> None:
    assert str(parse_rate("15/60s", None)) == "15/m"
    assert str(parse_rate("15/24h", None)) == "15/d"


@pytest.mark.parametrize(
    ("period", "text"),
    [
        (60_020_000, "15/60.02s"),
        (500_000, "15/0.5s"),
        (10, "15/0.00001s"),
        (86_400_020_000, "15/86400.02s"),
        (86_400_000_001, "15/86400.000001s"),
    ],
)
def test_a_fraction_of_a_second_is_shown_in_full(period: int, text: str) -> None:
    assert str(Rate(15, period)) == text


@pytest.mark.parametrize("kind", [StrictRate, RateLimit, FixedWindow, SlidingWindow])
def test_a_margin_is_no_part_of_the_declared_period(kind: Any) -> None:
    rule = kind("15/m", margin=6).rule
    assert rule.declared_period == 60 * SECOND
    assert rule.describe().startswith("15/m + 6s")
