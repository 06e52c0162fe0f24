"""`headgate simulate`: simulate a load under a limit, with the real engine on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import cast

import click

from headgate.cli.gauge import bar, spark
from headgate.cli.locate import locate
from headgate.cli.output import json_option, lasting, print_json, print_table
from headgate.cli.simulation import (
    PERCENTS,
    SKEWS,
    Scenario,
    SimulatedArrival,
    SimulationResult,
    Skew,
    keyed,
    limits_of,
    make_arrivals,
    read_trace,
    result_of_run,
    run_scenario,
)
from headgate.cli.times import seconds
from headgate.clock import SECOND
from headgate.limits.kinds import limit_of, spelled_kinds, spelled_limit
from headgate.limits.limit import Limit, changed
from headgate.limits.rate import parse_rate
from headgate.suggestion import did_you_mean

CHART_ROWS = 20
"""The most bars that are drawn as a chart; more are one line."""

Variant = tuple[str, Sequence[Limit]]
"""Limits with their titles in the output."""


@click.command()
@click.option("--limit", "rates", multiple=True, metavar="RATE", help="The limit: 15/m. Repeat to compare several.")
@click.option("--rule", type=click.Choice(spelled_kinds()), default="strict", show_default=True, help="Its kind.")
@click.option("--burst", type=click.IntRange(1), help="For a rate: how much unused budget a key can save.")
@click.option("--slices", type=click.IntRange(1), help="For a sliding window: the number of slices.")
@click.option("--one-for-all", is_flag=True, help="One budget for all keys together instead of one for each.")
@click.option("-A", "--app", "target", envvar="HEADGATE_APP", metavar="MODULE:APP", help="The app of --task.")
@click.option("--task", metavar="NAME", help="Use the limits that this task declares, not --limit.")
@click.option(
    "--set", "changes", multiple=True, metavar="LIMIT=RATE", help="Replace the rate that one limit has. Repeatable."
)
@click.option("--jobs", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="So many jobs.")
@click.option("--keys", type=click.IntRange(1, 100_000), default=10, show_default=True, help="The number of keys.")
@click.option(
    "--skew", type=click.Choice(SKEWS), default="uniform", show_default=True, help="How the jobs spread over keys."
)
@click.option("--arrivals", metavar="RATE", help="Random arrivals at this average rate: 5/s. Default: all at once.")
@click.option("--trace", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A CSV file: at,key.")
@click.option("--slots", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Slots of all workers.")
@click.option("--run-time", type=seconds, default="0.1s", show_default=True, help="The duration of each job.")
@click.option("--longest", type=seconds, default="1d", show_default=True, help="Stop after this simulated time.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random arrivals.")
@json_option
def simulate(
    rates: Sequence[str],
    rule: str,
    burst: int | None,
    slices: int | None,
    one_for_all: bool,
    target: str | None,
    task: str | None,
    changes: Sequence[str],
    jobs: int,
    keys: int,
    skew: str,
    arrivals: str | None,
    trace: Path | None,
    slots: int,
    run_time: float,
    longest: float,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate a load under a limit, before you set it.

    It runs the workers' engine on a store in memory, in virtual time: an hour takes seconds, and your store is not
    touched. Jobs are generated, or read from a trace.

    \b
      headgate simulate --limit 15/m --jobs 2000 --keys 20 --skew zipf
      headgate simulate --limit 15/m --limit 30/m --jobs 2000      compares the two
      headgate simulate -A shop:app --task sync --set sync:rate=30/m --trace yesterday.csv

    With --task, each limit with a key uses the one key of a job, at its fixed cost or 1.

    Exit code 1 if more started in any window than a limit allows.
    """
    if (task is None) is not bool(rates):
        raise click.UsageError("add --limit RATE, or --task NAME with the app as -A module:app")
    if task is None and changes:
        raise click.UsageError("--set replaces a rate of --task; add --task NAME, or repeat --limit to compare rates")
    if task is not None and (burst is not None or slices is not None or one_for_all):
        raise click.UsageError(
            "--burst, --slices and --one-for-all are for --limit; with --task, write --set LIMIT=RATE"
        )
    variants = (
        _of_task(target, task, changes) if task is not None else _of_rates(rates, rule, burst, slices, one_for_all)
    )
    load = _load(trace, jobs, keys, cast(Skew, skew), arrivals, seed)
    scenarios = [
        Scenario(title=title, limits=limits, slots=slots, run_time=run_time, arrivals=load, longest=longest, seed=seed)
        for title, limits in variants
    ]
    found = [result_of_run(each, run_scenario(each)) for each in scenarios]
    if as_json:
        print_json([{**asdict(outcome), "is_within_limits": outcome.is_within_limits} for outcome in found])
    else:
        print_outcomes(found)
    if not all(outcome.is_within_limits for outcome in found):
        raise SystemExit(1)


