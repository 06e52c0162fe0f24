"""The verdict: what an overview says first, in one to three sentences, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from headgate.admin.overview import Overview
from headgate.admin.sentence import Sentence

MOST_SENTENCES = 3

LAG = 10.0
"""Seconds that the oldest ready job of a queue has lacked a slot, from which the verdict names the queue."""

RETRIES = 20
"""Failed attempts in five minutes from which the verdict names them, if there are more than jobs that succeeded."""


def verdict(seen: Overview, silent_since: datetime | None = None) -> Sequence[Sentence]:
    """Return one to three sentences about an overview, worst first; `silent_since`: the store does not answer."""
    found = [*_troubles(seen)][:MOST_SENTENCES]
    if silent_since is not None:
        # What follows is the last known state.
        return [Sentence("store_silent", "bad", at=silent_since), *found][:MOST_SENTENCES]
    return found or [_calm(seen)]


def last_known(seen: Overview, silent_since: datetime, now: datetime) -> Overview:
    """Return an overview as of a later time, while the store has not answered since `silent_since`."""
    return replace(seen, now=now, silent_since=silent_since, verdict=verdict(seen, silent_since))


def _troubles(seen: Overview) -> Iterator[Sentence]:
    totals, nodes = seen.totals, seen.nodes
    # Workers that cannot write are silent, and run.
    is_blocked = nodes.silent > 0 and any(each.kind == "blocks" for each in seen.blockers)
    if not nodes.alive and not is_blocked and (totals.waiting or nodes.silent):
        # With no worker, all others wait for one as well, such as jobs of tasks that no worker declares.
        startable = (totals.ready or 0) + (totals.undeclared or 0)
        startable = max(0, startable - sum(each.ready + each.undeclared for each in seen.queues if each.is_paused))
        name = "ready" if startable else "waiting"
        # One that is silent may run, and cannot write, as on a full disk.
        yield Sentence("no_worker", "bad", count=startable or totals.waiting, name=name, more=nodes.silent)
    firing = [each.alert for each in seen.alerts if each.state == "firing"]
    if firing:
        yield Sentence("alerts", "bad", count=len(firing), name=", ".join(dict.fromkeys(firing)))
    if seen.blockers:
        yield Sentence("blocked", "bad", seconds=max(each.age for each in seen.blockers))
    # Lag and full limits are often its consequence.
    if RETRIES <= seen.retried_lately > seen.succeeded_lately:
        yield Sentence("retrying", "warn", count=seen.retried_lately, more=seen.succeeded_lately)
    if (nodes.alive or is_blocked) and nodes.silent:
        yield Sentence("workers_silent", "warn", count=nodes.silent)
    is_quiet = 0 < nodes.alive == nodes.quiet
    if is_quiet and (totals.ready or totals.throttled):
        yield Sentence("workers_quiet", "warn", count=nodes.quiet)
    if nodes.alive and totals.undeclared:
        yield Sentence("undeclared", "warn", count=totals.undeclared)
    paused = [each for each in seen.queues if each.is_paused and each.waiting]
    for queue in sorted(paused, key=lambda each: -each.waiting):
        yield Sentence("queue_paused", "warn", count=queue.waiting, name=queue.queue)
    for queue in sorted(seen.queues, key=lambda each: -each.lag):
        # Jobs that no worker declares raise the lag as well, and so do quiet workers.
        if nodes.alive and not is_quiet and queue.lag > LAG and (queue.ready or not queue.undeclared):
            yield Sentence("lag", "warn", name=queue.queue, seconds=queue.lag)
    if seen.overdue_schedules:
        yield Sentence("overdue", "warn", count=len(seen.overdue_schedules))
    # Jobs wait for limits also while nothing is wrong, so other trouble comes first.
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
    return Sentence("idle", "good", count=totals.scheduled, more=totals.blocked or 0)
