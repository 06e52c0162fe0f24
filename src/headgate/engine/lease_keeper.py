"""The lease of a node: joins the store, renews the lease with heartbeats, and rejoins after it was declared dead.

A heartbeat returns the jobs that the node owns. So it also finds those of a claim whose reply was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import count

from headgate.clock import SECOND, Clock, Timer, sleep, sleep_until
from headgate.engine.claim_tracker import ClaimTracker
from headgate.engine.recorder import Recorder
from headgate.engine.reporter import Reporter
from headgate.engine.running_attempts import RunningAttempts
from headgate.engine.services import Services, WithServices
from headgate.errors import StorageLost, StorageUnavailable
from headgate.jobs.event import ClockSkewed, LeaseNotRenewed, NodeDeclaredDead, StorageRecovered
from headgate.storage.records import Beat, NodeControls, Peer
from headgate.version import __version__

Tasks = Mapping[str, Sequence[str]]

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


class LeaseKeeper(WithServices):
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
        claim_tracker: ClaimTracker,
        recorder: Recorder,
        reporter: Reporter,
        *,
        wake: Callable[[], None],
        interval: int,
        ends_when_lost: bool,
        stopping: asyncio.Event,
    ) -> None:
        super().__init__(services)
        self._membership = membership
        self._own_lease = own_lease
        self._peers = peers
        self._attempts = attempts
        self._claim_tracker = claim_tracker
        self._recorder = recorder
        self._reporter = reporter
        self._wake = wake
        self._interval = interval
        self._ends_when_lost = ends_when_lost
        self._stopping = stopping
        self._is_skewed = False
        self._beating = asyncio.Lock()
        self._is_guarding = False
        self._timer: Timer | None = None
        self._failing_since: int | None = None

    @property
    def holds(self) -> bool:
        """Whether no other node can have recovered the jobs of this one."""
        return self._own_lease.holds()

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
            sent_at = self._clock.monotonic()
            node = self._membership.id
            beat = await self._membership.beat(
                lingering=self._attempts.lingering[:MAX_LINGERING],
                # A job that the node has not received is found by the next heartbeats. While a snapshot stays open,
                # their index leads to all jobs that have run since.
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
            await self._claim_tracker.start_lost(node, beat.owned)
            return beat.owned

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

    def _note_failure(self, error: StorageUnavailable) -> None:
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()
        self._publish_failure("sending a heartbeat", error)

    async def _rejoin(self) -> None:
        """Drop all jobs and join under a new id: another node has declared this one dead and recovered its jobs."""
        disowned = self._membership.id
        cancelled = self._attempts.disown()
        self._recorder.drop()
        self._bus.publish(NodeDeclaredDead(at=self._clock.now(), node=disowned, cancelled=cancelled))
        self._reporter.drop()
        self._recorder.node = self._reporter.node = self._membership.renew_id()
        await self.join()
        self._wake()

    def compare_clocks(self) -> None:
        """Publish ClockSkewed once the clocks of this machine and of the store differ by more than 5 s.

        It is published again only after they have agreed in between.
        """
        own = self._clock.now()
        ahead = own - self._storage.now()
        was_skewed, self._is_skewed = self._is_skewed, abs(ahead) > MAX_SKEW
        if self._is_skewed and not was_skewed:
            self._bus.publish(ClockSkewed(at=own, node=self._membership.id, seconds=ahead / SECOND))

    # ----------------------------------------------------------------------------------------------- ending

    def guard(self) -> None:
        """Cancel attempts that must not run twice whenever the lease ends from now on."""
        self._is_guarding = True

    def check(self) -> None:
        """End a lease that has ended while the machine slept, which its timer does not notice at once."""
        if self._timer is not None and not self.holds:
            self._lease_ended()

    def close(self) -> None:
        """Cancel the timer for the end of the lease."""
        self._is_guarding = False
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _renew(self, sent_at: int) -> None:
        self._own_lease.renew(sent_at)
        self._cancel_timer()
        if self._is_guarding:
            self._timer = self._clock.call_at(self._own_lease.ends_at, self._lease_ended)

    def _lease_ended(self) -> None:
        """Cancel attempts that must not run twice or have not started: other nodes may soon recover their jobs."""
        self._cancel_timer()
        cancelled = self._attempts.cancel_exclusive()
        seconds = self._own_lease.unrenewed_for() / SECOND
        node = self._membership.id
        self._bus.publish(LeaseNotRenewed(at=self._clock.now(), node=node, seconds=seconds, cancelled=cancelled))
        # The claim loop sends heartbeats until one succeeds.
        self._wake()


class Membership(WithServices):
    """Joins the store under an id. A node that was declared dead joins again under a new one.

    `controls` is what the node is set to do, and `name` what operators call it; both stay when it joins again. `tasks`
    returns the names of the tasks that its program declares, by queue: the same mapping until they change.
    """

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        controls: NodeControls,
        labels: Set[str],
        tasks: Callable[[], Tasks],
        release: str | None,
    ) -> None:
        super().__init__(services)
        self.name = name
        self._labels = sorted(labels)
        self._tasks = tasks
        self._stored_tasks: Tasks | None = None
        self._release = release
        self.controls = controls
        self.renew_id()

    async def join(self) -> None:
        """Write the row of the node. Raises StorageUnavailable."""
        tasks = self._tasks()
        await self._storage.join(
            self.id,
            self.name,
            controls=self.controls,
            labels=self._labels,
            tasks=tasks,
            version=__version__,
            release=self._release,
        )
        self._stored_tasks = tasks

    async def beat(self, *, lingering: Sequence[str], started_since: int, is_stopping: bool) -> Beat:
        """Renew the lease, as `Store.beat`, and store what the program has declared since the node joined."""
        tasks = self._tasks()
        beat = await self._storage.beat(
            self.id,
            lingering=lingering,
            tasks=None if tasks is self._stored_tasks else tasks,
            started_since=started_since,
            is_stopping=is_stopping,
        )
        if beat.known:
            self._stored_tasks = tasks
        return beat

    def renew_id(self) -> str:
        """Take a new id in place of the dead one and return it; `join` comes next."""
        self.id = f"node-{self._ids.unique(self._clock.now())[-12:]}"
        return self.id


class OwnLease:
    """The end of a node's own lease by its own monotonic clock: how long the node may rely on it.

    Other nodes recover its jobs when its beat has not changed for `lease` microseconds, counted at the earliest from
    when the last successful heartbeat was *sent*. The node stops relying on the lease a sixth of it earlier: attempts
    that it cancels then have that long to end. A lease that was never renewed does not hold.
    """

    def __init__(self, lease: int, clock: Clock) -> None:
        self._relied_on_for = lease - lease // 6
        self._clock = clock
        # The node relies on the lease until this instant; 0 if it was never renewed.
        self.ends_at = 0

    def renew(self, sent_at: int) -> None:
        """Renew the lease after the success of a heartbeat that was sent at `sent_at`."""
        self.ends_at = sent_at + self._relied_on_for

    def holds(self) -> bool:
        """Return whether no other node can have declared this one dead."""
        return self._clock.monotonic() < self.ends_at

    def unrenewed_for(self) -> int:
        """Return the microseconds since the last successful heartbeat was sent; call it after `renew`."""
        return self._clock.monotonic() - (self.ends_at - self._relied_on_for)


class PeerLeases:
    """Holds when each node's beat last grew.

    A node is dead when its process has ended, or when its beat has not changed for `lease` microseconds of the
    observer's own monotonic time, so no clocks are compared. If the observer itself could not write for a while (a long
    write transaction stops every heartbeat), it counts anew.
    """

    def __init__(self, lease: int, interval: int) -> None:
        self._lease = lease
        self._interval = interval
        self._seen: dict[str, tuple[int, int]] = {}
        self._last_own_beat: int | None = None

    def own_beat(self, now: int) -> None:
        """Note that the observer has renewed its own lease."""
        if self._last_own_beat is not None and now - self._last_own_beat > 2 * self._interval:
            self._seen = {node: (beat, now) for node, (beat, _) in self._seen.items()}
        self._last_own_beat = now

    def dead(self, nodes: Sequence[Peer], own: str, now: int) -> list[Peer]:
        """Return the nodes that are dead at `now`; recover each with the `beat` returned here."""
        dead: list[Peer] = []
        current: dict[str, tuple[int, int]] = {}
        stale = self._last_own_beat is None or now - self._last_own_beat > 2 * self._interval
        for node in nodes:
            if node.id == own:
                continue
            beat, since = self._seen.get(node.id, (-1, now))
            if beat != node.beat:
                since = now
            current[node.id] = (node.beat, since)
            if node.is_gone or (not stale and now - since > self._lease):
                dead.append(node)
        self._seen = current
        return dead
