"""Sentry gets failed jobs, and a trace from the caller to the attempts, through a transport that keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from headgate import (
    AlertMessage,
    AttemptContext,
    Cancel,
    Fail,
    Headgate,
    Job,
    JobCancelled,
    JobFailed,
    RateLimit,
    RateLimited,
    Retry,
    RetryPolicy,
    Snooze,
    batch,
    current_job,
)
from headgate.contrib.sentry import Sentry
from headgate.errors import DeclarationError
from headgate.jobs.event import EndingRefused, Event
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.faces.contrib import sentry_bodies
from tests.internals import client_of, store_of
from tests.until import result_within, until

AT_ONCE = RetryPolicy(retries=1, delay=0)


class Sent(Transport):
    """Keeps what Sentry's server would get."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [dict(item.payload.json or {}) for item in envelope.items]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") != "transaction"]

    def transactions(self, name: str) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == "transaction" and item["transaction"] == name]


def init(**options: Any) -> Sent:
    sent = Sent()
    sentry_sdk.init(
        "https://key@sentry.invalid/1", transport=sent, traces_sample_rate=1.0, default_integrations=False, **options
    )
    return sent


@pytest.fixture(autouse=True)
def no_client_afterwards() -> Iterator[None]:
    with sentry_sdk.isolation_scope():
        yield
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().clear()
    sentry_sdk.get_global_scope().set_client(None)
    # `clear()` keeps them, and the next test would pass by those of this one.
    sentry_sdk.get_global_scope()._event_processors.clear()


def new_app(**options: Any) -> Headgate:
    app = Headgate("memory://", retry=AT_ONCE)
    app.instrument(Sentry(**options))
    return app


async def failure_of(job: Job[Any]) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        await result_within(job, 15)
    return failed.value


def kinds(errors: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(error["exception"]["values"][-1]["type"], error["exception"]["values"][-1]["value"]) for error in errors]


