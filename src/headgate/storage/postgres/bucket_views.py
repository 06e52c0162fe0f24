"""Buckets as admission sees them, read from their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headgate.jobs.job import Draw
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS, BucketView
from headgate.storage.live_rules import LiveRules
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.rows import BucketRow
from headgate.storage.row_ids import bucket_id
from headgate.storage.stored_rows import load_state


class BucketViews:
    """The buckets that one transaction looks at: one view each, judged by the rule that holds for its key now."""

    def __init__(self, rules: Mapping[str, AnyRule], live: LiveRules, limit_now: int) -> None:
        self._rules = rules
        self._live = live
        self._limit_now = limit_now
        self._found: dict[Draw, BucketView] = {}

    def __getitem__(self, draw: Draw) -> BucketView:
        return self._found[draw]

    def add(self, rows: Iterable[BucketRow]) -> None:
        """Make the views of these rows, those of the limits themselves before those of their keys."""
        for row in sorted(rows, key=lambda row: row.key != FOR_ALL_KEYS):
            self.of(row)

    def of(self, row: BucketRow) -> BucketView:
        """The view of a row that was read."""
        draw = Draw(row.limit, row.key)
        view = self._found.get(draw)
        if view is None:
            view = self._found[draw] = self._make(draw, row)
        return view

    def judged_by(self, draw: Draw) -> AnyRule:
        """The rule that holds for a bucket now."""
        return self._live.rule(draw, self._rules[draw.limit])

    def with_homes(self, draws: Iterable[Draw]) -> set[Draw]:
        """These buckets, and those in which their limits keep the one state of all keys."""
        found = set(draws)
        for draw in list(found):
            if self.judged_by(draw).shares_state:
                found.add(Draw(draw.limit, FOR_ALL_KEYS))
        return found

    async def read_rivals(self, session: Session) -> None:
        """Tell the homes which of their keys want to start now."""
        for view in self._found.values():
            if view.rule.shares_state and view.home is view:
                rows = await session.fetch("rivals", limit=view.draw.limit, limit_now=self._limit_now)
                view.rivals = {row[0] for row in rows}

    def charges(self) -> tuple[list[str], list[str | None], list[int]]:
        """The states that have changed, as columns: id, state, idle_at."""
        changed = [view for view in self._found.values() if view.charged]
        stored = [view.stored for view in changed]
        return (
            [bucket_id(view.draw) for view in changed],
            [state for state, _ in stored],
            [idle_at for _, idle_at in stored],
        )

    async def charge(self, session: Session) -> None:
        """Write the states that have changed."""
        ids, states, idle_at = self.charges()
        if ids:
            await session.execute("charge", ids=ids, states=states, idle_at=idle_at)

    def _make(self, draw: Draw, row: BucketRow) -> BucketView:
        rule = self.judged_by(draw)
        view = BucketView(draw, rule, None, id=row.id, opens_at=row.opens_at, closed_until=row.closed_until)
        if row.state is not None:
            view.state = load_state(rule, draw, row.state, self._limit_now)
            # Carried over from other numbers as of now, it has to be kept as of now.
            view.charged = rule.dump(view.state) != row.state
        if self._live.is_paused(draw):
            view.closed_until = NEVER
        if rule.shares_state and draw.key != FOR_ALL_KEYS:
            home = Draw(draw.limit, FOR_ALL_KEYS)
            view.home = self._found.get(home) or self._new(home)
        return view

    def _new(self, draw: Draw) -> BucketView:
        view = self._found[draw] = BucketView(draw, self.judged_by(draw), None)
        return view


async def ensure_rows(session: Session, draws: Iterable[Draw], limit_now: int) -> None:
    """Give buckets a row that can be locked, where they have none yet."""
    wanted = {bucket_id(draw): draw for draw in draws}
    if not wanted:
        return
    missing = [wanted[row[0]] for row in await session.fetch("missing_buckets", ids=list(wanted))]
    if missing:
        await session.execute(
            "ensure_buckets",
            ids=[bucket_id(draw) for draw in missing],
            limits=[draw.limit for draw in missing],
            keys=[draw.key for draw in missing],
            limit_now=limit_now,
        )


class Locked(NamedTuple):
    """Buckets that a transaction holds, and the time at which it had them all: (clock, ahead), None without any."""

    rows: list[BucketRow]
    clock: tuple[int, int] | None


async def lock_buckets(session: Session, draws: Iterable[Draw], *, node: str | None = None) -> Locked:
    """Lock the rows of these buckets, in the order that everybody locks them; `node` is the node that claims."""
    ids = sorted({bucket_id(draw) for draw in draws})
    if not ids:
        return Locked([], None)
    if node is None:
        rows = await session.fetch("lock_buckets", ids=ids)
    else:
        rows = await session.fetch("lock_for_claim", ids=ids, node=node)
    clock = max(((row[6], row[7]) for row in rows), default=None)
    return Locked([BucketRow(*row[:6]) for row in rows], clock)


async def lock_existing(session: Session, draws: Iterable[Draw], limit_now: int) -> Locked:
    """Lock the rows of these buckets, which are made where there are none."""
    wanted = set(draws)
    locked = await lock_buckets(session, wanted)
    while len(locked.rows) < len(wanted):
        # New, or forgotten for being idle a moment ago.
        await ensure_rows(session, wanted, limit_now)
        locked = await lock_buckets(session, wanted)
    return locked
