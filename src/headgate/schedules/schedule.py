"""A schedule as pure rules: what is due at an instant, and what becomes of it when it is declared again."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.clock import LAST, SECOND
from headgate.schedules.trigger import Trigger

LATE = 60 * SECOND
"""An occurrence that nobody has looked at for so long was missed (microseconds)."""

FARTHEST_INSTANT = 1 << 62
"""Beyond it an instant no longer fits a database."""

AT_ONCE = 1000
"""How many occurrences of one schedule are enqueued in one commit."""

Misfire = Literal["run_once", "skip", "run_all"]
Overlap = Literal["skip", "queue", "allow"]
Skipped = Literal["misfire", "overlap", "max_runs"]


class ScheduleRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was declared of a schedule but for its job; instants are wall microseconds.

    `trigger` is text as `dump_trigger` makes it. `first_at` is an instant of its own for the first occurrence, and no
    occurrence is due at or after `until`.
    """

    trigger: str
    first_at: int | None = None
    until: int | None = None
    max_runs: int | None = None
    misfire: Misfire = "run_once"
    overlap: Overlap = "skip"


class ScheduleProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a schedule is; instants are wall microseconds.

    It is counted from `started_at`. `next_at` is the occurrence to come (None: there is none any more) and `last_at`
    the last one that was looked at. `runs` of its jobs have really run to their end, `open` are not final yet.
    """

    started_at: int
    next_at: int | None
    last_at: int | None = None
    runs: int = 0
    open: int = 0


class DueOccurrences(NamedTuple):
    """What is to be enqueued now, and when to look again; `skipped` says why others are not, if any are not."""

    occurrences: tuple[int, ...]
    next_at: int | None
    last_at: int | None
    skipped: Skipped | None = None


def begin(rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """A schedule that is declared for the first time, or anew; a first instant that has passed was missed."""
    if rules.first_at is not None:
        return ScheduleProgress(now, _before(rules.first_at, rules.until))
    return ScheduleProgress(now, _before(_after(trigger, now), rules.until))


def go_on(course: ScheduleProgress, rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """The course of a schedule that is declared again: its count and its rhythm stay, its next occurrence is that of
    the trigger as it is now, also if the zone has changed its rules. What is due is due still, and a first instant that
    is to come stays.

    One that had come to its end goes on if its new rules let it.
    """
    if course.next_at is not None and course.next_at <= now:
        return course
    if (
        course.last_at is None
        and rules.first_at is not None
        and course.next_at in (None, rules.first_at)
        and rules.first_at >= now
    ):
        return replace(course, next_at=_before(rules.first_at, rules.until))
    if rules.max_runs is not None and course.runs >= rules.max_runs:
        return replace(course, next_at=None)
    return replace(course, next_at=_before(_after(trigger, max(now, course.last_at or 0)), rules.until))


def resume(course: ScheduleProgress, rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """The course of a schedule whose pause ends: what was due meanwhile is not made up for."""
    if course.next_at is None or course.next_at > now:
        return course
    return replace(course, next_at=_before(_after(trigger, now), rules.until))


def skip_next(course: ScheduleProgress, rules: ScheduleRules, trigger: Trigger) -> ScheduleProgress:
    """The course of a schedule whose next occurrence is left out."""
    if course.next_at is None:
        return course
    return replace(course, next_at=_before(_after(trigger, course.next_at), rules.until))


def due(rules: ScheduleRules, trigger: Trigger, course: ScheduleProgress, now: int) -> DueOccurrences:
    """What a schedule whose `next_at` has come enqueues.

    However long nobody was there: what was missed is not walked through, unless each of it is to run.
    """
    first = course.next_at
    assert first is not None
    assert first <= now
    horizon = now if rules.until is None else min(now, rules.until - 1)
    if first > horizon:
        return DueOccurrences((), None, course.last_at)
    skipped: Skipped | None = None
    if first >= now - LATE or rules.misfire == "run_all":
        points, next_at = _points(trigger, first, horizon)
    elif rules.misfire == "skip":
        points, next_at = _points(trigger, _after(trigger, now - LATE - 1), horizon)
        skipped = "misfire"
    else:
        # The first one need not be of the trigger, and may be all that there was.
        latest = max(first, _latest(trigger, horizon) or first)
        points, next_at = [latest], _after(trigger, max(latest, horizon))
        skipped = None if latest == first else "misfire"
    last_at = points[-1] if points else horizon
    if rules.overlap == "skip" and points:
        free = 0 if course.open else 1
        if len(points) > free:
            skipped = skipped or "overlap"
        points = points[len(points) - free :]
    if rules.max_runs is not None:
        left = rules.max_runs - course.runs - course.open
        if left <= 0 and not course.open:
            return DueOccurrences((), None, last_at, skipped)
        if len(points) > left:
            skipped = skipped or "max_runs"
        points = points[: max(left, 0)]
    return DueOccurrences(tuple(points), _before(next_at, rules.until), last_at, skipped)


def is_over(rules: ScheduleRules, course: ScheduleProgress) -> bool:
    """Whether it will never be due again."""
    return course.next_at is None or (rules.max_runs is not None and course.runs >= rules.max_runs)


def upcoming(rules: ScheduleRules, trigger: Trigger, course: ScheduleProgress, count: int) -> list[int]:
    """The next instants at which it is due, as far as its limits and its jobs do not change that."""
    found: list[int] = []
    instant = course.next_at
    if rules.max_runs is not None:
        count = min(count, max(0, rules.max_runs - course.runs - course.open))
    while instant is not None and len(found) < count:
        found.append(instant)
        instant = _before(_after(trigger, instant), rules.until)
    return found


def _points(trigger: Trigger, first: int | None, horizon: int) -> tuple[list[int], int | None]:
    """The instants from `first` to the horizon, no more than go into one commit, and the one after them."""
    points: list[int] = []
    while first is not None and first <= horizon and len(points) < AT_ONCE:
        points.append(first)
        first = _after(trigger, first)
    return points, first


def _after(trigger: Trigger, instant: int) -> int | None:
    """The trigger's next instant. Raises ValueError for one of a user's own that stands still: it would never end.

    What no datetime can tell never comes.
    """
    found = trigger.next_after(instant)
    if type(found) is int and instant < found and found > LAST:
        return None
    if found is not None and not (type(found) is int and instant < found):
        raise ValueError(
            f"next_after({instant}) of {trigger.describe()!r} returned {found!r}, which is not later, or no instant"
        )
    return found


def _latest(trigger: Trigger, instant: int) -> int | None:
    """The trigger's last instant until then. Raises ValueError for what a user's own returns that is none."""
    found = trigger.latest_at_or_before(instant)
    if found is not None and not (type(found) is int and -FARTHEST_INSTANT < found <= instant):
        name = trigger.describe()
        raise ValueError(
            f"latest_at_or_before({instant}) of {name!r} returned {found!r}, which is no instant until then"
        )
    return found


def _before(instant: int | None, until: int | None) -> int | None:
    return None if instant is None or (until is not None and instant >= until) else instant
