"""Metrics as a real worker serves them; every name in the dashboard, the alert rules and the docs is one of theirs."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from headgate import Headgate
from headgate.cli.supervisor import NUMBER, Supervisor
from headgate.cli.worker_process import serve_metrics
from headgate.clock import SystemClock
from headgate.errors import HeadgateError
from headgate.observe.metric import COUNTED, READ
from tests.until import patient, until_now

GRAFANA = files("headgate.observe") / "grafana"
DOCS = Path(__file__).parents[2] / "docs"

APP = '''
from headgate import Headgate, RetryPolicy, Snooze, StrictRate, current_job
from headgate.jobs.event import (
    CallbackFailed, EndingRefused, LimitStoreFailed, NodeLost, OccurrencesSkipped, StorageFailed,
)
from headgate.observe.metrics import PrometheusMetrics

app = Headgate("sqlite:///jobs.db", heartbeat=0.5, lease=30)
app.instrument(PrometheusMetrics(store=True, top_keys=5, max_age=0))


@app.task(limits=[StrictRate("1/h", key="{to}", name="mails")])
async def send(to: str) -> None: ...


@app.task(limits=[StrictRate("1/h", name="now", on_limit="discard")])
async def ping() -> None: ...


@app.task(retry=RetryPolicy(retries=1, delay=0))
async def fail() -> None:
    raise ValueError("no")


@app.task
async def later() -> None:
    raise Snooze(1000)


@app.task
async def rare() -> None:
    """Publish rare events as the engine does."""
    job = current_job().id
    for event in (
        NodeLost(at=0, node="node-1", returned=2, poisonous=1),
        EndingRefused(at=0, job_id=job, task="rare"),
        CallbackFailed(at=0, job_id=job, task="rare", callback="on_error", error="no"),
        OccurrencesSkipped(at=0, schedule="nightly", task="rare", reason="misfire", count=3, next_at=None),
        LimitStoreFailed(at=0, limit="mails", error="no", jobs_run=True),
        StorageFailed(at=0, doing="claiming", error="no"),
    ):
        app._bus.publish(event)
'''

ENQUEUE = """
import asyncio
from project import app, fail, later, ping, rare, send

async def main():
    async with app.open():
        await send.enqueue_many([("ada@example.com",)] * 3)
        for task in (ping, ping, fail, later, rare):
            await task.enqueue()

asyncio.run(main())
"""

Samples = dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Metric], str]:
    """Return the metrics of a worker after events of all kinds."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "project.py").write_text(APP)
    port = free_port()
    worker = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "project:app", "--metrics-port", str(port)],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    with worker:
        try:
            assert worker.stderr is not None
            while "works on" not in worker.stderr.readline():
                assert worker.poll() is None
            subprocess.run([sys.executable, "-c", ENQUEUE], cwd=folder, check=True, timeout=patient(10))
            text = scrape_until(
                port,
                r'headgate_jobs_finished_total\{outcome="failed",queue="default",task="fail"\} 1.0',
                r'headgate_fenced_writes_total\{task="rare"\} 1.0',
                r'headgate_limit_decisions_total\{decision="rejected",limit="now"\} 1.0',
                r'headgate_top_key_waiting\{key="ada@example.com",limit="mails"\} 2.0',
                r'headgate_queue_depth\{queue="default",state="waiting"\} 3.0',
                r"headgate_event_loop_lag_seconds ",
            )
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(patient(10)) == 0
        finally:
            worker.kill()
    return list(text_string_to_metric_families(text)), text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape_until(port: int, *parts: str) -> str:
    text = ""

    def missing() -> list[str]:
        nonlocal text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patient(5)) as answer:
            text = answer.read().decode()
        return [part for part in parts if not re.search(part, text)]

    until_now(lambda: not missing(), missing=lambda: f"never told: {missing()}\n{text}")
    return text


