"""A row that cannot be read is skipped and reported; all other jobs, schedules, nodes and limits work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import asyncpg
import pytest
import pytest_asyncio

from headgate import Every, Headgate, Job, JobFailed, JobState, Mutex, RateLimit, RetryPolicy, Snooze, StrictRate, chain
from headgate.errors import UnreadableSchedule
from headgate.jobs.history import JobsStep
from headgate.jobs.identity import job_number
from headgate.storage import stored_rows
from headgate.storage.postgres.storage import PostgresStorage
from headgate.storage.records import Claim, FreeSlots
from tests.internals import registry_of, store_of
from tests.until import patient, result_within, until

BROKEN = "{no json"
WRONG = '{"timeout": "soon", "on": "never", "holds": [["never"]], "type": 1, "trigger": 1, "task": 1}'
"""JSON, of no shape that any column has."""


pytestmark = pytest.mark.nightly


class Place(NamedTuple):
    """An app, and how its tables are changed behind its back: `write(table, column, value, where)`."""

    app: Headgate
    write: Callable[[str, str, Any, str], Awaitable[int]]
    url: str
    schema: str | None


def make_app(url: str, **settings: Any) -> Headgate:
    app = Headgate(url, heartbeat=0.2, lease=30.0, **settings)
    app.limit("api", RateLimit("1000/s", burst=1000))

    @app.task
    async def plain(number: int) -> int:
        return number

    @app.task(limits=[StrictRate("1000/s", key="{tenant}"), "api"])
    async def limited(tenant: str) -> str:
        return tenant

    @app.task(limits=[Mutex("room:{name}", hold="until_final")])
    async def held(name: str, *, again: bool = False) -> str:
        return name

    @app.task
    async def later(number: int) -> None:
        raise Snooze(3600)

    return app


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    stored_rows._logged.clear()
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        url = f"sqlite:///{path}"
        app = make_app(url, synchronous="OFF")
        async with app.open():
            pass

        async def write(table: str, column: str, value: Any, where: str) -> int:
            def change() -> int:
                with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=patient(10))) as connection:
                    connection.execute("PRAGMA ignore_check_constraints = 1")
                    return connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,)).rowcount

            return await asyncio.to_thread(change)

        yield Place(app, write, url, None)
        return
    url, schema = request.getfixturevalue("postgres_url"), f"rows_{uuid.uuid4().hex[:16]}"
    connection = await asyncpg.connect(url)

    async def write_there(table: str, column: str, value: Any, where: str) -> int:
        done = await connection.execute(f"UPDATE {schema}.{table} SET {column} = $1 WHERE {where}", value)
        return int(done.split()[-1])

    app = make_app(url, schema=schema)
    async with app.open():
        pass
    try:
        yield Place(app, write_there, url, schema)
    finally:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        await connection.close()


def among(jobs: list[Job[Any]]) -> str:
    return "id IN ({})".format(", ".join(str(job_number(job.id)) for job in jobs))


async def states(app: Headgate, jobs: list[Job[Any]]) -> set[JobState]:
    return {(await job.status()).state for job in jobs}


async def all_succeed(app: Headgate, jobs: list[Job[Any]]) -> None:
    for job in jobs:
        await result_within(job, 12)


async def everything_is_listed(app: Headgate) -> None:
    """Every list of an operator answers, with all there is."""
    admin = app.admin
    listed = {job.id for job in await admin.jobs(count=500)}
    assert len(listed) == await admin.count()
    for state in JobState:
        await admin.jobs(state=state)
    await admin.jobs(limit="api")
    await admin.jobs(key="acme")
    await admin.jobs(error="ValueError")
    for id in listed:
        await admin.job(id)
        await admin.explain(id)
        await admin.logs(id)
    await admin.overview()
    await admin.checkup(deep=True)
    await admin.batches()
    await admin.audit_log()
    await admin.nodes()
    await admin.schedules.list()
    await admin.limits.list()


JOB_COLUMNS = [
    "costs",
    "headers",
    "options",
    "origin",
    "terms",
    "progress",
    "annotations",
    "error",
    "buckets",
    "payload",
    "result",
    "settled",
]

TOLD = {"costs", "headers", "options", "origin", "terms", "progress", "annotations", "error", "buckets"}
"""Those that a list of jobs reads."""


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_a_waiting_job_that_cannot_be_read_delays_no_other(place: Place, column: str) -> None:
    app = place.app
    limited, plain, held = app.tasks["limited"], app.tasks["plain"], app.tasks["held"]
    bad: list[Job[Any]] = []
    async with app.open():
        for number, value in enumerate([BROKEN, WRONG, "[1, 2, 3]", "[-1]", "7"]):
            spoilt = [
                await plain.enqueue(number),
                *await limited.enqueue_many([("acme",), (f"globex{number}",)]),
                await held.enqueue(f"a{number}"),
            ]
            assert await place.write("job", column, value, among(spoilt)) == len(spoilt)
            bad += spoilt
        good = [*await plain.enqueue_many([(3,)]), *await limited.enqueue_many([("acme",), ("other",)])]
        good.append(await held.enqueue("b"))
        await everything_is_listed(app)
        received = {job.id for job in await app.admin.jobs(count=100) if job.unreadable}
        assert received <= {job.id for job in bad}
        assert bool(received) == (column in TOLD)
    async with app:
        await all_succeed(app, good)
        await until(lambda: _none_runs(app))
        await everything_is_listed(app)
        if column in ("costs", "headers", "options", "origin", "terms", "annotations"):
            for job in bad:
                status = await job.status()
                assert status.unreadable is not None or job.id not in received
                if status.unreadable is None:
                    continue
                assert status.state is JobState.WAITING
                assert status.is_scheduled
                assert status.error is not None
                assert status.error.type == "headgate.errors.PayloadError"
                assert column in status.error.message
                assert status.unreadable.startswith(f"{column}: ")


async def _none_runs(app: Headgate) -> bool:
    return not await app.admin.count(state=JobState.RUNNING)


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_the_jobs_of_a_dead_node_are_recovered_although_some_cannot_be_read(place: Place, column: str) -> None:
    app = place.app
    storage = store_of(app)
    async with app.open():
        await storage.join("dead", "dead")
        jobs = [
            await app.tasks["plain"].enqueue(1),
            await app.tasks["limited"].enqueue("acme"),
            await app.tasks["held"].enqueue("a"),
            await app.tasks["limited"].enqueue("globex"),
            await app.tasks["held"].enqueue("b"),
        ]
        free_slots = {"default": FreeSlots(slots=10)}
        known = registry_of(app)
        claimed = await storage.claim(Claim("dead", free_slots, known.rules, known.names, known.limit_sets()))
        assert len(claimed.jobs) == 5
        bad, good = jobs[1:3], [jobs[0], *jobs[3:]]
        for job, value in zip(bad, (BROKEN, WRONG), strict=True):
            assert await place.write("job", column, value, among([job])) == 1
        follower = await app.tasks["held"].enqueue("b")
        assert await storage.cancels("dead", [job.id for job in jobs]) == frozenset()
        recovered = await storage.recover("dead", 0)
        assert recovered is not None
        assert set(recovered.returned) == {job.id for job in jobs}
    async with app:
        await all_succeed(app, [*good, follower])
        await everything_is_listed(app)


@pytest.mark.parametrize("column", JOB_COLUMNS)
async def test_a_running_job_that_cannot_be_read_ends_with_the_others(place: Place, column: str) -> None:
    app = place.app
    limit_set, begun = asyncio.Event(), asyncio.Semaphore(0)

    @app.task(limits=[Mutex("door:{name}")])
    async def waits(name: str) -> None:
        begun.release()
        await limit_set.wait()

    async with app:
        jobs = list(await waits.enqueue_many([("a",), ("b",), ("c",)]))
        for _ in jobs:
            await begun.acquire()
        next_ = list(await waits.enqueue_many([("a",), ("b",), ("c",)]))
        await place.write("job", column, BROKEN, among(jobs[:1]))
        limit_set.set()
        await until(lambda: _are_final(jobs))
        # Its permits were returned, unless they cannot be read.
        await all_succeed(app, next_ if column != "buckets" else next_[1:])
        await everything_is_listed(app)


@pytest.mark.parametrize("value", [BROKEN, WRONG])
async def test_the_result_of_a_failed_job_whose_error_cannot_be_read_is_that_it_failed(
    place: Place, value: str
) -> None:
    """The fault: job.result() raised AssertionError."""
    app = place.app

    @app.task(retry=RetryPolicy(retries=0))
    async def fail() -> None:
        raise ValueError("boom")

    async with app:
        job = await fail.enqueue()
        with pytest.raises(JobFailed, match="boom"):
            await result_within(job)
        await place.write("job", "error", value, among([job]))
        with pytest.raises(JobFailed, match="failed with unreadable: error: "):
            await result_within(job)


async def _are_final(jobs: list[Job[Any]]) -> bool:
    return all([(await job.status()).state.is_final for job in jobs])


async def test_followers_that_cannot_be_read_delay_no_other(place: Place) -> None:
    app = place.app
    plain, limited = app.tasks["plain"], app.tasks["limited"]
    good: list[Job[Any]] = []
    async with app.open():
        for column in ("origin", "error", "buckets", "terms", "costs", "options"):
            flows = [await chain(plain.call(1), limited.call("acme")).enqueue() for _ in range(3)]
            ends = [flow.jobs[-1] for flow in flows]
            assert await place.write("job", column, BROKEN, among(ends[:1])) == 1
            good += ends[1:]
    async with app:
        await all_succeed(app, good)
        await everything_is_listed(app)


@pytest.mark.parametrize("column", ["call", "rules"])
@pytest.mark.parametrize("value", [BROKEN, WRONG, "[]"])
async def test_a_schedule_that_cannot_be_read_hides_no_other(
    place: Place, column: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = place.app
    plain = app.tasks["plain"]
    async with app.open():
        await plain.schedule("bad", Every(seconds=1), first="now").enqueue(1)
        await plain.schedule("good", Every(seconds=1), first="now").enqueue(2)
        assert await place.write("schedule", column, value, "name = 'bad'") == 1
    with caplog.at_level(logging.ERROR):
        async with app:
            await until(lambda: _has_run(app, "good"))
            listed = {status.name: status for status in await app.admin.schedules.list()}
            assert set(listed) == {"good", "bad"}
            assert listed["good"].problem is None
            assert column in (listed["bad"].unreadable or "")
            assert "cannot be read" in (listed["bad"].problem or "")
            assert listed["bad"].runs == 0
            for verb in ("pause", "resume", "skip", "trigger", "next_runs"):
                with pytest.raises(UnreadableSchedule, match="schedule 'bad' cannot be read"):
                    await getattr(app.admin.schedules, verb)("bad")
            assert await app.admin.schedules.remove("bad")
    assert any("bad" in record.getMessage() and "cannot be read" in record.getMessage() for record in caplog.records)


async def _has_run(app: Headgate, name: str) -> bool:
    return (await app.admin.schedules.status(name)).runs > 0


async def test_a_trigger_of_a_newer_release_is_fired_only_by_nodes_that_can_read_it(place: Place) -> None:
    app = place.app
    plain = app.tasks["plain"]
    async with app.open():
        await plain.schedule("moon", Every(seconds=1), first="now").enqueue(1)
        await plain.schedule("good", Every(seconds=1), first="now").enqueue(2)
        known = (await store_of(app).schedules(name="moon"))[0].rules.trigger
        newer = json.dumps({"trigger": '{"kind":"lunar","phase":"full"}'})
        await place.write("schedule", "rules", newer, "name = 'moon'")
    async with app:
        await until(lambda: _has_run(app, "good"))
        status = await app.admin.schedules.status("moon")
        assert "lunar" in (status.unreadable or "")
        assert status.runs == 0
        # It is unchanged in the store.
        assert "lunar" in (await store_of(app).schedules(name="moon"))[0].rules.trigger
        await place.write("schedule", "rules", json.dumps({"trigger": known}), "name = 'moon'")
        assert (await app.admin.schedules.status("moon")).unreadable is None
    async with app:
        await until(lambda: _has_run(app, "moon"))


@pytest.mark.parametrize(
    ("table", "column", "value", "where"),
    [
        ("bucket", "state", BROKEN, "limit_name LIKE '%limited%'"),
        ("bucket", "state", "1:strict:!!!", "limit_name LIKE '%limited%'"),
        ("bucket", "state", "9:strict:AAAA", "limit_name LIKE '%limited%'"),
        ("bucket", "state", "1:rate:x", "limit_name = 'api'"),
        ("bucket", "state", "2:rate:1", "limit_name = 'api'"),
        ("lane", "buckets", BROKEN, "buckets LIKE '%spoilt%'"),
        ("lane", "buckets", '["a"]', "buckets LIKE '%spoilt%'"),
        ("lane", "buckets", WRONG, "buckets LIKE '%spoilt%'"),
        ("lane", "wait_mode", BROKEN, "buckets LIKE '%spoilt%'"),
        ("attempt", "error", BROKEN, "true"),
        ("attempt", "error", WRONG, "true"),
        ("attempt", "settled", BROKEN, "true"),
        ("audit_entry", "detail", BROKEN, "true"),
        ("node", "queues", BROKEN, "true"),
        ("node", "queues", WRONG, "true"),
        ("node", "tasks", BROKEN, "true"),
        ("node", "tasks", WRONG, "true"),
        ("jobs_history", "waits", BROKEN, "true"),
        ("jobs_history", "waits", WRONG, "true"),
        ("jobs_history", "runs", BROKEN, "true"),
        ("task_limit_set", "signature", BROKEN, "true"),
        ("limit_setting", "rule", BROKEN, "limit_name = 'odd'"),
        ("limit_setting", "rule", '{"kind":"lunar"}', "limit_name = 'odd'"),
    ],
)
async def test_other_rows_that_cannot_be_read_delay_nothing(
    place: Place, table: str, column: str, value: str, where: str
) -> None:
    app = place.app
    app.limit("odd", RateLimit("1000/s"))
    odd = app.task(limits=["odd"], name="odd_one")(_nothing)
    fails = app.task(name="fails", retry=RetryPolicy(retries=0))(_fails)
    limited, plain = app.tasks["limited"], app.tasks["plain"]
    async with app:
        await all_succeed(app, [await limited.enqueue("acme"), await plain.enqueue(1)])
        failed = await fails.enqueue()
        await until(lambda: _are_final([failed]))
        await app.admin.retry(failed.id)
        await app.admin.limits.set("odd", RateLimit("500/s"))
        await app.admin.history.jobs()
        await until(lambda: _are_final([failed]))
    async with app.open():
        spoilt = await limited.using(delay=1).enqueue("spoilt")
        if table == "node":
            await store_of(app).join("other", "other")
        if table == "jobs_history":
            now = store_of(app).now()
            await store_of(app).add_history([JobsStep(10, "default", "plain", now - now % 10_000_000)], [])
        if place.schema is not None and table == "lane":
            # The lane has its row once its arrival is merged.
            store = cast(PostgresStorage, store_of(app))
            await store._database.run(lambda session: store._claimers[False].merge(store._tx(session)))
        assert await place.write(table, column, value, where) > 0
        # Settings are read again when they have changed.
        await place.write("limit_revision", "revision", 99, "true")
        await everything_is_listed(app)
        now = store_of(app).now()
        await store_of(app).jobs_history(10, "default", "plain", 0)
        if table == "jobs_history":
            step = JobsStep(10, "default", "plain", now - now % 10_000_000)
            await store_of(app).add_history([step], [])
    async with app:
        await all_succeed(app, [await plain.enqueue(2), await limited.enqueue("acme"), await limited.enqueue("new")])
        if table == "limit_setting":
            # It may be stricter than the declared one: nothing starts until it can be read, or is unset.
            job = await odd.enqueue()
            await asyncio.sleep(0.3)
            assert (await job.status()).state is JobState.WAITING
            assert await app.admin.limits.unset("odd")
            await all_succeed(app, [job])
        if table != "lane":
            await all_succeed(app, [spoilt])
        await everything_is_listed(app)


async def _nothing() -> None: ...


async def _fails() -> None:
    raise ValueError("no")


# Numbers that are none can only be written to SQLite, whose columns take everything; times beyond the calendar to both.
ODD_VALUES = [
    ("priority", "high"),
    ("priority", 10**15),
    ("run_at", 10**18),
    ("enqueued_at", 10**18),
    ("enqueued_at", -(10**18)),
    ("expires_at", 10**18),
    ("attempt", "one"),
    ("attempt", 10**12),
    ("fence", "x"),
    ("lost", "x"),
    ("lost", 99),
    ("held", "x"),
    ("held", 7),
    ("passed", 7),
    ("passed", "x"),
    ("audit", 17),
    ("give_up_at", 10**18),
    ("payload", b"\xff\x00\xfe"),
    ("payload", b'{"number": 1}'),
    ("options", b"\xff"),
    ("buckets", b"\xff"),
    ("unique_key", "\x7f"),
]


async def test_values_of_another_type_or_size_delay_no_other_job(place: Place) -> None:
    app = place.app
    limited, plain, held = app.tasks["limited"], app.tasks["plain"], app.tasks["held"]
    good: list[Job[Any]] = []
    async with app.open():
        for number, (column, value) in enumerate(ODD_VALUES):
            tenant = f"tenant {number}"
            bad = [await plain.enqueue(1), await limited.enqueue(tenant), await held.enqueue(f"a{number}")]
            # Not every database keeps such a value.
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OverflowError):
                await place.write("job", column, value, among(bad))
            good += [await plain.enqueue(2), await limited.enqueue(tenant), await held.enqueue(f"b{number}")]
        await everything_is_listed(app)
    async with app:
        await all_succeed(app, good)
        await everything_is_listed(app)
