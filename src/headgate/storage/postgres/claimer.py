"""The claims of one process: arrivals are merged, what has expired is told, and each claim is tried until it holds."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.clock import SECOND, Clock
from headgate.storage.claiming import EXPIRED_A_VISIT
from headgate.storage.postgres.arrivals import merge
from headgate.storage.postgres.claim import SOON, TRIES, OneClaim, Overtaken
from headgate.storage.postgres.database import Database, Session
from headgate.storage.postgres.floors import Floors
from headgate.storage.postgres.limit_time import correct_limit_time
from headgate.storage.postgres.locked_jobs import LockedJobs
from headgate.storage.postgres.look import Look
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.server_time import StoreTime
from headgate.storage.procedures import waiting
from headgate.storage.procedures.following import without_held
from headgate.storage.procedures.replacement_notes import give_back_noted
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.protocol import Claim, Claimed, Dropped
from headgate.storage.row_ids import lane_id

MERGE_EVERY = SECOND
"""How often counts are brought up to date at least, where no lane waits for it."""


class Claimer:
    """Makes the claims of one process."""

    def __init__(self, database: Database, time: StoreTime, clock: Clock, live: CachedRules) -> None:
        self._database = database
        self._time = time
        self._clock = clock
        self._live = live
        self._expects_arrivals = True
        self._merged_at = 0
        self._last_place = 0
        self._paused: frozenset[str] = frozenset()
        self.floors = Floors(clock)
        self._locked = LockedJobs(clock)

    def expect_arrivals(self) -> None:
        """Jobs with limits were added, here or elsewhere: the next claim merges before it looks."""
        self._expects_arrivals = True

    async def claim(self, claim: Claim) -> Claimed:
        """Take what may go now."""
        if not claim.rooms:
            return Claimed(jobs=(), next_in=None)
        # What has ended without having run is told, also if what follows has to begin anew.
        dropped: list[Dropped] = []
        for _ in range(TRIES):
            try:
                claimed = await self._database.run(lambda session: self._claim(session, claim, dropped))
            except Overtaken:
                continue
            return replace(claimed, dropped=[*dropped, *claimed.dropped], more=True) if dropped else claimed
        # Others are busy with the same jobs.
        return Claimed(jobs=(), next_in=0, more=True, dropped=dropped)

    async def _claim(self, session: Session, asked: Claim, dropped: list[Dropped]) -> Claimed:
        claim = self._without_paused(asked)
        self.floors.begin()
        self._locked.begin()
        has_more = False
        if self._expects_arrivals or self._clock.monotonic() - self._merged_at >= MERGE_EVERY:
            has_more = await self.merge(session)
        look = await self._look(session, claim)
        if look.has_notes:
            async with session.transaction():
                await give_back_noted(PostgresTransaction(session, self._time.now(), self._time.limit_now()))
        if look.has_arrivals:
            # Added by others, of whom nothing was heard yet.
            has_more = await self.merge(session)
        if look.has_notes or look.has_arrivals:
            look = await self._look(session, claim)
        if look.paused != self._paused:
            self._paused = look.paused
            raise Overtaken
        # A node that was declared dead must not own jobs: nobody would take them back.
        if not look.has_joined:
            return Claimed(jobs=(), next_in=None)
        await self._live.refresh(PostgresTransaction(session, look.now, look.limit_now), look.revision)
        if look.has_expired:
            dropped += await self._expire(session, claim)
        one = OneClaim(session, claim, self._live, self._time, self._clock, look, self.floors, self._locked)
        claimed = await one.run(lambda: self.look(session, claim, known_only=True), dropped)
        if look.has_arrivals or self.floors.are_used:
            # Others are about to merge them, or something lies below a floor: soon looked at again.
            claimed = replace(claimed, next_in=min(claimed.next_in or SOON, SOON))
        return replace(claimed, more=True) if has_more else claimed

    async def _expire(self, session: Session, claim: Claim) -> list[Dropped]:
        """A job that has expired is told by the claim that would have started it."""
        lanes = [lane_id(queue, (), "") for queue in claim.rooms]

        async def expire(held: frozenset[str]) -> list[Dropped]:
            async with session.transaction():
                tx = PostgresTransaction(session, self._time.now(), self._time.limit_now())
                return await waiting.expire(tx, EXPIRED_A_VISIT, lanes, list(claim.tasks), held=held)

        return await without_held(expire)

    def _without_paused(self, claim: Claim) -> Claim:
        """The claim without the queues that are paused, as far as it is known."""
        if self._paused.isdisjoint(claim.rooms):
            return claim
        return replace(claim, rooms={queue: room for queue, room in claim.rooms.items() if queue not in self._paused})

    async def merge(self, session: Session) -> bool:
        """Count in their lanes what has arrived; whether there may be more."""
        self._expects_arrivals = False
        self._merged_at = self._clock.monotonic()
        place, has_more = await merge(session, self._last_place)
        self._last_place = max(self._last_place, place)
        return has_more

    async def _look(self, session: Session, claim: Claim) -> Look:
        look = await self.look(session, claim, known_only=False)
        if look is None:
            look = await self.look(session, claim, known_only=False)
        if look is None:
            raise Overtaken
        return look

    async def look(self, session: Session, claim: Claim, *, known_only: bool) -> Look | None:
        """What a claim starts from; None if the server's clock had stepped, which is made good by now."""
        queues = list(claim.rooms)
        own = self._time.own()
        sent_at = self._clock.monotonic()
        row = await session.row(
            "look",
            node=claim.node,
            queues=queues,
            open_lanes=[lane_id(queue, (), "") for queue in queues],
            count=max([1, *(room.slots for room in claim.rooms.values())]),
            limits=list(claim.rules),
            known=claim.known(self._live.gates).as_lines,
            known_only=known_only,
            now=None if own is None else own.now,
            limit_now=None if own is None else own.limit_now,
            floors=[self.floors.of(lane_id(queue, (), "")) for queue in queues],
            due_floor=self.floors.due,
            opened_floor=self.floors.opened,
        )
        look = Look(row, queues)
        self.floors.took(self._clock.monotonic() - sent_at)
        self.floors.saw(
            [lane.since or 0 for lane in look.due], [bucket.opens_at or 0 for bucket in look.opened], look.limit_now
        )
        stepped = self._time.heard(sent_at, look.now, look.ahead)
        if stepped:
            await correct_limit_time(session, self._time, look.ahead, stepped)
            return None
        return look
