"""Checks of jobs that depend on each other, read again after every change of the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.errors import DuplicateJob
from headgate.jobs.batch import BatchRecord
from headgate.jobs.job import JobRecord, JobState
from headgate.storage.store import Store
from tests.engine.faulty_storage import FAULTY, FaultyStorage
from tests.engine.simulation.charts import Charts

WATCHED = frozenset({"keyed", "step", "tied", "choosy", "tick"})
"""Tasks whose jobs depend on each other."""

CHANGES = frozenset(
    {"add", "claim", "finish", "cancel", "recover", "expire", "leave", "retry", "fire", "put_schedule"}
) | {"remove_schedule"}


@dataclass(frozen=True, slots=True)
class Change:
    """One operation, and the watched jobs as they were before it."""

    node: str
    verb: str
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    result: Any
    before: Mapping[str, JobRecord]


class JobChecker:
    """The watched jobs and batches as they are after the last change; what was `wrong` at any moment.

    If operations of the store take several steps of the event loop, jobs cannot be read after each change. Then the
    checker stores the operations, and the jobs and batches at the end.
    """

    def __init__(self, store: Store, *, is_exact: bool) -> None:
        self.store = store
        self.is_exact = is_exact
        self.jobs: dict[str, JobRecord] = {}
        self.batches: dict[str, BatchRecord] = {}
        self.ended: set[str] = set()
        self.changed: set[str] = set()
        self.wrong: list[str] = []
        self.watchers: list[Callable[[Change], Awaitable[None]]] = []
        self.refused: set[str] = set()
        self._open: set[str] = set()

    def require(self, holds: bool, otherwise: str) -> None:
        """Note what is wrong. Raised at the end: here it would be the failure of a node and no more."""
        if not holds:
            self.wrong.append(otherwise)

    @property
    def open(self) -> Iterator[JobRecord]:
        """The watched jobs that are not final."""
        return (self.jobs[id] for id in sorted(self._open))

    async def read(self, node: str, verb: str, arguments: Sequence[Any], named: Mapping[str, Any], result: Any) -> None:
        if verb not in CHANGES or not _may_have_changed(verb, result):
            return
        before = dict(self.jobs)
        new, batches = _new(verb, arguments, result)
        for batch in batches:
            self.batches.setdefault(batch, BatchRecord(batch, 0, 1, 0, 0, 0, 0, 0, None))
        self.changed = set()
        if self.is_exact:
            await self._read(self.jobs.keys() | set(new) if verb == "retry" else self._open | set(new))
        else:
            self._open |= set(new)
        if self.is_exact and not self.changed and verb not in ("add", "fire", "put_schedule", "remove_schedule"):
            return
        change = Change(node, verb, arguments, named, result, before)
        for watcher in self.watchers:
            await watcher(change)

    async def read_all(self) -> None:
        """Everything as it is now."""
        await self._read(self.jobs.keys() | self._open)

    async def _read(self, ids: set[str]) -> None:
        touched: set[str] = set()
        for id in sorted(ids):
            record = await self.store.job(id)
            if record is None:
                self.wrong.append(f"job {id} was stored, and is gone")
                continue
            if record != self.jobs.get(id):
                self.changed.add(id)
                if record.origin is not None and record.origin.batch is not None:
                    touched.add(record.origin.batch)
            self.jobs[id] = record
            if record.state.is_final:
                self._open.discard(id)
                self.ended.add(id)
            else:
                self._open.add(id)
        for id in sorted(touched):
            batch = await self.store.batch(id)
            if batch is None:
                self.wrong.append(f"batch {id} was stored, and is gone")
                continue
            self.batches[id] = batch
            if batch.ended_as is not None:
                self.ended.add(id)

    def refuse(self, verb: str, arguments: Sequence[Any], error: DuplicateJob) -> None:
        """Record that an enqueue was refused for an existing job."""
        self.refused |= {job.id for job in arguments[0]} - self.jobs.keys()
        if self.is_exact and not any(job.unique_key is not None for job in arguments[0][1:]):
            stands = self.jobs.get(error.job_id)
            self.require(
                stands is not None and not stands.state.is_final, f"{error.job_id} stands in the way, and is over"
            )

    def end_of(self, leader: str) -> JobState | None:
        """How a job or a batch ended that others follow; None if it has not, or is not known."""
        if leader in self.batches:
            return self.batches[leader].ended_as
        record = self.jobs.get(leader)
        return None if record is None or not record.state.is_final else record.state


class CheckedConnection(FaultyStorage):
    """The faulty connection of a node to the store: adds may be repeated, and every change is checked."""

    verbs = FAULTY | {"retry", "fire", "put_schedule", "due_schedules", "schedules", "remove_schedule", "add_history"}

    def __init__(self, *arguments: Any, job_checker: JobChecker, charts: Charts) -> None:
        super().__init__(*arguments)
        self._job_checker = job_checker
        self._charts = charts

    def _on_lost_reply(self, name: str, arguments: Sequence[Any], result: Any) -> None:
        self._charts.on_lost_reply(name, arguments, result)

    async def _happen(
        self, name: str, verb: Callable[..., Awaitable[Any]], arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        finals = await self._charts.finals() if name == "retry" else None
        try:
            result = await super()._happen(name, verb, arguments, named)
        except DuplicateJob as error:
            self._job_checker.refuse(name, arguments, error)
            raise
        if name == "add" and self._job_checker.is_exact and self._random.random() < self._faults.after:
            # As a driver does that has lost the reply of a commit and does not know of it.
            again = await verb(*arguments, **named)
            self._job_checker.require(again == result, f"a repeated add answered {again} after {result}")
        if finals is not None:
            await self._charts.note_retry(finals)
        await self._job_checker.read(self._name, name, arguments, named, result)
        return result


def _may_have_changed(verb: str, result: Any) -> bool:
    match verb:
        case "claim":
            return bool(result.jobs or result.dropped)
        case "finish" | "expire":
            return any(result)
        case "cancel" | "recover":
            return result is not None
        case _:
            return True


def _new(verb: str, arguments: Sequence[Any], result: Any) -> tuple[list[str], list[str]]:
    """The watched jobs and the batches that this verb has added."""
    if verb == "add":
        jobs = [job for job in arguments[0] if job.id not in result]
        batches = [batch.id for batch in (arguments[1] if len(arguments) > 1 else ())]
    elif verb == "fire":
        jobs = [job for fired, is_written in zip(arguments[0], result, strict=True) if is_written for job in fired.jobs]
        batches = []
    else:
        return [], []
    return [job.id for job in jobs if job.task in WATCHED], batches
