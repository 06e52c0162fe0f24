"""What a simulation is made of: arrivals, the arithmetic of its outcome, and pictures of numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from headgate import Concurrency, DeclarationError, StrictRate
from headgate.cli import gauge
from headgate.cli.gauge import bar, spark
from headgate.cli.output import percentile
from headgate.cli.simulation import (
    Scenario,
    SimulatedArrival,
    SimulationRun,
    keyed,
    make_arrivals,
    most_at_once,
    read_trace,
    result_of_run,
    run_scenario,
)
from headgate.clock import SECOND
from headgate.limits.limit import Limit


def scenario(*limits: Limit, jobs: int = 20, keys: int = 1, longest: float = 3600.0, run_time: float = 0.0) -> Scenario:
    return Scenario(
        title="",
        limits=limits,
        slots=10,
        run_time=run_time,
        arrivals=make_arrivals(jobs, keys, "uniform", None, Random(1)),
        longest=longest,
        seed=1,
    )


# ------------------------------------------------------------------------------------------------- arrivals


def test_arrivals_spread_over_keys_as_asked() -> None:
    def counted(skew: str) -> list[int]:
        found = make_arrivals(10_000, 10, skew, None, Random(1))  # type: ignore[arg-type]
        return [count for _, count in sorted(Counter(arrival.key for arrival in found).items())]

    assert all(900 < count < 1100 for count in counted("uniform"))
    assert counted("zipf")[0] == pytest.approx(10 * counted("zipf")[9], rel=0.2)
    assert counted("one")[0] == pytest.approx(5000, rel=0.05)
    assert make_arrivals(1, 1, "one", None, Random(1)) == [SimulatedArrival(0, "key-1")]


def test_arrivals_come_at_random_with_the_rate_that_was_asked_for() -> None:
    found = make_arrivals(5000, 3, "uniform", 5.0, Random(1))
    assert found[-1].at / SECOND == pytest.approx(1000, rel=0.05)
    assert sorted(found) == sorted(found, key=lambda arrival: arrival.at)
    assert found == make_arrivals(5000, 3, "uniform", 5.0, Random(1))


def test_a_trace_is_read_from_seconds_or_instants_and_counted_from_the_earliest() -> None:
    assert read_trace(["at,key", "12.5,acme", "10,globex"], "trace.csv") == [
        SimulatedArrival(0, "globex"),
        SimulatedArrival(2_500_000, "acme"),
    ]
    assert read_trace(["2026-05-01T08:00:00Z,a", "2026-05-01T10:00:01+02:00,b"], "trace.csv") == [
        SimulatedArrival(0, "a"),
        SimulatedArrival(SECOND, "b"),
    ]
    with pytest.raises(DeclarationError, match=r"line 2 of trace.csv is not `at,key`: 'soon,acme'"):
        read_trace(["1,acme", "soon,acme"], "trace.csv")
    with pytest.raises(DeclarationError, match="has no jobs"):
        read_trace(["at,key"], "trace.csv")


# -------------------------------------------------------------------------------------------------- outcome


def test_variables_of_the_environment_do_not_change_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: with `HEADGATE_MAX_WAIT` of the workers, it turned jobs away; it used the Redis of their limits."""
    asked = scenario(StrictRate("5/m", key="{key}", name="api"), jobs=10, run_time=2.0)
    expected = run_scenario(asked)
    variables = {"slots": "1", "timeout": "1s", "max_wait": "5s", "limits_url": "redis://localhost:1", "retention": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(f"HEADGATE_{name.upper()}", value)
    assert run_scenario(asked) == expected


def test_a_simulation_may_end_before_the_first_job_comes() -> None:
    """The fault: `headgate simulate --arrivals 1/h --longest 1m` ended with a traceback."""
    asked = scenario(StrictRate("5/m", name="api"), longest=1.0)
    late = replace(asked, arrivals=[SimulatedArrival(3600 * SECOND, "acme")] * 3)
    assert run_scenario(late) == SimulationRun([], 0, 3)


def test_the_simulated_engine_keeps_a_strict_rate() -> None:
    asked = scenario(keyed(StrictRate("5/m"), "api", one_for_all=False))
    outcome = result_of_run(asked, run_scenario(asked))
    assert (outcome.ran, outcome.left, outcome.rejected) == (20, 0, 0)
    [limit] = outcome.limits
    assert (limit.highest, limit.bound, limit.window, limit.is_within_limit) == (5, 5, 60.02, True)
    # Four windows of five: the last begins three windows after the first.
    assert outcome.starts_at["p25"] == 0.0
    assert outcome.starts_at["p100"] == pytest.approx(180.06, abs=0.1)
    assert outcome.drained_at == outcome.starts_at["p100"]
    assert sum(outcome.starts) == 20


def test_the_same_scenario_has_the_same_result_twice() -> None:
    asked = scenario(keyed(StrictRate("5/m"), "api", one_for_all=False), jobs=40, keys=3, run_time=0.3)
    assert run_scenario(asked) == run_scenario(asked)


def test_jobs_left_at_the_end_are_counted() -> None:
    asked = scenario(keyed(StrictRate("5/m"), "api", one_for_all=True), longest=90.0)
    outcome = result_of_run(asked, run_scenario(asked))
    assert (outcome.ran, outcome.left, outcome.drained_at) == (10, 10, None)
    assert "p50" in outcome.starts_at
    assert "p75" not in outcome.starts_at


def test_a_concurrency_is_checked_by_when_jobs_ran() -> None:
    asked = scenario(keyed(Concurrency(3), "api", one_for_all=True), run_time=1.0)
    [limit] = result_of_run(asked, run_scenario(asked)).limits
    assert (limit.highest, limit.bound, limit.is_within_limit) == (3, 3, True)
    ran = [SimulatedArrival(0, "a", begin, begin + 10) for begin in (0, 10, 5)]
    assert most_at_once(ran) == 2


def test_a_limit_that_was_exceeded_is_reported_with_its_key() -> None:
    asked = scenario(keyed(StrictRate("2/m"), "api", one_for_all=False))
    ran = [SimulatedArrival(0, "a", 0, 0), *(SimulatedArrival(0, "b", at, at) for at in (0, 1, 59 * SECOND))]
    [limit] = result_of_run(asked, SimulationRun(ran, 0, 0)).limits
    assert (limit.key, limit.highest, limit.is_within_limit) == ("b", 3, False)


def test_waits_are_reported_of_the_busiest_the_median_and_the_lightest_key() -> None:
    ran = [
        SimulatedArrival(0, key, at * SECOND, at * SECOND)
        for at, key in ((1, "a"), (2, "a"), (3, "c"), (4, "b"), (6, "b"), (9, "a"))
    ]
    received = result_of_run(scenario(jobs=6), SimulationRun(ran, 0, 0)).keys
    assert [(each.which, each.key, each.jobs, each.median, each.longest) for each in received] == [
        ("busiest", "a", 3, 2.0, 9.0),
        ("median", "b", 2, 4.0, 6.0),
        ("lightest", "c", 1, 3.0, 3.0),
    ]


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile(range(1, 11), percent) for percent in (1, 50, 95, 100)] == [1, 5, 10, 10]
    assert percentile(range(1, 201), 99) == 198
    assert percentile([1.0], 99) == 1.0
    assert percentile([], 50) == 0.0


# ------------------------------------------------------------------------------------------------- pictures


def test_a_bar_is_as_long_as_its_share_and_always_as_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "can_show", lambda _: True)
    assert bar(0.5, 4) == "██  "
    assert bar(0.3, 4) == "█▎  "
    assert bar(0.001, 4) == "▏   "
    assert bar(7, 4) == "████"
    monkeypatch.setattr(gauge, "can_show", lambda _: False)
    assert bar(0.5, 4) == "##.."


def test_a_sparkline_has_one_character_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "can_show", lambda _: True)
    assert spark([0, 1, 4, 8]) == " ▁▄█"
    assert spark([]) == ""
    monkeypatch.setattr(gauge, "can_show", lambda _: False)
    assert spark([0, 1, 8]) == " _@"
