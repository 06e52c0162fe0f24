"""Runs a question: every scenario in its own fresh process, taking turns, and the medians of all rounds.

Or in pairs: every scenario here and in the checkout of another commit, one right after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.question import Question, Scenario

ROOT = Path(__file__).resolve().parent.parent

SCENARIO_TIMEOUT = 300
"""Seconds that a scenario may take, besides the `seconds` of its load."""

PREPARE_TIMEOUT = 1200
"""Seconds that the preparation of a question may take."""

Sample = dict[str, float]
Samples = dict[str, list[Sample]]
Result = dict[str, Any]


def run(question: Question, *, quick: bool, report: Callable[[str], None]) -> Result:
    """Ask a question; each step is reported to `report`."""
    rounds = 1 if quick else question.rounds
    described = machine.describe()
    samples: Samples = {scenario.name: [] for scenario in question.scenarios}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as temporary:
        folder = Path(temporary)
        if question.prepare is not None:
            report(f"{question.name}: preparing")
            params = {**question.prepare_params, **(question.prepare_quick if quick else {})}
            _call(question.prepare, folder, params, PREPARE_TIMEOUT)
        turns = [(number, scenario) for number in range(rounds) for scenario in question.scenarios]
        for scenario, sample in _samples(question, turns, folder, quick=quick, report=report):
            samples[scenario.name].append(sample)
    return _result(question, samples, described, quick=quick)


def run_pairs(
    question: Question, other: Path, *, rounds: int, quick: bool, only: str, report: Callable[[str], None]
) -> list[Pairs]:
    """Measure each scenario whose name contains `only` here and in the other checkout, in turns.

    Both use this interpreter, with the benchmarks and the sources of their own checkout.
    """
    scenarios = [scenario for scenario in question.scenarios if only in scenario.name]
    pairs = [Pairs(scenario.name, [], []) for scenario in scenarios]
    with tempfile.TemporaryDirectory(prefix="headgate-pairs-") as temporary:
        folders = {root: Path(temporary) / name for root, name in ((ROOT, "here"), (other, "there"))}
        # The user that runs a database server has to reach its files.
        Path(temporary).chmod(0o711)
        for root, folder in folders.items():
            folder.mkdir()
            if question.prepare is not None:
                report(f"{question.name}: preparing for {root}")
                params = {**question.prepare_params, **(question.prepare_quick if quick else {})}
                _call(question.prepare, folder, params, PREPARE_TIMEOUT, root)
        for number in range(rounds):
            for scenario, taken in zip(scenarios, pairs, strict=True):
                report(f"{question.name}: {scenario.name}, pair {number + 1}")
                params = {**scenario.params, **(scenario.quick if quick else {})}
                # What runs second may find a warmer machine.
                for root in (ROOT, other) if number % 2 else (other, ROOT):
                    samples = taken.here if root == ROOT else taken.there
                    timeout = SCENARIO_TIMEOUT + params.get("seconds", 0)
                    samples.append(_call(scenario.run, folders[root], params, timeout, root))
    return pairs


@dataclass(frozen=True, slots=True)
class Pairs:
    """The samples of one scenario, here and in the other checkout; those of equal place ran one after the other."""

    scenario: str
    here: list[Sample]
    there: list[Sample]

    def medians(self, metric: str) -> tuple[float, float, float]:
        """Return the medians there and here, and the median of here ÷ there."""
        there, here = (median(sample[metric] for sample in samples) for samples in (self.there, self.here))
        ratios = [a[metric] / b[metric] for a, b in zip(self.here, self.there, strict=True) if b[metric]]
        return there, here, median(ratios) if ratios else 1.0


def _samples(
    question: Question,
    turns: list[tuple[int, Scenario]],
    folder: Path,
    *,
    quick: bool,
    report: Callable[[str], None],
) -> Iterator[tuple[Scenario, Sample]]:
    def one(turn: tuple[int, Scenario]) -> Sample:
        number, scenario = turn
        report(f"{question.name}: {scenario.name}, round {number + 1}")
        params = {**scenario.params, **(scenario.quick if quick else {})}
        return _call(scenario.run, folder, params, SCENARIO_TIMEOUT + params.get("seconds", 0))

    quiet = [turn for turn in turns if turn[1].quiet]
    for turn in turns:
        if turn not in quiet:
            yield turn[1], one(turn)
    if quiet:
        with ThreadPoolExecutor(len(quiet)) as pool:
            yield from zip([scenario for _, scenario in quiet], pool.map(one, quiet), strict=True)


def _call(target: str, folder: Path, params: dict[str, Any], timeout: float, root: Path = ROOT) -> Sample:
    with tempfile.NamedTemporaryFile(prefix="answer-", suffix=".json", dir=folder) as answer:
        command = [sys.executable, "-m", "benchmarks.scenario", target, str(folder), answer.name, json.dumps(params)]
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        subprocess.run(command, cwd=root, env=environment, check=True, timeout=timeout)
        sample: Sample = json.loads(Path(answer.name).read_text())
    return sample


def _result(question: Question, samples: Samples, described: dict[str, object], *, quick: bool) -> Result:
    medians = {name: _medians(taken) for name, taken in samples.items()}
    rows = []
    for scenario in question.scenarios:
        ratios = {
            title: _ratio(samples[scenario.name], samples[other], question.lead)
            for title, other in scenario.against.items()
        }
        rows.append(
            {
                "scenario": scenario.name,
                "conditions": scenario.conditions,
                "medians": medians[scenario.name],
                "ratios": ratios,
                "samples": samples[scenario.name],
            }
        )
    return {
        "question": question.name,
        "quick": quick,
        "rounds": len(next(iter(samples.values()))),
        "machine": described,
        "rows": rows,
        "goals": [_goal_result(question, index, samples, medians) for index in range(len(question.goals))],
    }


def _medians(taken: list[Sample]) -> dict[str, float]:
    return {key: median(sample[key] for sample in taken) for key in taken[0]}


def _ratio(taken: list[Sample], others: list[Sample], metric: str) -> float:
    """The median over the rounds: the two that ran next to each other had the same machine."""
    return median(sample[metric] / other[metric] for sample, other in zip(taken, others, strict=True))


def _goal_result(
    question: Question, index: int, samples: Samples, medians: dict[str, dict[str, float]]
) -> dict[str, object]:
    goal = question.goals[index]
    measured = medians[goal.scenario][goal.metric]
    if goal.over is not None:
        measured = _ratio(samples[goal.scenario], samples[goal.over], goal.metric)
    if goal.minus is not None:
        measured -= medians[goal.minus][goal.metric]
    return {"text": goal.text, "measured": measured, "is_met": goal.is_met(measured)}
