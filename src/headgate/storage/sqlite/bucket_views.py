"""Buckets as admission sees them, read from their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from headgate.jobs.job import Draw
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import FOR_ALL_KEYS, BucketView
from headgate.storage.live_rules import LiveRules
from headgate.storage.row_ids import bucket_id
from headgate.storage.sqlite.rows import BucketRow, decode_buckets, decode_keys
from headgate.storage.sqlite.statements import as_json, execute, fetch
from headgate.storage.stored_rows import load_state


class BucketViews:
    """The buckets that one transaction looks at: one view each, judged by the rule that holds for its key now."""

    def __init__(
        self, connection: sqlite3.Connection, rules: Mapping[str, AnyRule], live: LiveRules, limit_now: int
    ) -> None:
        self._connection = connection
        self._rules = rules
        self._live = live
        self._limit_now = limit_now
        self._found: dict[Draw, BucketView] = {}

    def __getitem__(self, draw: Draw) -> BucketView:
        return self._found[draw]

    def of(self, row: BucketRow) -> BucketView:
        """The view of a row that was read."""
        draw = Draw(row.limit, row.key)
        view = self._found.get(draw)
        if view is None:
            view = self._found[draw] = self._make(draw, row)
        return view

    def read(self, draws: Iterable[Draw]) -> None:
        """Make sure that these have a view."""
        missing = {draw for draw in draws if draw not in self._found}
        if not missing:
            return
        for row in decode_buckets(fetch(self._connection, "buckets_of", draws=as_json(list(missing)))):
            self.of(row)
        for draw in missing:
            if draw not in self._found:
                self._found[draw] = self._make(draw, None)

    def charge(self) -> bool:
        """Write the states that have changed; whether there were any."""
        rows = [
            (bucket_id(view.draw), view.draw.limit, view.draw.key, *view.stored)
            for view in self._found.values()
            if view.charged
        ]
        if rows:
            execute(self._connection, "charge", buckets=as_json(rows))
        return bool(rows)

    def _make(self, draw: Draw, row: BucketRow | None) -> BucketView:
        rule = self._live.rule(draw, self._rules[draw.limit])
        view = BucketView(draw, rule, None)
        if row is not None:
            view.id, view.opens_at, view.closed_until = row.id, row.opens_at, row.closed_until
            if row.state is not None:
                view.state = load_state(rule, draw, row.state, self._limit_now)
                # Carried over from other numbers as of now, it has to be kept as of now.
                view.charged = rule.dump(view.state) != row.state
        if self._live.is_paused(draw):
            view.closed_until = NEVER
        if rule.shares_state and draw.key != FOR_ALL_KEYS:
            view.home = self._home(draw.limit)
        return view

    def _home(self, limit: str) -> BucketView:
        """The bucket in which a limit keeps the state of all its keys; it knows which of them want to start now."""
        draw = Draw(limit, FOR_ALL_KEYS)
        if draw not in self._found:
            self.read([draw])
            self._found[draw].rivals = decode_keys(
                fetch(self._connection, "rivals", limit=limit, limit_now=self._limit_now)
            )
        return self._found[draw]


def ensure_rows(connection: sqlite3.Connection, draws: Sequence[Draw], limit_now: int) -> None:
    """Give buckets a row that lanes can wait behind, where they have none yet."""
    execute(
        connection,
        "ensure_buckets",
        draws=as_json([(bucket_id(draw), draw.limit, draw.key) for draw in draws]),
        limit_now=limit_now,
    )
