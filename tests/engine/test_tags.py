"""Tags and annotations of jobs, in virtual time: from task and call to the handler, the status, and filters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headgate import (
    DeclarationError,
    Every,
    Headgate,
    JobFailed,
    JobState,
    RateLimit,
    RetryPolicy,
    batch,
    chain,
    current_job,
)
from headgate.admin import JobQuery
from headgate.jobs.job import BucketRef
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.tasks.context import AttemptContext, JobContext, current_jobs
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import app_on


async def annotations_of(app: Headgate, id: str) -> Mapping[str, Any]:
    return (await app.admin.job(id)).status.annotations


# -------------------------------------------------------------------------------------------------------- tags


def test_the_tags_of_a_job_are_those_of_its_task_and_of_its_call() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: dict[str, Sequence[str]] = {}

        @app.task(tags=["import"])
        async def load(name: str) -> None:
            seen[name] = current_job().tags

        @app.task
        async def plain(name: str) -> None:
            seen[name] = current_job().tags

        async with app:
            vip = load.using(tags={"vip"}, timeout=5)
            jobs = [
                await load.enqueue("task"),
                await vip.enqueue("call"),
                await vip.using(tags=["big", "import"]).enqueue("twice"),
                await plain.enqueue("none"),
                *await vip.enqueue_many([load.using(tags=["big"]).call("many"), load.call("of the group")]),
            ]
            for job in jobs:
                await job.result()
            assert seen == {
                "task": ("import",),
                "call": ("import", "vip"),
                "twice": ("big", "import", "vip"),
                "none": (),
                "many": ("big", "import", "vip"),
                "of the group": ("import", "vip"),
            }
            for job, tags in zip(jobs, seen.values(), strict=True):
                assert (await job.status()).tags == tags
            assert {job.id for job in await app.admin.jobs(tag="big")} == {jobs[2].id, jobs[4].id}
            assert await app.admin.count(tag="import") == 5
            assert await app.admin.count(tag="import", state=JobState.FAILED) == 0

    run_virtual(main)


def test_chains_batches_and_schedules_keep_tags() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(tags=["import"])
        async def load() -> None: ...

        @app.schedule(Every(hours=1), name="hourly")
        @app.task(tags=["hourly"])
        async def often() -> None: ...

        async with app:
            await chain(load.using(tags=["first"]).call(), load.call()).enqueue()
            await batch([load.using(tags=["part"]).call() for _ in range(3)]).enqueue()
            await load.using(tags=["daily"]).schedule("later", Every(hours=1)).enqueue()
            await asyncio.sleep(4000)
            assert await app.admin.count(tag="first") == 1
            assert await app.admin.count(tag="part") == 3
            assert await app.admin.count(tag="daily") == 1
            assert await app.admin.count(tag="hourly") == 1
            assert await app.admin.count(tag="import") == 6

    run_virtual(main)


def test_bulk_actions_take_tags_and_headers() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(tags=["import"], retry=RetryPolicy(retries=0))
        async def load() -> None:
            raise ValueError("no")

        async with app:
            for delay in (0, 3600):
                await load.using(delay=delay, tags=["vip"], headers={"source": "api"}).enqueue()
                await load.using(delay=delay, headers={"source": "web"}).enqueue()
            await asyncio.sleep(1)
            assert (await app.admin.cancel_many(JobQuery(tag="vip"), dry_run=True)).changed == 1
            assert (await app.admin.retry_many(JobQuery(tag="vip"))).changed == 1
            assert (await app.admin.cancel_many(JobQuery(tag="import", header="source=web"))).changed == 1
            await asyncio.sleep(1)
            assert (await app.admin.purge(JobQuery(header="source=web"), older_than=0)).changed == 2
            assert await app.admin.count(tag="import") == 2
            (record,) = [each for each in await app.admin.audit_log() if each.action == "purge"]
            assert str(record.detail).startswith("2 jobs, a value of header source, ")

    run_virtual(main)


def test_invalid_tags_are_refused_where_they_are_written() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match="task 'load': tag 'two words' must be a word"):

        @app.task(tags=["two words"])
        async def load() -> None: ...

    @app.task(tags=[str(number) for number in range(15)])
    async def many() -> None: ...

    with pytest.raises(DeclarationError, match=r"task 'many': tags='vip' is not a list of tags; write tags=\["):
        many.using(tags="vip")
    with pytest.raises(DeclarationError, match="task 'many' has 21 tags, more than 20"):
        many.using(tags=[f"own{number}" for number in range(6)])


# -------------------------------------------------------------------------------------------------- annotations


def test_annotations_outlive_failed_attempts_and_the_next_one_reads_them() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[Mapping[str, Any]] = []

        @app.task(retry=RetryPolicy(retries=1, delays=[60]))
        async def bill() -> None:
            job = current_job()
            seen.append(dict(job.annotations))
            job.annotate(invoice=42, attempts=job.attempt)
            job.annotate(**{f"attempt-{job.attempt}": True})
            if job.attempt == 1:
                raise ValueError("the bank is closed")
            job.annotate(invoice=None)

        async with app:
            job = await bill.enqueue()
            await asyncio.sleep(30)
            first = {"invoice": 42, "attempts": 1, "attempt-1": True}
            assert (await job.status()).annotations == first
            assert [found.id for found in await app.admin.jobs(annotation="invoice=42")] == [job.id]
            await job.result()
            assert seen == [{}, first]
            assert (await job.status()).annotations == {"attempts": 2, "attempt-1": True, "attempt-2": True}
            assert await app.admin.jobs(annotation="invoice=42") == []

    run_virtual(main)


class Text(str):
    """As a template engine or a parser returns it."""

    __slots__ = ()

    def __str__(self) -> str:
        return "shown"


class Number(float):
    """As `numpy.float64`."""

    __slots__ = ()


class Count(int):
    __slots__ = ()


def test_texts_of_options_may_be_of_a_subclass() -> None:
    """The enqueue raised TypeError: "Encoding objects of type SafeString is unsupported"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def load() -> None: ...

        async with app.open():
            job = await load.using(
                queue=Text("default"), tags=[Text("vip")], headers={Text("by"): Text("api")}, unique_key=Text("k")
            ).enqueue()
            record = (await app.admin.job(job.id)).record
            assert record.options is not None
            assert (record.options.tags, record.headers, record.unique_key) == (("vip",), {"by": "api"}, "k")
            assert record.queue == "default"

    run_virtual(main)


