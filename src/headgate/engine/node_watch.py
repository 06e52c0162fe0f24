"""The node watch: the checks that a node makes every second, and what it does about dead nodes and changed settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.clock import SECOND, sleep
from headgate.engine.claim_loop import ClaimWakeup
from headgate.engine.claim_tracker import ClaimTracker
from headgate.engine.housekeeper import Housekeeper
from headgate.engine.lease_keeper import LeaseKeeper, Membership, PeerLeases
from headgate.engine.recorder import Recorder
from headgate.engine.recurring import Recurring
from headgate.engine.running_attempts import RunningAttempts, Slots
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageUnavailable
from headgate.jobs.event import LoopBlocked, NodeChanged, NodeLost, NodeMeasured
from headgate.storage.records import NodeControls, Peer

SWEEP_EVERY = 30
"""Seconds between two claims without a cause."""


class NodeWatch(WithServices):
    """Recovers dead nodes, reads cancellations and what operators set, and detects lost claims and stepped clocks.

    It also detects a blocked event loop. The statement that reads the other nodes also reads what this one is set to
    do, and what the housekeeper has to do.
    """

    def __init__(
        self,
        services: Services,
        membership: Membership,
        peers: PeerLeases,
        claim_tracker: ClaimTracker,
        lease: LeaseKeeper,
        attempts: RunningAttempts,
        slots: Slots,
        recorder: Recorder,
        recurring: Recurring,
        housekeeper: Housekeeper,
        wakeup: ClaimWakeup,
        *,
        stop: Callable[[], None],
    ) -> None:
        super().__init__(services)
        self._membership = membership
        self._peers = peers
        self._claim_tracker = claim_tracker
        self._lease = lease
        self._attempts = attempts
        self._slots = slots
        self._recorder = recorder
        self._recurring = recurring
        self._housekeeper = housekeeper
        self._wakeup = wakeup
        self._stop = stop

    async def run(self) -> None:
        turns = 0
        ahead = self._storage.now() - self._clock.monotonic()
        while True:
            try:
                await self._check_store()
            except StorageUnavailable as error:
                self._publish_failure("checking the nodes", error)
            # Measured from here: a slow store does not mean that the event loop is blocked.
            expected = self._clock.monotonic() + SECOND
            await sleep(self._clock, 1.0)
            late = (self._clock.monotonic() - expected) / SECOND
            stepped = self._storage.now() - self._clock.monotonic() - ahead
            if late > 1.0:
                self._lease.check()
            if abs(stepped) > SECOND // 2 or late > 1.0:
                # Timers were set by the store's old wall time, or do not count the time for which the machine slept.
                ahead += stepped
                self._wakeup.wake()
                self._recurring.wake()
            turns += 1
            if turns % SWEEP_EVERY == 0:
                self._wakeup.sweep()
                self._recurring.wake()
            self._measure(late)

    async def _check_store(self) -> None:
        update = await self._storage.node_update(self._membership.id)
        self._housekeeper.note(update)
        if update.name is not None:
            self._membership.name = update.name
        if update.controls is not None:
            self._apply(update.controls)
        if update.has_arrived:
            # The enqueueing process may have been killed before its notification, or the notification was lost.
            self._wakeup.wake()
        await self.recover_dead(update.peers)
        if self._claim_tracker.take_check():
            await self._lease.beat()
        if self._attempts:
            for job_id in await self._storage.cancels(self._membership.id, self._attempts.jobs):
                self._attempts.cancel(job_id)

    async def recover_dead(self, nodes: Sequence[Peer]) -> None:
        """Recover the jobs of the dead among these nodes. Every node does, so no leader is needed."""
        for dead in self._peers.dead(nodes, self._membership.id, self._clock.monotonic()):
            recovered = await self._storage.recover(dead.id, dead.beat)
            if recovered is None:
                continue
            ended = [*recovered.poisonous, *recovered.completed, *recovered.cancelled]
            if recovered.known is None or recovered.returned or ended:
                self._bus.publish(
                    NodeLost(
                        at=self._clock.now(),
                        node=dead.id,
                        returned=len(recovered.returned),
                        poisonous=len(recovered.poisonous),
                        completed=len(recovered.completed),
                        cancelled=len(recovered.cancelled),
                        poisonous_jobs=tuple(recovered.poisonous),
                        known=recovered.known,
                    )
                )
            self._publish_dropped(await self._storage.final(ended) if ended else ())

    def _apply(self, controls: NodeControls) -> None:
        """Apply what the store says that this node is set to do; no effect if it does that already."""
        before, self._membership.controls = self._membership.controls, controls
        if controls.is_stopping:
            self._stop()
        elif controls != before:
            self._slots.change(controls.queues, controls.slots, is_quiet=controls.is_quiet)
            self._bus.publish(
                NodeChanged(
                    at=self._clock.now(),
                    node=self._membership.id,
                    queues=controls.queues,
                    slots=controls.most,
                    is_quiet=controls.is_quiet,
                )
            )
            self._wakeup.wake()

    def _measure(self, late: float) -> None:
        """Publish how busy the node is; `late` is the delay in seconds with which the event loop woke this task."""
        if self._bus.has_listener(NodeMeasured):
            own = self._clock.now()
            self._bus.publish(
                NodeMeasured(
                    at=own,
                    node=self._membership.id,
                    slots={queue: busy + self._slots.free_in(queue) for queue, busy in self._slots.busy.items()},
                    busy=self._slots.busy,
                    lingering=len(self._attempts.lingering),
                    unrecorded=len(self._recorder.pending),
                    loop_lag=max(0.0, late),
                    clock_skew=(own - self._storage.now()) / SECOND,
                )
            )
        if late > 1.0:
            self._bus.publish(LoopBlocked(at=self._clock.now(), seconds=late))
