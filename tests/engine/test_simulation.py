"""Hundreds of simulated worlds: random jobs, keys, limits, crashes, faults and clock steps."""

from __future__ import annotations

import os

import pytest

from tests.engine.simulation import simulate

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "200"))
ONLY = os.environ.get("HEADGATE_SIM_SEED")
CHUNK = 25


@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK) if ONLY is None else [int(ONLY)])
def test_every_world_ends_with_nothing_lost_and_no_limit_exceeded(first: int) -> None:
    for seed in range(first, first + CHUNK) if ONLY is None else [first]:
        try:
            simulate(seed)
        except BaseException as error:
            error.add_note(
                f"replay: HEADGATE_SIM_SEED={seed} python -m pytest -n 0 -p no:randomly tests/engine/test_simulation.py"
            )
            raise


def test_the_same_seed_is_the_same_world() -> None:
    one, other = simulate(7), simulate(7)
    assert one.history.starts == other.history.starts
    assert len(one.history.starts) > 20
