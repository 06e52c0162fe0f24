"""Buckets for admission: they are locked, viewed under the rules in force, and charged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import msgspec

from headgate.jobs.job import Draw
from headgate.limits.concurrency import UNREADABLE
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS, BucketView, TurnView
from headgate.storage.driver import Transaction
from headgate.storage.live_rules import LiveRules
from headgate.storage.stored_rows import RowDecoder, bucket_id, load_state


class BucketRow(msgspec.Struct):
    """A bucket as it is stored."""

    id: str
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int

    @property
    def draw(self) -> Draw:
        return Draw(self.limit, self.key)


class BucketName(NamedTuple):
    """The columns of a new bucket row."""

    id: str
    limit_name: str
    key: str


class Charged(msgspec.Struct):
    """The new state of a bucket, and the limit time from which it may be deleted."""

    id: str
    limit_name: str
    key: str
    state: str | None
    idle_at: int

    @classmethod
    def of(cls, view: BucketView) -> Self:
        return cls(bucket_id(view.draw), view.draw.limit, view.draw.key, *view.stored)


BUCKETS = RowDecoder(BucketRow, "bucket", state=UNREADABLE)


class BucketViews:
    """The buckets that one transaction reads: one view of each, under the rule in force for its key."""

    def __init__(self, rules: Mapping[str, AnyRule], live: LiveRules, limit_now: int) -> None:
        self._rules = rules
        self._live = live
        self._limit_now = limit_now
        self._found: dict[Draw, BucketView] = {}

    def __getitem__(self, draw: Draw) -> BucketView:
        view = self._found.get(draw)
        if view is None:
            rule = self.rule_of(draw)
            if not rule.orders_turns:
                raise KeyError(draw)
            view = self._found[draw] = TurnView(draw, rule, None)
        return view

    def add(self, rows: Iterable[BucketRow], draws: Iterable[Draw] = ()) -> None:
        """Create the views of these rows, and of these buckets, which need not have a row.

        The buckets of the limits themselves come before those of their keys.
        """
        for row in sorted(rows, key=lambda row: row.key != FOR_ALL_KEYS):
            self.of(row)
        for draw in sorted(draws, key=lambda draw: draw.key != FOR_ALL_KEYS):
            if draw not in self._found:
                self._found[draw] = self._make(draw, None)

    def of(self, row: BucketRow) -> BucketView:
        """Return the view of a row."""
        view = self._found.get(row.draw)
        if view is None:
            view = self._found[row.draw] = self._make(row.draw, row)
        return view

    def rule_of(self, draw: Draw) -> AnyRule:
        """Return the rule in force for a bucket."""
        return self._live.rule(draw, self._rules[draw.limit])

    def with_homes(self, draws: Iterable[Draw]) -> set[Draw]:
        """Return these buckets, and the buckets in which their limits keep one state for all keys.

        Without those of fair queues, which are not stored.
        """
        found = {draw for draw in draws if not self.rule_of(draw).orders_turns}
        for draw in list(found):
            if self.rule_of(draw).shares_state:
                found.add(Draw(draw.limit, FOR_ALL_KEYS))
        return found

    async def read_rivals(self, tx: Transaction) -> None:
        """Read, for each home, which of its keys have jobs to start now."""
        for view in self._found.values():
            if view.rule.shares_state and view.home is view:
                view.rivals = set(await tx.values("rivals", limit=view.draw.limit, limit_now=self._limit_now))

    @property
    def charged(self) -> list[BucketView]:
        """The views whose states have changed."""
        return [view for view in self._found.values() if view.charged]

    async def charge(self, tx: Transaction) -> bool:
        """Write the states that have changed. Returns whether there were any."""
        charged = self.charged
        if charged:
            await tx.execute("charge", wanted=[Charged.of(view) for view in charged])
        return bool(charged)

    def _make(self, draw: Draw, row: BucketRow | None) -> BucketView:
        rule = self.rule_of(draw)
        view = BucketView(draw, rule, None)
        if row is not None:
            view.id, view.opens_at, view.closed_until = row.id, row.opens_at, row.closed_until
            if row.state is not None:
                view.state = load_state(rule, draw, row.state, self._limit_now)
                # The load converts a state of another rule as of now, so it has to be stored as of now.
                view.charged = rule.dump(view.state) != row.state
        if self._live.is_paused(draw):
            view.closed_until = NEVER
        if rule.shares_state and draw.key != FOR_ALL_KEYS:
            home = Draw(draw.limit, FOR_ALL_KEYS)
            view.home = self._found.get(home) or self._new(home)
        return view

    def _new(self, draw: Draw) -> BucketView:
        view = self._found[draw] = BucketView(draw, self.rule_of(draw), None)
        return view


async def lock_buckets(tx: Transaction, draws: Iterable[Draw]) -> list[BucketRow]:
    """Lock the rows of these buckets, in the order of their ids, as every transaction does."""
    ids = sorted({bucket_id(draw) for draw in draws})
    return await tx.fetch(BUCKETS, "buckets_for_update", ids=ids) if ids else []


async def lock_or_insert(tx: Transaction, draws: Iterable[Draw]) -> list[BucketRow]:
    """As lock_buckets, after inserting missing rows."""
    wanted = set(draws)
    rows = await lock_buckets(tx, wanted)
    while len(rows) < len(wanted):
        # New, or deleted for being idle a moment ago.
        await ensure_rows(tx, wanted)
        rows = await lock_buckets(tx, wanted)
    return rows


async def lock_views(
    tx: Transaction, draws: Iterable[Draw], rules: Mapping[str, AnyRule], live: LiveRules
) -> BucketViews:
    """Lock these buckets, after inserting missing rows, and return their views at the time of the lock.

    From then on, the time of the transaction is that of the lock.
    """
    wanted = BucketViews(rules, live, tx.limit_now).with_homes(draws)
    ids = sorted(bucket_id(draw) for draw in wanted)
    rows = await tx.lock(BUCKETS, "buckets_for_update", ids=ids) if ids else []
    while len(rows) < len(ids) and not tx.has_one_writer:
        # New, or deleted for being idle a moment ago.
        await ensure_rows(tx, wanted)
        rows = await tx.lock(BUCKETS, "buckets_for_update", ids=ids)
    views = BucketViews(rules, live, tx.limit_now)
    views.add(rows, wanted)
    await views.read_rivals(tx)
    return views


async def ensure_rows(tx: Transaction, draws: Iterable[Draw]) -> None:
    """Insert a row for each bucket that has none, so that it can be locked and lanes can wait behind it."""
    wanted = {(bucket_id(draw)): BucketName(bucket_id(draw), draw.limit, draw.key) for draw in draws}
    if not wanted:
        return
    missing = await tx.values("missing_buckets", wanted=list(wanted.values()))
    if missing:
        await tx.execute("ensure_buckets", wanted=[wanted[id] for id in missing], limit_now=tx.limit_now)


async def close_buckets(tx: Transaction, draws: Iterable[Draw], until: int) -> None:
    """Let nothing start on these buckets before that limit time."""
    rows = await lock_or_insert(tx, draws)
    if rows:
        await tx.execute("close_buckets", ids=[row.id for row in rows], until=until)
