"""Charts show everything that happened, except what a killed process had not written or received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate import Headgate
from headgate.engine.history_writer import HistoryWriter
from headgate.jobs.event import JobStarted
from headgate.jobs.history import ALL, SHORTEST, JobsStep
from headgate.jobs.lifecycle import Finished
from headgate.storage.records import FINAL_STATES
from tests.internals import bus_of, client_of

if TYPE_CHECKING:
    from tests.engine.simulation.cluster_simulation import ClusterSimulation

KINDS = ("enqueued", "started", "succeeded", "failed", "cancelled")


class Charts:
    """What may be missing in the charts of a simulation, and how many final jobs have come back."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._apps: list[Headgate] = []
        self._missing: Counter[str] = Counter()
        self._came_back: Counter[str] = Counter()
        self._begun: Counter[int] = Counter()

    def declare(self, app: Headgate) -> None:
        self._apps.append(app)
        bus_of(app).tap({JobStarted: lambda _: self._begun.update([id(app)])})

    async def finals(self) -> Counter[str]:
        """How many jobs are final in the store."""
        counts = await self._simulation.store.counts()
        return Counter({state.value: sum(getattr(each, state.value) for each in counts) for state in FINAL_STATES})

    async def note_retry(self, before: Counter[str]) -> None:
        """Count a retry by an operator, with the followers that it restores."""
        self._came_back.update(before - await self.finals())

    def on_lost_reply(self, verb: str, arguments: Sequence[Any], result: Any) -> None:
        """Count an operation whose reply was lost: it has happened, or may have."""
        if verb == "add":
            self._missing["enqueued"] += len(arguments[0])
        elif verb == "fire":
            self._missing["enqueued"] += sum(len(fired.jobs) for fired in arguments[0])
        elif verb == "claim" and result is not None:
            self._missing["started"] += len(result.jobs)
        elif verb == "finish":
            self._missing.update(ending.state.value for ending in arguments[1] if isinstance(ending, Finished))

    def crash(self, app: Headgate, node: str) -> None:
        """A process is killed: what it has counted and not written is lost, and what was sent may be.

        So are the jobs of a claim whose reply came as it was killed: it has begun none of them.
        """
        self._apps.remove(app)
        claimed = sum(owner == node for _, _, owner, _ in self._simulation.history.starts)
        self._missing["started"] += max(0, claimed - self._begun[id(app)])
        history_writer = client_of(app).history_writer
        for row in _unwritten(history_writer):
            self._missing.update({kind: getattr(row, kind) for kind in KINDS})
        history_writer._is_on = False
        history_writer._steps, history_writer._waiting, history_writer._sent = {}, {}, None
        if history_writer._timer is not None:
            history_writer._timer.cancel()
        if history_writer._writing is not None:
            history_writer._writing.cancel()

    async def settle(self) -> None:
        """Let all live processes write their remaining counts."""
        for app in self._apps:
            history_writer = client_of(app).history_writer
            await history_writer.close(60)
            assert (history_writer._unwritten, history_writer._lost) == (0, 0)
        await self._simulation.store.gather_history()

    async def check(self) -> None:
        """Check that nothing is counted twice, and nothing is missing that a live process has written."""
        # What happened before wall time was set back is read when its time comes.
        self._simulation.clock.step_wall(86_400)
        rows = await self._simulation.store.jobs_history(3600, ALL, ALL, 0)
        shown = {kind: sum(getattr(row, kind) for row in rows) for kind in KINDS}
        happened: Mapping[str, int] = {
            "enqueued": len(self._simulation.history.stored),
            "started": len(self._simulation.history.starts),
            **(await self.finals() + self._came_back),
        }
        for kind in KINDS:
            most, fewest = happened.get(kind, 0), happened.get(kind, 0) - self._missing[kind]
            assert fewest <= shown[kind] <= most, f"{shown[kind]} {kind} in charts, and there were {fewest} to {most}"


def _unwritten(history_writer: HistoryWriter) -> list[JobsStep]:
    steps = [*history_writer._steps.values(), *history_writer._waiting.values()]
    rows = [tally.row(SHORTEST, *place, step.at) for step in steps for place, tally in step.tallies.items()]
    sent = () if history_writer._sent is None else history_writer._sent.jobs
    return rows + [row for row in sent if (row.step, row.queue) == (SHORTEST, ALL)]
