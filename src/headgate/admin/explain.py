"""Explain: why a job has not started, from the current state."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from headgate.admin.checkup import how_to_serve, is_declared
from headgate.admin.holders import describe_holders
from headgate.admin.limits import BucketStatus
from headgate.admin.nodes import node_status, unserved
from headgate.admin.pauses import Pause
from headgate.engine.results import cause_of
from headgate.jobs.batch import BatchRecord
from headgate.jobs.event import unserved_text
from headgate.jobs.job import JobRecord, JobState
from headgate.jobs.uniqueness import SUPERSEDED
from headgate.limits.key import shown_key
from headgate.plural import counted
from headgate.storage.endings import skipped_because
from headgate.storage.records import FINAL_STATES, Dependency, NodeRecord
from headgate.tasks.registry import Registry
from headgate.tasks.status import JobStatus

_UNMOVED = (
    "it waits for a worker that declares the limits of its task as the newest release does, after a rollback for a "
    "minute or two; if a worker logs that it cannot move it to these limits, let upgrade= make its arguments fit"
)

_ENDED = {JobState.SUCCEEDED: "succeeded", JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}


class Turn(NamedTuple):
    """The key of a job in a fair queue, and how many jobs of its lane start before it, None beyond 100,000.

    `is_only_bucket`: the lane is that of the key alone, so all jobs of the key are in it.
    """

    key: str
    before: int | None
    is_only_bucket: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has not started (or how it ended), in a sentence, with the limits it uses."""

    status: JobStatus
    reason: str
    limits: Sequence[BucketStatus]


def reason_for(
    record: JobRecord,
    status: JobStatus,
    limits: Sequence[BucketStatus],
    nodes: Sequence[NodeRecord],
    *,
    batch: BatchRecord | None,
    leaders: Sequence[Dependency],
    is_leader_final: bool,
    registry: Registry,
    declared: frozenset[str],
    pause: Pause | None,
    turn: Turn | None,
    limit_sets: Sequence[str],
    now: datetime,
) -> str:
    """Return the first reason why the job has not started, most basic first.

    No limit delays a job that no running node may take, so what nodes serve and declare comes before the limits.
    `batch` is its leader, if that is one; `leaders` are those that it counts, if it is a join. `registry` is what this
    program declares, `declared` what running nodes do, as in `Admin.declared_by_nodes`. `pause` is that of its
    queue or of one of its limits, `turn` its place in a fair queue. `limit_sets` are its own, the newest one of its
    task, and that of this program; empty if there is only one.
    """
    if status.state is not JobState.WAITING:
        return _other_state(record, status, nodes, now, registry.lease)
    if status.is_blocked:
        leader = status.follows if batch is None else _named(batch, leaders)
        if is_leader_final:
            return f"it follows {leader}, which is final and has many followers; a node releases them in portions"
        return f"it follows {leader} and is blocked until that is final"
    if status.is_scheduled:
        kind = "its next try" if record.attempt else "its time"
        return f"it waits for {kind}, {_when(status.run_at, now)}"
    if pause is not None:
        return str(pause) if pause.command is None else f"{pause}; resume it with `{pause.command}`"
    by_limit = _UNMOVED if len({*limit_sets[:2]}) > 1 else None
    if by_limit is None and (
        status.waits_for is not None or status.predicted_start is None or status.predicted_start > now
    ):
        by_limit = _limit_reason(status, limits, now)
    by_nodes = _node_reason(status, nodes, declared, registry, now)
    if by_nodes is not None:
        return by_nodes if by_limit is None else f"{by_nodes}. Then {by_limit}"
    if by_limit is not None:
        return by_limit
    if limit_sets:
        return (
            f"it waits for a free slot of a node that serves queue {status.queue!r} and declares the limits of its "
            "task as the newest release does, and not as this program; after a rollback for a minute or two"
        )
    if turn is not None:
        return _turn_reason(turn, status.queue)
    return f"its limits let it start now; it waits for a free slot of a node that serves queue {status.queue!r}"


def with_last_error(reason: str, status: JobStatus) -> str:
    """Add the type of a waiting job's last error: it may fail whenever its limit opens.

    Its message may quote arguments that the dashboard hides, so it stays with the status.
    """
    if status.state is not JobState.WAITING or status.error is None:
        return reason
    return f"{reason}; its last error: {status.error.type}"


def _node_reason(
    status: JobStatus,
    nodes: Sequence[NodeRecord],
    declared: frozenset[str],
    registry: Registry,
    now: datetime,
) -> str | None:
    """Return why no running node may take the job; None if one may. A stopping one takes none, a full one may later."""
    nodes = [node for node in nodes if not node.controls.is_stopping]
    # Until a release has noted what it declares, only this program is known.
    task, has_declared = registry.find(status.task), is_declared(status.task, status.queue, registry.names, declared)
    if task is None and not has_declared:
        nor_nodes = f", and no running node that serves queue {status.queue!r} does" if declared else ""
        return (
            f"this program does not declare task {status.task!r}{nor_nodes}; start a worker of a program that does, or "
            "add an alias if the task was renamed"
        )
    if not nodes and status.queue in registry.queues:
        return "no node is running; start one with `headgate worker`"
    idle = unserved(status.queue, nodes, now, registry.lease)
    if idle is not None:
        is_any_alive = any(node_status(node, now, registry.lease).state == "alive" for node in nodes)
        of_other = f"no worker serves queue {idle.queue!r}; {how_to_serve(idle.queue)}"
        return unserved_text(*idle, is_any_alive=is_any_alive) if idle.queue in registry.queues else of_other
    if not has_declared:
        return (
            f"no running node that serves queue {status.queue!r} declares task {status.task!r}, and this program does; "
            "start a worker of this release that imports its module"
        )
    requires = frozenset[str]() if task is None else task.requires
    running = [node for node in nodes if not node.is_gone and requires.issubset(node.labels)]
    if requires and not running:
        labels = " ".join(f"--label {label}" for label in sorted(requires))
        return f"task {status.task!r} requires labels that no node has; start one with `headgate worker {labels}`"
    serving = [node for node in running if node.controls.queues.get(status.queue)]
    quiet = [shlex.quote(node.name) for node in serving if node.controls.is_quiet]
    if quiet and len(quiet) == len(serving):
        return f"all nodes that serve queue {status.queue!r} are quiet; resume one: `headgate nodes resume {quiet[0]}`"
    return None


