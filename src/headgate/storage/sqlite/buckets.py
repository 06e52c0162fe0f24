"""What is done to buckets other than by claims, inside a write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headgate.jobs.audit import Deed
from headgate.jobs.job import Draw
from headgate.limits.concurrency import load_permits
from headgate.limits.limit import AnyRule
from headgate.storage.admission import BucketVisit
from headgate.storage.driver import run_to_end
from headgate.storage.endings import limit_in_use
from headgate.storage.fetched import dump_balance, load_balance
from headgate.storage.live_rules import EditSetting, LimitSetting, edited
from headgate.storage.procedures.audit import keep_deed
from headgate.storage.procedures.waiting import release_idle
from headgate.storage.protocol import Amendment, Deposit
from headgate.storage.row_ids import bucket_id
from headgate.storage.sqlite.bucket_views import BucketViews
from headgate.storage.sqlite.procedure_transaction import SqliteTransaction
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.settings import CachedRules, decode_settings
from headgate.storage.sqlite.statements import as_json, execute, fetch

_decode_states = msgspec.json.Decoder(list[str]).decode


class Buckets:
    """Amends, resets and visits buckets, and changes the settings of limits, at one limit time."""

    def __init__(self, connection: sqlite3.Connection, live: CachedRules, tx: SqliteTransaction) -> None:
        self._connection = connection
        self._live = live
        self._limit_now = tx.limit_now
        self._tx = tx

    def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Let starts count as what they were and when; a refund may open its bucket earlier."""
        self._live.refresh(self._connection, fetch(self._connection, "revision"))
        known = [amendment for amendment in amendments if amendment.draw.limit in rules]
        buckets = BucketViews(self._connection, rules, self._live.rules, self._limit_now)
        buckets.read(amendment.draw for amendment in known)
        for amendment in known:
            buckets[amendment.draw].amend(amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual)
        buckets.charge()
        for draw in {amendment.draw for amendment in known if amendment.actual < amendment.cost}:
            self._reopen(draw.limit, draw.key)

    def deposit(self, deposits: Sequence[Deposit]) -> None:
        """Lay down what was fetched from elsewhere; who waits for it is looked at now, or when more can be fetched."""
        rows = [
            (bucket_id(d.draw), d.draw.limit, d.draw.key, dump_balance(d.balance), d.balance.idle_at) for d in deposits
        ]
        execute(self._connection, "charge", buckets=as_json(rows))
        timers = [
            (d.draw.limit, d.draw.key, self._limit_now if d.balance.left else d.balance.opens_at) for d in deposits
        ]
        execute(self._connection, "set_timers", buckets=as_json(timers))

    def withdraw(self, deposits: Sequence[Deposit]) -> list[int]:
        """Take what is left of deposits."""
        draws = as_json([deposit.draw for deposit in deposits])
        found = decode_buckets(fetch(self._connection, "buckets_of", draws=draws))
        states = {Draw(row.limit, row.key): row.state for row in found}
        left: list[int] = []
        emptied: list[tuple[str, str, str, str, int]] = []
        for deposit in deposits:
            balance = load_balance(states.get(deposit.draw))
            # Another deposit may lie there by now, and is another's to withdraw.
            mine = balance.left if balance.charged_at == deposit.balance.charged_at else 0
            left.append(mine)
            if mine:
                empty = replace(balance, left=0)
                emptied.append(
                    (bucket_id(deposit.draw), deposit.draw.limit, deposit.draw.key, dump_balance(empty), empty.idle_at)
                )
        if emptied:
            execute(self._connection, "charge", buckets=as_json(emptied))
        return left

    def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], Any], id: str | None
    ) -> tuple[Any, bool]:
        """Let plain code change a bucket; its answer, and whether it gave something back."""
        self._live.refresh(self._connection, fetch(self._connection, "revision"))
        buckets = BucketViews(self._connection, rules, self._live.rules, self._limit_now)
        buckets.read([draw])
        noted = {"limit": draw.limit, "key": draw.key, "id": id}
        note = None if id is None else fetch(self._connection, "note", **noted, limit_now=self._limit_now)
        visit = BucketVisit(buckets[draw], self._limit_now, note)
        answer = look(visit)
        if buckets.charge():
            execute(self._connection, "use_limit_time", limit_now=self._limit_now)
        if id is not None and visit.noted_until is not None:
            execute(self._connection, "keep_note", **noted, note=visit.note, until=visit.noted_until)
        if visit.reopens:
            self._reopen(draw.limit, draw.key)
        return answer, visit.reopens

    def change(self, setting: LimitSetting, deed: Deed | None, *, remove: bool) -> None:
        """Store or remove a setting; whoever waits for its limit is looked at under what holds now."""
        where = {"limit": setting.limit, "scope": setting.scope, "target": setting.target}
        if remove:
            execute(self._connection, "unset_limit", **where)
        else:
            execute(
                self._connection,
                "set_limit",
                **where,
                rule=setting.rule,
                is_paused=int(setting.is_paused),
                tier=setting.tier,
            )
        execute(self._connection, "next_revision")
        run_to_end(keep_deed(self._tx, deed))
        self._reopen(setting.limit, setting.target if setting.scope == "key" else None)

    def edit_setting(self, about: LimitSetting, edit: EditSetting, deed: Deed | None) -> bool:
        """Change a setting by what is set; whether that is a change."""
        becomes = edited(decode_settings(fetch(self._connection, "settings")), about, edit)
        if becomes is not None:
            self.change(becomes, deed, remove=becomes.sets_nothing)
        return becomes is not None

    def penalize(self, draw: Draw, until: int, deed: Deed | None) -> None:
        """Nothing starts on the bucket before that limit time."""
        run_to_end(keep_deed(self._tx, deed))
        execute(
            self._connection, "close_buckets", draws=as_json([(bucket_id(draw), draw.limit, draw.key)]), until=until
        )

    def reset(self, draw: Draw, deed: Deed | None) -> int:
        """Forget a bucket; of permits those that no running job holds. How many are still held."""
        run_to_end(keep_deed(self._tx, deed))
        held = run_to_end(release_idle(self._tx, draw))
        execute(self._connection, "reset_bucket", limit=draw.limit, key=draw.key, keep_state=int(held > 0))
        self._reopen(draw.limit, draw.key or None)
        return held

    def forget(self, limit: str, deed: Deed | None) -> bool:
        """Delete a limit's settings and buckets, unless jobs need it; whether there were any."""
        waiting = fetch(self._connection, "waits_for_limit", limit=limit)
        states = _decode_states(fetch(self._connection, "states_of_limit", limit=limit))
        held = sum(load_permits(state).held for state in states)
        if waiting or held:
            raise limit_in_use(limit, waiting, held)
        forgotten = execute(self._connection, "forget_buckets", limit=limit)
        forgotten += execute(self._connection, "forget_settings", limit=limit)
        if not forgotten:
            return False
        execute(self._connection, "next_revision")
        run_to_end(keep_deed(self._tx, deed))
        return True

    def _reopen(self, limit: str, key: str | None = None) -> None:
        execute(self._connection, "reopen", limit=limit, key=key, limit_now=self._limit_now)
