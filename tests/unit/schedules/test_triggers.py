"""Triggers in plain words: what each is for, at the dates at which others go wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from headgate import Calendar, Cron, Every
from headgate.clock import SECOND, from_datetime, to_datetime
from headgate.schedules.stored_trigger import counted_from, dump_trigger, load_trigger
from headgate.schedules.trigger import Trigger

ROME = "Europe/Rome"


def runs(trigger: Trigger, after: str, count: int, tz: str = "UTC") -> list[str]:
    """The next runs as the clock of that zone shows them."""
    zone = ZoneInfo(tz)
    instant = from_datetime(datetime.fromisoformat(after).replace(tzinfo=zone))

    def following() -> object:
        nonlocal instant
        found = trigger.next_after(instant)
        assert found is not None
        instant = found
        return to_datetime(found).astimezone(zone).strftime("%Y-%m-%d %H:%M")

    return [str(each) for each in islice(iter(following, None), count)]


def declared(trigger: Trigger, at: str, tz: str = "UTC") -> Trigger:
    return counted_from(trigger, from_datetime(datetime.fromisoformat(at).replace(tzinfo=ZoneInfo(tz))))


# ------------------------------------------------------------------------------------- several times, several days


@pytest.mark.parametrize("trigger", [Calendar(at=["9:00", "14:00", "18:00"]), Cron("0 9,14,18 * * *")])
def test_a_daily_trigger_at_three_times_runs_three_times_a_day(trigger: Trigger) -> None:
    """Adding a day first and then looking for the next of the times would find only one of them each day."""
    assert runs(trigger, "2026-05-04 10:00", 6) == [
        "2026-05-04 14:00",
        "2026-05-04 18:00",
        "2026-05-05 09:00",
        "2026-05-05 14:00",
        "2026-05-05 18:00",
        "2026-05-06 09:00",
    ]


def test_what_is_declared_before_todays_time_runs_today() -> None:
    """A step of a whole day or month before the first run would miss the one that is still ahead."""
    for at in ("2026-05-15 10:00", "2026-05-15 14:59"):
        assert runs(declared(Calendar(at="15:00"), at), at, 1) == ["2026-05-15 15:00"]
        assert runs(declared(Calendar(on=15, at="15:00"), at), at, 1) == ["2026-05-15 15:00"]
        assert runs(Cron("0 15 * * *"), at, 1) == ["2026-05-15 15:00"]
    assert runs(declared(Calendar(at="15:00"), "2026-05-15 15:00"), "2026-05-15 15:00", 1) == ["2026-05-16 15:00"]


@pytest.mark.parametrize("month", range(1, 13))
def test_a_quarterly_trigger_may_be_declared_in_any_month_and_keeps_going(month: int) -> None:
    """A rule that never steps forward runs once and ends, or is refused when it is declared in one of its months."""
    quarters = ["-01-01 00:00", "-04-01 00:00", "-07-01 00:00", "-10-01 00:00"]
    expected = [f"{year}{quarter}" for year in (2026, 2027, 2028) for quarter in quarters]
    declared_at = f"2026-{month:02}-02 10:00"
    for trigger in (
        Calendar(in_months=[1, 4, 7, 10], on=1),
        Calendar(in_months=["jan", "April", "jul", "oct"], on=1),
        Cron("0 0 1 1,4,7,10 *"),
        Cron("0 0 1 jan,apr,jul,oct *"),
        Cron("0 0 1 */3 *"),
        Calendar(months=3, on=1, start=date(2025, 1, 31)),
    ):
        assert (
            runs(declared(trigger, declared_at), declared_at, 6)
            == [each for each in expected if each > declared_at][:6]
        )


def test_two_days_of_each_month_both_count() -> None:
    """A rule that steps by a month from whichever day it was on would only ever meet one of the two."""
    for trigger in (Calendar(on=[1, 15]), Calendar(months=1, on=[15, 1]), Cron("0 0 1,15 * *")):
        assert runs(declared(trigger, "2026-01-10 08:00"), "2026-01-10 08:00", 5) == [
            "2026-01-15 00:00",
            "2026-02-01 00:00",
            "2026-02-15 00:00",
            "2026-03-01 00:00",
            "2026-03-15 00:00",
        ]


def test_a_month_from_the_31st_on_does_not_drift() -> None:
    """A month after 31 January is 28 February, and a month after that 28 March: the end of the month would be lost."""
    for trigger in (Calendar(months=1), Calendar(on=31), Calendar(on="last day"), Cron("0 0 L * *")):
        assert runs(declared(trigger, "2028-01-31 00:00"), "2028-01-31 00:00", 5) == [
            "2028-02-29 00:00",
            "2028-03-31 00:00",
            "2028-04-30 00:00",
            "2028-05-31 00:00",
            "2028-06-30 00:00",
        ]


def test_every_second_week_on_two_days_at_two_times() -> None:
    trigger = Calendar(weeks=2, on=["mon", "wednesday"], at=["17:30", "9:00"], tz=ROME, start=date(2026, 5, 6))
    assert runs(trigger, "2026-05-01 00:00", 6, ROME) == [
        "2026-05-04 09:00",
        "2026-05-04 17:30",
        "2026-05-06 09:00",
        "2026-05-06 17:30",
        "2026-05-18 09:00",
        "2026-05-18 17:30",
    ]


def test_weekdays_are_the_days_of_work() -> None:
    assert runs(Calendar(on="weekday", at="8:00"), "2026-05-07 12:00", 3) == [
        "2026-05-08 08:00",
        "2026-05-11 08:00",
        "2026-05-12 08:00",
    ]
    # 31 May 2026 is a Sunday.
    assert runs(Calendar(on=["first weekday", "last weekday"]), "2026-05-02 00:00", 3) == [
        "2026-05-29 00:00",
        "2026-06-01 00:00",
        "2026-06-30 00:00",
    ]


def test_a_start_is_counted_in_the_days_of_the_zone() -> None:
    at_half_past_eleven_in_utc = from_datetime(datetime(2026, 5, 4, 23, 30, tzinfo=UTC))
    trigger = counted_from(Calendar(days=2, tz=ROME), at_half_past_eleven_in_utc)
    assert runs(trigger, "2026-05-05 00:00", 2, ROME) == ["2026-05-07 00:00", "2026-05-09 00:00"]


# ------------------------------------------------------------------------------------------ clocks that are changed


@pytest.mark.parametrize("trigger", [Cron("30 2 * * *", tz=ROME), Calendar(at="2:30", tz=ROME)])
def test_a_time_that_the_clock_skips_runs_once_at_the_end_of_the_gap(trigger: Trigger) -> None:
    assert runs(trigger, "2026-03-28 00:00", 3, ROME) == ["2026-03-28 02:30", "2026-03-29 03:00", "2026-03-30 02:30"]


@pytest.mark.parametrize("trigger", [Cron("30 2 * * *", tz=ROME), Calendar(at="2:30", tz=ROME)])
def test_a_time_that_the_clock_shows_twice_runs_once_the_first_time(trigger: Trigger) -> None:
    assert runs(trigger, "2026-10-24 00:00", 3, ROME) == ["2026-10-24 02:30", "2026-10-25 02:30", "2026-10-26 02:30"]
    assert trigger.next_after(from_datetime(datetime(2026, 10, 25, tzinfo=UTC))) == from_datetime(
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    )


def test_several_times_inside_the_gap_run_once() -> None:
    assert runs(Cron("*/15 2 * * *", tz=ROME), "2026-03-29 00:00", 2, ROME) == ["2026-03-29 03:00", "2026-03-30 02:00"]
    assert runs(Cron("0 2,3 * * *", tz=ROME), "2026-03-29 00:00", 2, ROME) == ["2026-03-29 03:00", "2026-03-30 02:00"]


def test_an_hourly_cron_runs_in_each_real_hour() -> None:
    for night in (datetime(2026, 3, 28, 20, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)):
        instant = from_datetime(night)
        for trigger in (Cron("0 * * * *", tz=ROME), Cron("@hourly", tz=ROME), Every(hours=1, start=night)):
            for hour in range(1, 12):
                assert trigger.next_after(instant + (hour - 1) * 3600 * SECOND) == instant + hour * 3600 * SECOND


def test_an_occurrence_on_a_day_that_a_zone_skipped_runs_at_its_end() -> None:
    """Samoa went from 29 to 31 December 2011."""
    assert runs(Calendar(at="9:00", tz="Pacific/Apia"), "2011-12-29 00:00", 3, "Pacific/Apia") == [
        "2011-12-29 09:00",
        "2011-12-31 00:00",
        "2011-12-31 09:00",
    ]


# --------------------------------------------------------------------------------------------------- cron's own words


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("@daily", "2026-05-04 10:00", "2026-05-05 00:00"),
        ("@weekly", "2026-05-04 10:00", "2026-05-10 00:00"),
        ("@Monthly", "2026-05-04 10:00", "2026-06-01 00:00"),
        ("@yearly", "2026-05-04 10:00", "2027-01-01 00:00"),
        ("0 0 * * 7", "2026-05-04 10:00", "2026-05-10 00:00"),
        ("0 0 * * FRI-SUN", "2026-05-10 10:00", "2026-05-15 00:00"),
        ("0 0 * * sat-0", "2026-05-10 10:00", "2026-05-16 00:00"),
        ("0 0 * * friL", "2026-05-04 10:00", "2026-05-29 00:00"),
        ("0 0 * * mon#2", "2026-05-04 10:00", "2026-05-11 00:00"),
        ("0 0 ? * 1", "2026-05-04 10:00", "2026-05-11 00:00"),
        ("10/20 * * * *", "2026-05-04 10:35", "2026-05-04 10:50"),
        ("0 0 13 * fri", "2026-05-04 10:00", "2026-05-08 00:00"),
        ("0 0 */2 * fri", "2026-05-04 10:00", "2026-05-15 00:00"),
        ("  0   6 * *  * ", "2026-05-04 10:00", "2026-05-05 06:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 0 * 2 mon#5", "2026-01-01 00:00", "2044-02-29 00:00"),
        ("30 0 6 * * *", "2026-05-04 10:00", "2026-05-05 06:00"),
    ],
)
def test_what_can_be_written(expression: str, after: str, expected: str) -> None:
    assert runs(Cron(expression), after, 1) == [expected]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "it has 0 fields"),
        ("* * *", "it has 3 fields"),
        ("* * * * * * *", "it has 7 fields"),
        ("@never", "it has 1 fields"),
        ("61 * * * *", "minute 61 is not in 0-59"),
        ("* 24 * * *", "hour 24 is not in 0-23"),
        ("* * 0 * *", "day 0 is not in 1-31"),
        ("* * * 13 *", "month 13 is not in 1-12"),
        ("* * * foo *", "month 'foo' cannot be read"),
        ("* * * * 8", "weekday 8 is not in 0-7"),
        ("* * * * mon#6", "a month has the 1st to the 5th of a weekday"),
        ("*/90 * * * *", "the step of minute '*/90' is not in 1-60"),
        ("*/0 * * * *", "the step of minute '*/0' is not in 1-60"),
        ("5-1 * * * *", "ends before it begins"),
        ("1,,2 * * * *", "minute '' cannot be read"),
        ("-1 * * * *", "minute '-1' cannot be read"),
        ("1.5 * * * *", "cannot be read"),
        ("٣ * * * *", "cannot be read"),
        ("0 0 30 2 *", "has no day that ever comes"),
        ("0 0 31 4,6,9,11 *", "has no day that ever comes"),
    ],
)
def test_an_invalid_cron_is_refused_at_declaration_with_the_accepted_forms(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match='write "minute hour day month weekday", or six fields') as caught:
        Cron(expression)
    assert why in str(caught.value)


def test_a_zone_that_does_not_exist_is_refused_with_a_similar_one() -> None:
    for trigger in (Cron, Calendar):
        arguments = {"expression": "0 6 * * *"} if trigger is Cron else {}
        for name, hint in (("Europe/Roma", "did you mean 'Europe/Rome'"), ("", "Use a name such as"), ("../etc", "")):
            with pytest.raises(ValueError, match="there is no time zone") as caught:
                trigger(**arguments, tz=name)  # type: ignore[arg-type]
            assert hint in str(caught.value)


# -------------------------------------------------------------------------------------------------- other refusals


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"days": 1, "weeks": 1}, "it has days= and weeks="),
        ({"days": 0}, "days=0 is not a whole number from 1"),
        ({"weeks": 1.5}, "weeks=1.5 is not a whole number"),
        ({"days": 2, "on": "mon"}, "on= needs weeks= or months="),
        ({"weeks": 1, "on": 15}, "on=15 is not a day of a week"),
        ({"on": "someday"}, "on='someday' is not a day of a month"),
        ({"on": 32}, "on=32 is not a day of a month"),
        ({"on": []}, "on is empty"),
        ({"in_months": 13}, "in_months=13 is not a month"),
        ({"in_months": []}, "in_months is empty"),
        ({"months": 2, "in_months": "jan"}, "give one of them"),
        ({"at": "24:00"}, "at='24:00' is not a time of day"),
        ({"at": "9"}, "at='9' is not a time of day"),
        ({"at": []}, "at is empty"),
        ({"start": datetime(2026, 1, 1, tzinfo=UTC)}, "must be a date"),
        ({"start": "2026-01-01"}, "start='2026-01-01' must be a date, as date(2027, 1, 31)"),
        ({"start": ""}, "start='' must be a date"),
        ({"on": {1, 2}}, "neither a value nor a list of values"),
    ],
)
def test_an_impossible_calendar_is_refused_at_declaration(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=r"write Calendar\(at=") as caught:
        Calendar(**arguments)  # type: ignore[arg-type]
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "has a period of 0 s"),
        ({"seconds": 0.05}, "has a period of 0.05 s"),
        ({"weeks": 6000}, "a hundred years"),
        ({"minutes": -5}, "minutes=-5 is not a length of time"),
        ({"minutes": float("nan")}, "minutes=nan is not a length of time"),
        ({"minutes": "5"}, "minutes='5' is not a length of time"),
        ({"weeks": 1e304}, "weeks=1e+304 is not a length of time"),
        ({"seconds": 10**400}, "is not a length of time"),
        ({"minutes": 5, "start": datetime(2026, 1, 1)}, "must be an aware datetime"),  # noqa: DTZ001
    ],
)
def test_an_impossible_interval_is_refused_at_declaration(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match="Every") as caught:
        Every(**arguments)  # type: ignore[arg-type]
    assert why in str(caught.value)


# ------------------------------------------------------------------------------------------------------- far and stored


@pytest.mark.parametrize(
    "trigger",
    [
        Cron("0 0 29 2 *"),
        Cron("* * * * * *"),
        Calendar(on=31),
        Cron("@yearly", tz=ROME),
        Every(weeks=1),
        Every(days=36_500, start=datetime(9990, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_trigger_beyond_the_last_instant_ends_without_a_search(trigger: Trigger) -> None:
    assert trigger.next_after(from_datetime(datetime(9999, 12, 30, tzinfo=UTC))) is None
    assert trigger.next_after(1 << 62) is None
    assert trigger.latest_at_or_before(-(1 << 62)) is None
    assert trigger.latest_at_or_before(1 << 62) is not None
    assert trigger.next_after(-(1 << 62)) is not None


@pytest.mark.parametrize(
    ("trigger", "described"),
    [
        (Cron(" 0 6 * * * ", tz=ROME), "cron 0 6 * * * (Europe/Rome)"),
        (Cron("@daily"), "cron @daily (UTC)"),
        (Every(minutes=5), "every 5 minutes"),
        (Every(hours=1), "every hour"),
        (Every(hours=1, minutes=30, start=datetime(2026, 1, 1, tzinfo=UTC)), "every 1 hour 30 minutes"),
        (Every(seconds=0.5), "every 0.5 seconds"),
        (Every(seconds=1_000_001), "every 1000001 seconds"),
        (Calendar(), "every day at 0:00 (UTC)"),
        (Calendar(weeks=2, on=["mon", "wed"], at=["9:00", "17:30"]), "every 2 weeks on mon, wed at 9:00, 17:30 (UTC)"),
        (Calendar(in_months=["jan"], on=[1, 15], start=date(2026, 1, 1)), "every month on 1, 15 in jan at 0:00 (UTC)"),
    ],
)
def test_a_trigger_is_described_and_read_back_as_it_was_stored(trigger: Trigger, described: str) -> None:
    assert trigger.describe() == described
    assert load_trigger(dump_trigger(trigger)) == trigger
    started = counted_from(trigger, from_datetime(datetime(2026, 5, 4, 10, 0, 0, 123456, tzinfo=UTC)))
    assert load_trigger(dump_trigger(started)) == started


def test_a_start_of_a_kind_of_a_library_is_stored_as_a_plain_one() -> None:
    """The fault: storing it raised TypeError: Encoding objects of type DateTime is unsupported."""
    moment, day = type("DateTime", (datetime,), {}), type("Date", (date,), {})
    every = Every(minutes=5, start=moment(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo(ROME)))
    assert (
        load_trigger(dump_trigger(every)) == every == Every(minutes=5, start=datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
    )
    calendar = Calendar(weeks=2, start=day(2026, 10, 25))
    assert load_trigger(dump_trigger(calendar)) == calendar == Calendar(weeks=2, start=date(2026, 10, 25))


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (Every("2w"), "2w"),
        (Every(minutes=90), "90m"),
        (Every(seconds=90), "90s"),
        (Every(seconds=12_345.678), "12345.678s"),
        (Every(seconds=100_000.5), "100000.5s"),
        (Every(seconds=0.1), "0.1s"),
        (Every(seconds=3_000_000_000.000001), "3000000000.000001s"),
    ],
)
def test_a_period_as_text_has_all_its_digits(trigger: Every, text: str) -> None:
    assert trigger.text == text
    assert Every(text).period == trigger.period


def test_a_custom_trigger_is_stored_by_its_description() -> None:
    class FullMoon:
        def next_after(self, instant: int) -> int | None:
            return instant + 1

        def latest_at_or_before(self, instant: int) -> int | None:
            return instant

        def describe(self) -> str:
            return "every full moon"

    stored = load_trigger(dump_trigger(FullMoon()))

    assert stored.describe() == "every full moon"
    assert not isinstance(stored, Trigger)


def test_a_trigger_of_a_newer_version_is_refused_with_a_message() -> None:
    with pytest.raises(ValueError, match="not a trigger of this version"):
        load_trigger('{"kind":"tides"}')
    with pytest.raises(ValueError, match="not a trigger of this version"):
        load_trigger('{"kind":"cron","expression":"0 0 30 2 *"}')
