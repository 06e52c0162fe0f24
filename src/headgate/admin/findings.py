"""The findings of a checkup: for each check whether it is fine, and what to do if not. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, assert_never

from headgate.admin.alerts import AlertStatus
from headgate.admin.checkup import Checkup, how_to_serve
from headgate.admin.nodes import NodeStatus
from headgate.clock import SECOND, to_datetime
from headgate.engine.lease_keeper import MAX_SKEW
from headgate.jobs.event import worker_of
from headgate.plural import counted
from headgate.storage.facts import (
    NETWORK_FILESYSTEMS,
    SAFE_FOR_SEVERAL,
    MemoryFacts,
    PostgresFacts,
    SqliteFacts,
    StoreFacts,
)

Level = Literal["ok", "warning", "problem"]

MEBIBYTE = 2**20

LITTLE_ROOM = 1024 * MEBIBYTE
NO_ROOM = 100 * MEBIBYTE

LARGE_LOG = 1024 * MEBIBYTE
"""A write-ahead log of this size is kept from being emptied by an open reader."""

OLDEST_SUPPORTED_POSTGRES = 14

DEAD_ROWS = 50_000
"""The number of dead rows from which vacuuming does not keep up, if they are more than the live ones."""

LONG_TRANSACTION = 60.0
"""Seconds."""

RESERVED_CONNECTIONS = 3
"""The connections that PostgreSQL reserves for superusers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check, what was found, and what to do about it."""

    level: Level
    check: str
    seen: str
    advice: str | None = None


def findings_of(checkup: Checkup) -> list[Finding]:
    """Return the findings of all checks, in the order in which one would look for problems."""
    return [*_of_store(checkup.store, checkup), *_of_nodes(checkup), *_of_work(checkup), *_of_integrity(checkup)]


def _of_store(store: StoreFacts, checkup: Checkup) -> Iterator[Finding]:
    match store:
        case MemoryFacts():
            yield Finding("ok", "store", "in memory: its jobs are lost when its process ends")
        case SqliteFacts():
            yield from _of_sqlite(store)
        case PostgresFacts():
            yield from _of_postgres(store, checkup)
        case _:
            assert_never(store)


# --------------------------------------------------------------------------------------------------- SQLite


def _of_sqlite(facts: SqliteFacts) -> Iterator[Finding]:
    version = ".".join(map(str, facts.version))
    if facts.version >= SAFE_FOR_SEVERAL:
        yield Finding("ok", "SQLite version", version)
    else:
        safe = ".".join(map(str, SAFE_FOR_SEVERAL))
        yield Finding(
            "warning",
            "SQLite version",
            f"{version} has the WAL-reset bug: Headgate's processes exclude it, but another program that writes to the "
            "file and checkpoints it can, rarely, corrupt it",
            f"run PRAGMA wal_autocheckpoint = 0 on connections of your own to this file, or use SQLite {safe} or newer",
        )
    yield _synchronous(facts)
    yield _filesystem(facts)
    yield _room(facts)
    yield _permissions(facts)
    log = f"{facts.log_bytes // MEBIBYTE} MiB, beside a file of {facts.file_bytes // MEBIBYTE} MiB"
    if facts.log_bytes < LARGE_LOG:
        yield Finding("ok", "write-ahead log", log)
    else:
        advice = "end the program that reads the file for so long; the next checkpoint shrinks the log"
        yield Finding("warning", "write-ahead log", log, advice)


def _synchronous(facts: SqliteFacts) -> Finding:
    match facts.synchronous:
        case "FULL" | "EXTRA":
            return Finding("ok", "synchronous", facts.synchronous)
        case "NORMAL":
            seen = "NORMAL: a power failure can lose the last commits, a crash of the program cannot"
            return Finding("warning", "synchronous", seen, "set synchronous to FULL to prevent that")
        case other:
            seen = f"{other}: a power failure can corrupt the file"
            return Finding("problem", "synchronous", seen, "set synchronous to FULL")


def _filesystem(facts: SqliteFacts) -> Finding:
    if facts.filesystem in NETWORK_FILESYSTEMS:
        return Finding(
            "problem",
            "filesystem",
            f"{facts.filesystem}: on a network filesystem SQLite corrupts under several processes",
            "move the file to a local disk, or use PostgreSQL for several machines",
        )
    return Finding("ok", "filesystem", facts.filesystem or "unknown on this system")


def _room(facts: SqliteFacts) -> Finding:
    seen = f"{facts.free_bytes // MEBIBYTE:,} MiB of {facts.disk_bytes // MEBIBYTE:,} MiB are free"
    if facts.free_bytes >= LITTLE_ROOM:
        return Finding("ok", "disk space", seen)
    level: Level = "warning" if facts.free_bytes >= NO_ROOM else "problem"
    return Finding(level, "disk space", seen, "free some; a full disk stops all writes, but loses no jobs")


def _permissions(facts: SqliteFacts) -> Finding:
    seen = f"{facts.mode:04o} {facts.path}"
    if not facts.can_write:
        return Finding(
            "problem",
            "permissions",
            f"{seen}: this user may not write the file, or files beside it in its folder",
            "let the user of the workers own the file and its folder",
        )
    if facts.mode & 0o002:
        advice = f"chmod o-w {facts.path}: a user who can write it can run any task with any arguments"
        return Finding("warning", "permissions", f"{seen}: all users may write it", advice)
    if facts.mode & 0o004:
        advice = f"chmod o-r {facts.path}: it contains the arguments and the results of all jobs"
        return Finding("warning", "permissions", f"{seen}: all users may read it", advice)
    if facts.mode & 0o060 and not facts.is_folder_shared:
        advice = (
            f"chmod g-rw {facts.path}, or share its folder with the group on purpose: chmod g+ws "
            f"{PurePath(facts.path).parent}"
        )
        return Finding("warning", "permissions", f"{seen}: its group may read it", advice)
    return Finding("ok", "permissions", seen)


# ----------------------------------------------------------------------------------------------- PostgreSQL


def _of_postgres(facts: PostgresFacts, checkup: Checkup) -> Iterator[Finding]:
    major = facts.version // 10000
    if major >= OLDEST_SUPPORTED_POSTGRES:
        yield Finding("ok", "PostgreSQL version", str(major))
    else:
        yield Finding("warning", "PostgreSQL version", f"{major} works, but gets no more fixes", "upgrade the server")
    if facts.is_read_only:
        yield Finding(
            "problem",
            "primary",
            "the server is read-only: it is a replica, or default_transaction_read_only is set",
            "add target_session_attrs=primary to the URL, with all hosts; or ALTER DATABASE (or ROLE) … RESET it",
        )
    yield _pooler(facts)
    yield from _durability(facts)
    yield _clock(facts)
    yield _connections(facts, sum(node.state == "alive" for node in checkup.nodes))
    yield from _vacuum(facts)


def _pooler(facts: PostgresFacts) -> Finding:
    if not facts.listens:
        seen = "transactions are pooled, so workers" if facts.is_pooled else "no pooler, but workers"
        late = f"{seen} cannot listen: they poll every 0.1 s and start jobs up to 0.1 s late"
        return Finding("warning", "pooler", late, "set HEADGATE_LISTEN_URL to the URL of the database itself")
    if facts.is_pooled:
        return Finding("ok", "pooler", "transactions are pooled, and workers listen on a direct connection")
    return Finding("ok", "pooler", "none: connections go to the server itself")


def _durability(facts: PostgresFacts) -> Iterator[Finding]:
    if not facts.fsync:
        yield Finding("problem", "fsync", "off: a crash of the machine can corrupt the database", "set fsync = on")
    if facts.synchronous_commit == "off":
        seen = "off: if the server crashes, it can lose the last commits, and jobs that it has accepted"
        yield Finding("warning", "synchronous_commit", seen, "set it to on for the role of the workers")
    elif facts.fsync:
        yield Finding("ok", "durability", f"fsync on, synchronous_commit {facts.synchronous_commit}")


def _clock(facts: PostgresFacts) -> Finding:
    seconds = facts.skew / SECOND
    if abs(facts.skew) <= MAX_SKEW:
        return Finding("ok", "clock", f"{abs(seconds):.3f} s from the server's")
    way = "behind" if seconds > 0 else "ahead of"
    return Finding(
        "warning",
        "clock",
        f"this machine is {abs(seconds):.1f} s {way} the server, whose time counts for all jobs",
        "synchronize both clocks with a time server",
    )


def _connections(facts: PostgresFacts, nodes: int) -> Finding:
    needed = nodes * (facts.connections + 1)
    free = facts.max_connections - RESERVED_CONNECTIONS
    seen = (
        f"{facts.used_connections} of {facts.max_connections} are open; {nodes} live nodes may open "
        f"{facts.connections + 1} each"
    )
    if facts.used_connections >= 0.9 * free or needed > free:
        advice = "raise max_connections, lower HEADGATE_CONNECTIONS (2 or more), or use PgBouncer"
        return Finding("warning", "connections", seen, advice)
    return Finding("ok", "connections", seen)


def _vacuum(facts: PostgresFacts) -> Iterator[Finding]:
    if not facts.autovacuum:
        yield Finding("problem", "autovacuum", "off: the tables grow without end and get slower", "set autovacuum = on")
    bloated = [table for table in facts.tables if table.dead >= DEAD_ROWS and table.dead > table.live]
    for table in facts.tables:
        if not table.is_vacuumed:
            advice = f"ALTER TABLE {table.name} RESET (autovacuum_enabled)"
            yield Finding("problem", "autovacuum", f"off for table {table.name}", advice)
    for table in bloated:
        yield Finding(
            "warning",
            "dead rows",
            f"table {table.name} has {table.dead:,} dead rows beside {table.live:,} live ones",
            "end transactions that are open for long, then VACUUM it; and let autovacuum run more often",
        )
    if facts.autovacuum and not bloated and all(table.is_vacuumed for table in facts.tables):
        yield Finding("ok", "autovacuum", f"on, {sum(table.dead for table in facts.tables):,} dead rows in all")


# -------------------------------------------------------------------------------------------- nodes and work


def _of_nodes(checkup: Checkup) -> Iterator[Finding]:
    alive = [node for node in checkup.nodes if node.state == "alive"]
    silent = [node for node in checkup.nodes if node.state == "silent"]
    paused = {pause.queue for pause in checkup.pauses}
    ready = sum(each.jobs for each in checkup.waiting if each.view == "ready" and each.queue not in paused)
    if alive:
        yield Finding("ok", "nodes", f"{len(alive)} alive")
    else:
        outcome = f"and {counted(ready, 'job')} could start" if ready else "so nothing runs"
        level: Level = "problem" if ready else "warning"
        blocked = silent and any(each.kind == "blocks" for each in checkup.blockers)
        run = "check those that are silent, or start `headgate worker`" if silent else "start `headgate worker`"
        advice = "end what blocks the store, see blockers" if blocked else run
        yield Finding(level, "nodes", f"none is alive, {outcome}", advice)
    for node in silent:
        yield Finding(
            "warning",
            "nodes",
            f"{node.name} has sent no heartbeat for {node.heartbeat_age:.0f} s; it runs {counted(node.running, 'job')}",
            "check its machine; other nodes take its jobs when its lease is over",
        )
    for node in alive:
        if node.is_quiet and not node.is_stopping:
            yield Finding(
                "warning",
                "nodes",
                f"{node.name} is quiet: an operator lets it claim no jobs",
                f"resume it, if that is over: headgate nodes resume {shlex.quote(node.name)}",
            )
        if node.lingering:
            yield Finding(
                "warning",
                "lingering",
                f"{node.name}: attempts that were asked to end still take {len(node.lingering)} of {node.slots} slots: "
                f"job {', '.join(node.lingering[:3])}{', …' if len(node.lingering) > 3 else ''}",
                "let these handlers check current_job().cancelled, or declare them with process=True; a restart "
                "frees the slots",
            )
    yield from _of_unserved_queues(checkup, alive)
    versions = sorted({node.version for node in alive if node.version})
    if len(versions) > 1:
        newest = max(versions, key=lambda version: [int(part) if part.isdigit() else -1 for part in version.split(".")])
        old = ", ".join(node.name for node in alive if node.version and node.version != newest)
        yield Finding(
            "warning", "releases", f"nodes of {', '.join(versions)} run side by side", f"end the deploy: restart {old}"
        )
    elif versions:
        yield Finding("ok", "releases", f"all of {versions[0]}")


def _of_unserved_queues(checkup: Checkup, alive: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Yield the queues with jobs that could start, or wait for a limit, and that no node claims from."""
    jobs = Counter[str]()
    for each in checkup.waiting:
        if each.view in ("ready", "throttled"):
            jobs[each.queue] += each.jobs
    for queue, count in sorted(jobs.items()):
        serving = [node for node in alive if node.queues.get(queue)]
        lasting = [node for node in serving if not node.is_stopping]
        waits = f"{counted(count, 'job')} of queue {queue!r} {'waits' if count == 1 else 'wait'}"
        if alive and not serving:
            advice = worker_of(queue) if queue in checkup.queues else how_to_serve(queue)
            yield Finding("problem", "queues", f"{waits}, and no running node serves it", advice)
        elif lasting and all(node.is_quiet for node in lasting):
            advice = f"resume one: headgate nodes resume {shlex.quote(lasting[0].name)}"
            yield Finding("problem", "queues", f"{waits}, and all nodes that serve it are quiet", advice)
    for (task, queue), count in sorted(checkup.undeclared.items()):
        if any(node.queues.get(queue) and not node.is_stopping for node in alive):
            seen = f"no node that serves queue {queue!r} declares task {task!r}; {counted(count, 'job')} waiting"
            yield Finding("problem", "tasks", seen, "start a worker of this release that imports its module")
    for pause in checkup.pauses:
        waits = "1 job waits" if pause.waiting == 1 else f"{pause.waiting:,} jobs wait"
        advice = "update this program" if pause.command is None else f"end the pause, if it is over: {pause.command}"
        yield Finding("problem", "pauses", f"{waits}: {pause}", advice)


