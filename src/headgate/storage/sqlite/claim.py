"""Claiming from SQLite: look, let a `ClaimPlan` decide, write, in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence, Set

import msgspec

from headgate.jobs.job import Draw
from headgate.storage.claiming import ClaimPlan, Head, LaneRow, Move, Visit
from headgate.storage.driver import run_to_end
from headgate.storage.procedures.permits import give_permits
from headgate.storage.procedures.settings import CachedRules
from headgate.storage.protocol import Claim, Claimed
from headgate.storage.sqlite.bucket_views import BucketViews, ensure_rows
from headgate.storage.sqlite.procedure_transaction import SqliteTransaction
from headgate.storage.sqlite.rows import BucketRow, decode_buckets
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.stored_rows import UNREADABLE_DRAWS, RowDecoder


class Look(msgspec.Struct, array_like=True):
    """What a claim starts from. `behind` is read later: the lanes behind those buckets that grant anything."""

    opened: list[BucketRow]
    due: list[LaneRow]
    woken: list[LaneRow]
    open: list[LaneRow]
    next_bucket: int | None
    next_wake: int | None
    known_only: bool
    revision: int
    behind: list[LaneRow] = []


_decode_all = msgspec.json.Decoder(Look).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_lanes = RowDecoder(LaneRow, "lane", draws=UNREADABLE_DRAWS).decode
_decode_heads = RowDecoder(Head, "job").decode


def _decode_look(text: str) -> Look:
    try:
        return _decode_all(text)
    except msgspec.DecodeError:
        opened, due, woken, open, *rest = (bytes(part) for part in _decode_parts(text))
        return Look(
            decode_buckets(opened),
            _decode_lanes(due),
            _decode_lanes(woken),
            _decode_lanes(open),
            *(msgspec.json.decode(part) for part in rest),
        )


class ClaimTransaction:
    """One claim, inside a write transaction that the caller commits."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        claim: Claim,
        live: CachedRules,
        now: int,
        limit_now: int,
        tx: SqliteTransaction,
        tell: Callable[[Sequence[int]], bool],
    ) -> None:
        self._tx = tx
        self._tell = tell
        self._connection = connection
        self._claim = claim
        self._live = live
        self._now = now
        self._limit_now = limit_now
        self._plan = ClaimPlan(claim, now, limit_now, live.gates)
        self._buckets = self._no_buckets()

    def run(self) -> Claimed:
        """Take what may go now."""
        rooms = self._claim.rooms
        # A node that was declared dead must not own jobs: nobody would take them back.
        if not rooms or not fetch(self._connection, "has_joined", node=self._claim.node):
            return Claimed(jobs=(), next_in=None)
        look = self._look(known_only=False)
        if run_to_end(self._live.refresh(self._tx, look.revision)):
            self._plan = ClaimPlan(self._claim, self._now, self._limit_now, self._live.gates)
        plan = self._plan
        plan.ungated = [Visit(row) for row in look.open if row.queue in rooms]
        plan.note_wake(look.next_wake)

        self._read_heads(plan.ungated, max(room.slots + room.ahead for room in rooms.values()))
        shares = plan.shares({visit.row.queue: len(visit.heads) for visit in plan.ungated})
        wanted = sum(shares.values())
        gated = self._gated_visits(look, shares)
        if wanted and self._others_stand_in_the_way(look, gated):
            # What gave nothing is kept: lanes without any ready job are put to sleep on this occasion.
            barren = [visit for visit in gated if visit.is_barren]
            gated = barren + self._gated_visits(self._look(known_only=True), shares)
        if wanted:
            self._buckets.read(draw for visit in gated for draw in visit.row.draws)
            plan.decide(gated, self._buckets.__getitem__, shares)
        if look.next_bucket is not None:
            plan.note_timer(look.next_bucket)
        return self._write()

    def _no_buckets(self) -> BucketViews:
        return BucketViews(self._connection, self._claim.rules, self._live.rules, self._limit_now)

    # ---------------------------------------------------------------------------------------------- look

    def _look(self, *, known_only: bool) -> Look:
        return _decode_look(
            fetch(
                self._connection,
                "look",
                now=self._now,
                limit_now=self._limit_now,
                queues=as_json(list(self._claim.rooms)),
                count=self._plan.page,
                **self._knowledge(known_only=known_only),
            )
        )

    def _knowledge(self, *, known_only: bool) -> dict[str, object]:
        return {
            "known_only": int(known_only),
            "limits": as_json(list(self._claim.rules)),
            "known": self._plan.known.as_json,
        }

    def _gated_visits(self, look: Look, shares: Mapping[str, int]) -> list[Visit]:
        plan, wanted = self._plan, sum(shares.values())
        self._buckets = self._no_buckets()
        plan.opened = [self._buckets.of(row) for row in look.opened]
        grants = plan.grants()
        look.behind = self._lanes_behind(grants, known_only=look.known_only) if grants else []
        visits = plan.choose(grants, look.behind, look.due + look.woken, shares)
        if visits and wanted:
            self._read_heads(visits, plan.heads_wanted(visits, wanted))
        return visits

    def _lanes_behind(self, grants: Mapping[int | str, int], *, known_only: bool) -> list[LaneRow]:
        return _decode_lanes(
            fetch(
                self._connection,
                "behind",
                buckets=as_json(list(grants)),
                queues=as_json(list(self._claim.rooms)),
                count=max(grants.values()),
                now=self._now,
                **self._knowledge(known_only=known_only),
            )
        )

    def _others_stand_in_the_way(self, look: Look, visits: Sequence[Visit]) -> bool:
        """Whether what was read is cut short, and some of it was of no use to this node.

        The limits or the tasks of such lanes are those of another release. They must not hide the lanes after them.
        """
        read = [*look.due, *look.woken, *look.behind]
        page = self._plan.page
        # Of the lanes behind a bucket no more are read than it grants, so they are always cut short.
        if len(read) < page and len(look.opened) < page and not look.behind:
            return False
        return len(self._plan.usable(read)) < len(read) or any(visit.is_barren for visit in visits)

    # --------------------------------------------------------------------------------------------- heads

    def _read_heads(self, visits: Sequence[Visit], count: int) -> None:
        plan = self._plan
        mixed = [visit for visit in visits if visit.wakes_by(self._now)]
        plain = [visit for visit in visits if not visit.wakes_by(self._now)]
        if plain:
            heads = _decode_heads(
                fetch(self._connection, "heads", lanes=as_json([visit.row.id for visit in plain]), count=count)
            )
            if plan.has_unknown(heads):
                mixed, heads = [*visits], []
            plan.sort_in(plain, heads, count)
        if mixed:
            heads = self._ready_heads(mixed, count, all=True)
            if plan.has_unknown(heads):
                heads = self._ready_heads(mixed, count, all=False)
            plan.sort_in(mixed, heads, count)

    def _ready_heads(self, visits: Sequence[Visit], count: int, *, all: bool) -> list[Head]:
        return _decode_heads(
            fetch(
                self._connection,
                "heads_ready",
                lanes=as_json([visit.row.id for visit in visits]),
                known=self._plan.known.as_json,
                all=int(all),
                now=self._now,
                count=count,
            )
        )

    # --------------------------------------------------------------------------------------------- write

    def _write(self) -> Claimed:
        plan = self._plan
        rest = plan.rest_for_ungated()
        for visit in plan.ungated:
            visit.taken = min(len(visit.heads), rest[visit.row.queue])
        has_taken = self._take()
        rows = plan.drop()
        if rows:
            execute(self._connection, "drop_waiting", jobs=as_json(rows), now=self._now)
        if self._buckets.charge():
            execute(self._connection, "use_limit_time", limit_now=self._limit_now)
        # After the charges, which know nothing of what comes back.
        reopened = run_to_end(give_permits(self._tx, plan.given))
        moves = [move for visit in plan.visits if (move := self._move(visit)) is not None]
        if moves:
            self._ensure_rows()
            execute(self._connection, "move_lanes", lanes=as_json(moves))
        lines = plan.lines_of_batches
        has_let_in = bool(lines) and (
            execute(self._connection, "let_in", lines=as_json(lines), limit_now=self._limit_now) > 0
        )
        still_open = self._set_timers(reopened) or has_let_in
        # After the lanes have their new places: others may come to them.
        has_told = self._tell([int(row[0]) for row in rows])
        progressed = has_taken or bool(moves) or has_let_in
        return plan.claimed(progressed=progressed, reopened=bool(reopened) or has_told, still_open=still_open)

    def _take(self) -> bool:
        """Write down which jobs start, who holds which permits now, and what was not charged."""
        taken = self._plan.taken
        if taken:
            execute(
                self._connection,
                "claim_jobs",
                seqs=as_json([head.seq for head in taken]),
                node=self._claim.node,
                now=self._now,
                limit_now=self._limit_now,
            )
        rows = self._plan.permit_rows()
        if rows:
            execute(self._connection, "hold_permits", jobs=as_json(rows))
        return bool(taken)

    def _move(self, visit: Visit) -> Move | None:
        lane = visit.row.id
        return self._plan.move(
            visit,
            lambda: bool(fetch(self._connection, "has_ready", lane=lane)),
            lambda: fetch(self._connection, "earliest", lane=lane),
            is_emptied=visit.row.waiting == visit.gone,
        )

    def _ensure_rows(self) -> None:
        """A bucket that is closed without ever having been charged (paused, or by its ceiling) has no row yet."""
        behind = [visit.behind for visit in self._plan.gated]
        new = {bucket.draw for bucket in behind if bucket is not None and bucket.id is None}
        if new:
            ensure_rows(self._connection, list(new), self._limit_now)

    def _set_timers(self, reopened: Set[Draw]) -> bool:
        """Write when each bucket opens that lanes wait behind; True if one of them is open still."""
        timers = self._plan.timers(reopened)
        if timers:
            rows = [(view.draw.limit, view.draw.key, opens_at) for view, opens_at in timers]
            execute(self._connection, "set_timers", buckets=as_json(rows))
        return any(opens_at <= self._limit_now for _, opens_at in timers)
