"""Handlers: tasks as classes, their payloads, callbacks and declaration errors."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

from headgate import (
    DeclarationError,
    Handler,
    Headgate,
    JobContext,
    JobFailed,
    PayloadError,
    RetryPolicy,
    StrictRate,
    current_job,
)
from headgate.client.task import Task
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import registry_of


@dataclass
class Sync:
    tenant_id: str
    every: timedelta = timedelta(hours=1)


class SyncStruct(msgspec.Struct):
    tenant_id: str


class SyncDict(TypedDict):
    tenant_id: str


def test_a_handler_has_the_verbs_of_its_task() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.handler
        class SyncTenant(Handler[Sync]):
            async def run(self, payload: Sync) -> str:
                return payload.tenant_id

        async with app:
            later = await SyncTenant.using(delay=60, priority=7).enqueue(Sync("a"))
            status = await later.status()
            assert (status.is_scheduled, status.priority) == (True, 7)
            own = SyncTenant.using(priority=3).call(Sync("c"))
            many = await SyncTenant.enqueue_many([(Sync("b"),), own, SyncTenant.call(Sync("d"))])
            assert [(await job.status()).priority for job in many] == [0, 3, 0]
            assert [await job.result() for job in [later, *many]] == ["a", "b", "c", "d"]

    run_virtual(main)


async def test_sync_code_enqueues_a_handler(tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db")

    @app.handler
    class SyncTenant(Handler[Sync]):
        def run(self, payload: Sync) -> str:
            return payload.tenant_id

    async with app:
        job = await asyncio.to_thread(SyncTenant.sync.enqueue, Sync("acme"))
        assert await asyncio.to_thread(job.result, 5) == "acme"


def test_a_handler_is_enqueued_with_its_payload_and_runs_on_a_new_instance_for_each_attempt() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        instances: list[object] = []

        @app.handler(retry=RetryPolicy(delays=[1]))
        class SyncTenant(Handler[Sync]):
            """Syncs one tenant."""

            def __init__(self) -> None:
                self.is_used = False

            async def run(self, payload: Sync) -> str:
                assert not self.is_used
                self.is_used = True
                instances.append(self)
                if current_job().attempt == 1:
                    raise ConnectionError
                return f"{payload.tenant_id} every {payload.every}"

        assert SyncTenant.task.name == "SyncTenant"
        async with app:
            job = await SyncTenant.enqueue(Sync("acme", timedelta(minutes=5)))
            assert await job.result() == "acme every 0:05:00"
            assert len(set(map(id, instances))) == 2
            many = await SyncTenant.task.enqueue_many([(Sync("acme"),), SyncTenant.task.call(Sync("globex"))])
            assert [await job.result() for job in many] == ["acme every 1:00:00", "globex every 1:00:00"]
            with pytest.raises(PayloadError):
                await SyncTenant.enqueue(Sync(7))  # type: ignore[arg-type]
            with pytest.raises(PayloadError):
                await SyncTenant.enqueue({"tenant": "acme"})  # type: ignore[call-overload]

    run_virtual(main)


def test_a_plain_run_is_called_in_a_thread() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)

        @app.handler
        class Blocking(Handler[SyncStruct]):
            def run(self, payload: SyncStruct) -> tuple[str, bool]:
                return payload.tenant_id, threading.current_thread() is threading.main_thread()

        async with app:
            job = await Blocking.enqueue(SyncStruct("acme"))
            assert list(await job.result()) == ["acme", False]

    run_virtual(main)


def test_callbacks_are_methods_of_the_instance_that_ran() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        received: list[tuple[Any, ...]] = []

        @app.handler(retry=RetryPolicy(delays=[2]))
        class Work(Handler[Sync]):
            def __init__(self) -> None:
                self.seen = "nothing"

            async def run(self, payload: Sync) -> int:
                self.seen = payload.tenant_id
                if payload.tenant_id == "fails":
                    raise ValueError("no")
                return len(payload.tenant_id)

            async def on_started(self, job: JobContext) -> None:
                received.append(("started", job.attempt))

            async def on_completed(self, job: JobContext, result: int) -> None:
                received.append(("completed", result, self.seen))

            def on_error(self, job: JobContext, error: BaseException) -> None:
                received.append(("error", str(error), self.seen))

            def on_retry(self, job: JobContext, error: BaseException, attempt: int, delay: float) -> None:
                received.append(("retry", attempt, delay, self.seen))

        async with app:
            await (await Work.enqueue(Sync("acme"))).result()
            with pytest.raises(JobFailed):
                await (await Work.enqueue(Sync("fails"))).result()
        assert received == [
            ("started", 1),
            ("completed", 4, "acme"),
            ("started", 1),
            ("retry", 1, 2.0, "fails"),
            ("started", 2),
            ("error", "no", "fails"),
        ]

    run_virtual(main)


def test_a_handler_without_callbacks_has_none() -> None:
    app = Headgate("memory://")

    @app.handler
    class Work(Handler[Sync]):
        async def run(self, payload: Sync) -> None: ...

    assert not Work.task.callbacks.exist


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(Sync, Sync("acme")), (SyncStruct, SyncStruct("acme")), (SyncDict, {"tenant_id": "acme"})],
)
@pytest.mark.parametrize("template", ["{tenant_id}", "{payload.tenant_id}", "{0.tenant_id}"])
def test_templates_name_the_fields_of_the_only_argument(kind: Any, payload: Any, template: str) -> None:
    app = Headgate("memory://")

    async def run(self: object, payload: Any) -> None: ...

    run.__annotations__["payload"] = kind
    task: Task[[Any], None] = app.handler(limits=[StrictRate("1/h", key=template)])(handler_with(run)).task
    _, arguments = task.payload.encode((payload,), {})
    (ref,) = task.limit_set.ask(arguments, {}, lambda limit, reason: pytest.fail(reason)).buckets
    assert ref.key == "acme"


def test_the_limits_of_a_queue_name_fields_as_well() -> None:
    app = Headgate("memory://")
    app.queue("slow", limits=[StrictRate("1/h", key="{tenant_id}")])

    @app.handler(queue="slow")
    class Work(Handler[Sync]):
        async def run(self, payload: Sync) -> None: ...

    _, arguments = Work.task.payload.encode((Sync("acme"),), {})
    limit_set = registry_of(app).limit_set(Work.task, "slow")
    (ref,) = limit_set.ask(arguments, {}, lambda limit, reason: pytest.fail(reason)).buckets
    assert ref.key == "acme"


def test_a_template_that_names_neither_an_argument_nor_a_field_is_an_error() -> None:
    app = Headgate("memory://")
    with pytest.raises(DeclarationError, match="names 'tenant', which is not among its arguments: payload"):

        @app.handler(limits=[StrictRate("1/h", key="{tenant}")])
        class Work(Handler[Sync]):
            async def run(self, payload: Sync) -> None: ...

    with pytest.raises(DeclarationError, match="names 'tenant_id', which is not among its arguments: sync, page"):

        @app.task(limits=[StrictRate("1/h", key="{tenant_id}")])
        async def two(sync: Sync, page: int) -> None: ...


def test_the_payload_is_named_by_the_class_or_by_its_run() -> None:
    app = Headgate("memory://")

    class Base(Handler[Sync]):
        pass

    @app.handler
    class ByClass(Base):
        async def run(self, payload) -> None: ...  # type: ignore[no-untyped-def]

    @app.handler
    class ByRun(Handler):  # type: ignore[type-arg]
        async def run(self, payload: Sync) -> None: ...

    for task in (ByClass.task, ByRun.task):
        with pytest.raises(PayloadError):
            task.payload.encode(({"tenant": "acme"},), {})
        assert set(task.payload.fields.of_only_argument) == {"tenant_id", "every"}


def handler_with(run: Any, base: type[Any] = Handler) -> Any:
    return type("Work", (base,), {"run": run})


class Abstract(ABC):
    @abstractmethod
    def missing(self) -> None: ...


class NoRun(Handler[Sync]):
    pass


class NoPayload(Handler[Sync]):
    async def run(self) -> None: ...


class Demanding(Handler[Sync]):
    def __init__(self, session: str) -> None: ...

    async def run(self, payload: Sync) -> None: ...


class AbstractHandler(Abstract, Handler[Sync]):
    async def run(self, payload: Sync) -> None: ...


class Everything(Handler[Sync]):
    async def run(self, payload: Sync, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (NoRun, "has no method `run`"),
        (NoPayload, "its `run` takes no payload"),
        (Demanding, "a new instance is made for each attempt, without arguments: missing a required argument"),
        (AbstractHandler, "is abstract: missing is missing"),
        (Everything, "so declare each of them"),
        (len, "@app.handler needs a class"),
        (Sync, r"must be a subclass of Handler: class Sync\(Handler"),
    ],
)
def test_a_class_that_can_never_run_is_an_error_at_declaration(handler: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Headgate("memory://").handler(handler)


def test_a_run_that_takes_something_else_than_its_class_says_is_an_error() -> None:
    async def run(self: object, payload: Any) -> None: ...

    run.__annotations__["payload"] = Mapping[str, str]
    with pytest.raises(DeclarationError, match="make them the same"):
        Headgate("memory://").handler(handler_with(run, NoRun))


def test_an_instance_that_cannot_be_made_fails_its_attempt_only() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=0))
        broken = [True]

        @app.handler
        class Work(Handler[Sync]):
            def __init__(self) -> None:
                if broken:
                    raise OSError("no configuration")

            async def run(self, payload: Sync) -> str:
                return "fine"

            async def on_error(self, job: JobContext, error: BaseException) -> None: ...

        async with app:
            with pytest.raises(JobFailed, match="no configuration"):
                await (await Work.enqueue(Sync("acme"))).result()
            broken.clear()
            assert await (await Work.enqueue(Sync("acme"))).result() == "fine"

    run_virtual(main)


def test_a_handler_is_declared_once_and_its_subclasses_are_not() -> None:
    app = Headgate("memory://")

    @app.handler
    class Work(Handler[Sync]):
        async def run(self, payload: Sync) -> None: ...

    class Special(Work):
        pass

    with pytest.raises(DeclarationError, match="is declared already, as Task"):
        Headgate("memory://").handler(Work)
    with pytest.raises(DeclarationError, match=r"Special is not declared: put @app.handler on it"):
        _ = Special.task
    assert app.handler(Special).task.name == "Special"
