"""Worlds of several databases between which keys move: nothing is lost, run twice, or over its limit."""

from __future__ import annotations

import os

import pytest

from headgate import RateLimit
from tests.engine.sharding import permits, simulate, starts_of_a_saturated_key
from tests.seeds import seeds

SEEDS = int(os.environ.get("HEADGATE_TEST_SHARDING_SEEDS", "30"))
ONLY = os.environ.get("HEADGATE_TEST_SIM_SEED")
CHUNK = 5

# The first few for the gate, the rest where there is time: there they are new in each run.
_CHUNKS = [
    *(pytest.param(first, marks=pytest.mark.nightly) for first in range(0, min(SEEDS, CHUNK), CHUNK)),
    *(pytest.param(first, marks=pytest.mark.nightly) for first in seeds(CHUNK, max(0, SEEDS - CHUNK))[::CHUNK]),
]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", _CHUNKS if ONLY is None else [int(ONLY)])
def test_keys_that_move_between_databases_lose_nothing_and_stay_within_their_limits(first: int) -> None:
    for seed in range(first, first + CHUNK) if ONLY is None else [first]:
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(f"replay: HEADGATE_TEST_SIM_SEED={seed} python -m pytest -n 0 tests/engine/test_sharding.py")
            raise


@pytest.mark.nightly
def test_the_same_seed_runs_the_same_simulation() -> None:
    one, other = simulate(7), simulate(7)
    assert one.history.starts == other.history.starts
    assert len(one.history.starts) > 20
    assert max(shard.executor_of("a").epoch for shard in one.all) > 0


@pytest.mark.nightly
def test_a_move_costs_a_saturated_key_a_few_round_trips_of_its_budget_whatever_its_backlog() -> None:
    limit = RateLimit("10/s", burst=1, key="{key}", name="rate:a")
    at_rest = starts_of_a_saturated_key([limit], moves=0, length=0.2)
    moving = starts_of_a_saturated_key([limit], moves=6, length=0.2)
    # Four calls of 10 ms on average, and a claim.
    assert at_rest - moving <= 6 * 0.8


@pytest.mark.nightly
def test_a_key_with_permits_waits_for_its_running_jobs_before_it_moves() -> None:
    limits = [RateLimit("10/s", burst=1, key="{key}", name="rate:a"), permits("a")]
    at_rest = starts_of_a_saturated_key(limits, moves=0, length=0.15)
    moving = starts_of_a_saturated_key(limits, moves=6, length=0.15)
    assert 0 < at_rest - moving <= 6 * (0.15 / 0.1 + 0.8)
