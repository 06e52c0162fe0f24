"""What a worker costs that has nothing to do."""

from __future__ import annotations

from pathlib import Path

from benchmarks.question import Goal, Metric, Question, Scenario
from benchmarks.support import new_file
from benchmarks.worker import headgate_worker


def headgate(folder: Path, *, seconds: float) -> dict[str, float]:
    with headgate_worker(f"sqlite:///{new_file(folder)}") as worker:
        return worker.idle_use(seconds)


QUESTION = Question(
    name="idle",
    asks="How much of one core does an idle worker use?",
    lead="cpu",
    metrics=(Metric("cpu", "CPU %", 2), Metric("memory", "memory MB", 0)),
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
            name="huey",
            run="benchmarks.peers.huey_sqlite:idle",
            conditions="SqliteHuey and its consumer with 1 thread, default settings; 20 s",
            params={"seconds": 20},
            quick={"seconds": 3},
            quiet=True,
        ),
    ),
    goals=(Goal(scenario="Headgate", metric="cpu", text="below 0.5 % of a core", at_most=0.5),),
    notes=("All six processes idle side by side, so one run takes 20 s.",),
)
