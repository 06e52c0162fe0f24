"""Runs a scenario: the engine of the workers on the memory store and on virtual time."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from headgate.app import Headgate
from headgate.cli.quiet import quiet
from headgate.cli.simulation.scenario import Scenario
from headgate.cli.simulation.simulated_arrivals import SimulatedArrival, in_groups
from headgate.clock import SECOND, sleep, sleep_until
from headgate.jobs.retry import RetryPolicy
from headgate.testing.virtual_time import VirtualClock, run_virtual

QUEUE = "simulated"

LOOK_EVERY = 5.0
"""Virtual seconds between two checks whether all jobs have ended."""


class SimulationRun(NamedTuple):
    """The run of a scenario: the jobs that ran, by their start, and how many were rejected or still wait."""

    ran: list[SimulatedArrival]
    rejected: int
    left: int


def run_scenario(scenario: Scenario) -> SimulationRun:
    """Run a scenario; equal scenarios have equal results."""
    with quiet():
        return run_virtual(lambda clock: _run(scenario, clock), seed=scenario.seed)


async def _run(scenario: Scenario, clock: VirtualClock) -> SimulationRun:
    begin = clock.monotonic()
    ran: list[SimulatedArrival] = []
    app = Headgate(
        "memory://", clock=clock, random=Random(scenario.seed), retry=RetryPolicy(retries=0), audit="none", log_lines=0
    )
    app.queue(QUEUE, concurrency=scenario.slots)

    @app.task(queue=QUEUE, limits=scenario.limits)
    async def job(key: str, came_at: int) -> None:
        started_at = clock.monotonic() - begin
        if scenario.run_time:
            await sleep(clock, scenario.run_time)
        ran.append(SimulatedArrival(came_at, key, started_at, clock.monotonic() - begin))

    async with app:
        last = begin + round(scenario.longest * SECOND)
        come = 0
        for group in in_groups(scenario.arrivals):
            if begin + group[0].at > last:
                break
            await sleep_until(clock, begin + group[0].at)
            await job.enqueue_many([(key, at) for at, key in group])
            come += len(group)
        while clock.monotonic() < last:
            (counts,) = [each for each in await app.admin.counts() if each.queue == QUEUE]
            if not counts.waiting and not counts.running:
                break
            await sleep(clock, LOOK_EVERY)
        (counts,) = [each for each in await app.admin.counts() if each.queue == QUEUE]
    rejected = counts.failed + counts.cancelled
    ran.sort(key=lambda each: each.started_at)
    return SimulationRun(ran, rejected, len(scenario.arrivals) - come + counts.waiting + counts.running)
