"""A trace over two processes: who enqueues a job here, and a real worker that runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.until import patient, until_now

APP = """
import json
import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from headgate import Headgate
from headgate.observe.tracing import OpenTelemetry


class Lines(SpanExporter):
    def export(self, spans):
        with open("spans.jsonl", "a") as file:
            for span in spans:
                told = json.loads(span.to_json())
                file.write(json.dumps({
                    "name": span.name, "pid": os.getpid(), "trace": told["context"]["trace_id"],
                    "id": told["context"]["span_id"], "parent": told["parent_id"],
                    "links": [link["context"]["span_id"] for link in told["links"]],
                }) + "\\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(provider)

app = Headgate("sqlite:///jobs.db")
app.instrument(OpenTelemetry())


@app.task
def work() -> None:
    with trace.get_tracer("shop").start_as_current_span("query"):
        pass
"""

ENQUEUE = """
from opentelemetry import trace
from project import app, work

with trace.get_tracer("shop").start_as_current_span("request"), app.sync:
    work.sync.enqueue()
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_that_one_process_enqueues_is_traced_into_the_worker_that_runs_it(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(APP)
    worker = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "project:app"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        subprocess.run([sys.executable, "-c", ENQUEUE], cwd=tmp_path, check=True, timeout=patient(10))
        spans = spans_of(tmp_path / "spans.jsonl", "process default")
    finally:
        worker.terminate()
        try:
            worker.wait(patient(10))
        finally:
            worker.kill()
    request, sent, ran, query = (spans[name] for name in ("request", "send default", "process default", "query"))
    assert sent["parent"] == request["id"]
    assert ran["links"] == [sent["id"]]
    assert ran["parent"] is None
    assert query["parent"] == ran["id"]
    assert request["pid"] == sent["pid"] != ran["pid"] == query["pid"] == worker.pid
    assert os.getpid() not in (sent["pid"], ran["pid"])


def spans_of(path: Path, last: str) -> dict[str, dict[str, object]]:
    spans: dict[str, dict[str, object]] = {}

    def are_there() -> bool:
        # What is being written has no end of its line yet.
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        spans.update((span["name"], span) for span in map(json.loads, lines))
        return last in spans

    until_now(are_there, missing=lambda: f"only {list(spans)}")
    return spans
