"""Measures a store with two apps on an empty store beside it: one enqueues, one runs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

from headgate.admin.checkup import Checkup
from headgate.app import Headgate
from headgate.cli.output import percentile
from headgate.clock import SECOND, Clock, SystemClock, sleep, wait_for_event, within
from headgate.errors import DeclarationError, HeadgateError
from headgate.limits.strict_rate import StrictRate
from headgate.plural import counted
from headgate.storage.facts import PostgresFacts, SqliteFacts, StoreFacts

CALLERS = 20
"""The number of concurrent callers."""

BULK = 500
"""The jobs of one `enqueue_many`."""

MOST_DRAINED = 20_000
MOST_WAITING = 10_000

KEYS = 100
"""The keys of the jobs that wait for a limit."""

PATIENCE = 30.0
"""Seconds within which an idle worker must start a job, and a new one its first."""

GAPS = (0.005, 0.035)
"""Seconds between two probes: uneven, so that they do not synchronise with polling."""

PAGE = 4096
"""Bytes written before each sync: a page of SQLite."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a measurement. `syncs` is the page syncs per second of the disk; None for a server."""

    store: str
    setup: str
    is_durable: bool
    python: str
    event_loop: str
    cores: int
    load: float | None
    syncs: float | None

    @property
    def is_busy(self) -> bool:
        """Whether other programs were running on this machine."""
        return self.load is not None and self.load > 0.7 * self.cores


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """A number of jobs in a number of seconds."""

    jobs: int
    seconds: float
    per_second: float

    @classmethod
    def of(cls, jobs: int, seconds: float) -> Self:
        return cls(jobs, round(seconds, 3), round(jobs / seconds, 1) if seconds else 0.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """The time from the enqueue to the start of the handler, in milliseconds."""

    probes: int
    p50: float
    p99: float

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> Self:
        ordered = sorted(microseconds)
        p50, p99 = (round(percentile(ordered, each) / 1000, 2) for each in (50, 99))
        return cls(len(ordered), p50, p99)


@dataclass(frozen=True, slots=True)
class Figures:
    """All results: enqueued one by one, concurrently and in bulk; run; started when idle and beside `backlog`.

    `backlog` is the number of jobs that waited for their limits meanwhile.
    """

    ground: Environment
    single: MeasuredRate
    callers: int
    together: MeasuredRate
    bulk_size: int
    bulk: MeasuredRate
    slots: int
    drain: MeasuredRate
    idle: Latency
    backlog: int
    beside_backlog: Latency


Make = Callable[..., Headgate]


class BenchmarkFailed(HeadgateError):
    """The measured store did not work."""


class _WorkerReport:
    """The report from one worker's handlers."""

    def __init__(self, clock: Clock, expected: int = 0) -> None:
        self._clock = clock
        self._expected = expected
        self.ran = 0
        self.first_at = 0
        self.first_ran = asyncio.Event()
        self.all_ran = asyncio.Event()
        self.began: asyncio.Queue[int] = asyncio.Queue()

    def note_run(self) -> None:
        if not self.ran:
            self.first_at = self._clock.monotonic()
            self.first_ran.set()
        self.ran += 1
        if self.ran == self._expected:
            self.all_ran.set()

    def note_probe(self) -> None:
        self.began.put_nowait(self._clock.monotonic())


def _declare(app: Headgate, worked: _WorkerReport) -> None:
    @app.task
    async def no_op(number: int) -> None:
        worked.note_run()

    @app.task
    async def probe(number: int) -> None:
        worked.note_probe()

    @app.task(limits=[StrictRate("1/h", key="{key}")])
    async def gated(key: int) -> None: ...


async def measure(app: Headgate, clock: Clock, *, seconds: float, slots: int, say: Callable[[str], None]) -> Figures:
    """Measure for about `seconds` on a store beside that of the app; calls `say` with each step."""
    part = seconds / 10
    say("measuring the environment")
    ground = await environment_of(app, part / 4)
    async with scratch_of(app) as make:
        producer = make()
        _declare(producer, _WorkerReport(clock))
        async with producer.open():
            say("enqueueing one by one")
            single = await _enqueue(producer, clock, part, callers=1)
            say(f"enqueueing by {CALLERS} at once")
            together = await _enqueue(producer, clock, part, callers=CALLERS)
            say("enqueueing in bulk")
            bulk = await _enqueue_bulk(producer, clock, part)
        say(f"running them in {counted(slots, 'slot')}")
        drain = await _drain(make, clock, single.jobs + together.jobs + bulk.jobs, 3 * part, slots)
    async with scratch_of(app) as make:
        producer, worker, worked = make(), make(concurrency=slots), _WorkerReport(clock)
        _declare(producer, worked)
        _declare(worker, worked)
        async with producer.open(), worker:
            say("starting jobs on an idle worker")
            idle = await _latency(producer, worked, clock, 1.5 * part)
            say("enqueueing jobs of keys whose budget is used up")
            backlog = await _fill(producer, clock, part)
            say("starting jobs beside them")
            beside = await _latency(producer, worked, clock, 1.5 * part)
    return Figures(
        ground=ground,
        single=single,
        callers=CALLERS,
        together=together,
        bulk_size=BULK,
        bulk=bulk,
        slots=slots,
        drain=drain,
        idle=idle,
        backlog=backlog,
        beside_backlog=beside,
    )


async def _enqueue(producer: Headgate, clock: Clock, seconds: float, *, callers: int) -> MeasuredRate:
    begin = clock.monotonic()
    end = begin + round(seconds * SECOND)

    async def caller() -> int:
        count = 0
        while not count or clock.monotonic() < end:
            await producer.tasks["no_op"].enqueue(count)
            count += 1
        return count

    counts = await asyncio.gather(*(caller() for _ in range(callers)))
    return MeasuredRate.of(sum(counts), (clock.monotonic() - begin) / SECOND)


async def _enqueue_bulk(producer: Headgate, clock: Clock, seconds: float) -> MeasuredRate:
    begin = clock.monotonic()
    count = 0
    while count < MOST_DRAINED and (not count or clock.monotonic() < begin + round(seconds * SECOND)):
        await producer.tasks["no_op"].enqueue_many([(number,) for number in range(BULK)])
        count += BULK
    return MeasuredRate.of(count, (clock.monotonic() - begin) / SECOND)


async def _drain(make: Make, clock: Clock, jobs: int, seconds: float, slots: int) -> MeasuredRate:
    """Measure a worker that finds this many jobs."""
    worker, worked = make(concurrency=slots), _WorkerReport(clock, expected=jobs)
    _declare(worker, worked)
    async with worker:
        await wait_for_event(clock, worked.first_ran, PATIENCE)
        await wait_for_event(clock, worked.all_ran, seconds)
        ran, ended_at = worked.ran, clock.monotonic()
    if not ran:
        raise BenchmarkFailed(f"no job of {jobs} ran within {PATIENCE:g} s")
    return MeasuredRate.of(ran, (ended_at - worked.first_at) / SECOND)


async def _latency(producer: Headgate, worked: _WorkerReport, clock: Clock, seconds: float) -> Latency:
    found: list[int] = []
    uneven = Random(len(GAPS))
    end = clock.monotonic() + round(seconds * SECOND)
    while clock.monotonic() < end or not found:
        await sleep(clock, uneven.uniform(*GAPS))
        asked_at = clock.monotonic()
        await producer.tasks["probe"].enqueue(len(found))
        try:
            found.append(await within(clock, PATIENCE, worked.began.get()) - asked_at)
        except TimeoutError:
            raise BenchmarkFailed(f"an idle worker did not start a job for {PATIENCE:g} s") from None
    return Latency.of(found)


async def _fill(producer: Headgate, clock: Clock, seconds: float) -> int:
    """Enqueue jobs of which each key may start one; return how many wait after the others have started."""
    end = clock.monotonic() + round(seconds * SECOND)
    count = 0
    while count < MOST_WAITING and (clock.monotonic() < end or not count):
        await producer.tasks["gated"].enqueue_many([(number % KEYS,) for number in range(BULK)])
        count += BULK
    while _waits(await producer.admin.waiting(), "ready"):
        await sleep(clock, 0.05)
    return _waits(await producer.admin.waiting(), "throttled")


def _waits(counts: Sequence[Any], view: str) -> int:
    return sum(each.jobs for each in counts if each.view == view)


async def environment_of(app: Headgate, seconds: float) -> Environment:
    """Return the environment, measured for about `seconds`."""
    async with scratch_of(app) as make:
        beside = make()
        async with beside.open():
            checkup: Checkup = await beside.admin.checkup()
    setup, is_durable = _setup(checkup.store)
    file = app._client.address.file
    return Environment(
        store=app._client.address.shown,
        setup=setup,
        is_durable=is_durable,
        python=platform.python_version(),
        event_loop="uvloop" if importlib.util.find_spec("uvloop") is not None else "asyncio",
        cores=os.cpu_count() or 1,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        syncs=None if file is None else _syncs(file.parent, seconds),
    )


def _setup(facts: StoreFacts) -> tuple[str, bool]:
    """Return the store in words, and whether acknowledged commits survive a power cut."""
    match facts:
        case SqliteFacts():
            version = ".".join(map(str, facts.version))
            where = f", on {facts.filesystem}" if facts.filesystem else ""
            return f"SQLite {version}, synchronous {facts.synchronous}{where}", facts.synchronous in ("FULL", "EXTRA")
        case PostgresFacts():
            version = f"{facts.version // 10000}.{facts.version % 10000}"
            text = f"PostgreSQL {version}, fsync {'on' if facts.fsync else 'off'}"
            pooled = ", through a pooler" if facts.is_pooled else ""
            return (
                f"{text}, synchronous_commit {facts.synchronous_commit}, "
                f"{counted(facts.connections, 'connection')}{pooled}",
                facts.fsync and facts.synchronous_commit != "off",
            )
        case _:
            return "in memory", False


def _syncs(folder: Path, seconds: float) -> float:
    """Return how often per second a page can be written and synced there."""
    clock = SystemClock()
    page = os.urandom(PAGE)
    with tempfile.TemporaryFile(dir=folder) as file:
        begin = clock.monotonic()
        count = 0
        while count < 3 or clock.monotonic() - begin < seconds * SECOND:
            os.pwrite(file.fileno(), page, 0)
            os.fsync(file.fileno())
            count += 1
        return round(count * SECOND / (clock.monotonic() - begin), 1)


@contextlib.asynccontextmanager
async def scratch_of(app: Headgate) -> AsyncIterator[Callable[..., Headgate]]:
    """Yield a function that creates apps, with given settings, on an empty store beside that of this app.

    On SQLite it is a file on the same disk, on PostgreSQL a schema of the same database. It is deleted when the block
    ends; close the apps before. Raises DeclarationError for memory://.
    """
    storage, shown = app._client.storage, app._client.address.shown
    if storage.is_in_process:
        raise DeclarationError(f"there can be no store beside {shown}; use sqlite:/// or postgresql://")
    async with storage.scratch() as make:
        yield lambda **settings: Headgate._on_store(make(), clock=app._clock, migrate=True, **settings)
