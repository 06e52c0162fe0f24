"""What a worker costs that has nothing to do."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.postgres_server import postgres_server
from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import OwnProcess, new_file
from benchmarks.worker import headgate_worker


def headgate(folder: Path, *, seconds: float) -> dict[str, float]:
    with headgate_worker(f"sqlite:///{new_file(folder)}") as worker:
        return worker.idle_use(seconds)


def headgate_on_postgres(folder: Path, *, seconds: float) -> dict[str, float]:
    with postgres_server(folder) as url, headgate_worker(url) as worker:
        return worker.idle_use(seconds, _server_at(url, folder))


def _server_at(url: str, folder: Path) -> OwnProcess:
    """The server of that URL: those of the other rounds idle beside it."""
    for file in folder.glob("postgres-*/data/postmaster.pid"):
        pid, _, _, port, *_ = file.read_text().splitlines()
        if int(port) == urlsplit(url).port:
            return OwnProcess(int(pid))
    raise LookupError(f"no server of {url} in {folder}")


QUESTION = Question(
    name="idle",
    asks="How much of one core does an idle worker use?",
    lead="cpu",
    metrics=(
        Metric("cpu", "CPU %", 2),
        Metric("server", "server's CPU %", 2),
        Metric("memory", "memory MB", 0),
        Metric("own_memory", "PSS MB", 1),
    ),
    scenarios=(
        Scenario(
            name="Headgate",
            run="benchmarks.questions.idle:headgate",
            conditions="`headgate worker` on an empty SQLite file, default settings; 20 s",
            params={"seconds": 20},
            quick={"seconds": 3},
            quiet=True,
            against={"huey": "huey"},
        ),
        Scenario(
            name="Headgate, PostgreSQL",
            run="benchmarks.questions.idle:headgate_on_postgres",
            conditions="the same on an empty database",
            params={"seconds": 20},
            quick={"seconds": 3},
            quiet=True,
        ),
        Scenario(
            name="huey",
            run="benchmarks.peers.huey_sqlite:idle",
            conditions="SqliteHuey and its consumer with 1 thread, default settings; 20 s",
            params={"seconds": 20},
            quick={"seconds": 3},
            quiet=True,
        ),
    ),
    goals=(
        Goal(scenario="Headgate", metric="cpu", text="at most 0.25 % of a core", at_most=0.25),
        Goal(scenario="Headgate, PostgreSQL", metric="cpu", text="at most 0.25 % of a core", at_most=0.25),
        Goal(scenario="Headgate", metric="own_memory", text="at most 35 MB of its own", at_most=35),
        Goal(scenario="Headgate, PostgreSQL", metric="own_memory", text="at most 35 MB of its own", at_most=35),
    ),
    notes=(
        "All processes idle side by side, so one run takes 20 s.",
        "PostgreSQL itself uses 0.04 % while no client is connected.",
    ),
)
