"""What people write first, coming from elsewhere or in a hurry: each gets an error that says what to write."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest

from headgate import (
    Cancel,
    DeclarationError,
    Handler,
    Headgate,
    Job,
    JobFailed,
    Mutex,
    Snooze,
    StrictRate,
    batch,
    chain,
    current_job,
)
from headgate.client.task import Task
from headgate.foreign_words import ATTRIBUTES
from headgate.keywords import names_keywords
from headgate.tasks.context import JobContext
from tests.until import result_within


@pytest.fixture
def app() -> Headgate:
    return Headgate("memory://")


@pytest.fixture
def sync_tenant(app: Headgate) -> Any:
    @app.task
    async def sync_tenant(tenant: str, page: int = 1) -> None: ...

    return sync_tenant


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        ("delay", "await sync_tenant.enqueue(…), or sync_tenant.sync.enqueue(…) in code that cannot await"),
        ("apply_async", "await sync_tenant.using(delay=…, queue=…).enqueue(…), or sync_tenant.using("),
        ("send", "await sync_tenant.enqueue(…)"),
        ("remote", "await sync_tenant.enqueue(…)"),
        ("kiq", "await sync_tenant.enqueue(…)"),
        ("s", "sync_tenant.call(…)"),
        ("perform_later", "await sync_tenant.enqueue(…)"),
        ("perform_at", "await sync_tenant.using(delay=…, queue=…).enqueue(…), or sync_tenant.using("),
        (
            "chunks",
            "await sync_tenant.enqueue_many([(…,), (…,)]), or sync_tenant.sync.enqueue_many([(…,), (…,)]) in code",
        ),
        ("apply", "sync_tenant.function(…), which runs it here"),
    ],
)
def test_a_method_of_another_library_is_refused_with_the_one_of_headgate(
    sync_tenant: Any, verb: str, instead: str
) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"task 'sync_tenant' has no .{verb}(); write {instead}")):
        getattr(sync_tenant, verb)("acme")
    assert not hasattr(sync_tenant, verb)
    assert verb not in dir(sync_tenant)
    with pytest.raises(AttributeError, match=re.escape("write sync_tenant.")):
        getattr(sync_tenant.sync, verb)("acme")


@pytest.mark.parametrize(
    ("verb", "instead"),
    [
        ("using", "sync_tenant.using(…).sync.enqueue(…)"),
        ("call", "sync_tenant.call(…)"),
        ("function", "sync_tenant.function(…), which runs it here"),
    ],
)
def test_what_comes_before_sync_is_refused_after_it(sync_tenant: Any, verb: str, instead: str) -> None:
    """The fault: `task.sync.using(…)` said only that there is no such attribute."""
    with pytest.raises(AttributeError, match=re.escape(f"sync_tenant.sync has no .{verb}(); write {instead}") + "$"):
        getattr(sync_tenant.sync, verb)


def test_any_other_attribute_is_missing_as_everywhere(sync_tenant: Any) -> None:
    with pytest.raises(AttributeError, match="'Task' object has no attribute 'enqueu'"):
        sync_tenant.enqueu("acme")
    with pytest.raises(AttributeError, match="'SyncTask' object has no attribute 'enqueu'"):
        sync_tenant.sync.enqueu("acme")
    assert getattr(sync_tenant, "whatever", None) is None


def test_a_handle_for_code_that_cannot_await_shows_verbs_that_block(app: Headgate, sync_tenant: Any) -> None:
    with app.sync:
        job = sync_tenant.sync.enqueue("acme")
        with pytest.raises(AttributeError, match=r"SyncJob has no 'get'; write job\.result\(\)$"):
            job.get()
        with pytest.raises(AttributeError, match="'SyncJob' object has no attribute 'whatever'"):
            _ = job.whatever


async def test_handles_and_apps_keep_the_behaviour_of_objects_without_these_attributes(
    app: Headgate, sync_tenant: Any
) -> None:
    async with app.open():
        job = await sync_tenant.enqueue("acme")
    assert (hasattr(job, "get"), hasattr(app, "delay"), getattr(app, "worker", None)) == (False, False, None)
    assert copy.copy(job) == job


def test_an_option_is_translated_only_where_its_own_exists(sync_tenant: Any) -> None:
    with pytest.raises(TypeError, match=r"'countdown'; write delay=5\. It takes"):
        sync_tenant.using(countdown=5)
    with pytest.raises(TypeError, match=r"'session'; write connection=…, with your connection or session\. It takes"):
        sync_tenant.using(session=object())
    with pytest.raises(TypeError, match=r"'rate_limit'\. It takes"):
        sync_tenant.using(rate_limit="15/m")


def test_a_limit_of_a_user_has_its_own_arguments() -> None:
    class Hourly(StrictRate):
        def __init__(self, count: int, **options: Any) -> None:
            super().__init__(count, 3600, **options)

    assert Hourly(5, key="{tenant}") == Hourly(5, key="{tenant}")
    with pytest.raises(
        TypeError, match=r"StrictRate\(\) got an unexpected keyword argument 'kee'; did you mean 'key'\?"
    ):
        Hourly(5, kee="{tenant}")


def test_an_own_type_error_of_a_declaration_is_raised_as_it_is() -> None:
    @names_keywords
    class Named:
        def __init__(self, name: str, *, size: int = 0) -> None:
            raise TypeError(f"{name} has no size {size}")

    with pytest.raises(TypeError, match=r"^a has no size 5$"):
        Named("a", size=5)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Named(size=5)  # type: ignore[call-arg]


async def test_the_running_job_names_its_own_words(app: Headgate) -> None:
    found: list[str] = []

    @app.task
    async def beat() -> None:
        job: Any = current_job()
        for word in ("heartbeat", "update_state", "retries", "nonsense"):
            with pytest.raises(AttributeError) as error:
                getattr(job, word)
            found.append(str(error.value))

    async with app:
        await result_within(await beat.enqueue())
    assert "'heartbeat'; write nothing for it: a worker renews its lease" in found[0]
    assert "write current_job().progress(" in found[1]
    assert "write current_job().attempt" in found[2]
    assert "object has no attribute 'nonsense'" in found[3]


@pytest.mark.parametrize("outcome", [Snooze(5), Cancel("withdrawn"), ValueError("lost")])
async def test_an_outcome_that_is_returned_is_to_be_raised(app: Headgate, outcome: Exception) -> None:
    @app.task
    async def ship() -> object:
        return outcome

    word = type(outcome).__name__
    async with app:
        with pytest.raises(JobFailed, match=rf"'ship' returned {word}\(…\), an exception; write raise {word}\("):
            await result_within(await ship.enqueue())


def test_handles_that_block_show_their_ids(app: Headgate, sync_tenant: Any) -> None:
    with app.sync:
        stored = chain(sync_tenant.call("acme")).sync.enqueue()
        together = batch([sync_tenant.call("acme")]).sync.enqueue()
    assert repr(stored) == f"SyncChain([{stored.jobs[0].id!r}])"
    assert repr(together) == f"SyncBatch({together.id!r})"


def test_a_foreign_word_is_no_own_attribute(app: Headgate, sync_tenant: Any) -> None:
    owners = {"Task": type(sync_tenant), "Headgate": Headgate, "Job": Job, "JobContext": JobContext}
    own = {(name, word) for name, owner in owners.items() for word in ATTRIBUTES[name] if word in dir(owner)}
    assert own == set()


def test_calling_a_task_raises_with_how_to_enqueue_and_run_it(sync_tenant: Any) -> None:
    with pytest.raises(TypeError, match=re.escape("await sync_tenant.enqueue(…) to enqueue a job, or sync_tenant.fun")):
        sync_tenant("acme")
    with pytest.raises(TypeError, match=re.escape("write sync_tenant.sync.enqueue(…) to enqueue a job, or")):
        sync_tenant.sync("acme")


@pytest.mark.parametrize("options", [{}, {"name": "say"}])
def test_an_object_that_can_be_called_is_no_function(app: Headgate, options: Any) -> None:
    """The fault: the task name '' was refused; with a name, Python said that a partial is not a module."""
    with pytest.raises(DeclarationError, match=r"@app\.task needs a function, not functools\.partial"):
        app.task(**options)(functools.partial(str, "a"))


def test_a_task_is_no_function_where_one_is_asked_for(app: Headgate, sync_tenant: Any) -> None:
    with pytest.raises(DeclarationError, match=r"is a task already; @app\.task needs a function"):
        app.task(sync_tenant)
    with pytest.raises(DeclarationError, match="needs a function, not Task"):
        sync_tenant.on_completed(sync_tenant)
    with pytest.raises(DeclarationError, match="is a task; write a function of the arguments"):
        app.task(name="other", limits=[StrictRate("1/m", key=sync_tenant)])(sync_tenant.function)


def test_calling_a_handler_class_raises_the_same(app: Headgate) -> None:
    @app.handler
    class Ship(Handler[str]):
        async def run(self, order: str) -> None: ...

    handler: Any = Ship
    for verb in ("delay", "apply_async", "send", "remote"):
        with pytest.raises(AttributeError, match=rf"task 'Ship' has no \.{verb}\(\); write await Ship\."):
            getattr(handler, verb)("order")
        assert not hasattr(Ship, verb)
    with pytest.raises(AttributeError, match=re.escape("task 'Ship' has no .delay(); write await Ship.enqueue(…)")):
        handler.task.delay("order")


def test_a_handler_may_have_attributes_of_these_names(app: Headgate) -> None:
    @app.handler
    class Ship(Handler[str]):
        delay = 5

        def __init__(self) -> None:
            self.send = 7

        async def run(self, order: str) -> None: ...

    assert (Ship.delay, Ship().send) == (5, 7)


async def test_an_option_among_the_arguments_is_refused_with_its_place(app: Headgate, sync_tenant: Any) -> None:
    async with app.open():
        with pytest.raises(TypeError, match=re.escape("write .using(delay=60).enqueue('acme', page=2)")):
            await sync_tenant.enqueue("acme", delay=60, page=2)
        with pytest.raises(TypeError, match=re.escape("no argument 'unique_key', which is an enqueue option")):
            await sync_tenant.enqueue_many([sync_tenant.call("acme", unique_key="a", queue="default")])
        with pytest.raises(TypeError, match="has no argument 'pge'; it has: tenant, page"):
            await sync_tenant.enqueue("acme", pge=2)


async def test_an_argument_may_have_the_name_of_an_option(app: Headgate) -> None:
    @app.task
    async def later(delay: int) -> None: ...

    async with app.open():
        job = await later.enqueue(delay=60)
        assert (await job.status()).is_scheduled is False


async def test_a_sync_with_on_an_event_loop_is_refused_with_what_to_write(app: Headgate) -> None:
    with pytest.raises(TypeError, match=re.escape("write `async with app:`")), app:
        raise AssertionError("it was entered")
    with pytest.raises(TypeError, match=re.escape("write `async with app.open():`")), app.open():
        raise AssertionError("it was entered")


def test_a_mutex_takes_its_resource_first(app: Headgate) -> None:
    with pytest.raises(DeclarationError, match=re.escape("write Mutex('orders:{order_id}')")):
        Mutex(key="orders:{order_id}")
    untyped: Any = Mutex
    with pytest.raises(DeclarationError, match="needs the resource that it guards"):
        untyped()
    assert isinstance(app.task(name="order", limits=[Mutex("{0}")])(lambda order: None), Task)
