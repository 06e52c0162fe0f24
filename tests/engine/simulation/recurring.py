"""Schedules: each occurrence is enqueued once, at an instant of its trigger, and none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from headgate import Cron, Every, Headgate, JobState
from headgate.clock import SECOND, to_datetime
from headgate.errors import ScheduleNotFound, StorageUnavailable
from headgate.jobs.job import JobRecord, NewJob
from headgate.schedules.schedule import LATE
from headgate.storage.records import Fired, ScheduleRecord
from tests.engine.simulation.job_checker import Change, JobChecker

if TYPE_CHECKING:
    from tests.engine.simulation.cluster_simulation import ClusterSimulation

NAMES = ("one", "two")
PERIODS = (15, 30, 45)
MINUTE = 60
ON_ITS_WAY = 5 * SECOND


class Recurring:
    """The schedules as they are stored, what they have enqueued, and what is to be enqueued next."""

    def __init__(self, simulation: ClusterSimulation, job_checker: JobChecker) -> None:
        self._simulation = simulation
        self._job_checker = job_checker
        self._records: dict[str, ScheduleRecord] = {}
        self._ages: dict[str, int] = {}
        self._periods: dict[str, set[int]] = {}
        self._firsts: dict[str, set[int | None]] = {}
        self._resumed_at: dict[str, tuple[int, int]] = {}
        self._counted_before: dict[str, set[str]] = {}
        self._enqueued: set[tuple[str, int, int]] = set()
        self._by_hand: set[str] = set()
        random = simulation.random
        self._declared_overlap: Literal["allow", "queue"] = random.choice(("allow", "queue"))
        self._declared_period = random.choice(PERIODS)
        self._takes_part = random.random() < 0.6

    def declare(self, app: Headgate, node: str) -> None:
        async def tick(length: float) -> None:
            await self._simulation.work(node, length, False)

        task = app.task(name="tick")(tick)
        if self._takes_part:
            # Each node that starts declares it again, under all the faults.
            app.schedule(
                Every(seconds=self._declared_period),
                name="declared",
                args=[0.1],
                misfire="run_all",
                overlap=self._declared_overlap,
            )(task)

    async def act(self) -> None:
        if not self._takes_part:
            return
        random, schedules = self._simulation.random, self._simulation.producer.admin.schedules
        name = random.choice((*NAMES, "declared"))
        with contextlib.suppress(StorageUnavailable, ScheduleNotFound):
            match random.randint(0, 9):
                case 0:
                    await schedules.pause(name)
                case 1 | 2:
                    await schedules.resume(name)
                case 3:
                    self._simulation.acknowledged.add(await schedules.trigger(name))
                case 4 if name != "declared":
                    await schedules.remove(name)
                case _:
                    await self._declare_one(random.choice(NAMES))

    async def _declare_one(self, name: str) -> None:
        random = self._simulation.random
        period = random.choice((*PERIODS, MINUTE))
        trigger = Cron("* * * * *", tz="Europe/Rome") if period == MINUTE else Every(seconds=period)
        misfire, overlap = random.choice(
            (
                ("run_all", "queue"),
                ("run_all", "allow"),
                ("run_once", "skip"),
                ("run_once", "queue"),
                ("skip", "skip"),
                ("skip", "allow"),
            )
        )
        until = to_datetime(self._simulation.store.now()) + timedelta(seconds=random.uniform(30, 300))
        schedule = self._simulation.producer.tasks["tick"].schedule(
            name,
            trigger,
            first=random.choice(("now", "after", "after")),
            until=until if random.random() < 0.2 else None,
            max_runs=random.randint(1, 6) if random.random() < 0.3 else None,
            misfire=misfire,  # type: ignore[arg-type]
            overlap=overlap,  # type: ignore[arg-type]
        )
        # One that takes longer than its period, but not in all slots at once.
        await schedule.enqueue(random.choice((0.0, 0.5, 5.0, 5.0 if overlap == "allow" else 20.0)))

    # ------------------------------------------------------------------------------------- what must hold

    async def look(self, change: Change) -> None:
        match change.verb:
            case "put_schedule" if change.result:
                record: ScheduleRecord = change.arguments[0]
                self._job_checker.require(self._is_next(record, change), f"{record} was stored over another one")
                if change.named["replaces"] is None or change.named.get("anew"):
                    self._ages[record.name] = self._ages.get(record.name, 0) + 1
                    self._periods[record.name] = set()
                    self._firsts[record.name] = set()
                    self._resumed_at.pop(record.name, None)
                    self._counted_before[record.name] = {
                        job.id for job in change.before.values() if is_of(job, record.name) and job.state.is_final
                    }
                known = self._records.get(record.name)
                if known is not None and is_set_back(record, known):
                    # A clock was ahead. Where the schedule continues, it has been before.
                    self._ages[record.name] += 1
                    self._firsts[record.name].add(record.course.next_at)
                if known is not None and known.paused_at is not None and record.paused_at is None:
                    self._resumed_at[record.name] = (self._simulation.store.now(), self._simulation.clock.monotonic())
                await self._read(record.name)
                self._periods[record.name].add(period_of(record))
                self._firsts[record.name].add(record.rules.first_at)
            case "remove_schedule":
                self._records.pop(change.arguments[0], None)
            case "fire":
                for fired, is_written in zip(change.arguments[0], change.result, strict=True):
                    if is_written:
                        self._look_at_fired(fired, change)
                        await self._read(fired.name)
        if self._job_checker.is_exact and change.verb == "claim":
            self._look_at_lines()

    def _is_next(self, record: ScheduleRecord, change: Change) -> bool:
        known = self._records.get(record.name)
        return not self._job_checker.is_exact or change.named["replaces"] == (None if known is None else known.revision)

    async def _read(self, name: str) -> None:
        found = await self._job_checker.store.schedules(name=name)
        if found:
            self._records[name] = found[0]

    def _look_at_fired(self, fired: Fired, change: Change) -> None:
        require = self._job_checker.require
        if change.node == "producer":
            # It was triggered: that is not an occurrence of its trigger.
            self._by_hand |= {job.id for job in fired.jobs}
            return
        for job in fired.jobs:
            occurrence = (fired.name, self._ages[fired.name], occurs_at(job))
            require(occurrence not in self._enqueued, f"{occurrence} was enqueued twice")
            self._enqueued.add(occurrence)
        if self._job_checker.is_exact:
            self._look_at_rhythm(fired, change)

    def _look_at_rhythm(self, fired: Fired, change: Change) -> None:
        record = self._records.get(fired.name)
        if record is None or record.revision != fired.revision:
            self._job_checker.require(False, f"{fired} was written over {record}")
            return
        rules, course = record.rules, record.course
        jobs = [job for job in change.before.values() if is_of(job, fired.name)]
        said = f"{[occurs_at(job) for job in fired.jobs]} of {record}"
        require = self._job_checker.require
        require(record.paused_at is None, f"{said}: it is paused")
        wall, monotonic = self._resumed_at.get(record.name, (0, 0))
        if monotonic > self._simulation.faulty_at:
            require(all(occurs_at(job) > wall - 3 * SECOND for job in fired.jobs), f"{said}: it was paused then")
        for job in fired.jobs:
            require(self._is_instant(record, occurs_at(job)), f"{said}: no instant of its trigger")
            require(rules.until is None or occurs_at(job) < rules.until, f"{said}: it was over")
        is_open = [job.id for job in jobs if not job.state.is_final and job.id not in self._simulation.retried]
        if rules.overlap == "skip":
            require(len(fired.jobs) <= (not is_open), f"{said}: {is_open} are not over")
        if rules.overlap == "queue":
            last = change.before.get(record.last_job or "")
            is_behind = last is not None and not last.state.is_final and last.id not in self._simulation.retried
            line = [*([last.id] if last is not None and is_behind else []), *(job.id for job in fired.jobs)]
            for one, other in pairwise(line):
                origin = self._job_checker.jobs[other].origin
                require(origin is not None and origin.follows == one, f"{said}: {other} does not wait for {one}")
        runs = sum(has_run(job) for job in jobs if job.id not in self._counted_before[fired.name])
        if rules.max_runs is not None and fired.jobs:
            require(runs + len(is_open) + len(fired.jobs) <= rules.max_runs, f"{said}: {runs} ran, {is_open} open")
        if self._is_whole(record):
            self._look_for_gaps(fired, record)
        late = self._simulation.store.now() - (course.next_at or 0)
        calm = self._simulation.clock.monotonic() - self._simulation.faulty_at
        require(late <= LATE or calm <= late + LATE, f"{said}: {late / SECOND} s late, and nothing was in the way")
        # The clock may have been set back meanwhile.
        require(late >= 0 or calm < ON_ITS_WAY, f"{said}: too early")

    def _is_whole(self, record: ScheduleRecord) -> bool:
        """Whether everything is to be enqueued that was due."""
        rules = record.rules
        late = self._simulation.store.now() - (record.course.next_at or 0) > LATE
        is_cut = rules.max_runs is not None or rules.until is not None or rules.overlap == "skip"
        return not is_cut and (rules.misfire == "run_all" or not late)

    def _look_for_gaps(self, fired: Fired, record: ScheduleRecord) -> None:
        period = period_of(record) * SECOND
        instants = [occurs_at(job) for job in fired.jobs]
        require = self._job_checker.require
        require(instants[:1] == [record.course.next_at], f"{instants} of {record}: the first is left out")
        steps = [*instants[1:], fired.next_at or 0]
        for at, after in zip(instants, steps, strict=True):
            # What was due when it was declared otherwise is no instant of its trigger as it is now.
            is_odd = at == record.course.next_at and (at - self._start_of(record)) % period != 0
            require(after - at == period or (is_odd and 0 < after - at < period), f"{instants} of {record}: a gap")
        require(fired.next_at is not None and fired.last_at == instants[-1], f"{fired} of {record}: goes on otherwise")

    def _is_instant(self, record: ScheduleRecord, instant: int) -> bool:
        """An instant of the trigger, or of the one before: what is due stays due when it is declared otherwise."""
        return instant in self._firsts[record.name] or any(
            (instant - (0 if period == MINUTE else record.course.started_at)) % (period * SECOND) == 0
            for period in self._periods[record.name]
        )

    def _start_of(self, record: ScheduleRecord) -> int:
        return 0 if period_of(record) == MINUTE else record.course.started_at

    def _look_at_lines(self) -> None:
        """Queued occurrences run one after another. One that is cancelled or expires releases those behind it."""
        for job in self._job_checker.open:
            if job.task != "tick" or job.state is not JobState.RUNNING or job.id in self._simulation.retried:
                continue
            before = job.origin and job.origin.follows
            while before is not None and before in self._job_checker.jobs:
                other = self._job_checker.jobs[before]
                is_over = other.id in self._job_checker.ended
                self._job_checker.require(
                    is_over, f"job {job.id} runs in line behind {other.id}, which is {other.state}"
                )
                has_not_run = other.id in self._simulation.cancelled or other.started_at is None
                before = None if has_not_run else other.origin and other.origin.follows

    async def settle(self) -> None:
        """When nothing goes wrong any more, each occurrence comes; then all schedules end."""
        begin = self._simulation.store.now()
        before, ages = dict(self._records), dict(self._ages)
        await asyncio.sleep(90)
        end = self._simulation.store.now() - SECOND
        for name, record in before.items():
            rules, course = record.rules, record.course
            is_cut = rules.max_runs is not None or rules.until is not None or rules.overlap == "skip"
            if (
                is_cut
                or record.paused_at is not None
                or not self._job_checker.is_exact
                or ages[name] < self._ages[name]
            ):
                continue
            assert course.next_at is not None, f"{record} is over"
            assert self._records[name].course.started_at == course.started_at
            period = period_of(record) * SECOND
            since = max(course.next_at, begin) - self._start_of(record)
            for instant in range(self._start_of(record) - (-since // period) * period, end, period):
                assert (name, self._ages[name], instant) in self._enqueued, f"{instant} of {record} was missed"
        for name in before:
            await self._job_checker.store.remove_schedule(name)
        self._records.clear()

    async def check(self) -> None:
        seen: set[tuple[str, int]] = set()
        for job in self._job_checker.jobs.values():
            if job.task != "tick":
                continue
            if job.state is JobState.CANCELLED and job.id not in self._simulation.cancelled:
                assert job.error is not None, f"nobody cancelled job {job.id}"
                assert job.error.type.endswith("JobExpired"), f"nobody cancelled job {job.id}"
            if job.id in self._by_hand or not self._job_checker.is_exact:
                continue
            assert job.origin is not None
            assert job.origin.schedule is not None
            occurrence = (job.origin.schedule, occurs_at(job))
            assert occurrence not in seen or self._ages[occurrence[0]] > 1, f"{occurrence} was enqueued twice"
            seen.add(occurrence)


def is_set_back(record: ScheduleRecord, known: ScheduleRecord) -> bool:
    return record.course.started_at < known.course.started_at or (record.course.last_at or 0) < (
        known.course.last_at or 0
    )


def is_of(job: JobRecord, schedule: str) -> bool:
    return job.origin is not None and job.origin.schedule == schedule


def has_run(job: JobRecord) -> bool:
    return job.state is JobState.SUCCEEDED or (job.state is JobState.FAILED and job.attempt > 0)


def occurs_at(job: NewJob | JobRecord) -> int:
    assert job.origin is not None
    assert job.origin.occurs_at is not None
    return job.origin.occurs_at


def period_of(record: ScheduleRecord) -> int:
    """Seconds from one occurrence to the next."""
    return next((period for period in PERIODS if f'"seconds":{period}' in record.rules.trigger), MINUTE)
