"""Hundreds of simulated worlds: limits, unique keys, chains, batches and schedules under all kinds of faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.clock import Clock
from headgate.storage.sqlite.storage import SqliteStorage
from tests.engine.simulation.cluster_simulation import simulate
from tests.seeds import seeds

SEEDS = int(os.environ.get("HEADGATE_TEST_SIM_SEEDS", "150"))
ONLY = os.environ.get("HEADGATE_TEST_SIM_SEED")
CHUNK = 3


# The first few for everybody, the rest where there is time: there they are new in each run.
_CHUNKS = [
    *range(0, min(SEEDS, CHUNK), CHUNK),
    *(pytest.param(first, marks=pytest.mark.nightly) for first in seeds(CHUNK, max(0, SEEDS - CHUNK))[::CHUNK]),
]
_ON_FILES = [
    1000,
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in seeds(1001, max(0, SEEDS // 25 - 1))),
]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", _CHUNKS if ONLY is None else [int(ONLY)])
def test_every_simulation_loses_no_job_and_exceeds_no_limit(first: int) -> None:
    for seed in range(first, first + CHUNK) if ONLY is None else [first]:
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(
                f"replay: HEADGATE_TEST_SIM_SEED={seed} python -m pytest -n 0 tests/engine/test_simulation.py"
            )
            raise


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", _ON_FILES)
def test_a_simulation_on_a_sqlite_file_loses_no_job_and_exceeds_no_limit(seed: int, tmp_path: Path) -> None:
    # Its threads are the machine's, so that a seed does not replay exactly.
    def make_store(clock: Clock) -> SqliteStorage:
        return SqliteStorage(tmp_path / "world.db", clock, synchronous="OFF")

    simulate(seed, steps=25, make_store=make_store)


@pytest.mark.slow
def test_a_start_of_a_claim_that_outlived_the_lease_of_its_node_is_in_the_charts() -> None:
    """The fault, found by this seed: the claim was dropped without a count, though the store had started its jobs."""
    simulate(628903016)


@pytest.mark.nightly
def test_the_same_seed_runs_the_same_simulation() -> None:
    one, other = simulate(7), simulate(7)
    assert one.history.starts == other.history.starts
    assert len(one.history.starts) > 20
