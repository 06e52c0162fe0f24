"""A process that claims jobs of a store and finishes them: `python -m benchmarks.claimer URL ROOM NODE`.

It says that it is ready with a line, begins when it is sent one, and says how it went with the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from benchmarks.runner import ROOT
from benchmarks.stores import storage_at
from headgate.cli.worker_process import tune_process
from headgate.jobs.job import JobState
from headgate.jobs.lifecycle import Finished
from headgate.limits.rate_limit import RateLimit
from headgate.storage.records import Claim, FreeSlots
from headgate.tasks.queue import DEFAULT_QUEUE

TASK = "claimed"
LIMIT = "plenty"
RULE = RateLimit("1000/s").rule


def claim_all(url: str, room: int, claimers: int) -> dict[str, float]:
    """Let so many processes claim and finish until nothing is left; jobs a second, and how long a claim took."""
    with _claimers(url, room, claimers) as processes:
        for process in processes:
            _read_line(process)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        results: list[dict[str, Any]] = [json.loads(_read_line(process)) for process in processes]
    began, ended = min(one["began"] for one in results), max(one["ended"] for one in results)
    claims = sum(one["claims"] for one in results)
    return {
        "jobs": sum(one["jobs"] for one in results),
        "rate": sum(one["jobs"] for one in results) / (ended - began),
        "claim": 1000 * sum(one["claiming"] for one in results) / claims,
        "finish": 1000 * sum(one["finishing"] for one in results) / claims,
    }


@contextlib.contextmanager
def _claimers(url: str, room: int, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "benchmarks.claimer", url, str(room)]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([*command, f"claimer-{number}"], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        for number in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError("a claimer ended")
    return line


async def _claim_all(url: str, room: int, node: str) -> dict[str, float]:
    storage = storage_at(url)
    await storage.open()
    await storage.join(node, node)
    claim = Claim(node, {DEFAULT_QUEUE: FreeSlots(room)}, {LIMIT: RULE}, frozenset([TASK]))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    jobs = claims = 0
    claiming = finishing = 0.0
    began = ended = time.monotonic()
    while (claimed := await storage.claim(claim)).jobs or claimed.more:
        got_at = time.monotonic()
        await storage.finish(node, [Finished(job.id, job.fence, JobState.SUCCEEDED) for job in claimed.jobs])
        claiming += got_at - ended
        ended = time.monotonic()
        finishing += ended - got_at
        jobs += len(claimed.jobs)
        claims += 1
    await storage.close()
    return {
        "jobs": jobs,
        "claims": claims,
        "claiming": claiming,
        "finishing": finishing,
        "began": began,
        "ended": ended,
    }


def main() -> None:
    url, room, node = sys.argv[1:]
    tune_process()
    print(json.dumps(uvloop.run(_claim_all(url, int(room), node))), flush=True)


if __name__ == "__main__":
    main()
