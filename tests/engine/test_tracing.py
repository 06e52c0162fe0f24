"""Traces: attempts are found from who enqueued their job, and the spans of handlers are inside of theirs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import Cancel, Every, Headgate, RateLimited, RetryPolicy, Snooze, StrictRate, batch, chain, current_job
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.observe.json_log import JsonFormatter
from headgate.observe.tracing import OpenTelemetry
from headgate.storage.sqlite.memory import MemoryStorage
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.engine import traced_bodies
from tests.internals import app_on
from tests.until import result_within


class Traced:
    """An app's spans, as they were ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider()
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._provider.get_tracer("test")
        self.instrument = OpenTelemetry(tracer_provider=self._provider, metrics=False, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.close()


def of(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    found = span.get_span_context()
    assert found is not None
    return found.span_id


def trace_id(span: ReadableSpan) -> int:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id


def test_the_span_of_an_attempt_links_to_the_enqueue_and_contains_the_spans_of_its_handler(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)
        app.queue("mail")
        seen: list[object] = []

        @app.task(queue="mail", limits=[StrictRate("10/s", key="{to}", name="mails")])
        async def send(to: str) -> None:
            seen.append(baggage.get_baggage("user"))
            with traced.tracer.start_as_current_span("smtp"):
                await asyncio.sleep(1)

        async with app:
            with traced.tracer.start_as_current_span("request"):
                token = context.attach(baggage.set_baggage("user", "7"))
                job = await send.enqueue("ada@example.com")
                context.detach(token)
            await job.result()
        sent, ran, inner = traced.one("send mail"), traced.one("process mail"), traced.one("smtp")
        assert sent.kind is trace.SpanKind.PRODUCER
        assert sent.parent is not None
        assert sent.parent.span_id == span_id(traced.one("request"))
        assert ran.kind is trace.SpanKind.CONSUMER
        assert ran.parent is None
        assert linked(ran) == [span_id(sent)]
        assert trace_id(ran) != trace_id(sent)
        assert inner.parent is not None
        assert inner.parent.span_id == span_id(ran)
        assert seen == ["7"]
        assert dict(of(sent)) == {
            "messaging.system": "headgate",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "mail",
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(b'{"to":"ada@example.com"}'),
            "headgate.task.name": "send",
        }
        assert dict(of(ran)) == {
            "messaging.system": "headgate",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "mail",
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(b'{"to":"ada@example.com"}'),
            "headgate.task.name": "send",
            "headgate.attempt": 1,
            "headgate.wait": 0.0,
            "headgate.limits": ("mails",),
            "headgate.ratelimit.wait": 0.0,
            "headgate.outcome": "succeeded",
        }

    run_virtual(main)


def test_the_span_of_a_throttled_job_has_the_wait_for_its_limits(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task(limits=[StrictRate("1/10s", name="calls", margin=0)])
        async def call() -> None: ...

        async with app:
            for job in await call.enqueue_many([()] * 3):
                await result_within(job, 60)
        waits = [of(span)["headgate.ratelimit.wait"] for span in traced.spans("process default")]
        assert waits == [0, pytest.approx(10), pytest.approx(20)]

    run_virtual(main)


@pytest.mark.parametrize("moment", ["start", "end", "both"])
def test_a_processor_of_spans_that_raises_fails_no_enqueue_no_job_and_no_callback(
    moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault: one that raised at the end of a span had a job that was done tried again."""

    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if moment != "end":
                raise OSError("no disk")

        def on_end(self, span: Any) -> None:
            if moment != "start":
                raise OSError("no disk")

    provider = TracerProvider()
    provider.add_span_processor(Broken())

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock, retry=RetryPolicy(retries=1, base=1, jitter=False))
        app.instrument(OpenTelemetry(tracer_provider=provider, metrics=False))
        done: list[int] = []

        @app.task
        async def work(number: int) -> int:
            done.append(number)
            if number == 2 and current_job().attempt == 1:
                raise ValueError(number)
            return number

        @work.on_completed
        async def completed(job: Any, result: int) -> None:
            done.append(-result)

        async with app:
            for number in (1, 2):
                job = await work.enqueue(number)
                assert await result_within(job, 60) == number
            await asyncio.sleep(1)
        assert done == [1, -1, 2, 2, -2]

    run_virtual(main)
    assert [record.name for record in caplog.records].count("headgate.tracing") == 1


def test_the_span_of_a_run_can_be_a_child_of_the_enqueue() -> None:
    traced = Traced(run_as="child")

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task
        async def work() -> None: ...

        async with app:
            await (await work.enqueue()).result()
        sent, ran = traced.one("send default"), traced.one("process default")
        assert ran.parent is not None
        assert ran.parent.span_id == span_id(sent)
        assert ran.links == ()

    run_virtual(main)
    traced.close()


def test_each_attempt_is_a_span_of_its_own_with_its_error(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task(retry=RetryPolicy(retries=1, delay=60))
        async def work() -> str:
            if current_job().attempt == 1:
                raise ValueError("no such page")
            return "done"

        async with app:
            await (await work.enqueue()).result()
        failed, succeeded = traced.spans("process default")
        assert linked(failed) == linked(succeeded) == [span_id(traced.one("send default"))]
        assert trace_id(failed) != trace_id(succeeded)
        assert (of(failed)["headgate.attempt"], of(succeeded)["headgate.attempt"]) == (1, 2)
        assert failed.status.status_code is trace.StatusCode.ERROR
        assert of(failed)["error.type"] == "ValueError"
        (event,) = failed.events
        assert event.name == "exception"
        assert event.attributes is not None
        assert event.attributes["exception.message"] == "no such page"
        assert "raise ValueError" in str(event.attributes["exception.stacktrace"])
        assert succeeded.status.status_code is trace.StatusCode.UNSET

    run_virtual(main)


def test_snoozes_and_cancellations_are_not_failures_in_spans(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)
        answers = iter([Snooze(5), RateLimited(retry_after=3), None])

        @app.task(limits=[StrictRate("10/s")])
        async def work() -> None:
            answer = next(answers)
            if answer is not None:
                raise answer

        @app.task
        async def stay() -> None:
            await asyncio.sleep(1000)

        async with app:
            await (await work.enqueue()).result()
            job = await stay.enqueue()
            await asyncio.sleep(1)
            await job.cancel()
            await asyncio.sleep(1)
        outcomes = [of(span)["headgate.outcome"] for span in traced.spans("process default")]
        assert outcomes == ["snoozed", "refused", "succeeded", "cancelled"]
        assert all(span.status.status_code is trace.StatusCode.UNSET for span in traced.spans("process default"))

    run_virtual(main)


def test_many_jobs_are_sent_in_one_span_that_all_of_them_link_to(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task
        async def work(number: int) -> None: ...

        async with app:
            jobs = await work.enqueue_many([(number,) for number in range(5)])
            for job in jobs:
                await job.result()
        sent = traced.one("send default")
        assert of(sent)["messaging.batch.message_count"] == 5
        assert "messaging.message.id" not in of(sent)
        assert [linked(span) for span in traced.spans("process default")] == [[span_id(sent)]] * 5

    run_virtual(main)


def test_the_jobs_of_a_chain_and_of_a_batch_link_to_the_enqueue(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)
        app.queue("other")

        @app.task
        async def first() -> None: ...

        @app.task(queue="other")
        async def second() -> None: ...

        async with app:
            await chain(first.call(), second.call()).enqueue()
            await asyncio.sleep(2)
            made = await batch([first.call(), first.call()]).enqueue()
            await made.wait()
        mixed, alike = traced.one("send"), traced.one("send default")
        assert of(mixed)["messaging.batch.message_count"] == 2
        assert linked(traced.one("process other")) == [span_id(mixed)]
        in_batch = [span for span in traced.spans("process default") if linked(span) == [span_id(alike)]]
        assert [of(span)["messaging.message.conversation_id"] for span in in_batch] == [made.id] * 2

    run_virtual(main)


def test_an_occurrence_of_a_schedule_has_no_link_and_names_its_schedule(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.schedule(Every(minutes=1), name="each minute", max_runs=1)
        @app.task
        async def report() -> None: ...

        async with app:
            await asyncio.sleep(130)
        ran = traced.one("process default")
        assert (ran.parent, ran.links) == (None, ())
        assert of(ran)["headgate.schedule"] == "each minute"
        assert traced.spans("send default") == []

    run_virtual(main)


def test_callbacks_have_their_own_span(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task
        async def work() -> None: ...

        @work.on_completed
        async def tell(job: object, result: object) -> None:
            with traced.tracer.start_as_current_span("telling"):
                raise ValueError("nobody listens")

        async with app:
            await (await work.enqueue()).result()
            await asyncio.sleep(1)
        called, received = traced.one("on_completed work"), traced.one("telling")
        assert linked(called) == [span_id(traced.one("send default"))]
        assert received.parent is not None
        assert received.parent.span_id == span_id(called)
        assert called.status.status_code is trace.StatusCode.ERROR
        assert traced.one("process default").status.status_code is trace.StatusCode.UNSET

    run_virtual(main)


async def test_a_call_of_a_chunk_is_not_in_the_span_that_opened_the_app(traced: Traced) -> None:
    """The fault: all calls, as long as the program ran, were children of the span in which it had started."""
    app = Headgate("memory://")
    app.instrument(traced.instrument)

    @app.chunked(2, wait=0.01)
    async def bill(orders: list[int]) -> None:
        with traced.tracer.start_as_current_span("billing"):
            await ship.enqueue()

    @app.task
    async def ship() -> None: ...

    with traced.tracer.start_as_current_span("starting"):
        await app.start()
    job = await bill.enqueue(1)
    await result_within(job, 15)
    await app.stop()
    assert traced.one("billing").parent is None
    assert trace_id(traced.one("billing")) in {trace_id(span) for span in traced.spans("send default")}


async def test_plain_functions_have_their_span_in_their_thread(
    traced: Traced,
) -> None:
    app = Headgate("memory://")
    app.instrument(traced.instrument)

    @app.task
    def work() -> str:
        with traced.tracer.start_as_current_span("inside"):
            return threading.current_thread().name

    def enqueue() -> Any:
        with traced.tracer.start_as_current_span("request"):
            return work.sync.enqueue()

    async with app:
        job = await asyncio.to_thread(enqueue)
        assert (await result_within(app.job(job.id), 5)).startswith("headgate-job")
    inside, sent = traced.one("inside"), traced.one("send default")
    assert inside.parent is not None
    assert inside.parent.span_id == span_id(traced.one("process default"))
    assert sent.parent is not None
    assert sent.parent.span_id == span_id(traced.one("request"))


async def test_a_process_task_can_continue_the_span_of_its_attempt(traced: Traced, tmp_path: Path) -> None:
    app = Headgate(f"sqlite:///{tmp_path}/jobs.db")
    app.instrument(traced.instrument)
    work = app.task(process=True)(traced_bodies.current_span)
    async with app:
        job = await work.enqueue()
        ids = await result_within(job, 15)
    assert ids == f"{span_id(traced.one('process default')):016x}"


def test_headers_of_the_user_stay_and_jobs_of_the_handler_join_its_trace(traced: Traced) -> None:
    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)
        app.queue("next")
        headers: list[Mapping[str, str]] = []

        @app.task(queue="next")
        async def second() -> None:
            headers.append(current_job().headers)

        @app.task
        async def first() -> None:
            await second.using(headers={"tenant": "acme"}).enqueue()

        async with app:
            await (await first.enqueue()).result()
            await asyncio.sleep(1)
        assert headers[0]["tenant"] == "acme"
        assert headers[0]["traceparent"].split("-")[2] == f"{span_id(traced.one('send next')):016x}"
        assert trace_id(traced.one("send next")) == trace_id(traced.one("process default"))

    run_virtual(main)


def test_keys_are_never_exported_except_hashed_on_request() -> None:
    hashes: list[object] = []
    for salt in ("one", "one", "two"):
        traced = Traced(key_salt=salt)

        async def main(clock: VirtualClock, traced: Traced = traced) -> None:
            app = Headgate("memory://", clock=clock)
            app.instrument(traced.instrument)

            @app.task(limits=[StrictRate("10/s", key="{to}")])
            async def send(to: str) -> None: ...

            async with app:
                await (await send.enqueue("ada@example.com")).result()

        run_virtual(main)
        ran = traced.one("process default")
        hashes.append(of(ran)["headgate.ratelimit.key_hash"])
        assert "ada@example.com" not in ran.to_json()
        traced.close()
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_enqueue_that_fails_is_an_error_of_its_span(traced: Traced) -> None:
    class FailingAddStorage(MemoryStorage):
        async def add(self, *_: Any, **__: Any) -> Any:
            raise StorageUnavailable("no room")

    async def main(clock: VirtualClock) -> None:
        app = app_on(FailingAddStorage(clock), clock=clock)
        app.instrument(traced.instrument)

        @app.task
        async def work() -> None: ...

        async with app.open():
            with pytest.raises(StorageUnavailable):
                await work.enqueue()
        sent = traced.one("send default")
        assert sent.status.status_code is trace.StatusCode.ERROR
        assert of(sent)["error.type"] == "headgate.errors.StorageUnavailable"

    run_virtual(main)


def test_jobs_in_a_transaction_of_the_caller_are_traced_too(traced: Traced, tmp_path: Path) -> None:
    import sqlite3

    app = Headgate(f"sqlite:///{tmp_path}/jobs.db")
    app.instrument(traced.instrument)

    @app.task
    async def work() -> None: ...

    async def main() -> None:
        async with app.open():
            connection = sqlite3.connect(tmp_path / "jobs.db")
            with traced.tracer.start_as_current_span("request"):
                job = await work.using(connection=connection).enqueue()
            connection.commit()
            connection.close()
            details = await app.admin.job(job.id)
            assert details.record.headers is not None
            assert f"{span_id(traced.one('send default')):016x}" in details.record.headers["traceparent"]

    asyncio.run(main())


def test_an_app_has_one_tracer(traced: Traced) -> None:
    app = Headgate("memory://")
    app.instrument(traced.instrument)
    with pytest.raises(DeclarationError, match="has a tracer already"):
        app.instrument(OpenTelemetry())
    with pytest.raises(DeclarationError, match='"link" or "child"'):
        OpenTelemetry(run_as="parent")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="salts nothing"):
        OpenTelemetry(key_salt="")


def test_the_metrics_of_the_conventions_are_counted_and_measured(traced: Traced) -> None:
    """The fault: an attempt whose handler cancelled its job had the error.type headgate.Cancel, as if it had failed."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(OpenTelemetry(meter_provider=provider))

        @app.task(retry=RetryPolicy(retries=0))
        async def work(error: str) -> None:
            await asyncio.sleep(3)
            if error:
                raise Cancel("withdrawn") if error == "Cancel" else ValueError

        async with app:
            await work.enqueue_many([("",), ("ValueError",), ("Cancel",)])
            await asyncio.sleep(10)

    run_virtual(main)
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    found = {metric.name: metric.data.data_points for scope in resource.scope_metrics for metric in scope.metrics}
    assert found["messaging.client.sent.messages"][0].value == 3  # type: ignore[union-attr]
    assert found["messaging.client.consumed.messages"][0].value == 3  # type: ignore[union-attr]
    runs = found["messaging.process.duration"]
    assert {(dict(run.attributes or {}).get("error.type"), round(run.sum)) for run in runs} == {  # type: ignore[union-attr]
        (None, 6),
        ("ValueError", 3),
    }
    operations = {
        dict(point.attributes or {})["messaging.operation.name"]
        for point in found["messaging.client.operation.duration"]
    }
    assert operations == {"send", "receive", "settle"}
    provider.shutdown()


def test_log_lines_of_a_handler_carry_the_ids_of_its_span(traced: Traced) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keep()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("shop.orders")
    logger.addHandler(handler)

    async def main(clock: VirtualClock) -> None:
        app = Headgate("memory://", clock=clock)
        app.instrument(traced.instrument)

        @app.task
        async def work() -> None:
            logger.warning("slow")

        async with app:
            await (await work.enqueue()).result()

    try:
        run_virtual(main)
    finally:
        logger.removeHandler(handler)
    ran = traced.one("process default")
    assert f'"trace_id":"{trace_id(ran):032x}","span_id":"{span_id(ran):016x}"' in lines[0]
    assert '"task":"work","queue":"default","attempt":1' in lines[0]
