"""Starts `headgate worker` on a store and waits until it has joined."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.runner import ROOT
from benchmarks.stores import storage_at
from benchmarks.support import OwnProcess


@contextlib.contextmanager
def headgate_worker(
    url: str, receiver: str = "", *, app: str = "benchmarks.worker_app:app", **settings: float
) -> Iterator[OwnProcess]:
    """A worker process as users run it, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", app, "--log-level", "warning"],
        cwd=ROOT,
        text=True,
        env={
            **os.environ,
            "HEADGATE_URL": url,
            "BENCHMARK_SOCKET": receiver,
            **{f"HEADGATE_{name.upper()}": str(value) for name, value in settings.items()},
        },
    )
    try:
        asyncio.run(_wait_until_joined(url, process))
        yield OwnProcess(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _wait_until_joined(url: str, process: subprocess.Popen[str]) -> None:
    storage = storage_at(url)
    await storage.open()
    try:
        async with asyncio.timeout(20):
            while not any(node.pid == process.pid for node in await storage.nodes()):
                if process.poll() is not None:
                    raise RuntimeError(f"the worker ended with {process.returncode}")
                await asyncio.sleep(0.02)
    finally:
        await storage.close()
