"""Restricted triggers: the occurrences of another trigger that lie inside of windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from headgate.clock import SECOND
from headgate.errors import DeclarationError
from headgate.schedules.calendar import Calendar, weekdays_named
from headgate.schedules.cron import Cron
from headgate.schedules.every import Every
from headgate.schedules.trigger import Trigger
from headgate.schedules.wall_clock import zone_of
from headgate.schedules.windows import DAYS_FORMS, Windows, excluder_of, times_between, weekdays_of, written_days

MOST_TRIED = 5000
"""How many occurrences are tried to find one inside of the windows."""

MOST_LISTED = 6
"""The most excluded days that the description of a stored trigger lists."""

ExcludesDay = Callable[[date], bool]
"""Returns whether a schedule does not run on this day."""

Excluded = date | str | ExcludesDay
"""Excludes days: a date, a date or a range as text, or a function."""


class WindowTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Windows as they are stored: the zone, two times of day, words for weekdays, and days or ranges as text."""

    tz: str
    between: tuple[str, str] | None = None
    on: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @cached_property
    def windows(self) -> Windows:
        """The same, to compute with. Raises DeclarationError."""
        zone = zone_of(self.tz, "the windows of a schedule")
        try:
            opens, closes = (0, 0) if self.between is None else times_between(self.between)
            words = weekdays_of(self.on or "day")
            excludes = [excluder_of(self.exclude)] if self.exclude else []
        except ValueError as error:
            raise DeclarationError(str(error)) from None
        weekdays = frozenset(day for word in words for day in weekdays_named(word) or ())
        return Windows(zone, opens, closes, weekdays, excludes)

    def describe(self, excluded: Collection[str]) -> str:
        """Return the windows in a few words; `excluded` are those for the excluded days."""
        words = [] if self.between is None else [f"between {self.between[0]} and {self.between[1]}"]
        if self.on:
            words.append(f"on {', '.join(self.on)}")
        if excluded:
            words.append(f"except {', '.join(excluded)}")
        return f"{', '.join(words)} ({self.tz})"


class RestrictedTrigger(msgspec.Struct, frozen=True, tag_field="kind", tag="restricted", dict=True):
    """The occurrences of a stored trigger inside of windows."""

    trigger: Cron | Every | Calendar
    terms: WindowTerms

    def starting(self, instant: int) -> RestrictedTrigger:
        """Return the trigger counted from that instant, unless it has its own start."""
        return (
            self
            if isinstance(self.trigger, Cron)
            else replaced(self, trigger=_starting(self.trigger, self.terms.windows, instant))
        )

    def next_after(self, instant: int) -> int | None:
        return _next_after(self.trigger, self.terms.windows, instant)

    def latest_at_or_before(self, instant: int) -> int | None:
        return _latest_at_or_before(self.trigger, self.terms.windows, instant)

    def describe(self) -> str:
        days = self.terms.exclude
        if len(days) > MOST_LISTED:
            days = (*days[: MOST_LISTED - 1], f"{len(days) - MOST_LISTED + 1} more")
        return f"{self.trigger.describe()}, {self.terms.describe(days)}"


@dataclass(frozen=True, slots=True)
class CodeRestrictedTrigger:
    """As `RestrictedTrigger`, with a custom trigger, or with days that functions exclude: they exist only in code."""

    trigger: Trigger
    terms: WindowTerms
    functions: tuple[ExcludesDay, ...] = ()

    def starting(self, instant: int) -> CodeRestrictedTrigger:
        """Return the trigger counted from that instant, if it needs a start and has none."""
        if isinstance(self.trigger, Every | Calendar):
            return replace(self, trigger=_starting(self.trigger, self._windows, instant))
        return self

    def next_after(self, instant: int) -> int | None:
        return _next_after(self.trigger, self._windows, instant)

    def latest_at_or_before(self, instant: int) -> int | None:
        return _latest_at_or_before(self.trigger, self._windows, instant)

    def describe(self) -> str:
        # All of it, because nodes compare these descriptions.
        functions = [
            f"{each.__module__}.{getattr(each, '__qualname__', type(each).__name__)}" for each in self.functions
        ]
        return f"{self.trigger.describe()}, {self.terms.describe([*self.terms.exclude, *functions])}"

    @property
    def _windows(self) -> Windows:
        windows = self.terms.windows
        return replace(windows, excludes=[*windows.excludes, *self.functions])


