"""The schedules of the memory storage, and the count of what their jobs come to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from headgate.jobs.job import JobState
from headgate.storage.memory.job import FAILED, SUCCEEDED, Job
from headgate.storage.memory.lane import Lane
from headgate.storage.schedules import DueSchedules, Fired, ScheduleRecord


class Schedules:
    """Schedules by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ScheduleRecord] = {}

    def put(self, record: ScheduleRecord, replaces: int | None, open_jobs: int, *, anew: bool) -> bool:
        """Store it unless somebody else was first; `open_jobs` is for one that is new."""
        known = self.by_name.get(record.name)
        if (None if known is None else known.revision) != replaces:
            return False
        runs = record.course.runs if known is None or anew else known.course.runs
        course = replace(record.course, runs=runs, open=open_jobs if known is None else known.course.open)
        self.by_name[record.name] = replace(record, course=course, revision=(replaces or 0) + 1)
        return True

    def take_over(self, record: ScheduleRecord, was: str, replaces: int, jobs: Collection[Job[Lane]]) -> bool:
        """Store it in place of one of another name; its jobs that are not final come along."""
        known = self.by_name.get(was)
        if known is None or known.revision != replaces or record.name in self.by_name:
            return False
        for job in jobs:
            if is_open(job, was):
                assert job.new.origin is not None
                job.new = replace(job.new, origin=replace(job.new.origin, schedule=record.name))
        open_jobs = sum(is_open(job, record.name) for job in jobs)
        del self.by_name[was]
        course = replace(record.course, runs=known.course.runs, open=open_jobs)
        self.by_name[record.name] = replace(record, course=course, revision=1)
        return True

    def formerly(self, name: str) -> Sequence[ScheduleRecord]:
        return [record for _, record in sorted(self.by_name.items()) if record.formerly == name]

    def page(self, name: str | None, after: str, count: int) -> Sequence[ScheduleRecord]:
        if name is not None:
            return [self.by_name[name]] if name in self.by_name else []
        return [self.by_name[each] for each in sorted(self.by_name) if each > after][:count]

    def due(self, now: int, tasks: frozenset[str], unable: frozenset[str], count: int) -> DueSchedules:
        able = sorted(
            (record.course.next_at, record.name)
            for record in self.by_name.values()
            if record.course.next_at is not None
            and record.paused_at is None
            and record.call.task in tasks
            and record.name not in unable
        )
        found = [self.by_name[name] for next_at, name in able if next_at <= now]
        return DueSchedules(found[:count], next((next_at for next_at, _ in able if next_at > now), None))

    def overdue(
        self, tasks: frozenset[str], before: int, unable: frozenset[str], count: int
    ) -> Sequence[ScheduleRecord]:
        found = sorted(
            (record.course.next_at, record.name)
            for record in self.by_name.values()
            if record.course.next_at is not None
            and record.course.next_at < before
            and record.paused_at is None
            and (record.call.task not in tasks or record.name in unable)
        )
        return [self.by_name[name] for _, name in found[:count]]

    def is_unchanged(self, fired: Fired) -> bool:
        """Whether a schedule is as it was read."""
        known = self.by_name.get(fired.name)
        return known is not None and known.revision == fired.revision

    def advance(self, fired: Fired) -> None:
        """What it enqueues is enqueued."""
        known = self.by_name[fired.name]
        course = replace(
            known.course, next_at=fired.next_at, last_at=fired.last_at, open=known.course.open + fired.opened
        )
        last_job = fired.jobs[-1].id if fired.jobs else known.last_job
        after = replace(known, course=course, last_job=last_job, revision=known.revision + 1)
        if fired.skipped is not None:
            after = replace(after, skipped=fired.skipped, skipped_at=fired.skipped_at)
        self.by_name[fired.name] = after

    def note_end(self, job: Job[Lane]) -> None:
        """A job has become final."""
        self._count(job, runs=int(has_run(job)), open=-1)

    def note_retry(self, job: Job[Lane]) -> None:
        """A final job is about to wait again."""
        self._count(job, runs=-int(has_run(job)), open=1)

    def _count(self, job: Job[Lane], *, runs: int, open: int) -> None:
        origin = job.new.origin
        known = None if origin is None or origin.schedule is None else self.by_name.get(origin.schedule)
        if known is not None:
            course = replace(known.course, runs=known.course.runs + runs, open=known.course.open + open)
            self.by_name[known.name] = replace(known, course=course)

    def contradictions(self, jobs: Collection[Job[Lane]]) -> Iterator[str]:
        """Where a schedule counts other jobs than there are."""
        for name, record in self.by_name.items():
            found = sum(is_open(job, name) for job in jobs)
            if record.course.open != found:
                yield f"schedule {name} counts {record.course.open} jobs that are not final, and has {found}"


def is_open(job: Job[Lane], schedule: str) -> bool:
    """Whether it is a job of that schedule and not final."""
    return not job.state.is_final and job.new.origin is not None and job.new.origin.schedule == schedule


def has_run(job: Job[Lane]) -> bool:
    """Whether a final job has really run: one that was skipped has not."""
    state: JobState = job.state
    return state is SUCCEEDED or (state is FAILED and job.attempt > 0)
