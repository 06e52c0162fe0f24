"""Calendars as text, for operators: `every 2 weeks on mon, wed at 9:00, 17:30`."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

from headgate.errors import DeclarationError
from headgate.schedules.calendar import MONTHS, Calendar, joined, listed
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every

CALENDAR_FORMS = (
    'write "every 2 weeks on mon, wed at 9:00, 17:30", "on first monday at 8:00", "on 1, 15", "every 3 months on last '
    'day from 2027-01-31" or "on 1 in jan, jul"'
)

_PARTS = re.compile(r"\b(every|on|in|at|from)\s+", re.IGNORECASE)
_PERIOD = re.compile(r"(?:(\d{1,4})\s+)?(day|week|month)s?", re.IGNORECASE)


def spelled_trigger(
    cron: str | None, every: str | None, calendar: str | None, tz: str | None
) -> Cron | Every | Calendar | None:
    """Return the trigger that one of these texts means, in that zone (default: UTC); None if all are None."""
    if cron is not None:
        return Cron(cron, tz="UTC" if tz is None else tz)
    if calendar is not None:
        return parse_calendar(calendar, tz="UTC" if tz is None else tz)
    return None if every is None else Every(every)


def parse_calendar(text: str, tz: str = "UTC") -> Calendar:
    """Return the calendar of a text: `every …`, `on …`, `in …` (months), `at …` and `from …` (its start), each once.

    Raises DeclarationError for another text, and for a calendar that is invalid.
    """
    before, *rest = _PARTS.split(text.strip())
    words = [word.lower() for word in rest[::2]]
    if before.strip() or not words or len(set(words)) < len(words):
        raise _error(text, "it has other words" if before.strip() or not words else "a word is there twice")
    given = {word: part.strip() for word, part in zip(words, rest[1::2], strict=True)}
    options: dict[str, Any] = {}
    if "every" in given:
        found = _PERIOD.fullmatch(given["every"])
        if found is None:
            raise _error(text, f"{given['every']!r} is not a number of days, weeks or months")
        options[f"{found[2].lower()}s"] = int(found[1] or 1)
    if "on" in given:
        options["on"] = [int(day) if re.fullmatch("[0-9]{1,4}", day) else day for day in _items(text, given["on"])]
    if "in" in given:
        options["in_months"] = _items(text, given["in"])
    if "at" in given:
        options["at"] = _items(text, given["at"])
    if "from" in given:
        try:
            options["start"] = date.fromisoformat(given["from"])
        except ValueError:
            raise _error(text, f"{given['from']!r} is not a date like 2027-01-31") from None
    return Calendar(tz=tz, **options)


def calendar_text(calendar: Calendar) -> str:
    """Return the text of a calendar, without its zone; `parse_calendar` returns one with the same days and times."""
    for unit, count in (("day", calendar.days), ("week", calendar.weeks), ("month", calendar.months)):
        if count is not None:
            words = [f"every {unit}" if count == 1 else f"every {count} {unit}s"]
            break
    else:
        words = [] if calendar.on is not None else ["every day" if calendar.in_months is None else "every month"]
    words += [f"on {joined(calendar.on)}"] if calendar.on is not None else []
    if calendar.in_months is not None:
        named = [MONTHS[each - 1] if isinstance(each, int) else each for each in listed(calendar.in_months)]
        words.append(f"in {joined(named)}")
    words += [f"at {joined(calendar.at)}"]
    words += [f"from {calendar.start.isoformat()}"] if calendar.start is not None else []
    return " ".join(words)


def _items(text: str, given: str) -> list[str]:
    items = [item.strip() for item in given.split(",")]
    if not all(items):
        raise _error(text, f"{given!r} has an empty place")
    return items


def _error(text: str, why: str) -> DeclarationError:
    return DeclarationError(f"{text!r:.200} is not a calendar: {why}; {CALENDAR_FORMS}")