def _of_work(checkup: Checkup) -> Iterator[Finding]:
    for task, jobs in sorted(checkup.unknown_tasks.items()):
        yield Finding(
            "warning",
            "tasks",
            f"{counted(jobs, 'job')} of task {task!r}, which neither a worker nor this app declares, "
            f"{'is' if jobs == 1 else 'are'} waiting",
            "start a worker of the app that does, add an alias, or cancel them: "
            f"headgate jobs cancel --task {shlex.quote(task)} --state waiting",
        )
    for limit, job in sorted(checkup.unknown_limits.items()):
        seen = f"the batch of job {job} holds limit {limit!r}, which neither a worker nor this app declares, and waits"
        yield Finding("warning", "limits", seen, f"declare it again with app.limit({limit!r}, …), or cancel the batch")
    if not (checkup.unknown_tasks or checkup.undeclared):
        yield Finding("ok", "tasks", "all waiting jobs belong to declared tasks")
    for schedule in checkup.overdue:
        yield Finding(
            "warning",
            "schedules",
            f"{schedule.name!r} {'is ' if schedule.unreadable is None else ''}{schedule.problem or 'overdue'}",
            f"start a worker of the app that declares it, or headgate schedules remove {shlex.quote(schedule.name)}",
        )
    if not checkup.overdue:
        yield Finding("ok", "schedules", "none is overdue")
    yield from _of_alerts(checkup.alerts)
    seen_any = False
    for blocker in checkup.blockers:
        age = (checkup.now - to_datetime(blocker.since)).total_seconds()
        if blocker.kind == "long transaction" and age < LONG_TRANSACTION:
            continue
        seen_any = True
        level: Level = "problem" if blocker.kind == "blocks" else "warning"
        ends = f"SELECT pg_terminate_backend({blocker.pid})" if blocker.pid else "ROLLBACK PREPARED, then its name"
        advice = f"end it, if need be: {ends}"
        if isinstance(checkup.store, SqliteFacts):
            advice = f"continue it: kill -CONT {blocker.pid}; or end it: kill -9 {blocker.pid}"
        yield Finding(level, "blockers", f"for {age:.0f} s: {blocker}", advice)
    if not seen_any:
        yield Finding("ok", "blockers", "none")