def labels_of(families: list[Metric]) -> dict[str, set[str]]:
    """The labels of each name that a query may use; those of the scrape itself come on top."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            if sample.name.startswith("headgate_"):
                found.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    return found


def test_the_worker_exports_every_documented_metric_and_no_other(
    scraped: tuple[list[Metric], str],
) -> None:
    received = labels_of(scraped[0])
    for metric in (*COUNTED, *READ):
        name = f"{metric.name}_bucket" if metric.kind == "histogram" else metric.name
        expected = {*metric.labels, "instance", "job"} | ({"le"} if metric.kind == "histogram" else set())
        assert received.get(name) == expected, name
    listed = {metric.name for metric in (*COUNTED, *READ)}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in received} == listed


def test_the_worker_exports_metrics_of_its_process(scraped: tuple[list[Metric], str]) -> None:
    assert "python_info{" in scraped[1]
    assert 'headgate_queue_depth{queue="default",state="waiting"} 3.0' in scraped[1]


def expressions() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((GRAFANA / "headgate.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            yield f"variable {variable['name']!r}", f"count by ({label}) ({name})"
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']!r}", rule["expr"]


def test_every_query_of_the_dashboard_and_the_alerts_uses_existing_metrics(
    scraped: tuple[list[Metric], str],
) -> None:
    received = labels_of(scraped[0])
    asked: set[str] = set()
    for where, expression in expressions():
        names = re.findall(r"\bheadgate_\w+", expression)
        assert names, where
        for name in names:
            assert name in received, f"{where} asks for {name}, which no worker tells"
        for name, matchers in re.findall(r"\b(headgate_\w+)\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
                assert label in received[name], f"{where}: {name} has no label {label}"
        for grouping in re.findall(r"\b(?:by|without|on|ignoring) \(([^)]*)\)", expression):
            for label in re.split(r",\s*", grouping):
                assert all(label in received[name] for name in names), f"{where} groups by {label}"
        assert expression.count("(") == expression.count(")"), where
        asked |= {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}
    assert {metric.name for metric in (*COUNTED, *READ)} - asked == {"headgate_build_info"}


def test_an_alert_that_waits_looks_no_further_back_than_it_waits() -> None:
    """The fault: one failed call to the store of a limit was critical for five minutes, because it counted for ten."""
    seconds = {"m": 60, "h": 3600}
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            waits = rule.get("for")
            for count, unit in re.findall(r"\[(\d+)([mh])\]", rule["expr"]) if waits else ():
                assert int(count) * seconds[unit] <= int(waits[:-1]) * seconds[waits[-1]], rule["alert"]


def test_labels_in_the_text_of_alerts_are_kept_by_their_queries() -> None:
    for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            said = " ".join(rule["annotations"].values())
            for label in set(re.findall(r"\$labels\.(\w+)", said)):
                grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
                assert all(label in re.split(r",\s*", labels) for labels in grouped), rule["alert"]
                assert grouped, rule["alert"]


def test_every_metric_is_in_the_docs_with_its_labels_and_its_meaning() -> None:
    page = (DOCS / "metrics.md").read_text()
    for metric in (*COUNTED, *READ):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        assert f"| `{metric.name}` | {labels} | {metric.meaning} |".replace("|  |", "| |") in page
    mentioned = set(re.findall(r"headgate_\w+", page))
    known = {metric.name for metric in (*COUNTED, *READ)}
    assert {name for name in mentioned if re.sub(r"_(bucket|count|sum)$", "", name) not in known} == set()


def test_workers_of_a_supervisor_take_one_port_after_the_other_and_the_first_reads_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Headgate("memory://")
    port = free_port()
    monkeypatch.setenv(NUMBER, "2")
    server = serve_metrics(app, port - 1, "127.0.0.1", store=True)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patient(5)) as answer:
            text = answer.read().decode()
        assert "headgate_build_info" in text
        assert "headgate_up" not in text
        with pytest.raises(HeadgateError, match="choose another port"):
            serve_metrics(app, port - 1, "127.0.0.1", store=True)
    finally:
        server.close()
        (metrics,) = app._instruments
        REGISTRY.unregister(metrics)  # type: ignore[arg-type]


def test_a_supervisor_passes_each_worker_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Each waits for the other, as the end of the first is that of both.
    program = f"""
import os, time
open(os.environ[{NUMBER!r}], "w").close()
until = time.monotonic() + {patient(10)}
while len(os.listdir()) < 2 and time.monotonic() < until:
    time.sleep(0.01)
raise SystemExit(1)
"""
    asyncio.run(Supervisor([sys.executable, "-S", "-c", program], 2, SystemClock()).run())
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}


def test_a_worker_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text('from headgate import Headgate\napp = Headgate("sqlite:///jobs.db")\n')
    program = (
        "import sys; sys.modules['prometheus_client'] = None; from headgate.cli.main import main; "
        "main(['worker', 'project:app', '--metrics-port', '9'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=patient(10), check=False
    )
    assert ran.returncode == 1
    assert "pip install 'headgate[prometheus]'" in ran.stderr
    assert "Traceback" not in ran.stderr
