"""The checks of the run logs afterwards: were the limits kept, and was the budget used."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from headgate.admin.audit import highest_in_window
from headgate.clock import SECOND
from headgate.limits.limit import Limit

Span = tuple[int, int]

# Between the commit that declares a node dead and the line that says so.
TOLD_LATE = SECOND // 2


class Line(msgspec.Struct, frozen=True):
    """One line of a run_log; `at` is in microseconds since boot, the same for all processes."""

    kind: str
    at: int
    node: str
    job: str = ""
    task: str = ""
    key: str = ""
    weight: int = 1
    day: int = 0


def read_run_logs(folder: Path) -> list[Line]:
    """The lines of all processes in the order of time. One that was killed may have left half a line."""
    lines: list[Line] = []
    for path in folder.glob("*.run_log"):
        whole, _, _half = path.read_text().rpartition("\n")
        lines += (msgspec.convert(json.loads(line), Line) for line in whole.splitlines())
    return sorted(lines, key=lambda line: line.at)


def by_key(starts: Iterable[Line]) -> dict[str, list[Line]]:
    keys: defaultdict[str, list[Line]] = defaultdict(list)
    for start in starts:
        keys[start.key].append(start)
    return keys


def excesses(keys: Mapping[str, Sequence[Line]], limit: Limit, *, period: float) -> list[str]:
    """Keys that started more than a rate allows, in windows of its own length and of several.

    `period` is the length as it was declared: a margin makes the rule's own longer, so that what reaches the callee
    keeps to the declared one.
    """
    found: list[str] = []
    declared = msgspec.structs.replace(limit.rule, period=round(period * SECOND))
    for key, lines in keys.items():
        for periods in (1, 2, 5):
            window = round(periods * period * SECOND)
            highest = highest_in_window(((line.at, 1) for line in lines), window)
            if highest > declared.bound(window):
                found.append(f"{limit.name}:{key} {highest} > {declared.bound(window)} in {window / SECOND} s")
    return found


def excesses_of_a_day(starts: Iterable[Line], count: int) -> list[str]:
    """Keys that used more in a day than they may."""
    used: Counter[tuple[str, int]] = Counter()
    for start in starts:
        used[start.key, start.day] += start.weight
    return [f"{key} {cost} > {count} in a day" for (key, _), cost in used.items() if cost > count]


def overlaps(lines: Sequence[Line]) -> list[str]:
    """Jobs of one key that ran at once.

    A process that stood still for longer than its lease was declared dead, and nobody can keep it from going on for a
    moment when it wakes up: what it did after it was declared dead does not count. What it finishes is refused.
    """
    dead = {line.node: line.at - TOLD_LATE for line in reversed(lines) if line.kind == "lost"}
    ends: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for line in lines:
        if line.kind == "end":
            ends[line.job, line.node].append(line.at)
    found: list[str] = []
    for key, starts in by_key(line for line in lines if line.task == "edit").items():
        until, holder = 0, ""
        for start in starts:
            death = dead.get(start.node, 1 << 62)
            if start.at >= death:
                continue
            if start.at < until:
                found.append(f"{key}: {start.job} began {(until - start.at) / SECOND} s before {holder} ended")
            end = min((at for at in ends[start.job, start.node] if at >= start.at), default=1 << 62)
            until, holder = min(end, death), start.job
    return found


def lateness(starts: Sequence[Line], limit: Limit, calm: Sequence[Span]) -> float:
    """How many seconds late a start was, in the mean, of a key that always had jobs waiting: 0 if it used its budget.

    So many starts as the limit counts take at least a period; this is what they took beyond it, where nothing went
    wrong meanwhile.
    """
    count, period = limit.rule.count, limit.rule.period
    took = [
        late.at - early.at
        for early, late in zip(starts, starts[count:], strict=False)
        if any(begin <= early.at and late.at <= end for begin, end in calm)
    ]
    assert took, "there was no calm"
    return (sum(took) / len(took) - period) / SECOND


def mean_wait(starts: Sequence[Line], enqueued: Mapping[str, int], calm: Sequence[Span]) -> float:
    """How many seconds after their enqueue jobs began, in the mean, where nothing went wrong meanwhile."""
    took = [
        max(0, start.at - enqueued[start.job])
        for start in starts
        if start.job in enqueued and any(begin <= enqueued[start.job] and start.at <= end for begin, end in calm)
    ]
    assert took, "there was no calm"
    return sum(took) / len(took) / SECOND


def calm_between(outages: Sequence[Span], begin: int, end: int) -> list[Span]:
    """The rest of the time."""
    calm: list[Span] = []
    for out, back in sorted(outages):
        if out > begin:
            calm.append((begin, out))
        begin = max(begin, back)
    if end > begin:
        calm.append((begin, end))
    return calm