def restricted(trigger: Trigger, where: str, *, between: Any, on: Any, exclude: Any, tz: Any) -> Trigger:
    """Return the trigger inside of these windows; without any, the trigger itself. Raises DeclarationError.

    Their zone is `tz`, else that of the trigger, else UTC.
    """
    if between is None and on is None and exclude is None:
        if tz is not None:
            raise DeclarationError(
                f"{where}: tz={tz!r} applies to between=, on= and exclude=, and you pass none; give the zone to the "
                'trigger, as in Cron("0 6 * * *", tz="Europe/Rome")'
            )
        return trigger
    zone = tz if tz is not None else getattr(trigger, "tz", "UTC")
    zone_of(zone, where)
    try:
        if between is not None:
            times_between(between)
        words = () if on is None else weekdays_of(on)
        texts, functions = _split(exclude)
    except ValueError as error:
        raise DeclarationError(f"{where}: {error}") from None
    terms = WindowTerms(tz=zone, between=between and tuple(between), on=words, exclude=texts)
    if functions or not isinstance(trigger, Cron | Every | Calendar):
        return CodeRestrictedTrigger(trigger, terms, functions)
    found = RestrictedTrigger(trigger, terms)
    if found.starting(0).next_after(0) is None:
        raise DeclarationError(
            f"{where}: {found.describe()!r} never runs: all occurrences of the trigger are outside its windows"
        )
    return found


def _split(exclude: Any) -> tuple[tuple[str, ...], tuple[ExcludesDay, ...]]:
    """Return the excluded days as text, and the functions. Raises ValueError."""
    if exclude is None:
        return (), ()
    is_one = isinstance(exclude, date | str | Mapping) or callable(exclude) or not isinstance(exclude, Collection)
    texts: list[str] = []
    functions: list[ExcludesDay] = []
    for each in [exclude] if is_one else exclude:
        if not callable(each):
            texts.append(written_days(each))
        elif isinstance(each, type) or inspect.iscoroutinefunction(each):
            raise ValueError(f"exclude={each!r:.80} {DAYS_FORMS}")
        else:
            functions.append(each)
    # A set has another order in each process, and equal declarations must be stored as equal texts.
    return tuple(sorted(texts) if isinstance(exclude, Set) else texts), tuple(functions)


def _starting(trigger: Every | Calendar, windows: Windows, instant: int) -> Every | Calendar:
    """Return the trigger counted from that instant, and an `Every` from the first instant inside of the windows.

    So `Every("1d")` has an occurrence inside of them, whenever it is declared: a day after a closed instant is closed.
    """
    if isinstance(trigger, Every):
        second = windows.first_open(instant // SECOND)
        if second is not None and second > instant // SECOND:
            instant = second * SECOND
    return trigger.starting(instant)


def _next_after(trigger: Trigger, windows: Windows, instant: int) -> int | None:
    found = trigger.next_after(instant)
    for _ in range(MOST_TRIED):
        if found is None:
            return None
        second = windows.first_open(found // SECOND)
        if second is None:
            return None
        if second == found // SECOND:
            return found
        found = trigger.next_after(second * SECOND - 1)
    return None


def _latest_at_or_before(trigger: Trigger, windows: Windows, instant: int) -> int | None:
    found = trigger.latest_at_or_before(instant)
    for _ in range(MOST_TRIED):
        if found is None:
            return None
        second = windows.last_open(found // SECOND)
        if second is None:
            return None
        if second == found // SECOND:
            return found
        found = trigger.latest_at_or_before((second + 1) * SECOND - 1)
    return None
