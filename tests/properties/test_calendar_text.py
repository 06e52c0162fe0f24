"""A calendar as text: what is read from it has the same days and times."""

from __future__ import annotations

from datetime import date
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import Calendar, DeclarationError
from headgate.schedules.calendar_text import calendar_text, parse_calendar

START = 1_790_000_000_000_000
WEEKLY = st.lists(st.sampled_from(["mon", "wed", "sunday", "weekday"]), min_size=1, max_size=3, unique=True)
MONTHLY = st.lists(
    st.one_of(st.integers(1, 31), st.sampled_from(["first monday", "last weekday", "last day", "fifth friday"])),
    min_size=1,
    max_size=3,
    unique=True,
)
MONTHS = st.lists(st.one_of(st.integers(1, 12), st.sampled_from(["feb", "july"])), min_size=1, max_size=3)


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    unit = draw(st.sampled_from(["days", "weeks", "months", None]))
    options: dict[str, Any] = {} if unit is None else {unit: draw(st.integers(1, 5))}
    if unit != "days" and draw(st.booleans()):
        weekly = unit == "weeks" or (unit is None and draw(st.booleans()))
        options["on"] = draw(WEEKLY if weekly else MONTHLY)
    if draw(st.booleans()):
        options["in_months"] = draw(MONTHS)
    options["at"] = draw(st.lists(st.sampled_from(["0:00", "9:00", "17:30", "2:30:15"]), min_size=1, max_size=3))
    if draw(st.booleans()):
        options["start"] = draw(st.dates(date(2020, 1, 1), date(2030, 1, 1)))
    try:
        return Calendar(tz=draw(st.sampled_from(["UTC", "Europe/Rome"])), **options)
    except DeclarationError:
        assume(False)
        raise


def runs(calendar: Calendar) -> list[int]:
    def each() -> Any:
        instant: int | None = START
        while instant is not None:
            instant = calendar.next_after(instant)
            yield instant

    return list(islice(each(), 10))


@given(calendars())
def test_what_is_read_from_the_text_of_a_calendar_runs_at_the_same_instants(calendar: Calendar) -> None:
    text = calendar_text(calendar)
    again = parse_calendar(text, calendar.tz)
    assert runs(again) == runs(calendar)
    assert calendar_text(again) == text


@pytest.mark.parametrize(
    ("text", "calendar"),
    [
        ("every day", Calendar(days=1)),
        ("Every 2 Weeks on mon, wed at 9:00, 17:30", Calendar(weeks=2, on=["mon", "wed"], at=["9:00", "17:30"])),
        ("  on first monday at 8:00", Calendar(on=["first monday"], at=["8:00"])),
        ("on 1, 15", Calendar(on=[1, 15])),
        ("on 1 in jan, jul", Calendar(on=[1], in_months=["jan", "jul"])),
        ("every 3 months on last day from 2027-01-31", Calendar(months=3, on=["last day"], start=date(2027, 1, 31))),
        ("at 9:00 on fri", Calendar(on=["fri"], at=["9:00"])),
    ],
)
def test_a_calendar_is_read_as_it_is_said(text: str, calendar: Calendar) -> None:
    assert parse_calendar(text) == calendar
    rome = parse_calendar(text, "Europe/Rome")
    assert rome.tz == "Europe/Rome"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has other words"),
        ("monday", "has other words"),
        ("each monday at 9:00", "has other words"),
        ("on mon on tue", "a word is there twice"),
        ("every 2 years", "'2 years' is not a number of days, weeks or months"),
        ("every 0 days", "days=0 is not a whole number from 1"),
        ("on mon,, tue", "has an empty place"),
        ("on someday", "on='someday' is not a day of a month"),
        ("every day from tomorrow", "'tomorrow' is not a date like"),
        ("every day at noon", "at='noon' is not a time of day"),
        ("on 30 in feb every", "not"),
    ],
)
def test_what_is_no_calendar_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse_calendar(text)