def _turn_reason(turn: Turn, queue: str) -> str:
    of_what = "with its key" if turn.is_only_bucket else "with its key and limits"
    if turn.before is None:
        place = f"more than 100,000 jobs {of_what} are before it"
    elif turn.before == 0:
        place = f"it is the next job {of_what}"
    else:
        place = f"{counted(turn.before, 'job')} {of_what} {'is' if turn.before == 1 else 'are'} before it"
    return (
        f"it waits for a free slot of a node that serves queue {queue!r} and for its turn: its key "
        f"{shown_key(turn.key)!r} takes turns with the other keys, and {place}"
    )


def _limit_reason(status: JobStatus, limits: Sequence[BucketStatus], now: datetime) -> str | None:
    if status.waits_for is None:
        return None
    limit, key = status.waits_for
    info = next((each for each in limits if (each.limit, each.key) == (limit, key)), None)
    # Without the margin, which does not help the reader.
    rule = "" if info is None or info.rule is None else f" ({info.rule.partition(' + ')[0]})"
    if info is not None and info.present is not None:
        rule = f" ({info.rule}, now {info.present})"
    if info is not None and info.setting is not None:
        rule = f"{rule[:-1]}, {info.setting})" if rule else f" ({info.setting})"
    whose = f" of key {key!r}" if key else ""
    place = "" if status.position is None else f"{_nth(status.position)} in line, "
    holders = () if info is None else info.holders
    if info is not None and info.rule is not None and info.used is None:
        when = "held up as its own store does not answer or its rule raises an error; a worker's log says which"
    elif status.predicted_start is not None:
        when = f"runs about {_when(status.predicted_start, now)}"
    elif info is None or info.rule is None:
        when = "this program does not declare the limit, so it cannot predict the start"
    elif info.next_slot_at is not None and not holders:
        when = f"the next starts {_when(info.next_slot_at, now)}; its own store does not say when those after it start"
    else:
        when = f"starts when a permit is returned{f': held by {describe_holders(holders)}' if holders else ''}"
    before = f"; limits delayed {counted(status.deferrals, 'start')} of it before" if status.deferrals else ""
    if info is not None and info.penalized_until is not None:
        words = ["headgate", "limits", "reset", limit, *(["--key", key] if key else [])]
        until = f"penalized until {info.penalized_until:%Y-%m-%d %H:%M:%S} UTC"
        whose += f", which is {until} (`{shlex.join(words)}` ends that, and gives it its whole budget again)"
    return f"it waits for limit {limit!r}{rule}{whose}: {place}{when}{before}"


def _named(batch: BatchRecord, leaders: Sequence[Dependency]) -> str:
    open = [each.id for each in leaders if each.state not in FINAL_STATES]
    shown = "" if not open else f", not yet {', '.join(open[:3])}{', …' if len(open) > 3 or batch.pending > 3 else ''}"
    name = f"{batch.total} jobs or batches" if leaders else f"batch {batch.id}"
    return f"{name} ({batch.total - batch.pending} of {batch.total} final{shown})"


def _other_state(record: JobRecord, status: JobStatus, nodes: Sequence[NodeRecord], now: datetime, lease: float) -> str:
    if status.state is JobState.RUNNING:
        node = next((node_status(node, now, lease) for node in nodes if node.id == record.node), None)
        if node is None or node.state == "gone":
            return f"it ran on {record.node}, attempt {status.attempt}, which is gone; another node will take it"
        if node.state == "silent":
            return (
                f"it runs on {record.node}, attempt {status.attempt}, which has sent no heartbeat for "
                f"{node.heartbeat_age:.0f} s; another node takes it if that one is dead"
            )
        return f"it runs on {record.node}, attempt {status.attempt}"
    if status.state is JobState.SKIPPED:
        return f"it was skipped: {skipped_because(record.origin)}"
    error = status.error
    if error is None or (status.state is JobState.CANCELLED and cause_of(error) is None and error.type != SUPERSEDED):
        # The error of an attempt does not say why a user has cancelled the job.
        return f"it {_ENDED[status.state]}"
    return f"it {_ENDED[status.state]}: {error.type}: {error.message}"


def _when(instant: datetime, now: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC ({_distance((instant - now).total_seconds())})"


def _distance(seconds: float) -> str:
    """Return a wait in its two largest units, as the dashboard shows it: in 1 h 6 min."""
    if seconds <= 0:
        return "now"
    if seconds < 10:
        return f"in {seconds:.1f} s"
    whole = math.ceil(seconds)
    units = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"), (1, "s", 1, "s"))
    size, unit, small_size, small_unit = next(each for each in units if whole >= each[0])
    large, rest = divmod(whole, size)
    small = rest // small_size
    return f"in {large} {unit}" + (f" {small} {small_unit}" if small else "")


def _nth(place: int) -> str:
    if 10 <= place % 100 <= 20:
        return f"{place}th"
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th') }"
