"""A node: one engine process that claims jobs, runs them, records how they ended, and recovers those of dead nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from headgate.clock import SECOND, Clock
from headgate.engine.backlog_migrator import BacklogMigrator
from headgate.engine.bus import EventBus, publish_trouble
from headgate.engine.callback_runner import CallbackRunner
from headgate.engine.charge_router import ChargeRouter
from headgate.engine.claim_loop import ClaimLoop
from headgate.engine.claim_notices import ClaimNotices
from headgate.engine.claim_recovery import ClaimRecovery
from headgate.engine.claim_wakeup import ClaimWakeup
from headgate.engine.described import described
from headgate.engine.drain import Drain, DrainWatch
from headgate.engine.executor import CancelledBy, RunningAttempt
from headgate.engine.fetcher import Fetcher
from headgate.engine.handler_tasks import guard_tasks, unguard_tasks
from headgate.engine.history_writer import HistoryWriter
from headgate.engine.housekeeper import Housekeeper
from headgate.engine.lease_keeper import LeaseKeeper
from headgate.engine.membership import Membership
from headgate.engine.node_watch import NodeWatch
from headgate.engine.outcome_recorder import OutcomeRecorder
from headgate.engine.own_lease import OwnLease
from headgate.engine.peer_leases import PeerLeases
from headgate.engine.peer_recovery import PeerRecovery
from headgate.engine.recorder import Recorder
from headgate.engine.recurring import Recurring
from headgate.engine.remote_limits import RemoteLimit
from headgate.engine.reporter import Reporter
from headgate.engine.running_attempts import MakeAttempt, RunningAttempts
from headgate.engine.slots import Slots
from headgate.errors import StorageUnavailable
from headgate.jobs.event import NodeCrashed, NodeStarted, NodeStopped, NodeStopping
from headgate.jobs.identity import IdSource, process_name
from headgate.jobs.retention import DEFAULT_RETENTION, Retention
from headgate.storage.fetched import FetchedStarts
from headgate.storage.store import Store
from headgate.tasks.context import JobLogCapture
from headgate.tasks.registry import Registry
from headgate.tasks.tracing import Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How a node behaves; all durations in seconds.

    `heartbeat` (5) renews the lease, which other nodes take for lost after `lease` (30). `grace` (30) is how long
    running jobs may go on after the node was asked to stop. Final jobs are kept for `retention` (7 days).
    `queues` maps the queues to serve to their slots. Of what a job logs the first `log_lines` (1,000; 0: none) of
    `log_level` (INFO) and above are kept. `version` is that of Headgate. With `drain` it stops by itself.
    """

    queues: Mapping[str, int]
    heartbeat: float = 5.0
    lease: float = 30.0
    grace: float = 30.0
    retention: Retention = DEFAULT_RETENTION
    log_lines: int = 1000
    log_level: int = logging.INFO
    version: str = ""
    drain: Drain | None = None


