"""What type checkers see of the public names: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, assert_type

from headgate import (
    AttemptContext,
    Calendar,
    Cron,
    Every,
    Headgate,
    Job,
    JobDraft,
    JobStatus,
    RateLimit,
    Schedule,
    ScheduleStatus,
    StrictRate,
)
from headgate.client.handles import SyncJob
from headgate.jobs.event import Event, JobFailure, JobStarted

app = Headgate("memory://")


@app.task
async def plain(tenant_id: str, page: int = 1) -> int:
    return page


@app.task(limits=[StrictRate("15/m", key="{tenant_id}"), RateLimit(100, per=60)], timeout=30)
async def gated(tenant_id: str) -> list[str]:
    return [tenant_id]


@app.task
def threaded(amount: float) -> None: ...


@app.task
async def from_json(row: dict[str, Any], page: int = 1) -> dict[str, Any]:
    return row


@app.schedule(Every(minutes=5), args=[{}])
@app.task(timeout=30)
async def from_json_with_options(row: dict[str, Any]) -> int:
    return len(row)


@app.schedule(Every(minutes=5), args=[{}])
async def from_json_on_schedule(row: dict[str, Any]) -> int:
    return len(row)


async def enqueueing_is_typed_all_the_way() -> None:
    job = await plain.enqueue("acme", page=2)
    assert_type(job, Job[int])
    assert_type(await job.result(timeout=10), int)
    assert_type(await job.status(), JobStatus)
    assert_type(await job.cancel(), bool)
    assert_type(await (await gated.enqueue("acme")).result(), list[str])
    assert_type(await plain.enqueue_many([("acme",), plain.call("acme", page=2)]), list[Job[int]])
    assert_type((await plain.using(delay=60, priority=5).enqueue("acme")), Job[int])

    assert_type(await plain.using(unique_key="acme", on_conflict="replace").enqueue("acme"), Job[int])
    assert_type(await plain.using(connection=object()).enqueue("acme"), Job[int])
    plain.using(unique_key="acme", on_conflict="drop")  # type: ignore[arg-type]
    app.queue("mail", max_backlog=10, when_full="fallback", limits=["api", RateLimit("1/s")])
    app.queue("mail", when_full="drop")  # type: ignore[arg-type]

    await plain.enqueue(1)  # type: ignore[arg-type]
    await plain.enqueue("acme", pages=2)  # type: ignore[call-arg]
    await gated.enqueue()  # type: ignore[call-arg]
    plain.call("acme", page="two")  # type: ignore[arg-type]


async def tasks_whose_signature_has_any_are_typed_too() -> None:
    # With `Callable[P, R]` for plain functions, mypy takes such a coroutine for both kinds, and knows no type.
    assert_type(await from_json.enqueue({"name": "acme"}), Job[dict[str, Any]])
    assert_type(await from_json_with_options.enqueue({}), Job[int])
    assert_type(await from_json_on_schedule.enqueue({}), Job[int])
    await from_json.enqueue({}, pages=2)  # type: ignore[call-arg]
    await from_json_with_options.enqueue("acme")  # type: ignore[arg-type]
    await from_json_on_schedule.enqueue()  # type: ignore[call-arg]


def enqueueing_without_await_is_typed_too() -> None:
    assert_type(plain.sync.enqueue("acme"), SyncJob[int])
    assert_type(plain.sync.enqueue("acme").result(timeout=1), int)
    assert_type(threaded.sync.enqueue(1.5).result(), None)
    plain.sync.enqueue(None)  # type: ignore[arg-type]


@app.schedule(Cron("0 6 * * *", tz="Europe/Rome"))
async def nightly(day: str = "today") -> int:
    return 1


@app.schedule(Every(hours=1), name="hourly", args=["acme"])
@app.task(timeout=5)
async def hourly(tenant_id: str) -> str:
    return tenant_id


async def schedules_are_typed_all_the_way() -> None:
    assert_type(await (await nightly.enqueue(day="x")).result(), int)
    assert_type(await (await hourly.enqueue("acme")).result(), str)
    schedule = await plain.schedule("acme", Calendar(weeks=2, on=["mon"], at="9:00")).enqueue("acme", page=2)
    assert_type(schedule, Schedule[int])
    assert_type(await schedule.trigger(), Job[int])
    assert_type(await schedule.status(), ScheduleStatus)
    assert_type(plain.sync.schedule("acme", Every(minutes=5)).enqueue("acme").trigger(), SyncJob[int])

    await plain.schedule("acme", Every(minutes=5)).enqueue(1)  # type: ignore[arg-type]
    await plain.schedule("acme", Every(minutes=5)).enqueue()  # type: ignore[call-arg]
    plain.schedule("acme", "0 6 * * *")  # type: ignore[arg-type]
    plain.schedule("acme", Every(minutes=5), misfire="twice")  # type: ignore[arg-type]


@app.around_enqueue
async def tag(jobs: Sequence[JobDraft], enqueue: Callable[[], Awaitable[None]]) -> None:
    assert_type(jobs[0].headers, dict[str, str])
    assert_type(jobs[0].id, str | None)
    await enqueue()


@app.around_attempt
async def measure(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
    assert_type(job.arguments, dict[str, Any])
    assert_type(job.headers, dict[str, str])
    return await run()


def of_one_kind(event: JobFailure) -> None: ...


async def of_two_kinds(event: JobStarted | JobFailure) -> None: ...


def of_all_kinds(event: Event) -> None: ...


def subscribers_take_the_kinds_that_they_subscribe_to() -> None:
    assert_type(app.subscribe(of_one_kind, JobFailure), Callable[[], None])
    app.subscribe(of_two_kinds, JobFailure)
    app.subscribe(of_all_kinds)
    app.subscribe(of_all_kinds, JobFailure)
    app.subscribe(of_one_kind, JobStarted)  # type: ignore[arg-type]
    app.subscribe(of_one_kind, JobFailure, JobStarted)  # type: ignore[arg-type]


@app.on_shutdown
@app.on_startup(scope="child")
def start() -> None: ...


def hooks_are_typed() -> None:
    assert_type(start(), None)
    app.around_attempt(start)  # type: ignore[type-var]
    app.on_startup(measure)  # type: ignore[type-var]
    app.on_startup(scope="process")  # type: ignore[call-overload]


async def handles_of_different_tasks_go_into_one_list() -> None:
    numbers: Job[int] = await plain.enqueue("acme")
    jobs: list[Job[object]] = [numbers, await gated.enqueue("acme")]
    for job in [await plain.enqueue("acme"), await gated.enqueue("acme"), await threaded.enqueue(1.5)]:
        await job.result()
    either: Job[int | list[str]] = numbers
    sync_jobs: list[SyncJob[object]] = [plain.sync.enqueue("acme"), gated.sync.enqueue("acme")]
    schedules: list[Schedule[object]] = [
        await plain.schedule("a", Every(minutes=5)).enqueue("acme"),
        await gated.schedule("b", Every(minutes=5)).enqueue("acme"),
    ]
    assert all((jobs, either, sync_jobs, schedules))
    texts: Job[str] = numbers  # type: ignore[assignment]
    assert texts
