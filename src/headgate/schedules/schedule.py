"""The pure rules of a schedule: what is due at an instant, and how a new declaration changes it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.clock import LAST, SECOND
from headgate.schedules.every import Every
from headgate.schedules.trigger import Trigger

LATE = 60 * SECOND
"""An occurrence that is overdue for this long is a misfire (microseconds)."""

DAY = 86400 * SECOND

MAX_PER_COMMIT = 1000
"""The most jobs that one commit enqueues for the schedules that are due, and the most occurrences of one of them.

It may be more by one occurrence: each schedule that is due enqueues at least one.
"""

MOST_COUNTED = 1000
"""How many skipped occurrences are counted at once, one by one; those of `Every` are counted in one step."""

Misfire = Literal["run_once", "skip", "run_all"]
Overlap = Literal["skip", "queue", "allow"]
Skipped = Literal["misfire", "overlap", "max_runs", "limit"]


class ScheduleRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declared rules of a schedule, without its job; instants are wall microseconds.

    `trigger` is text from `dump_trigger`. `first_at` is a separate instant for the first occurrence. No occurrence is
    due at or after `until`. The jobs are ready up to `jitter` microseconds after their occurrences.
    """

    trigger: str
    first_at: int | None = None
    until: int | None = None
    max_runs: int | None = None
    misfire: Misfire = "run_once"
    overlap: Overlap = "skip"
    jitter: int | None = None


class ScheduleProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a schedule; instants are wall microseconds.

    It is counted from `started_at`. `next_at` is the next occurrence (None: there is none any more), `last_at` the last
    one that was fired or skipped. `runs` counts jobs that ran to their end, `open` jobs that are not final yet.
    """

    started_at: int
    next_at: int | None
    last_at: int | None = None
    runs: int = 0
    open: int = 0


class DueOccurrences(NamedTuple):
    """The occurrences to enqueue now, and the next check.

    `skipped` is why others are left out, if any are, and `skips` is how many, as far as `MOST_COUNTED` allows.
    """

    occurrences: tuple[int, ...]
    next_at: int | None
    last_at: int | None
    skipped: Skipped | None = None
    skips: int = 0


def first_progress(rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """Return the progress of a schedule declared for the first time or anew."""
    if rules.first_at is not None:
        return ScheduleProgress(now, _before(rules.first_at, rules.until))
    return ScheduleProgress(now, _before(_after(trigger, now), rules.until))


def updated_progress(
    progress: ScheduleProgress, rules: ScheduleRules, trigger: Trigger, now: int, *, is_unchanged: bool
) -> ScheduleProgress:
    """Return the progress of a schedule that is declared again, with the rules that it had if it `is_unchanged`.

    Its run count and its rhythm stay. An occurrence that is due stays due, and a `first_at` in the future stays; else
    the next occurrence is computed by the new trigger and the current rules of its zone. What was skipped stays
    skipped, unless the rules have changed. An ended schedule continues if its new rules allow it.
    """
    if progress.next_at is not None and progress.next_at <= now:
        return progress
    if is_unchanged and progress.next_at is None and rules.until is not None:
        # Its last occurrence before then may have been skipped.
        return progress
    if (
        progress.last_at is None
        and rules.first_at is not None
        and progress.next_at in (None, rules.first_at)
        and rules.first_at >= now
    ):
        return replace(progress, next_at=_before(rules.first_at, rules.until))
    if rules.max_runs is not None and progress.runs >= rules.max_runs:
        return replace(progress, next_at=None)
    if is_unchanged and progress.next_at is not None and _after(trigger, progress.next_at - 1) == progress.next_at:
        return progress
    return replace(progress, next_at=_before(_after(trigger, max(now, progress.last_at or 0)), rules.until))


def resume(progress: ScheduleProgress, rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """Return the progress of a schedule whose pause ends; occurrences due during the pause are dropped."""
    if progress.next_at is None or progress.next_at > now:
        return progress
    return replace(progress, next_at=_before(_after(trigger, now), rules.until))


def skip_next(progress: ScheduleProgress, rules: ScheduleRules, trigger: Trigger) -> ScheduleProgress:
    """Return the progress of a schedule without its next occurrence."""
    if progress.next_at is None:
        return progress
    return replace(progress, next_at=_before(_after(trigger, progress.next_at), rules.until))


def set_back(progress: ScheduleProgress, rules: ScheduleRules, trigger: Trigger, now: int) -> ScheduleProgress:
    """Return the progress of a schedule that a clock which was ahead has carried beyond now; else the progress itself.

    No occurrence is fired or skipped before it is due, and no schedule is declared in the future. So a `last_at` or a
    `started_at` beyond now proves that the clock has been set back. By up to two periods, or a day if that is less, the
    schedule waits until then and repeats nothing. By more, it continues now.
    """
    following = _after(trigger, now)
    second = None if following is None else _after(trigger, following)
    period = DAY if following is None or second is None else second - following
    accepted = now + max(LATE, min(2 * period, DAY))
    last_at, started_at, next_at = progress.last_at, progress.started_at, progress.next_at
    if max(started_at, last_at or 0) <= accepted:
        return progress
    latest = _latest(trigger, now)
    if last_at is not None and last_at > accepted:
        is_over = rules.max_runs is not None and progress.runs >= rules.max_runs
        last_at, next_at = latest, None if is_over else _before(following, rules.until)
    elif last_at is None and next_at is not None:
        # Its first occurrence was computed from the wrong instant, unless it is one that the user requested.
        next_at = now if rules.first_at == started_at else min(next_at, rules.first_at or following or next_at)
    # The trigger counts from there as before.
    return replace(
        progress, started_at=min(started_at, now if latest is None else latest), next_at=next_at, last_at=last_at
    )


def occurrences_per_commit(jobs: int, schedules: int) -> int:
    """Return the most occurrences, of `jobs` jobs each, for one of the `schedules` that are due together."""
    return max(1, MAX_PER_COMMIT // (jobs * schedules))


def due(
    rules: ScheduleRules, trigger: Trigger, progress: ScheduleProgress, now: int, most: int = MAX_PER_COMMIT
) -> DueOccurrences:
    """Return up to `most` of the due occurrences of a schedule whose `next_at` has come.

    Of the missed occurrences, at most `MOST_COUNTED` are enumerated, unless `misfire` is "run_all"; so a long downtime
    costs no more than a short one.
    """
    if rules.overlap == "skip":
        # Only one of them is enqueued, however many are due.
        most = MAX_PER_COMMIT
    first = progress.next_at
    assert first is not None
    assert first <= now
    horizon = now if rules.until is None else min(now, rules.until - 1)
    if first > horizon:
        return DueOccurrences((), None, progress.last_at)
    skipped: Skipped | None = None
    missed = 0
    if first >= now - LATE or rules.misfire == "run_all":
        points, next_at = _points(trigger, first, horizon, most)
    elif rules.misfire == "skip":
        points, next_at = _points(trigger, _after(trigger, now - LATE - 1), horizon, most)
        skipped, missed = "misfire", _counted(trigger, first, min(horizon, now - LATE - 1))
    else:
        # `first` may come from `first_at` instead of the trigger, and may be the only occurrence.
        latest = max(first, _latest(trigger, horizon) or first)
        points, next_at = [latest], _after(trigger, max(latest, horizon))
        skipped, missed = (None, 0) if latest == first else ("misfire", _counted(trigger, first, latest - 1))
    due_now = len(points)
    last_at = points[-1] if points else horizon
    if rules.overlap == "skip" and points:
        free = 0 if progress.open else 1
        if len(points) > free:
            skipped = skipped or "overlap"
        points = points[len(points) - free :]
    if rules.max_runs is not None:
        left = rules.max_runs - progress.runs - progress.open
        if left <= 0 and not progress.open:
            return DueOccurrences((), None, last_at, skipped, missed)
        if len(points) > left:
            skipped = skipped or "max_runs"
        points = points[: max(left, 0)]
    skips = missed + due_now - len(points)
    return DueOccurrences(tuple(points), _before(next_at, rules.until), last_at, skipped, skips)


def without_refused(
    firing: DueOccurrences, rules: ScheduleRules, trigger: Trigger, refused: Sequence[int], opens_at: int | None
) -> DueOccurrences:
    """Return what is due without occurrences that a limit would refuse; it goes on when that opens, if it is known.

    Those that are due until then are skipped, too.
    """
    if not refused:
        return firing
    next_at, skips = firing.next_at, firing.skips + len(refused)
    if opens_at is not None and next_at is not None and next_at < opens_at:
        next_at = _before(_after(trigger, opens_at - 1), rules.until)
        skips += _counted(trigger, firing.next_at, (next_at or rules.until or opens_at) - 1)
    left = tuple(each for each in firing.occurrences if each not in refused)
    return DueOccurrences(left, next_at, firing.last_at, "limit", skips)


def ready_at(name: str, rules: ScheduleRules, occurs_at: int) -> int:
    """Return when the job of an occurrence is ready: a time within the jitter that is the same on all nodes."""
    if rules.jitter is None:
        return occurs_at
    most = rules.jitter if rules.until is None else max(0, min(rules.jitter, rules.until - 1 - occurs_at))
    digest = blake2b(f"{name} {occurs_at}".encode(), digest_size=8).digest()
    return occurs_at + int.from_bytes(digest) % (most + 1)


def is_over(rules: ScheduleRules, progress: ScheduleProgress) -> bool:
    """Return whether the schedule will never be due again."""
    return progress.next_at is None or (rules.max_runs is not None and progress.runs >= rules.max_runs)


def upcoming(rules: ScheduleRules, trigger: Trigger, progress: ScheduleProgress, now: int, count: int) -> list[int]:
    """Return the next `count` occurrences that run, unless limits or open jobs change that; missed ones run now."""
    found: list[int] = []
    instant = progress.next_at
    if rules.max_runs is not None:
        count = min(count, max(0, rules.max_runs - progress.runs - progress.open))
    if count and instant is not None and instant <= now:
        if rules.misfire != "run_all":
            # All that were missed before this one do not run, and to count them takes long.
            instant = max(instant, _latest(trigger, min(now - LATE, rules.until or now) - 1) or instant)
        missed = due(rules, trigger, replace(progress, next_at=instant, open=0), now, count)
        found, instant = list(missed.occurrences), missed.next_at
    while instant is not None and len(found) < count:
        found.append(instant)
        instant = _before(_after(trigger, instant), rules.until)
    return found


def _points(trigger: Trigger, first: int | None, horizon: int, most: int) -> tuple[list[int], int | None]:
    """Return the instants from `first` to the horizon, up to `most`, and the next one."""
    points: list[int] = []
    while first is not None and first <= horizon and len(points) < most:
        points.append(first)
        first = _after(trigger, first)
    return points, first


def _counted(trigger: Trigger, first: int | None, last: int) -> int:
    """Return how many occurrences there are from `first`, which is one, to `last`.

    Of another trigger than `Every`, at most `MOST_COUNTED`.
    """
    if first is None or first > last:
        return 0
    if isinstance(trigger, Every):
        next_at, last_at = trigger.next_after(first), trigger.latest_at_or_before(last)
        if next_at is None or last_at is None or last_at < next_at:
            return 1
        return 2 + (last_at - next_at) // trigger.period
    return len(_points(trigger, first, last, MOST_COUNTED)[0])


def _after(trigger: Trigger, instant: int) -> int | None:
    """Return the trigger's next instant, or None beyond the range of datetime.

    Raises ValueError for a custom trigger that does not advance, which would loop forever.
    """
    found = trigger.next_after(instant)
    if type(found) is int and instant < found and found > LAST:
        return None
    if found is not None and not (type(found) is int and instant < found):
        raise ValueError(
            f"next_after({instant}) of {trigger.describe()!r} returned {found!r}, which is not a later instant"
        )
    return found


def _latest(trigger: Trigger, instant: int) -> int | None:
    """Return the trigger's last instant until `instant`. Raises ValueError for an invalid result."""
    found = trigger.latest_at_or_before(instant)
    if found is not None and not (type(found) is int and -LAST < found <= instant):
        name = trigger.describe()
        raise ValueError(
            f"latest_at_or_before({instant}) of {name!r} returned {found!r}, which is not an instant until then"
        )
    return found


def _before(instant: int | None, until: int | None) -> int | None:
    return None if instant is None or (until is not None and instant >= until) else instant
