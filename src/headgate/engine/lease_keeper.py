"""The lease keeper: renews the lease of this node with heartbeats, and rejoins after the node was declared dead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count

from headgate.clock import SECOND, Timer, sleep, sleep_until
from headgate.engine.bus import publish_storage_failure
from headgate.engine.claim_recovery import ClaimRecovery
from headgate.engine.claim_wakeup import ClaimWakeup
from headgate.engine.leases import OwnLease, PeerLeases
from headgate.engine.membership import Membership
from headgate.engine.recorder import Recorder
from headgate.engine.reporter import Reporter
from headgate.engine.running_attempts import RunningAttempts
from headgate.engine.services import Services
from headgate.errors import StorageLost, StorageUnavailable
from headgate.jobs.event import ClockSkewed, LeaseNotRenewed, NodeDeclaredDead, StorageRecovered

FULL_EVERY = 24
"""The number of regular heartbeats of which two in a row read all jobs of the node; the others read its latest starts.

Two, as a job is lost that two in a row have found unknown.
"""

LATELY = 3
"""How many heartbeats long that is."""

MAX_LINGERING = 100
"""How many lingering jobs a heartbeat reports."""

MAX_SKEW = 5 * SECOND
"""How far the clocks may differ (microseconds) without a warning."""


class LeaseKeeper:
    """Sends a heartbeat every `interval` microseconds; if the lease ends, cancels attempts that must not run twice.

    With `ends_when_lost` it raises StorageLost for a store that this process can never reach again: a worker would
    continue without work, and its supervisor would not notice.
    """

    def __init__(
        self,
        services: Services,
        membership: Membership,
        own_lease: OwnLease,
        peers: PeerLeases,
        attempts: RunningAttempts,
        recovery: ClaimRecovery,
        recorder: Recorder,
        reporter: Reporter,
        wakeup: ClaimWakeup,
        *,
        interval: int,
        ends_when_lost: bool,
        stopping: asyncio.Event,
    ) -> None:
        self._storage = services.storage
        self._membership = membership
        self._own_lease = own_lease
        self._peers = peers
        self._attempts = attempts
        self._recovery = recovery
        self._recorder = recorder
        self._reporter = reporter
        self._wakeup = wakeup
        self._interval = interval
        self._ends_when_lost = ends_when_lost
        self._stopping = stopping
        self._clock = services.clock
        self._bus = services.bus
        self._random = services.random
        self._skew = SkewWatch()
        self._beating = asyncio.Lock()
        self._is_guarding = False
        self._timer: Timer | None = None
        self._failing_since: int | None = None

    @property
    def holds(self) -> bool:
        """Whether no other node can have recovered the jobs of this one."""
        return self._own_lease.holds(self._clock.monotonic())

    async def run(self) -> None:
        sent_at = self._clock.monotonic()
        for number in count(1):
            # Counted from the sending, as the lease is: a slow reply does not delay the next heartbeat.
            await sleep_until(self._clock, sent_at + self._interval)
            sent_at = self._clock.monotonic()
            try:
                await self.beat(all=number % FULL_EVERY < 2)
            except StorageUnavailable as error:
                self._note_failure(error)
                if self._ends_when_lost and isinstance(error, StorageLost) and not self._stopping.is_set():
                    raise

    # --------------------------------------------------------------------------------------------- renewing

    async def join(self) -> None:
        """Write the row of the node, which starts its lease. Raises StorageUnavailable."""
        sent_at = self._clock.monotonic()
        await self._membership.join()
        self._renew(sent_at)

    async def beat(self, *, all: bool = True) -> Mapping[str, int]:
        """Renew the lease; return the jobs that the node owns, with their fences. Raises StorageUnavailable.

        By default all of them, otherwise those that started lately.
        """
        # One heartbeat at a time: two would recover the same jobs.
        async with self._beating:
            return await self._beat_alone(all=all)

    async def renew_until_held(self) -> Mapping[str, int] | None:
        """Send heartbeats until one succeeds in time; return as `beat` does, or None if the node stops."""
        while not self._stopping.is_set():
            try:
                owned = await self.beat()
            except StorageUnavailable as error:
                self._note_failure(error)
            else:
                if self.holds:
                    return owned
            await sleep(self._clock, self._random.uniform(0.5, 1.5))
        return None

    async def _beat_alone(self, *, all: bool) -> Mapping[str, int]:
        sent_at = self._clock.monotonic()
        node = self._membership.id
        beat = await self._membership.beat(
            lingering=self._attempts.lingering[:MAX_LINGERING],
            # A job that the node has not received is found by the next heartbeats. While a snapshot stays open, their
            # index leads to all jobs that have run since.
            started_since=0 if all else self._storage.now() - LATELY * self._interval,
            is_stopping=self._stopping.is_set(),
        )
        self._peers.own_beat(self._clock.monotonic())
        if self._failing_since is not None:
            seconds = (self._clock.monotonic() - self._failing_since) / SECOND
            self._failing_since = None
            self._bus.publish(StorageRecovered(at=self._clock.now(), seconds=seconds))
        self.compare_clocks()
        if not beat.known:
            await self._rejoin()
            return {}
        self._renew(sent_at)
        await self._recovery.recover(node, beat.owned)
        return beat.owned

    def _note_failure(self, error: StorageUnavailable) -> None:
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()
        publish_storage_failure(self._bus, self._clock, "sending a heartbeat", error)

    async def _rejoin(self) -> None:
        """Drop all jobs and join under a new id: another node has declared this one dead and recovered its jobs."""
        disowned = self._membership.id
        cancelled = self._attempts.disown()
        self._recorder.drop()
        self._bus.publish(NodeDeclaredDead(at=self._clock.now(), node=disowned, cancelled=cancelled))
        self._reporter.drop()
        self._recorder.node = self._reporter.node = self._membership.renew_id()
        await self.join()
        self._wakeup.wake()

    def compare_clocks(self) -> None:
        """Publish ClockSkewed if the clocks of this machine and of the store differ by more than 5 s."""
        own = self._clock.now()
        seconds = self._skew.observe(own, self._storage.now())
        if seconds is not None:
            self._bus.publish(ClockSkewed(at=own, node=self._membership.id, seconds=seconds))

    # ----------------------------------------------------------------------------------------------- ending

    def guard(self) -> None:
        """Cancel attempts that must not run twice whenever the lease ends from now on."""
        self._is_guarding = True

    def close(self) -> None:
        """Cancel the timer for the end of the lease."""
        self._is_guarding = False
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self, sent_at: int) -> None:
        self._own_lease.renew(sent_at)
        if self._timer is not None:
            self._timer.cancel()
        if self._is_guarding:
            self._timer = self._clock.call_at(self._own_lease.ends_at, self._lease_ended)

    def _lease_ended(self) -> None:
        """Cancel attempts that must not run twice or have not started: other nodes may soon recover their jobs."""
        cancelled = self._attempts.cancel_exclusive()
        now = self._clock.monotonic()
        seconds = self._own_lease.unrenewed_for(now) / SECOND
        node = self._membership.id
        self._bus.publish(LeaseNotRenewed(at=self._clock.now(), node=node, seconds=seconds, cancelled=cancelled))
        # The claim loop sends heartbeats until one succeeds.
        self._wakeup.wake()


class SkewWatch:
    """Reports a difference of the two clocks once, and again only after they have agreed in between."""

    def __init__(self) -> None:
        self._is_skewed = False

    def observe(self, own: int, stores: int) -> float | None:
        """Return the seconds that the node's clock is ahead of the store's, if it newly exceeds 5 s; else None."""
        was_skewed = self._is_skewed
        self._is_skewed = abs(own - stores) > MAX_SKEW
        return (own - stores) / SECOND if self._is_skewed and not was_skewed else None
