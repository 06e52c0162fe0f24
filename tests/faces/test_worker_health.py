"""Probes of a worker, and what it does while its store is not there yet: real processes."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.observe.health import MOST_CONNECTIONS
from tests.postgres_server import free_port, server_in
from tests.until import patient, until_now

APP = """
import asyncio

from headgate import Headgate

app = Headgate({url!r})


@app.task
async def work() -> None:
    open("running", "w").close()
    await asyncio.sleep(60)
"""


@contextlib.contextmanager
def worker(folder: Path, url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "jobs_app.py").write_text(APP.format(url=url))
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "jobs_app:app", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def probe(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patient(10)) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


def answer_when(port: int, path: str, status: int) -> str:
    answers: list[tuple[int, str]] = []

    def answers_so() -> bool:
        with contextlib.suppress(OSError):
            answers.append(probe(port, path))
        return answers[-1:] != [] and answers[-1][0] == status

    until_now(answers_so, missing=lambda: f"{path} answered {answers[-1:]}, never {status}")
    return answers[-1][1]


def test_a_worker_is_ready_until_it_stops(tmp_path: Path) -> None:
    port = free_port()
    with worker(tmp_path, "sqlite:///jobs.db", "--health-port", str(port)) as process:
        assert answer_when(port, "/ready", 200) == "ready"
        assert probe(port, "/live") == (200, "the event loop runs")
        assert probe(port, "/ready?verbose=1")[0] == 200
        assert probe(port, "/metrics") == (404, "there are /live and /ready")
        command = [sys.executable, "-m", "headgate", "jobs", "enqueue", "jobs_app:app", "work"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        until_now((tmp_path / "running").exists)
        process.send_signal(signal.SIGTERM)
        assert answer_when(port, "/ready", 503) == "the worker is stopping"
        assert probe(port, "/live")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(20)) == 0


@pytest.mark.slow
def test_a_worker_waits_for_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    port, nothing = free_port(), free_port()
    with worker(tmp_path, f"postgresql://jobs@127.0.0.1:{nothing}/jobs", "--health-port", str(port)) as process:
        assert answer_when(port, "/ready", 503) == "the worker has not started yet"
        assert probe(port, "/live")[0] == 200
        assert process.stderr is not None
        assert "waiting up to 60 s for the store: " in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(20)) == 0


@pytest.mark.slow
def test_a_worker_that_does_not_wait_for_its_store_exits_with_the_error(tmp_path: Path) -> None:
    url = f"postgresql://jobs@127.0.0.1:{free_port()}/jobs"
    with worker(tmp_path, url, "--wait", "0") as process:
        _, said = process.communicate(timeout=patient(20))
        assert process.returncode == 1
        assert "cannot be reached" in said


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1", b"\r\n\r\n", b"x" * 20_000, b"GET /live\r\n\r\n", b"\x00\xff \r\n\r\n"]
)
def test_an_invalid_request_does_not_disturb_the_server(tmp_path: Path, sent: bytes) -> None:
    port = free_port()
    with worker(tmp_path, "sqlite:///jobs.db", "--health-port", str(port)):
        answer_when(port, "/ready", 200)
        with socket.create_connection(("127.0.0.1", port), patient(10)) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        assert probe(port, "/ready") == (200, "ready")


def test_connections_that_send_nothing_take_no_files_from_the_jobs(tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as opened, worker(tmp_path, "sqlite:///jobs.db", "--health-port", str(port)) as process:
        answer_when(port, "/ready", 200)
        files = Path(f"/proc/{process.pid}/fd")
        before = len(list(files.iterdir()))
        for _ in range(3 * MOST_CONNECTIONS):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), patient(10)))
            connection.sendall(b"GET /live HTTP/1.1\r\n")
        # The last one is accepted after all others.
        assert probe(port, "/live")[0] == 200
        assert len(list(files.iterdir())) < before + 2 * MOST_CONNECTIONS
        process.kill()
        assert "Traceback" not in process.communicate(timeout=patient(20))[1]


def test_a_taken_port_is_reported_immediately(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with worker(tmp_path, "sqlite:///jobs.db", "--health-port", str(taken.getsockname()[1])) as process:
            _, said = process.communicate(timeout=patient(20))
    assert process.returncode == 1
    assert "--health-port: cannot listen at 127.0.0.1:" in said


@pytest.mark.nightly
def test_a_worker_whose_server_refuses_connections_says_that_it_cannot_be_reached(tmp_path: Path) -> None:
    """The fault: `/ready` said that the store did not answer, as if it were only slow."""
    port = free_port()
    with server_in(tmp_path) as server:
        (tmp_path / "jobs_app.py").write_text(APP.format(url=server.url))
        command = [sys.executable, "-m", "headgate", "migrate", "jobs_app:app"]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
        with worker(tmp_path, server.url, "--health-port", str(port)):
            answer_when(port, "/ready", 200)
            server.kill()
            said = answer_when(port, "/ready", 503)
    assert "it cannot be reached" in said or "cannot be used" in said
