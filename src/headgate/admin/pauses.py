"""Pauses: what an operator has stopped, who and since when, how many jobs wait for it, and the command that ends it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from headgate.clock import to_datetime
from headgate.jobs.audit import AuditEntry, AuditFilter
from headgate.storage.live_rules import LimitSetting, LiveRules
from headgate.storage.records import WaitingCount
from headgate.storage.store import Store

MOST_BUCKETS = 1_000
"""How many keys are searched for jobs that wait for a paused limit."""

MOST_CHANGES = 500
"""How many changes of a queue or a limit, the newest ones, are searched for the one that is in force."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A queue, or keys of a limit, on which nothing starts, and how many jobs wait for it.

    `by` and `since` are None if the audit entry has been pruned. `command` ends the pause; None: an update of this
    program does. `queue` is the name of the queue, None for a limit.
    """

    what: str
    command: str | None = None
    by: str | None = None
    since: datetime | None = None
    waiting: int = 0
    queue: str | None = None

    def __str__(self) -> str:
        return f"{self.what}{provenance(self.by, self.since)}"


def provenance(by: str | None, since: datetime | None) -> str:
    """Return who did something and when, to follow a verb: " by ada since 2026-11-27 00:10:00 UTC"."""
    return ("" if by is None else f" by {by}") + ("" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC")


async def pause_of_queue(store: Store, queue: str, since: datetime) -> Pause:
    """Return the pause of a queue that is paused since then."""
    entries = await store.audit_log(AuditFilter(kind="queue", subject=queue, count=MOST_CHANGES))
    entry = next((each for each in entries if each.action == "pause"), None)
    command = f"headgate queues resume {shlex.quote(queue)}"
    return Pause(f"queue {queue!r} is paused", command, None if entry is None else entry.actor, since, queue=queue)


async def pause_of_limit(store: Store, setting: LimitSetting) -> Pause:
    """Return the pause that a setting makes; one whose rule cannot be read pauses as well, until it is unset."""
    if setting.scope == "declared":
        return Pause(
            f"limit {setting.limit!r} is declared by a newer version of Headgate, which this version cannot read"
        )
    verb = "resume" if setting.is_paused else "unset"
    changes = await store.audit_log(AuditFilter(kind="limit", subject=setting.limit, count=MOST_CHANGES))
    by, since = last_of(changes, setting, "pause" if setting.is_paused else "set")
    return Pause(f"limit {setting.limit!r} is paused for {whose(setting)}", command_to_end(setting, verb), by, since)


def last_of(entries: Sequence[AuditEntry], setting: LimitSetting, action: str) -> tuple[str | None, datetime | None]:
    """Return by whom and when this action was last taken on this setting; `entries` of its limit, the newest first."""
    detail = scope_text(setting)
    found = (each for each in entries if each.action.split()[0] == action and each.detail == detail)
    return next(((each.actor, to_datetime(each.at)) for each in found), (None, None))


async def pauses_with_jobs(store: Store, waiting: Sequence[WaitingCount]) -> Sequence[Pause]:
    """Return the pauses that jobs wait for; of limits, among the thousand keys with most trouble."""
    found: list[Pause] = []
    for queue, at in sorted((await store.paused_queues()).items()):
        jobs = sum(each.jobs for each in waiting if each.queue == queue)
        if jobs:
            found.append(replace(await pause_of_queue(store, queue, to_datetime(at)), waiting=jobs))
    live = LiveRules(await store.settings())
    by_setting = Counter[LimitSetting]()
    for bucket in await store.buckets_by_trouble(MOST_BUCKETS):
        setting = live.pausing(bucket.ref)
        if setting is not None:
            by_setting[setting] += bucket.waiting
    for setting, jobs in by_setting.items():
        if jobs:
            found.append(replace(await pause_of_limit(store, setting), waiting=jobs))
    return found


def command_to_end(setting: LimitSetting, verb: str) -> str:
    """Return the command that resumes or unsets exactly this setting."""
    option = "" if setting.scope == "all" else f" --{setting.scope} {shlex.quote(setting.target)}"
    return f"headgate limits {verb} {shlex.quote(setting.limit)}{option}"


def scope_text(setting: LimitSetting) -> str:
    """Return which keys a setting is for, as its audit entries have it."""
    return "all keys" if setting.scope == "all" else f"{setting.scope} {setting.target!r}"


def whose(setting: LimitSetting) -> str:
    """Return in words which keys a setting is for."""
    match setting.scope:
        case "tier":
            return f"the keys of tier {setting.target!r}"
        case "pattern":
            return f"keys like {setting.target!r}"
        case _:
            return scope_text(setting)
