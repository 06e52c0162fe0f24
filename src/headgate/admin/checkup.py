"""A checkup: the facts about a store, its nodes and its jobs, from which problems can be found."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.admin.alerts import AlertStatus
from headgate.admin.nodes import NodeStatus
from headgate.admin.pauses import Pause
from headgate.jobs.limit_sets import subject_of
from headgate.storage.facts import Contradiction, IndexFacts, StoreFacts
from headgate.storage.records import Blocker, WaitingCount
from headgate.tasks.status import ScheduleStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The facts at one moment, `now` in the store's time.

    `unknown_tasks` are the waiting jobs of tasks that neither this app nor a node of their queue declares, `undeclared`
    those that only this app does, by task and queue; `unknown_limits` the limits that neither it nor a worker declares
    and that a batch holds, each with a job of one of its tasks. `pauses` are those that jobs wait for, `queues` those
    that this app declares. `contradictions` and `indexes` are None if they were not searched.
    """

    now: datetime
    store: StoreFacts
    nodes: Sequence[NodeStatus]
    waiting: Sequence[WaitingCount]
    pauses: Sequence[Pause]
    queues: Container[str]
    unknown_tasks: Mapping[str, int]
    undeclared: Mapping[tuple[str, str], int]
    unknown_limits: Mapping[str, str]
    overdue: Sequence[ScheduleStatus]
    blockers: Sequence[Blocker]
    alerts: Sequence[AlertStatus]
    contradictions: Sequence[Contradiction] | None
    indexes: IndexFacts | None = None


def is_declared(task: str, queue: str, tasks: Container[str], subjects: Container[str] | None) -> bool:
    """Return whether a running node that serves the queue declares the task.

    `subjects` is what `Store.declared_subjects` returns. If it is empty, the `tasks` of this program decide.
    """
    return subject_of(task, queue) in subjects if subjects else task in tasks


def how_to_serve(queue: str) -> str:
    """Return what to do about jobs in a queue that is not declared here, as after a deploy that renamed it."""
    declares = f"declare app.queue({queue!r}) again until its jobs have ended"
    return f"this program does not declare it: start a worker of a program that does, or {declares}"
