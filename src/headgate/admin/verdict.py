"""The verdict: what an overview says first, in one to three sentences, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headgate.admin.overview import Overview

MOST_SENTENCES = 3

LAG = 10.0
"""Seconds that the oldest ready job of a queue has lacked a slot, from which the verdict names the queue."""

RETRIES = 20
"""Failed attempts in five minutes from which the verdict names them, if there are more than jobs that succeeded."""

SentenceKind = Literal[
    "store_silent",
    "no_worker",
    "alerts",
    "blocked",
    "workers_silent",
    "undeclared",
    "queue_paused",
    "limit_paused",
    "lag",
    "limit",
    "overdue",
    "retrying",
    "failed",
    "counting",
    "ready",
    "idle",
]

Tone = Literal["bad", "warn", "info", "good"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a verdict: what it says, by `kind`, and the numbers, names and times in it.

    `str()` is the sentence in English, with times in UTC.
    """

    kind: SentenceKind
    tone: Tone
    count: int | None = None
    name: str | None = None
    key: str | None = None
    at: datetime | None = None
    seconds: float | None = None
    more: int = 0

    def __str__(self) -> str:
        count, jobs = self.count or 0, _plural(self.count or 0, "job")
        match self.kind:
            case "store_silent":
                return f"The store has not answered since {_clock(self.at)}."
            case "no_worker":
                if not count:
                    return "No worker is running."
                return f"No worker is running. {jobs} {_are(count)} {'ready' if self.name == 'ready' else 'waiting'}."
            case "alerts":
                return f"{_plural(count, 'alert')} {_are(count)} firing: {self.name}."
            case "blocked":
                return f"A database session has delayed the store for {self.seconds or 0:.0f} s."
            case "workers_silent":
                return f"{_plural(count, 'worker')} {'does' if count == 1 else 'do'} not respond."
            case "undeclared":
                return f"{jobs} {'waits' if count == 1 else 'wait'} for a task that no running worker declares."
            case "queue_paused":
                return f"Queue {self.name} is paused; {jobs} {'waits' if count == 1 else 'wait'} in it."
            case "limit_paused":
                return f"Limit {self.name} is paused; {jobs} {'waits' if count == 1 else 'wait'} for it."
            case "lag":
                return f"Jobs in queue {self.name} wait {self.seconds or 0:.0f} s for a free slot."
            case "limit":
                wait = f"{_plural(count, 'key')} {'waits' if count == 1 else 'wait'} for {self.name}"
                if self.at is None:
                    return f"{wait}; {_key(self.key)} has most jobs."
                return f"{wait}; {_key(self.key)} is clear at {_clock(self.at)}."
            case "overdue":
                return f"{_plural(count, 'schedule')} {_are(count)} overdue."
            case "retrying":
                attempts = f"{_plural(count, 'attempt')} failed and will be retried"
                return f"In the last 5 minutes {attempts}; {_plural(self.more, 'job')} succeeded."
            case "failed":
                return f"{_plural(count, 'job')}{' or more' if self.more else ''} failed in the last hour."
            case "counting":
                return "Jobs are being counted."
            case "ready":
                return f"{jobs} {_are(count)} ready for a free slot."
            case "idle":
                return (
                    "Nothing waits."
                    if not count
                    else f"Nothing waits but {jobs} for {'its' if count == 1 else 'their'} time."
                )


def verdict(seen: Overview, silent_since: datetime | None = None) -> Sequence[Sentence]:
    """Return one to three sentences about an overview, worst first; `silent_since`: the store does not answer."""
    found = [*_troubles(seen)][:MOST_SENTENCES]
    if silent_since is not None:
        # What follows is the last known state.
        return [Sentence("store_silent", "bad", at=silent_since), *found][:MOST_SENTENCES]
    return found or [_calm(seen)]


def _troubles(seen: Overview) -> Iterator[Sentence]:
    totals, nodes = seen.totals, seen.nodes
    if not nodes.alive and (totals.waiting or nodes.silent):
        # With no worker, all others wait for one as well, such as jobs of tasks that no worker declares.
        startable = (totals.ready or 0) + (totals.undeclared or 0)
        name = "ready" if startable else "waiting"
        yield Sentence("no_worker", "bad", count=startable or totals.waiting, name=name)
    firing = [each.alert for each in seen.alerts if each.state == "firing"]
    if firing:
        yield Sentence("alerts", "bad", count=len(firing), name=", ".join(dict.fromkeys(firing)))
    if seen.blockers:
        yield Sentence("blocked", "bad", seconds=max(each.age for each in seen.blockers))
    if nodes.alive and nodes.silent:
        yield Sentence("workers_silent", "warn", count=nodes.silent)
    if nodes.alive and totals.undeclared:
        yield Sentence("undeclared", "warn", count=totals.undeclared)
    paused = [each for each in seen.queues if each.is_paused and each.waiting]
    for queue in sorted(paused, key=lambda each: -each.waiting):
        yield Sentence("queue_paused", "warn", count=queue.waiting, name=queue.queue)
    for queue in sorted(seen.queues, key=lambda each: -each.lag):
        if nodes.alive and queue.lag > LAG:
            yield Sentence("lag", "warn", name=queue.queue, seconds=queue.lag)
    for limit in seen.limits:
        if not limit.waiting:
            break
        if limit.is_paused:
            yield Sentence("limit_paused", "warn", count=limit.waiting, name=limit.limit)
        else:
            worst = limit.worst[0] if limit.worst else None
            key, at = (None, None) if worst is None else (worst.key, worst.clears_at)
            # Without a worker the time at which the limit has let all jobs start comes, and they still wait.
            at = at if nodes.alive else None
            yield Sentence("limit", "warn", count=limit.keys, name=limit.limit, key=key, at=at)
    if seen.overdue_schedules:
        yield Sentence("overdue", "warn", count=len(seen.overdue_schedules))
    if RETRIES <= seen.retried_lately > seen.succeeded_lately:
        yield Sentence("retrying", "warn", count=seen.retried_lately, more=seen.succeeded_lately)
    if seen.failed_last_hour:
        yield Sentence("failed", "warn", count=seen.failed_last_hour, more=int(seen.is_failed_cut))


def _calm(seen: Overview) -> Sentence:
    totals = seen.totals
    if totals.waiting is None:
        return Sentence("counting", "info")
    if not seen.nodes.alive:
        return Sentence("no_worker", "info", count=0)
    if totals.ready:
        return Sentence("ready", "good", count=totals.ready)
    return Sentence("idle", "good", count=totals.scheduled)


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _key(key: str | None) -> str:
    return key or "the limit"


def _clock(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
