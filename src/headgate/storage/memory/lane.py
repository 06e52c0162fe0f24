"""A lane and its waiting jobs, in the order in which they will start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headgate.jobs.job import Draw
from headgate.jobs.terms import variant_discards
from headgate.limits.concurrency import Semaphore
from headgate.storage.admission import TURN, Ask, LaneView
from headgate.storage.memory.band import Band
from headgate.storage.memory.bucket import Bucket
from headgate.storage.memory.group import Group
from headgate.storage.memory.job import WAITING, Job
from headgate.storage.memory.tally import Tally
from headgate.storage.memory.visit import LATE_A_VISIT, Visit


class Lane(LaneView):
    """All waiting jobs of one queue that draw on the same buckets; the open lane's draw on none.

    What else sets it apart is its `variant`; jobs of one that `discards` do not wait behind a closed bucket.

    The bucket that it waited behind last opened at `opened_at` (limit time).

    Awake it is due or behind a bucket; else it sleeps until `wakes_at`, or has nothing that a claim could take. The
    open lane of a queue is always awake and in no line; all lanes of the queue know it as `open`.
    """

    __slots__ = (
        "aside",
        "bands",
        "draws",
        "first_band",
        "group",
        "is_awake",
        "is_listed",
        "is_open",
        "jobs",
        "late",
        "open",
        "opened_at",
        "own_buckets",
        "running",
        "since",
        "stale",
        "tally",
        "tick",
        "variant",
        "waiting",
        "wakes_at",
    )

    def __init__(
        self,
        tally: Tally,
        group: Group[Lane],
        draws: tuple[Draw, ...] = (),
        variant: str = "",
        buckets: Sequence[Bucket[Lane]] = (),
        open: Lane | None = None,
    ) -> None:
        super().__init__(0, group.queue, buckets, (), discards=variant_discards(variant))
        self.tally = tally
        self.group = group
        self.open = self if open is None else open
        self.draws = draws
        self.variant = variant
        self.own_buckets = buckets
        self.first_band: Band[Lane] = Band(0)
        self.bands = [self.first_band]
        self.jobs: list[Job[Lane]] = []
        self.aside: dict[str, list[tuple[int, Job[Lane]]]] = {}
        self.waiting = 0
        self.running = 0
        self.stale = 0
        self.late = 0
        self.since = 0
        self.opened_at: int | None = None
        self.wakes_at: int | None = None
        self.tick = 0
        self.is_open = open is None
        self.is_awake = self.is_open
        self.is_listed = False

    def __str__(self) -> str:
        return f"lane {self.queue} {[f'{draw.limit}:{draw.key}' for draw in self.draws]}{self.variant}"

    @property
    def is_due(self) -> bool:
        """Whether the next claim that has room looks at it."""
        if self.is_open:
            return any(not job.delayed for job in self.all_waiting())
        return self.is_awake and self.behind is None

    def place(self, job: Job[Lane]) -> None:
        self._band(job.new.priority).place(job)

    def look(self, visit: Visit[Lane]) -> None:
        """Make ready for admission."""
        self.taken = self.late = 0
        self.behind = self.failed = None
        self.jobs = []
        if self.waiting > TURN:
            self.asks = _Asks(self, visit)
        else:
            self.pull(self.jobs, TURN, visit)
            self.asks = [job.ask if job.asks_more else None for job in self.jobs]

    def pull(self, jobs: list[Job[Lane]], count: int, visit: Visit[Lane]) -> None:
        """Move ready jobs that are known to `jobs`, until there are `count`; late ones go to the visit."""
        wall = visit.wall
        known = visit.known
        missing = count - len(jobs)
        for band in self.bands:
            fifo = band.fifo
            in_order = not band.late and not band.delayed
            while missing > 0:
                if in_order:
                    if not fifo:
                        break
                    job = fifo.popleft()
                    if job.version or job.state is not WAITING:
                        continue
                else:
                    first = band.pop(wall)
                    if first is None:
                        break
                    job = first
                if (job.new.gate or job.new.task) not in known:
                    self._set_aside(job, visit)
                elif job.deadline is None or job.deadline > wall:
                    jobs.append(job)
                    missing -= 1
                elif self.late < LATE_A_VISIT:
                    self.late += 1
                    self.waiting -= 1
                    self.tally.waiting -= 1
                    visit.late.append(job)
                else:
                    band.put_back(job)
                    return

    def put_back(self, jobs: Sequence[Job[Lane]]) -> None:
        """Undo the end of a pull."""
        for job in reversed(jobs):
            self._band(job.new.priority).put_back(job)

    def uncharge(self, now: int) -> None:
        """Undo what admission has taken for jobs that do not start after all."""
        for ask in self.asks[: self.taken]:
            costs, holders = (None, None) if ask is None else ask
            for index, bucket in enumerate(self.own_buckets):
                holder = None if holders is None else holders[index]
                if holder is not None and bucket.permits.holders:
                    bucket.state = Semaphore.give(bucket.permits, holder)
                else:
                    bucket.amend(now, 1 if costs is None else costs[index], now, 0)
        self.taken = 0

    def earliest(self) -> int | None:
        """The first `run_at` of its delayed jobs."""
        heads = [at for band in self.bands if band.delayed and (at := band.earliest()) is not None]
        return min(heads) if heads else None

    def oldest(self, wall: int) -> int | None:
        """The first `run_at` of its jobs that are ready."""
        if not self.waiting:
            return None
        heads = [at for band in self.bands if (at := band.oldest(wall)) is not None]
        if self.aside:
            heads += [job.run_at for job in self._set_aside_before() if not job.delayed or job.run_at <= wall]
        return min(heads, default=None)

    def take_up(self, known_by: str) -> Iterable[Job[Lane]]:
        """The jobs of this gate, or of this task, that had been set aside."""
        return [job for version, job in self.aside.pop(known_by, ()) if job.version == version and job.state is WAITING]

    def drop_stale(self) -> None:
        self.stale = 0
        for band in self.bands:
            band.drop_stale()
        for task, places in self.aside.items():
            self.aside[task] = [place for place in places if place[1].version == place[0] and place[1].state is WAITING]

    def clear(self) -> None:
        """Forget the stale entries of a lane without jobs."""
        if self.stale or len(self.bands) > 1:
            self.stale = 0
            self.first_band = Band(self.first_band.priority)
            self.bands = [self.first_band]
            self.aside.clear()

    def all_waiting(self) -> Iterator[Job[Lane]]:
        """Its jobs in order and those set aside, one by one."""
        for band in self.bands:
            yield from band.fresh()
        yield from self._set_aside_before()

    def _set_aside_before(self) -> Iterator[Job[Lane]]:
        for places in self.aside.values():
            for version, job in places:
                if job.version == version and job.state is WAITING:
                    yield job

    def has_fresh(self) -> bool:
        """Whether it has a job that was not set aside."""
        return any(True for band in self.bands for _ in band.fresh())

    def _band(self, priority: int) -> Band[Lane]:
        for band in self.bands:
            if band.priority == priority:
                return band
        band = Band(priority)
        self.bands.append(band)
        self.bands.sort(key=_by_priority)
        self.first_band = self.bands[0]
        return band

    def _set_aside(self, job: Job[Lane], visit: Visit[Lane]) -> None:
        # Left in its place, it would be met again by every claim of this node.
        job.version += 1
        visit.set_aside.append(job)
        self.aside.setdefault(job.new.known_by, []).append((job.version, job))
        visit.aside.setdefault(job.new.known_by, {})[self] = None


def _by_priority(band: Band[Lane]) -> int:
    return -band.priority


class _Asks(list[Ask | None]):
    """What a lane's first ready jobs ask, read as far as admission can get in the lane's next turn."""

    __slots__ = ("_lane", "_visit")

    def __init__(self, lane: Lane, visit: Visit[Lane]) -> None:
        super().__init__()
        self._lane = lane
        self._visit = visit

    def __len__(self) -> int:
        lane = self._lane
        jobs = lane.jobs
        known = len(jobs)
        wanted = lane.taken + TURN + 1
        if known < wanted:
            lane.pull(jobs, wanted, self._visit)
            for job in jobs[known:]:
                self.append(job.ask if job.asks_more else None)
        return len(jobs)
