"""Strangers that connect and send half a request: a worker works on, a dashboard answers, and logs stay small."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from headgate import Headgate
from headgate.observe.bounded_server import HEAD_TIMEOUT
from headgate.observe.metrics import PrometheusMetrics
from tests.postgres_server import free_port
from tests.until import patient, until_now

HALF = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Half: "
OPEN_FILES = 256

APP = """
from pathlib import Path
from headgate import Headgate

app = Headgate("sqlite:///jobs.db")


@app.task
async def write(name: str) -> None:
    # A handler needs a file of its own.
    Path(name).write_text("done")
"""

ENQUEUE = """
import asyncio, sys
from project import app, write

async def main():
    async with app.open():
        job = await write.enqueue(sys.argv[1])
        await job.result()

asyncio.run(main())
"""


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `headgate` that may open few files, and whose log is in log.txt."""
    (folder / "project.py").write_text(APP)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({OPEN_FILES}, {OPEN_FILES}))"
    code = f"{limited}; from headgate.cli.main import main; main()"
    migrate = [sys.executable, "-m", "headgate", "migrate", "project:app"]
    subprocess.run(migrate, cwd=folder, check=True, capture_output=True, timeout=patient(20))
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *words], cwd=folder, stdout=log, stderr=log, env=os.environ
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def wait_for(folder: Path, part: str) -> str:
    log = folder / "log.txt"
    until_now(lambda: re.search(part, log.read_text()), missing=log.read_text)
    found = re.search(part, log.read_text())
    assert found is not None
    return found[0]


@contextmanager
def half_sent(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections with half a request each, as far as the server takes them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                connections.append(
                    opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=patient(5)))
                )
                connections[-1].sendall(HALF)
        yield connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(process: subprocess.Popen[bytes]) -> int:
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(HEAD_TIMEOUT + patient(5))
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.nightly
def test_a_worker_serves_metrics_during_and_after_1100_half_sent_requests(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, "worker", "project:app", "--metrics-port", str(port)) as worker:
        wait_for(tmp_path, "works on")
        with half_sent(port, 1100) as connections:
            assert len(connections) > 1000
            for number in range(2):
                name = f"job-{number}"
                subprocess.run([sys.executable, "-c", ENQUEUE, name], cwd=tmp_path, check=True, timeout=patient(25))
                assert (tmp_path / name).read_text() == "done"
                assert (
                    "headgate_jobs_finished_total"
                    in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=patient(10)).text
                )
            assert open_files(worker) < 100
            assert is_closed(connections[-1])
        assert "headgate_jobs_finished_total" in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=patient(10)).text
        assert worker.poll() is None
    assert (tmp_path / "log.txt").stat().st_size < 20_000


@pytest.mark.nightly
def test_a_dashboard_responds_during_and_after_1100_half_sent_requests(tmp_path: Path) -> None:
    with serving(tmp_path, "dashboard", "project:app", "--port", "0") as process:
        link = wait_for(tmp_path, r"http://\S+token=\S+")
        port = httpx.URL(link).port
        assert port is not None
        with httpx.Client(timeout=patient(10)) as client, half_sent(port, 1100) as connections:
            assert len(connections) > 1000
            assert client.get(link).status_code == 303
            for _ in range(5):
                answer = httpx.get(
                    f"http://127.0.0.1:{port}/api/v1/overview", cookies=client.cookies, timeout=patient(10)
                )
                assert answer.status_code == 200
            assert open_files(process) < OPEN_FILES - 20
            assert is_closed(connections[-1])
        assert process.poll() is None
    assert (tmp_path / "log.txt").stat().st_size < 20_000


@pytest.fixture
def metrics_port() -> Iterator[int]:
    metrics = PrometheusMetrics(registry=CollectorRegistry())
    Headgate("memory://").instrument(metrics)
    server = metrics.serve(0)
    yield server.port
    server.close()


def test_the_metrics_server_answers_prometheus(metrics_port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{metrics_port}", timeout=patient(10)) as client:
        received = client.get("/metrics", headers={"Accept-Encoding": "gzip"})
        assert received.headers["content-encoding"] == "gzip"
        assert "headgate_up" in received.text or "# HELP headgate_" in received.text
        opened = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        one = client.get("/metrics", params={"name[]": "headgate_build_info"}).text
        assert set(re.findall(r"^(headgate_\w+)", one, re.MULTILINE)) == {"headgate_build_info"}
        assert client.post("/metrics").status_code == 405
        assert client.head("/metrics").content == b""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_connection_that_sends_a_request_slowly_is_closed(
    metrics_port: int,
) -> None:
    for first in (b"", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", metrics_port), timeout=patient(5)) as connection:
            if first:
                connection.sendall(first)
                while b"HTTP/1.1 200" not in connection.recv(65536):
                    pass
            began_at = time.monotonic()
            connection.sendall(HALF)
            connection.settimeout(0.2)
            while time.monotonic() - began_at < HEAD_TIMEOUT + patient(3):
                try:
                    if not connection.recv(65536):
                        break
                except TimeoutError:
                    connection.sendall(b"a")
                except (ConnectionResetError, BrokenPipeError):
                    break
            assert HEAD_TIMEOUT - 1 < time.monotonic() - began_at < HEAD_TIMEOUT + patient(3)