async def test_a_job_is_reported_once_when_it_has_failed_for_good() -> None:
    sent = init()
    app, sentry = Headgate("memory://", retry=AT_ONCE), Sentry()
    app.instrument(sentry)
    app.queue("mail")

    @app.task(queue="mail", tags=["night"], limits=[RateLimit("9/s", key="{to}", name="mail")])
    def send(to: str) -> None:
        sentry_sdk.set_tag("carrier", "snail")
        raise LookupError(f"no address: {to}")

    async with app:
        job = await send.enqueue("ann")
        await failure_of(job)
    (error,) = sent.errors
    assert not sentry._held
    assert kinds([error]) == [("LookupError", "no address: ann")]
    assert error["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "send"
    assert "traceback" not in error.get("extra", {})
    assert error["exception"]["values"][-1]["mechanism"] == {"type": "headgate", "handled": False}
    assert error["tags"] == {
        "headgate.task": "send",
        "headgate.queue": "mail",
        "headgate.job_id": job.id,
        "carrier": "snail",
    }
    assert error["contexts"]["job"] == {
        "id": job.id, "task": "send", "queue": "mail", "attempt": 2, "tags": ["night"], "limits": ["mail"],
    }  # fmt: skip
    first, second = sent.transactions("send")
    assert error["contexts"]["trace"]["span_id"] == second["contexts"]["trace"]["span_id"]
    assert [each["contexts"]["trace"]["status"] for each in (first, second)] == ["internal_error"] * 2


async def test_local_variables_are_sent_as_the_client_says() -> None:
    sent = init(include_local_variables=False)
    app = new_app()

    @app.task
    async def send(to: str) -> None:
        raise Fail("refused")

    async with app:
        await failure_of(await send.enqueue("ann"))
    (error,) = sent.errors
    assert not any("vars" in frame for frame in error["exception"]["values"][-1]["stacktrace"]["frames"])


async def test_keys_and_arguments_are_not_sent_if_the_client_refuses_those_of_queues() -> None:
    sent = init(data_collection={"queues": False})
    app = new_app()

    @app.task(limits=[RateLimit("9/s", key="{to}", name="mail")])
    async def send(to: str) -> None:
        raise Fail("refused")

    async with app:
        await failure_of(await send.enqueue("ann"))
    (error,) = sent.errors
    assert error["contexts"]["job"]["limits"] == ["mail"]
    assert "arguments" not in error["contexts"]["job"]


async def test_the_log_line_of_a_failed_job_is_no_second_report() -> None:
    sent = init(integrations=[LoggingIntegration()])
    app = new_app()

    @app.task
    async def send() -> None:
        logging.getLogger("shop").error("the carrier is closed")
        raise Fail("refused")

    async with app:
        await failure_of(await send.enqueue())
    logging.getLogger("headgate").error("a line about something else")
    assert kinds([error for error in sent.errors if "exception" in error]) == [("Fail", "refused")]
    lines = [error["logentry"]["message"] for error in sent.errors if "exception" not in error]
    assert lines == ["the carrier is closed", "a line about something else"]


@pytest.mark.filterwarnings("ignore:The send_default_pii option is deprecated")
@pytest.mark.parametrize("option", [{"send_default_pii": True}, {"data_collection": {"queues": True}}])
async def test_keys_and_arguments_are_sent_on_request(option: dict[str, Any]) -> None:
    sent = init(**option)
    app = new_app()

    @app.task(limits=[RateLimit("9/s", key="{to}", name="mail")])
    async def send(to: str) -> None:
        raise Fail("refused")

    async with app:
        await failure_of(await send.enqueue("ann"))
    (error,) = sent.errors
    assert error["contexts"]["job"]["limits"] == {"mail": "ann"}
    assert error["contexts"]["job"]["arguments"] == {"to": "ann"}


async def test_attempts_that_are_retried_are_reported_on_request() -> None:
    sent = init()
    app = new_app(report_retried=True)

    @app.task
    async def fetch() -> None:
        raise ConnectionError("lost")

    async with app:
        await failure_of(await fetch.enqueue())
    assert [error["contexts"]["job"]["attempt"] for error in sent.errors] == [1, 2]


async def test_what_a_handler_decides_is_no_error_until_its_retries_are_spent() -> None:
    sent = init()
    app = new_app(report_retried=True)
    snoozed: list[str] = []

    @app.task
    async def wait() -> None:
        if not snoozed:
            snoozed.append("once")
            raise Snooze(0)

    @app.task
    async def slow_down() -> None:
        if "slow" not in snoozed:
            snoozed.append("slow")
            raise RateLimited(0.01)

    @app.task
    async def give_up() -> None:
        raise Cancel("not needed")

    @app.task
    async def ask() -> None:
        raise Retry(0, "not ready")

    async with app:
        await result_within(await wait.enqueue(), 15)
        await result_within(await slow_down.enqueue(), 15)
        with pytest.raises(JobCancelled):
            await result_within(await give_up.enqueue(), 15)
        await failure_of(await ask.enqueue())
    assert kinds(sent.errors) == [("Retry", "not ready")]
    statuses = [each["contexts"]["trace"]["status"] for each in sent.items if each.get("type") == "transaction"]
    assert sorted(statuses) == ["aborted"] * 5 + ["ok"] * 2


def test_a_job_that_fails_without_an_attempt_is_reported_too() -> None:
    async def main(clock: VirtualClock) -> str:
        app = Headgate("memory://", clock=clock)
        app.instrument(Sentry())

        @app.task
        async def late() -> None: ...

        async with app:
            job = await late.using(delay=100, expires_at=app.admin.now() + timedelta(seconds=5)).enqueue()
            await asyncio.sleep(60)
            return job.id

    sent = init()
    job_id = run_virtual(main)
    (error,) = sent.errors
    assert error["level"] == "error"
    assert error["tags"] == {"headgate.task": "late", "headgate.queue": "default", "headgate.job_id": job_id}
    assert error["contexts"]["job"] == {"id": job_id, "attempt": 0}
    assert kinds([error]) == [("JobExpired", "the job was not started by its expires_at")]
    assert error["exception"]["values"][-1]["module"] == "headgate.errors"


@pytest.mark.parametrize("end", ["is retried", "is returned"])
def test_an_error_of_an_attempt_that_decided_nothing_is_not_that_of_the_job(end: str) -> None:
    """A job waits again after an attempt, and then expires."""

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=1, delay=100))
        if end == "is returned":

            @app.around_attempt
            async def snooze(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
                try:
                    return await run()
                except LookupError:
                    raise Snooze(100) from None

        app.instrument(Sentry())

        @app.task
        async def send() -> None:
            raise LookupError("no address")

        async with app:
            await send.using(expires_at=app.admin.now() + timedelta(seconds=5)).enqueue()
            await asyncio.sleep(200)

    sent = init()
    run_virtual(main)
    assert [kind for kind, _ in kinds(sent.errors)] == ["JobExpired"]


async def test_an_error_is_forgotten_if_a_hook_makes_the_job_succeed() -> None:
    init()
    app = Headgate("memory://", retry=AT_ONCE)

    @app.around_attempt
    async def forgive(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
        with contextlib.suppress(LookupError):
            await run()

    sentry = Sentry()
    app.instrument(sentry)

    @app.task
    async def send() -> None:
        raise LookupError("no address")

    async with app:
        await result_within(await send.enqueue(), 15)
        await until(lambda: not sentry._held, 5)


async def test_an_error_is_forgotten_if_the_job_is_no_longer_of_this_node() -> None:
    sent = init()
    app = Headgate("memory://", retry=AT_ONCE)
    sentry = Sentry()
    app.instrument(sentry)

    @app.task
    async def send() -> None:
        id = current_job().id
        await store_of(app).write(lambda tx: tx.execute("delete_job", id=id))
        raise LookupError("no address")

    async with app:
        refused: list[Event] = []
        app.subscribe(refused.append, EndingRefused)
        await send.enqueue()
        await until(lambda: bool(refused), 15)
        await until(lambda: not sentry._held, 5)
    assert sent.errors == []


async def test_a_job_that_is_cancelled_while_it_runs_is_no_error() -> None:
    sent = init()
    app = new_app()
    running = asyncio.Event()

    @app.task
    async def wait() -> None:
        running.set()
        await asyncio.sleep(60)

    async with app:
        job = await wait.enqueue()
        await running.wait()
        await job.cancel()
        with pytest.raises(JobCancelled):
            await result_within(job, 15)
    assert sent.errors == []
    (attempt,) = sent.transactions("wait")
    assert attempt["contexts"]["trace"]["status"] == "aborted"


async def test_attempts_continue_the_trace_of_a_caller_without_a_span() -> None:
    sent = init()
    app = new_app()

    @app.task
    async def ship() -> str:
        return current_job().headers["sentry-trace"]

    async with app:
        job = await ship.enqueue()
        header = await result_within(job, 15)
    (attempt,) = sent.items
    caller = sentry_sdk.get_traceparent()
    assert caller is not None
    assert attempt["contexts"]["trace"]["trace_id"] == caller.split("-")[0]
    # What the handler enqueues or calls by itself continues the attempt.
    assert header.split("-")[:2] == [attempt["contexts"]["trace"][name] for name in ("trace_id", "span_id")]


async def test_attempts_continue_the_trace_of_their_caller() -> None:
    sent = init()
    app = new_app()

    @app.task
    def ship(order: int) -> float:
        with sentry_sdk.start_span(op="call", name="the carrier"):
            return current_job().waited_for

    async with app:
        with sentry_sdk.start_transaction(name="request") as request:
            job = await ship.enqueue(1)
        waited = await result_within(job, 15)
        other = await ship.enqueue(2)
        await result_within(other, 15)
    (caller,) = sent.transactions("request")
    first, second = sent.transactions("ship")
    (publish,) = caller["spans"]
    assert (publish["op"], publish["description"]) == ("queue.publish", "ship")
    assert publish["origin"] == "auto.queue.headgate"
    assert (
        publish["data"]
        | {
            "messaging.system": "headgate",
            "messaging.destination.name": "default",
            "messaging.message.id": job.id,
            "messaging.batch.message_count": 1,
        }
        == publish["data"]
    )
    trace = first["contexts"]["trace"]
    assert (trace["op"], trace["trace_id"]) == ("queue.process", request.trace_id)
    assert trace["parent_span_id"] == publish["span_id"]
    assert trace["data"]["messaging.message.retry.count"] == 0
    assert trace["data"]["messaging.message.receive.latency"] == waited * 1000
    assert (trace["data"]["messaging.system"], trace["data"]["messaging.destination.name"]) == ("headgate", "default")
    assert trace["data"]["messaging.message.id"] == job.id
    assert trace["origin"] == "auto.queue.headgate"
    assert first["transaction_info"] == {"source": "task"}
    assert [span["description"] for span in first["spans"]] == ["the carrier"]
    assert second["contexts"]["trace"]["trace_id"] != request.trace_id


async def test_the_jobs_of_one_commit_share_a_span() -> None:
    sent = init()
    app = new_app()

    @app.task
    async def ship(order: int) -> None: ...

    async with app:
        with sentry_sdk.start_transaction(name="request"):
            jobs = await batch([ship.call(1), ship.call(2)]).enqueue()
        await jobs.result()
    (caller,) = sent.transactions("request")
    (publish,) = caller["spans"]
    assert publish["data"]["messaging.batch.message_count"] == 2
    parents = {each["contexts"]["trace"]["parent_span_id"] for each in sent.transactions("ship")}
    assert parents == {publish["span_id"]}


async def test_attempts_that_run_at_once_do_not_mix() -> None:
    sent = init()
    app = new_app()
    everyone = asyncio.Barrier(3)

    @app.task(retry=RetryPolicy(retries=0))
    async def work(name: str) -> None:
        sentry_sdk.set_tag("name", name)
        sentry_sdk.add_breadcrumb(message=name)
        await everyone.wait()
        raise ValueError(name)

    sentry_sdk.add_breadcrumb(message="of the worker")
    async with app:
        for job in [await work.enqueue(name) for name in "abc"]:
            await failure_of(job)
    assert sorted(kinds(sent.errors)) == [("ValueError", name) for name in "abc"]
    for error in sent.errors:
        name = error["exception"]["values"][-1]["value"]
        assert error["tags"]["name"] == name
        assert [crumb["message"] for crumb in error["breadcrumbs"]["values"]] == [name]


async def test_what_a_call_of_a_chunk_or_a_callback_sets_is_not_in_later_reports() -> None:
    """The fault: the user that a callback had set was that of each job that failed afterwards, of any task."""
    sent = init()
    app = new_app()

    @app.task
    async def ship() -> None: ...

    @ship.on_completed
    async def tell(job: object, result: object) -> None:
        sentry_sdk.set_user({"id": "ann"})

    @app.chunked(2)
    async def bill(orders: list[int]) -> None:
        sentry_sdk.set_tag("order", orders[0])

    @app.chunked(2)
    def weigh(orders: list[int]) -> None:
        sentry_sdk.set_tag("weight", orders[0])

    @app.task
    async def fail() -> None:
        raise Fail("refused")

    async with app:
        for job in (await ship.enqueue(), await bill.enqueue(1), await weigh.enqueue(2)):
            await result_within(job, 15)
        await client_of(app).callback_runner.drain(15)
        await failure_of(await fail.enqueue())
    (error,) = sent.errors
    assert error["tags"].keys() == {"headgate.task", "headgate.queue", "headgate.job_id"}
    assert "user" not in error


async def test_reports_of_callbacks_and_of_calls_of_a_chunk_have_their_own_breadcrumbs_only() -> None:
    """The fault: they had all that the worker and other calls had left before, such as log lines about other jobs."""
    sent = init()
    app = new_app()

    @app.task
    async def ship() -> None: ...

    @ship.on_completed
    def tell(job: object, result: object) -> None:
        sentry_sdk.add_breadcrumb(message="shipped")
        sentry_sdk.capture_message("told")

    @app.chunked(2, wait=0)
    async def bill(orders: list[int]) -> None:
        sentry_sdk.add_breadcrumb(message=f"order {orders[0]}")
        sentry_sdk.capture_message("billed")

    sentry_sdk.add_breadcrumb(message="of the worker")
    async with app:
        for job in (await ship.enqueue(), await bill.enqueue(1)):
            await result_within(job, 15)
        await client_of(app).callback_runner.drain(15)
    crumbs = {each["message"]: [crumb["message"] for crumb in each["breadcrumbs"]["values"]] for each in sent.errors}
    assert crumbs == {"told": ["shipped"], "billed": ["order 1"]}


def test_what_the_function_of_an_alert_sets_is_not_in_later_reports() -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=AT_ONCE)
        app.instrument(Sentry())
        paged: list[str] = []

        def page(message: AlertMessage) -> None:
            sentry_sdk.set_tag("alert", message.subject)
            paged.append(message.subject)

        app.alert(page, on="waiting > 0")

        @app.task
        async def fail() -> None:
            raise Fail("refused")

        async with app:
            await app.admin.queues.pause("default")
            await fail.enqueue()
            await asyncio.sleep(30)
            assert paged == ["default"]
            await app.admin.queues.resume("default")
            await asyncio.sleep(5)

    sent = init()
    run_virtual(main)
    (error,) = sent.errors
    assert "alert" not in error["tags"]


async def test_functions_around_attempts_that_were_declared_before_are_in_the_scope_of_the_attempt() -> None:
    """The fault: the user that such a function had set was that of all later jobs, and its own error was not told."""
    sent = init()
    app = Headgate("memory://", retry=RetryPolicy(retries=0))

    @app.around_attempt
    async def name_user(job: AttemptContext, run: Callable[[], Awaitable[Any]]) -> Any:
        if job.arguments["user"]:
            sentry_sdk.set_user({"id": job.arguments["user"]})
        try:
            return await run()
        except LookupError as error:
            raise RuntimeError("no address") from error

    app.instrument(Sentry())

    @app.task
    async def send(user: str) -> None:
        raise LookupError(user)

    async with app:
        await failure_of(await send.enqueue("ann"))
        await failure_of(await send.enqueue(""))
    assert kinds(sent.errors) == [("RuntimeError", "no address")] * 2
    assert [error.get("user") for error in sent.errors] == [{"id": "ann"}, None]


@pytest.mark.slow
async def test_a_child_process_gets_the_trace_and_its_error_is_reported() -> None:
    sent = init()
    app = new_app()
    render = app.task(process=True, retry=RetryPolicy(retries=0))(sentry_bodies.render)
    async with app:
        carried = await result_within(await render.enqueue("whole"), 60)
        await failure_of(await render.enqueue("torn"))
    first, _ = sent.transactions("render")
    assert carried.split("-")[:2] == [first["contexts"]["trace"]["trace_id"], first["contexts"]["trace"]["span_id"]]
    (error,) = sent.errors
    assert kinds([error]) == [("ValueError", "the page is torn")]
    assert "in render" in error["extra"]["traceback"]


async def test_a_program_without_a_client_is_not_traced(caplog: pytest.LogCaptureFixture) -> None:
    app = new_app()

    @app.task
    async def work() -> dict[str, str]:
        return dict(current_job().headers)

    @app.task
    async def fail() -> None:
        raise LookupError("no address")

    async with app:
        assert await result_within(await work.enqueue(), 15) == {}
        await failure_of(await fail.enqueue())
    assert not [line for line in caplog.messages if "JobRetried" in line]


def test_an_app_reports_once() -> None:
    app = new_app()
    with pytest.raises(DeclarationError, match="reports to Sentry already"):
        app.instrument(Sentry())
