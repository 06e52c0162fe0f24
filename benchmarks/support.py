"""What several scenarios need: files, processes, percentiles, windows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.runner import ROOT
from headgate import Headgate


def new_file(folder: Path) -> Path:
    """Return a new database file."""
    return Path(tempfile.mkdtemp(dir=folder)) / "bench.db"


def bulks(jobs: int, bulk: int = 500) -> Iterator[range]:
    """The numbers of that many jobs, `bulk` at a time."""
    for first in range(0, jobs, bulk):
        yield range(first, min(first + bulk, jobs))


async def until_finished(app: Headgate, jobs: int) -> None:
    """Return when so many jobs are recorded as succeeded."""
    while sum(queue.succeeded for queue in await app.admin.counts()) < jobs:  # noqa: ASYNC110  # no event for counts
        await asyncio.sleep(0.002)


async def recorded_runs(app: Headgate) -> int:
    """Return how many jobs run or have run, as the store counts them."""
    return sum(queue.succeeded + queue.running for queue in await app.admin.counts())


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


class Latencies:
    """Return seconds as milliseconds."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def metrics(self, prefix: str = "") -> dict[str, float]:
        return {
            f"{prefix}p50": percentile(self._seconds, 0.5) * 1000,
            f"{prefix}p99": percentile(self._seconds, 0.99) * 1000,
        }


def now() -> int:
    """Microseconds, whole ones: a window must not be decided by how floats round."""
    return time.monotonic_ns() // 1000


def most_in_any_window(starts: Sequence[int], seconds: int) -> int:
    """The most starts (microseconds) in any half-open window of that length."""
    ordered = sorted(starts)
    window = seconds * 1_000_000
    most = first = 0
    for last, at in enumerate(ordered):
        while ordered[first] <= at - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def used_share(starts: Sequence[int], count: int, period: float, *, burst: int | None = None) -> float:
    """Percent of the budget that a saturated key used: when its last start was lawful, over when it was.

    Without `burst`, `count` may start together each period; with it, starts come one by one after that many.
    """
    taken = len(starts)
    lawful = (taken - 1) // count * period if burst is None else max(0, taken - burst) * period / count
    return 100 * lawful * 1e6 / (max(starts) - min(starts))


class OwnProcess:
    """A process of a scenario, looked at through /proc."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._proc = Path(f"/proc/{pid}")

    def cpu_seconds(self) -> float:
        """Processor time of all its threads; the scheduler counts nanoseconds where /proc/…/stat has ticks."""
        return sum(int(path.read_text().split()[0]) for path in self._proc.glob("task/*/schedstat")) / 1e9

    def children(self) -> list[OwnProcess]:
        """Those that it has started, and that run."""
        found: list[OwnProcess] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pid, _, rest = path.read_text().partition(" ")
                if int(rest.rpartition(")")[2].split()[1]) == self._pid:
                    found.append(OwnProcess(int(pid)))
        return found

    def memory(self) -> float:
        """Resident memory, MB."""
        return self._kilobytes("status", "VmRSS:") / 1000

    def own_memory(self) -> float:
        """The same, where what several processes have loaded counts for each by its share (PSS), MB."""
        return self._kilobytes("smaps_rollup", "Pss:") / 1000

    def _kilobytes(self, file: str, name: str) -> int:
        for line in (self._proc / file).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
        raise RuntimeError("the process is gone")

    def idle_use(self, seconds: float, server: OwnProcess | None = None) -> dict[str, float]:
        """What it uses from 2 s after it is ready; with what the children of a `server` use meanwhile."""
        time.sleep(2.0)
        before = self.cpu_seconds()
        served = [] if server is None else server.children()
        before_served = sum(child.cpu_seconds() for child in served)
        time.sleep(seconds)
        metrics = {
            "cpu": 100 * (self.cpu_seconds() - before) / seconds,
            "memory": self.memory(),
            "own_memory": self.own_memory(),
        }
        if server is not None:
            metrics["server"] = 100 * (sum(child.cpu_seconds() for child in served) - before_served) / seconds
        return metrics


@contextlib.contextmanager
def own_process(module: str, *arguments: str, **environment: str) -> Iterator[OwnProcess]:
    """Run a module in a process of its own until the block ends. It prints a line once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{module} ended before it was ready")
        yield OwnProcess(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
