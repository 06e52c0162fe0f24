"""How many jobs a second other engines store and start, on Redis, beside Headgate on its databases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.board import Board
from benchmarks.question import Metric, Question, Scenario
from benchmarks.questions.drain import drain, drain_file
from benchmarks.redis_server import redis_server
from benchmarks.runner import ROOT

_APP = "benchmarks.engine_apps"
WORKERS = {
    "celery": ("celery", "-A", _APP, "worker", "-c", "{slots}", "-l", "error"),
    "dramatiq": ("dramatiq", _APP, "--processes", "1", "--threads", "{slots}"),
    "taskiq": ("taskiq", "worker", f"{_APP}:broker", "--workers", "1", "--max-async-tasks", "{slots}"),
    "rq": ("rq.cli", "worker", "--url", "{url}", "--worker-class", "rq.SimpleWorker", "--quiet"),
    "saq": ("saq", f"{_APP}.saq_settings"),
    "huey": ("huey.bin.huey_consumer", f"{_APP}.huey", "-w", "{slots}", "-q"),
}


def engine(folder: Path, *, name: str, jobs: int, slots: int) -> dict[str, float]:
    """Jobs are stored one after another by one process, and then started by one worker as its documentation runs it."""
    board = Board.new(folder, jobs)
    with redis_server(folder) as url:
        environment = {
            **os.environ,
            "ENGINE_NAME": name,
            "ENGINE_REDIS": url,
            "ENGINE_BOARD": str(board.path),
            "ENGINE_SLOTS": str(slots),
        }
        send = f"import time, {_APP} as apps; began = time.perf_counter(); apps.send(range({jobs})); "
        said = subprocess.run(
            [sys.executable, "-c", f"{send}print(time.perf_counter() - began)"],
            cwd=ROOT,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        command = [part.format(slots=slots, url=url) for part in WORKERS[name]]
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                began = _until_begun(board, log)
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    return {"enqueue": jobs / float(said.stdout), "rate": jobs / ((max(began) - min(began)) / 1e9)}


def _until_begun(board: Board, log: Path) -> tuple[int, ...]:
    deadline = time.monotonic() + 120
    while 0 in (began := board.began()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{began.count(0)} jobs have not begun: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    return began


def headgate(folder: Path, *, store: str, jobs: int) -> dict[str, float]:
    """As `drain`, for comparison."""
    if store == "sqlite":
        return {"rate": drain_file(folder, jobs=jobs, slots=100)["rate"]}
    return {"rate": drain(folder, name="headgate", jobs=jobs, slots=100)["rate"]}


def _scenarios() -> Iterator[Scenario]:
    for store, title in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
        yield Scenario(
            name=f"Headgate, {title}",
            run="benchmarks.questions.engines:headgate",
            conditions="`headgate worker`, 100 slots; until all are durably recorded as succeeded",
            params={"store": store, "jobs": 20_000},
            quick={"jobs": 5_000},
            against={name: f"{name}, Redis" for name in WORKERS},
        )
    for name, jobs, slots, conditions in (
        ("celery", 10_000, 4, "prefork, 4 processes, results ignored"),
        ("dramatiq", 10_000, 8, "1 process, 8 threads (default)"),
        ("taskiq", 10_000, 100, "RedisStreamBroker, 1 process, 100 tasks at once, no results"),
        ("rq", 5_000, 1, "SimpleWorker, which does not fork for each job; results not kept"),
        ("saq", 10_000, 100, "concurrency 100"),
        ("huey", 10_000, 4, "RedisHuey, 4 threads, no results"),
    ):
        yield Scenario(
            name=f"{name}, Redis",
            run="benchmarks.questions.engines:engine",
            conditions=f"{conditions}; Redis keeps nothing on disk",
            params={"name": name, "jobs": jobs, "slots": slots},
            quick={"jobs": 1_000},
        )


QUESTION = Question(
    name="engines",
    heading="Engines on Redis",
    asks="How many no-op jobs a second does a worker of another engine start that were stored before?",
    lead="rate",
    metrics=(Metric("rate", "jobs/s"), Metric("enqueue", "enqueues/s, one after another")),
    scenarios=tuple(_scenarios()),
    notes=(
        "What the others have taken is in the memory of Redis alone, and is lost with it; several lose a job whose "
        "worker is killed meanwhile. Theirs is the time from the first start to the last; Headgate's lasts until all "
        "are recorded.",
        "arq is not among them: it needs an older client of Redis than the others.",
    ),
)
