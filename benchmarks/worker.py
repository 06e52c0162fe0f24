"""Starts `headgate worker` on a file and waits until it has joined."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.latency_probe import Ears
from benchmarks.runner import ROOT
from benchmarks.support import OwnProcess


@contextlib.contextmanager
def headgate_worker(file: Path, ears: Ears | None = None, **settings: float) -> Iterator[OwnProcess]:
    """A worker process as users run it, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "benchmarks.worker_app:app", "--log-level", "warning"],
        cwd=ROOT,
        env={
            **os.environ,
            "HEADGATE_URL": f"sqlite:///{file}",
            "BENCHMARK_EARS": "" if ears is None else ears.path,
            **{f"HEADGATE_{name.upper()}": str(value) for name, value in settings.items()},
        },
    )
    try:
        _wait_until_joined(file, process)
        yield OwnProcess(process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_joined(file: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with {process.returncode}")
        with contextlib.suppress(sqlite3.OperationalError):
            connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
            try:
                row = connection.execute("SELECT 1 FROM node WHERE pid = ?", (process.pid,)).fetchone()
            finally:
                connection.close()
            if row is not None:
                return
        time.sleep(0.02)
    raise RuntimeError("the worker did not join within 20 s")