class Node:
    """Runs jobs of one app until it is stopped.

    It makes the parts and ends them in order; each part has its own state and its own module. `pool` runs the functions
    of thread tasks (default: one thread for each slot).
    """

    def __init__(
        self,
        storage: Store,
        registry: Registry,
        settings: NodeSettings,
        *,
        clock: Clock,
        bus: EventBus,
        random: Random,
        ids: IdSource,
        teller: CallbackRunner,
        historian: HistoryWriter,
        elsewhere: Mapping[str, RemoteLimit] | None = None,
        tracing: Tracing | None = None,
        pool: Pool | None = None,
        make_attempt: MakeAttempt = RunningAttempt,
        on_concluded: Callable[[RunningAttempt], None] | None = None,
    ) -> None:
        elsewhere = elsewhere or {}
        lease, interval = round(settings.lease * SECOND), round(settings.heartbeat * SECOND)
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._bus = bus
        self._historian = historian
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._wakeup = ClaimWakeup()
        self._membership = Membership(
            storage,
            name=process_name(),
            queues=settings.queues,
            version=settings.version,
            clock=clock,
            ids=ids,
        )
        self._slots = Slots(settings.queues)
        own_lease, peers = OwnLease(lease), PeerLeases(lease, interval)
        # What is written for attempts.
        self._reporter = Reporter(
            self.id, storage, clock=clock, bus=bus, most_lines=settings.log_lines, lowest=settings.log_level
        )
        self._capture = JobLogCapture(self._reporter)
        self.recorder = Recorder(
            self.id, storage, registry, self._reporter, clock=clock, bus=bus, random=random, historian=historian
        )
        self._fetcher = Fetcher(storage, elsewhere, clock=clock, bus=bus, ids=ids)
        charges = ChargeRouter(self.recorder, self._fetcher, historian, elsewhere)
        if pool is None:
            pool = ThreadPoolExecutor(sum(settings.queues.values()), thread_name_prefix="headgate-job")
        # The attempts.
        outcomes = self._outcomes = OutcomeRecorder(
            storage, registry, self.recorder, charges, teller, clock=clock, bus=bus, random=random
        )
        self.attempts = RunningAttempts(
            storage,
            registry,
            self._slots,
            own_lease,
            charges,
            outcomes,
            self._reporter,
            teller,
            self._wakeup,
            pool=pool,
            clock=clock,
            bus=bus,
            tracing=tracing,
            make_attempt=make_attempt,
            on_concluded=on_concluded,
        )
        # What the node owns.
        self.claim_recovery = ClaimRecovery(
            storage,
            registry,
            self._slots,
            own_lease,
            self.attempts,
            outcomes,
            self.recorder,
            historian,
            elsewhere=elsewhere,
            stopping=self._stopping,
            clock=clock,
        )
        self.lease = LeaseKeeper(
            storage,
            self._membership,
            own_lease,
            peers,
            self.attempts,
            self.claim_recovery,
            self.recorder,
            self._reporter,
            self._wakeup,
            interval=interval,
            stopping=self._stopping,
            clock=clock,
            bus=bus,
            random=random,
        )
        # What starts jobs, and makes others startable.
        self._regater = BacklogMigrator(storage, registry, clock=clock, bus=bus, wake=self._wakeup.wake)
        self._notices = ClaimNotices(self._regater, teller, clock=clock, bus=bus)
        self._claims = ClaimLoop(
            storage,
            registry,
            {**registry.rules, **{name: FetchedStarts(limit.limit.rule) for name, limit in elsewhere.items()}},
            self._membership,
            self._slots,
            self.lease,
            self.attempts,
            outcomes,
            self.claim_recovery,
            self._fetcher,
            historian,
            self._notices,
            self._wakeup,
            stopping=self._stopping,
            clock=clock,
            bus=bus,
            random=random,
        )
        self._housekeeper = Housekeeper(storage, clock=clock, bus=bus, teller=teller, retention=settings.retention)
        self._recurring = Recurring(storage, registry, clock=clock, bus=bus, teller=teller, ids=ids, random=random)
        self._watch = NodeWatch(
            storage,
            self._membership,
            PeerRecovery(storage, self._membership, peers, teller, clock=clock, bus=bus),
            self.claim_recovery,
            self.lease,
            self.attempts,
            self._slots,
            self.recorder,
            self._recurring,
            self._housekeeper,
            self._wakeup,
            clock=clock,
            bus=bus,
        )
        self._drain: DrainWatch | None = None
        if settings.drain is not None:
            self._drain = DrainWatch(
                settings.drain,
                storage,
                registry,
                self.attempts,
                self.claim_recovery,
                queues=settings.queues.keys(),
                stopping=self._stopping,
                stop=self.stop,
                clock=clock,
                bus=bus,
            )

    @property
    def id(self) -> str:
        """The id of the node in the store; another one after the node was declared dead."""
        return self._membership.id

    # ------------------------------------------------------------------------------------------------ life

    def stop(self) -> None:
        """Claim nothing more, let running jobs finish within the grace, then hand them back and end."""
        self._stopping.set()
        self._wakeup.wake()

    def abort(self) -> None:
        """End at once: running jobs are cancelled and handed back."""
        self.stop()
        self._aborting.set()

    async def run(self) -> None:
        """Work until stopped. A crash of any part ends the whole node loudly."""
        loop = asyncio.get_running_loop()
        unwatch = self._storage.watch(self._wakeup.wake, endings=False)
        guard_tasks(loop)
        if self._settings.log_lines:
            self._capture.start()
        try:
            self.lease.guard()
            await self.lease.join()
            self._bus.publish(NodeStarted(at=self._clock.now(), node=self.id, storage=str(self._storage)))
            self.lease.compare_clocks()
            await self._serve()
        except Exception as error:
            # Told at once: in a program that does other things as well, nobody may be waiting for this to end.
            self._bus.publish(NodeCrashed(at=self._clock.now(), node=self.id, error=described(_first_of(error))))
            raise
        finally:
            unwatch()
            unguard_tasks(loop)
            self._capture.stop()
            self._claims.close()
            self.lease.close()
            await self.attempts.close(self._patience(5.0))
        await self._leave()

    async def _serve(self) -> None:
        """Run the parts; when the node is asked to stop, end them in the order in which they need each other."""
        async with asyncio.TaskGroup() as services:
            background = [
                services.create_task(self._claims.run(), name="headgate-claims"),
                services.create_task(self.lease.run(), name="headgate-heartbeats"),
                services.create_task(self._watch.run(), name="headgate-watch"),
                services.create_task(self._housekeeper.run(), name="headgate-housekeeper"),
                services.create_task(self._recurring.run(), name="headgate-recurring"),
            ]
            if self._drain is not None:
                background.append(services.create_task(self._drain.run(), name="headgate-drain"))
            regater = services.create_task(self._regater.run(), name="headgate-regater")
            fetcher = services.create_task(self._fetcher.run(), name="headgate-fetcher")
            recorder = services.create_task(self.recorder.run(), name="headgate-recorder")
            reporter = services.create_task(self._reporter.run(), name="headgate-reporter")
            await self._stopping.wait()
            self._bus.publish(NodeStopping(at=self._clock.now(), node=self.id, running=len(self.attempts)))
            # It claims no more, so another release need not wait for its jobs to end.
            regater.cancel()
            await self.attempts.finish(self._settings.grace, self._aborting)
            for service in background:
                service.cancel()
            # Stores that are down are waited for a little only: budget is lost, and the lease tells the others.
            await self._fetcher.flush(self._patience(5.0))
            fetcher.cancel()
            await self.recorder.flush(self._patience(10.0))
            recorder.cancel()
            reporter.cancel()

    async def _leave(self) -> None:
        try:
            recovered = await self._storage.leave(self.id)
        except StorageUnavailable as error:
            # Whoever sees this node's lease run out takes its jobs back.
            publish_trouble(self._bus, self._clock, "leaving", error)
        else:
            returned = self._outcomes.handed_back + len(recovered.returned)
            self._bus.publish(NodeStopped(at=self._clock.now(), node=self.id, returned=returned))

    def _patience(self, seconds: float) -> float:
        """Return how many seconds a step of the shutdown may take: so many, or 1 when it is aborted."""
        return 1.0 if self._aborting.is_set() else seconds

    # -------------------------------------------------------------------------------------------- requests

    def look_at_schedules(self) -> None:
        """Enqueue at once what is due of a schedule that this process has just stored."""
        self._recurring.look()

    def cancel(self, job_id: str) -> None:
        """Cancel a job that runs here for its user; without effect if it does not."""
        self.attempts.cancel(job_id, CancelledBy.USER)

    def statistics(self) -> dict[str, Any]:
        """Slots in use by queue, endings that wait to be recorded, and jobs that only the sweep found.

        `lingering` are the jobs whose attempts were told to end and still take a slot; `processes` run process tasks.
        """
        return {
            "node": self.id,
            "unrecorded": len(self.recorder.pending),
            "swept": self._claims.swept,
            **self.attempts.statistics(),
            "history": self._historian.statistics(),
        }


def _first_of(error: BaseException) -> BaseException:
    """The error itself, without the groups that it came in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