def test_a_settled_cost_may_be_of_a_subclass_of_int() -> None:
    """The job failed although its work was done: "how this attempt ended could not be stored"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(limits=[RateLimit("9/h", name="tokens", burst=9, cost=6)])
        async def ask() -> None:
            current_job().settle("tokens", Count(2))

        async with app:
            await (await ask.enqueue()).result()

    run_virtual(main)


class Safe(Text):
    """As in Django, whose texts stay safe when they are made texts."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


def test_functions_of_limits_and_unique_keys_may_return_a_subclass_of_text() -> None:
    """The enqueue raised TypeError: "Encoding objects of type SafeString is unsupported"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        def key(tenant: str) -> str:
            return Safe(tenant)

        @app.task(limits=[RateLimit("9/h", name="calls", key=key)], unique_key=key)
        async def call(tenant: str) -> None: ...

        async with app.open():
            record = (await app.admin.job((await call.enqueue("acme")).id)).record
            assert (record.buckets, record.unique_key) == ((BucketRef("calls", "acme"),), "acme")

    run_virtual(main)


def test_annotations_of_subclasses_of_text_and_numbers_are_plain_ones() -> None:
    """The handler failed: "Encoding objects of type float64 is unsupported"."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))

        @app.task
        async def train() -> None:
            values: dict[str, Any] = {
                "loss": Number(0.25),
                "title": Text("plain"),
                "count": Count(3),
                "state": JobState.FAILED,
            }
            current_job().annotate(**values, is_done=True)

        async with app:
            job = await train.enqueue()
            await job.result()
            kept = {"loss": 0.25, "title": "plain", "count": 3, "state": "failed", "is_done": True}
            assert await annotations_of(app, job.id) == kept

    run_virtual(main)


def test_annotations_of_a_job_that_runs_for_long_are_stored_meanwhile() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task
        async def work() -> None:
            for step in range(10):
                current_job().annotate(step=step)
                await asyncio.sleep(10)

        async with app:
            job = await work.enqueue()
            await asyncio.sleep(45)
            assert (await job.status()).annotations == {"step": 4}
            await job.cancel()
            await asyncio.sleep(5)
            status = await job.status()
            assert (status.state, status.annotations) == (JobState.CANCELLED, {"step": 4})

    run_virtual(main)


def test_annotations_that_could_not_be_stored_at_once_are_stored_later() -> None:
    class LockedStorage(MemoryStorage):
        """Finds the jobs of the first reports locked."""

        locked = 2

        async def report(self, node: str, reports: Any, most_lines: int) -> Any:  # type: ignore[misc]
            if self.locked:
                self.locked -= 1
                return [None] * len(reports)
            return await super().report(node, reports, most_lines)

    async def main(clock: VirtualClock) -> None:
        storage = LockedStorage(clock)
        app = app_on(storage, clock=clock)

        @app.task
        async def work() -> None:
            current_job().annotate(a=1)
            await asyncio.sleep(1.5)
            current_job().annotate(b=2)

        async with app:
            job = await work.enqueue()
            await job.result()
            assert storage.locked == 0
            assert (await job.status()).annotations == {"a": 1, "b": 2}

    run_virtual(main)


def test_threads_chunks_hooks_and_callbacks_annotate_too() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        seen: list[Mapping[str, Any]] = []

        @app.around_attempt
        async def note(job: AttemptContext, run: Any) -> Any:
            job.annotate(hooked=True)
            return await run()

        @app.task
        def in_thread() -> None:
            current_job().annotate(thread=True)

        @in_thread.on_completed
        def completed(job: JobContext, _result: None) -> None:
            seen.append(dict(job.annotations))

        @app.chunked(size=10, wait=0.1)
        async def many(numbers: list[int]) -> None:
            for job, number in zip(current_jobs(), numbers, strict=True):
                job.annotate(number=number)

        async with app:
            job = await in_thread.enqueue()
            await job.result()
            assert (await job.status()).annotations == {"hooked": True, "thread": True}
            jobs = await many.enqueue_many([(number,) for number in range(3)])
            for each in jobs:
                await each.result()
            assert [await annotations_of(app, each.id) for each in jobs] == [
                {"hooked": True, "number": number} for number in range(3)
            ]
            await asyncio.sleep(1)
            assert seen == [{"hooked": True, "thread": True}]

    run_virtual(main)


def test_an_invalid_annotation_is_an_error_of_the_handler_and_changes_nothing() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.task(retry=RetryPolicy(retries=0))
        async def work() -> None:
            current_job().annotate(good=1)
            current_job().annotate(better=2, bad=[1])  # type: ignore[arg-type]

        async with app:
            job = await work.enqueue()
            with pytest.raises(JobFailed, match="annotation 'bad' is a list, not text, a number"):
                await job.result()
            assert (await job.status()).annotations == {"good": 1}

    run_virtual(main)