# ----------------------------------------------------------------------------------------- what is simulated


def _of_rates(
    rates: Sequence[str], rule: str, burst: int | None, slices: int | None, one_for_all: bool
) -> list[Variant]:
    limits = (limit_of(rule, text, burst=burst, slices=slices) for text in rates)
    return list(zip(rates, ([keyed(limit, "simulated", one_for_all=one_for_all)] for limit in limits), strict=True))


def _of_task(target: str | None, name: str, changes: Sequence[str]) -> list[Variant]:
    if target is None:
        raise click.UsageError("--task needs an app: name it by -A module:app or HEADGATE_APP")
    tasks = locate(target).tasks
    if name not in tasks:
        names = ", ".join(sorted(tasks)) or "none"
        raise click.UsageError(f"{target} declares no task {name!r}{did_you_mean(name, tasks)} It declares: {names}")
    limits = limits_of(tasks[name])
    found: list[Variant] = [("as declared", limits)]
    known = {limit.name: limit for limit in limits}
    for change in changes:
        which, _, text = change.rpartition("=")
        if which not in known:
            raise click.UsageError(
                f"--set {change}: task {name!r} has no limit {which!r}; it has: {', '.join(map(str, known)) or 'none'}"
            )
        new = spelled_limit(known[which].rule, text)
        replaced = [changed(limit, rule=new.rule) if limit.name == which else limit for limit in limits]
        found.append((f"{which} {new.rule.describe()}", replaced))
    return found


def _load(
    trace: Path | None, jobs: int, keys: int, skew: Skew, arrivals: str | None, seed: int
) -> Sequence[SimulatedArrival]:
    if trace is not None:
        # Spreadsheets write a mark before the first line.
        with trace.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as lines:
            return read_trace(lines, str(trace))
    per_second = None
    if arrivals is not None:
        rate = parse_rate(arrivals, None)
        per_second = rate.count * SECOND / rate.period
    return make_arrivals(jobs, keys, skew, per_second, Random(seed))


# ------------------------------------------------------------------------------------------------- printing


def print_outcomes(found: Sequence[SimulationResult]) -> None:
    """Print the results of simulations side by side."""
    rows: list[tuple[str, Callable[[SimulationResult], object]]] = [
        ("jobs", lambda each: each.jobs),
        ("ran", lambda each: each.ran),
        ("turned away by a limit", lambda each: each.rejected or None),
        ("left at the end", lambda each: each.left or None),
        ("done after", lambda each: lasting(each.drained_at)),
        ("median wait", lambda each: lasting(each.wait_median)),
        ("95 % waited at most", lambda each: lasting(each.wait_p95)),
        ("longest wait", lambda each: lasting(each.wait_longest)),
        *(
            (f"{percent} % had started after", _started(f"p{percent}"))
            for percent in PERCENTS
            if any(f"p{percent}" in each.starts_at for each in found)
        ),
    ]
    shown = [(label, *(tell(each) for each in found)) for label, tell in rows]
    print_table("Simulation", ("", *(each.title for each in found)), shown)
    print_table(
        "Waits by key",
        ("", "which", "key", "jobs", "median wait", "longest wait", "last start after"),
        [
            (each.title, k.which, k.key, k.jobs, lasting(k.median), lasting(k.longest), lasting(k.last_start))
            for each in found
            for k in each.keys
        ],
        empty="none ran",
    )
    print_table(
        "Limits",
        ("", "limit", "rule", "in any", "highest", "bound", "of key", "verdict"),
        [
            (
                each.title,
                limit.limit,
                limit.rule,
                f"{limit.window:g} s" if limit.window else "instant",
                limit.highest,
                limit.bound,
                limit.key or None,
                "within limit" if limit.is_within_limit else "EXCEEDED",
            )
            for each in found
            for limit in each.limits
        ],
    )
    for each in found:
        print_chart(each)


def print_chart(outcome: SimulationResult) -> None:
    """Print how many jobs started in each time step."""
    if not outcome.starts:
        return
    click.echo(f"Starts each {lasting(outcome.step)}: {outcome.title}")
    highest = max(outcome.starts)
    if len(outcome.starts) > CHART_ROWS:
        click.echo(f"{spark(outcome.starts)}  0 to {lasting(outcome.step * len(outcome.starts))}, {highest} at most")
        return
    for place, count in enumerate(outcome.starts):
        click.echo(f"{lasting(place * outcome.step):>8} {bar(count / highest, 40)} {count}")


def _started(name: str) -> Callable[[SimulationResult], object]:
    return lambda each: lasting(each.starts_at.get(name))
