"""What is done to buckets other than by claims, inside a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.jobs.job import Draw
from headgate.limits.concurrency import load_permits
from headgate.limits.limit import AnyRule
from headgate.storage.admission import BucketVisit
from headgate.storage.endings import limit_in_use
from headgate.storage.fetched import dump_balance, load_balance
from headgate.storage.json_text import limit_needle
from headgate.storage.live_rules import EditSetting, LimitSetting, edited
from headgate.storage.postgres.bucket_views import BucketViews, lock_buckets, lock_existing
from headgate.storage.postgres.database import Session
from headgate.storage.postgres.procedure_transaction import PostgresTransaction
from headgate.storage.postgres.server_time import StoreTime
from headgate.storage.postgres.settings import CachedRules, read_settings
from headgate.storage.procedures.waiting import release_idle
from headgate.storage.protocol import Amendment, Deposit
from headgate.storage.row_ids import bucket_id


class Buckets:
    """What plain code and operators do to buckets."""

    def __init__(self, session: Session, live: CachedRules, time: StoreTime, clock: Clock) -> None:
        self._session = session
        self._live = live
        self._time = time
        self._clock = clock

    async def amend(self, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule]) -> None:
        """Let starts count as what they were and when; a refund may open its bucket earlier."""
        await self._live.refresh(self._session)
        known = [amendment for amendment in amendments if amendment.draw.limit in rules]
        buckets, _ = await self._held([amendment.draw for amendment in known], rules)
        for amendment in known:
            buckets[amendment.draw].amend(amendment.charged_at, amendment.cost, amendment.started_at, amendment.actual)
        await buckets.charge(self._session)
        for draw in {amendment.draw for amendment in known if amendment.actual < amendment.cost}:
            await self._reopen(draw.limit, draw.key)

    async def visit(
        self, draw: Draw, rules: Mapping[str, AnyRule], look: Callable[[Any], Any], id: str | None
    ) -> tuple[Any, bool]:
        """Let plain code change a bucket; its answer, and whether it gave something back."""
        await self._live.refresh(self._session)
        buckets, limit_now = await self._held([draw], rules)
        bucket = bucket_id(draw)
        note = None
        if id is not None:
            note = await self._session.value("note", bucket=bucket, id=id, limit_now=limit_now)
        visit = BucketVisit(buckets[draw], limit_now, note)
        answer = look(visit)
        await buckets.charge(self._session)
        if id is not None and visit.noted_until is not None:
            await self._session.execute("keep_note", bucket=bucket, id=id, note=visit.note, until=visit.noted_until)
        if visit.reopens:
            await self._reopen(draw.limit, draw.key)
        return answer, visit.reopens

    async def _held(self, draws: Sequence[Draw], rules: Mapping[str, AnyRule]) -> tuple[BucketViews, int]:
        """The buckets, locked, and the limit time at which they are."""
        buckets = BucketViews(rules, self._live.rules, self._time.limit_now())
        wanted = buckets.with_homes(draws)
        sent_at = self._clock.monotonic()
        locked = await lock_existing(self._session, wanted, self._time.limit_now())
        limit_now = self._time.limit_now()
        if locked.clock is not None:
            now, ahead = locked.clock
            own = self._time.own()
            # A clock that has stepped is set right by the next claim; until then the time that was known goes on.
            stepped = self._time.heard(sent_at, now, ahead)
            limit_now = now + ahead - stepped if own is None else own.limit_now
        buckets = BucketViews(rules, self._live.rules, limit_now)
        buckets.add(locked.rows)
        await buckets.read_rivals(self._session)
        return buckets, limit_now

    async def deposit(self, deposits: Sequence[Deposit]) -> None:
        """Lay down what was fetched from elsewhere; who waits for it is looked at now, or when more can be fetched."""
        limit_now = self._time.limit_now()
        draws = [deposit.draw for deposit in deposits]
        await lock_existing(self._session, draws, limit_now)
        ids = [bucket_id(draw) for draw in draws]
        await self._session.execute(
            "charge",
            ids=ids,
            states=[dump_balance(deposit.balance) for deposit in deposits],
            idle_at=[deposit.balance.idle_at for deposit in deposits],
        )
        opens_at = [limit_now if deposit.balance.left else deposit.balance.opens_at for deposit in deposits]
        await self._session.execute("set_timers", ids=ids, opens_at=opens_at)

    async def withdraw(self, deposits: Sequence[Deposit]) -> list[int]:
        """Take what is left of deposits."""
        locked = await lock_buckets(self._session, [deposit.draw for deposit in deposits])
        states = {Draw(row.limit, row.key): row.state for row in locked.rows}
        left: list[int] = []
        emptied: list[tuple[str, str, int]] = []
        for deposit in deposits:
            balance = load_balance(states.get(deposit.draw))
            # Another deposit may lie there by now, and is another's to withdraw.
            mine = balance.left if balance.charged_at == deposit.balance.charged_at else 0
            left.append(mine)
            if mine:
                empty = replace(balance, left=0)
                emptied.append((bucket_id(deposit.draw), dump_balance(empty), empty.idle_at))
        if emptied:
            ids, new, idle_at = zip(*emptied, strict=True)
            await self._session.execute("charge", ids=ids, states=new, idle_at=idle_at)
        return left

    async def change(self, setting: LimitSetting, *, remove: bool) -> None:
        """Store or remove a setting; `reopen` has to follow when that is committed."""
        where = {"limit": setting.limit, "scope": setting.scope, "target": setting.target}
        if remove:
            await self._session.execute("unset_limit", **where)
        else:
            await self._session.execute(
                "set_limit", **where, rule=setting.rule, is_paused=setting.is_paused, tier=setting.tier
            )
        await self._session.execute("next_revision")
        await self._reopen_for(setting)

    async def edit_setting(self, about: LimitSetting, edit: EditSetting) -> LimitSetting | None:
        """Change a setting by what is set; what it has become, or None if that is no change."""
        # Where nothing is set there is no row to lock, and two first changes would not see each other.
        await self._session.fetch("lock_settings")
        becomes = edited(await read_settings(self._session), about, edit)
        if becomes is not None:
            await self.change(becomes, remove=becomes.sets_nothing)
        return becomes

    async def reopen(self, setting: LimitSetting) -> None:
        """Let the next claims look at who waits for a limit, under what is set about it by now."""
        # A claim that is under way under the old rules may be about to close a bucket.
        await self._session.fetch("lock_nodes")
        await self._reopen_for(setting)

    async def _reopen_for(self, setting: LimitSetting) -> None:
        await self._reopen(setting.limit, setting.target if setting.scope == "key" else None)

    async def reset(self, draw: Draw, now: int) -> int:
        """Forget a bucket; of permits those that no running job holds. How many are still held."""
        held = await release_idle(PostgresTransaction(self._session, now, self._time.limit_now()), draw)
        await self._session.execute("reset_bucket", id=bucket_id(draw), keep_state=held > 0)
        await self._reopen(draw.limit, draw.key or None)
        return held

    async def forget(self, limit: str) -> bool:
        """Delete a limit's settings and buckets, unless jobs need it; whether there were any."""
        # No claim may put a lane behind one of them meanwhile, or take a permit.
        await self._session.fetch("lock_nodes")
        await self._session.fetch("lock_limit", limit=limit)
        waiting = await self._session.value("waits_for_limit", needle=limit_needle(limit))
        states = [row[0] for row in await self._session.fetch("permits_of_limit", limit=limit)]
        held = sum(load_permits(state).held for state in states)
        if waiting or held:
            raise limit_in_use(limit, waiting, held)
        forgotten = await self._session.execute("forget_buckets", limit=limit)
        forgotten += await self._session.execute("forget_settings", limit=limit)
        if forgotten:
            await self._session.execute("next_revision")
        return forgotten > 0

    async def _reopen(self, limit: str, key: str | None = None) -> None:
        await self._session.execute("reopen", limit=limit, key=key, limit_now=self._time.limit_now())