def _of_alerts(alerts: Sequence[AlertStatus]) -> Iterator[Finding]:
    for alert in alerts:
        if alert.state == "firing":
            yield Finding("warning", "alerts", f"{alert.alert} is firing: {alert.text}", "headgate alerts list")
        if alert.error is not None:
            yield Finding(
                "warning",
                "alerts",
                f"a message of {alert.alert} was not delivered at try {alert.tries}: {alert.error}",
                f"correct its target, or the receiver, and try it: headgate alerts test {shlex.quote(alert.alert)}",
            )
    if not alerts:
        yield Finding("ok", "alerts", "none is firing")


def _of_integrity(checkup: Checkup) -> Iterator[Finding]:
    if checkup.contradictions is None:
        return
    for seen, advice in checkup.contradictions:
        yield Finding("problem", "integrity", seen, advice)
    if not checkup.contradictions:
        yield Finding("ok", "integrity", "jobs, nodes, lanes and buckets agree")
    if (indexes := checkup.indexes) is None:
        return
    for seen, advice in indexes.contradictions:
        yield Finding("problem", "indexes", seen, advice)
    if indexes.unchecked is not None:
        seen, advice = indexes.unchecked
        yield Finding("warning", "indexes", f"not checked: {seen}", advice)
    elif not indexes.contradictions:
        yield Finding("ok", "indexes", "all have the rows of their tables")
