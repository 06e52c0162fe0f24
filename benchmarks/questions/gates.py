"""What other frameworks start while one key is over its limit, by their own means and with a gate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.redis_server import redis_server
from benchmarks.runner import ROOT
from benchmarks.support import most_in_any_window

WORKERS = {
    "celery": ("celery", "-A", "benchmarks.gated_apps", "worker", "-c", "4", "-l", "error"),
    "dramatiq": ("dramatiq", "benchmarks.gated_apps", "--processes", "1", "--threads", "4"),
    "taskiq": ("taskiq", "worker", "benchmarks.gated_apps:broker", "--workers", "1", "--max-async-tasks", "4"),
}


def starts(folder: Path, *, framework: str, gated: bool, busy: int, others: int, seconds: float) -> dict[str, float]:
    """All is sent before the worker comes; the seconds count from the first start of anything."""
    with redis_server(folder) as url:
        settings = {"GATE_FRAMEWORK": framework, "GATE_ON": str(int(gated)), "GATE_REDIS": url}
        environment = {**os.environ, **settings}
        send = f"import asyncio, benchmarks.gated_apps as apps; asyncio.run(apps.send({busy}, {others}))"
        subprocess.run([sys.executable, "-c", send], cwd=ROOT, env=environment, check=True)
        with redis.Redis.from_url(url) as log, (folder / f"{framework}.log").open("wb") as output:
            command = [sys.executable, "-m", *WORKERS[framework]]
            worker = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                deadline = time.monotonic() + 30
                while not log.exists("starts:busy", "starts:unrelated"):
                    if time.monotonic() > deadline:
                        raise RuntimeError((folder / f"{framework}.log").read_text()[-2000:])
                    time.sleep(0.01)
                time.sleep(seconds)
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
            kinds = {kind: [int(at) for at in log.lrange(f"starts:{kind}", 0, -1)] for kind in ("busy", "unrelated")}
    first = min(kinds["busy"] + kinds["unrelated"])
    return {
        "unrelated": len(kinds["unrelated"]),
        "soon": sum(at < first + 1_000_000 for at in kinds["unrelated"]),
        "busy": len(kinds["busy"]),
        "most": most_in_any_window(kinds["busy"], 1),
    }


def _scenario(framework: str, name: str, *, gated: bool, how: str) -> Scenario:
    return Scenario(
        name=name,
        run="benchmarks.questions.gates:starts",
        conditions=f"{how}; Redis broker, 4 slots, 2,000 calls of one key at 20/s ahead of 90 others, 6 s",
        params={"framework": framework, "gated": gated, "busy": 2_000, "others": 90, "seconds": 6.0},
        quick={"seconds": 3.0},
    )


QUESTION = Question(
    name="gates",
    asks="How many of 90 unrelated calls does another framework start while one key is over its limit?",
    lead="unrelated",
    metrics=(
        Metric("soon", "of 90 others in 1 s"),
        Metric("unrelated", "of 90 others in 6 s"),
        Metric("busy", "of the busy key"),
        Metric("most", "most in any second (20 allowed)"),
    ),
    scenarios=(
        _scenario("celery", "celery, rate_limit", gated=False, how='rate_limit="20/s"'),
        _scenario("celery", "celery, gate", gated=True, how="CeleryGate"),
        _scenario("dramatiq", "dramatiq, WindowRateLimiter", gated=False, how="WindowRateLimiter and its retries"),
        _scenario("dramatiq", "dramatiq, gate", gated=True, how="DramatiqGate"),
        _scenario("taskiq", "taskiq, waiting in the task", gated=False, how="a Limiter that the task waits for"),
        _scenario("taskiq", "taskiq, gate", gated=True, how="TaskiqGate"),
    ),
    goals=tuple(
        Goal(scenario=f"{framework}, gate", metric="unrelated", text=f"{framework}: all 90 others start", at_least=90)
        for framework in WORKERS
    ),
    notes=("A start is what a task writes first, so it is a little later than its charge.",),
    rounds=1,
)
