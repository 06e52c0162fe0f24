"""Steering limits while they are in use: what is set here beats the code, survives deploys, and holds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from headgate.admin.audit import Audited, LimitAudit, StartAudit
from headgate.admin.holders import PermitHolder, holders_of
from headgate.admin.spelled import RateKind, spelled_limit
from headgate.arguments import parse_instant, parse_until
from headgate.clock import Duration, to_datetime
from headgate.errors import DeclarationError, HeadgateError, UnknownLimit
from headgate.jobs.audit import Deed
from headgate.jobs.job import Draw
from headgate.limits.bucket_store import Bucket, BucketStore
from headgate.limits.concurrency import Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rule import NEVER, Snapshot
from headgate.limits.stored_rule import dump_rule
from headgate.storage.admission import FOR_ALL_KEYS, BucketView
from headgate.storage.live_rules import LimitSetting, LiveRules, Scope, is_pattern
from headgate.storage.protocol import BucketPlace, BucketRecord, RecordedStart, Storage
from headgate.storage.stored_rows import load_state

AUDITED_AT_ONCE = 250_000
"""Starts that an audit asks for at once; no more are ever in memory, however many are kept."""


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One limit for one key: how many starts count now, how many are left, how many jobs wait, when the next may go.

    `used` and `available` are None for a limit that this program does not declare. `is_set` says that another rule
    than the declared one was set for the key. A penalised bucket grants nothing until `penalized_until`. `holders` are
    told of a limit on what runs at once, where one key is asked for. `count` is how many its rule allows, in its period
    or at once; None where that is not one number. It `is_waited_for` as long as a lane of jobs waits behind it.
    """

    limit: str
    key: str
    rule: str | None
    used: int | None
    available: int | None
    waiting: int
    next_slot_at: datetime | None
    is_set: bool = False
    is_paused: bool = False
    penalized_until: datetime | None = None
    holders: Sequence[PermitHolder] = ()
    count: int | None = None
    is_waited_for: bool = False

    @property
    def place(self) -> BucketPlace:
        """Where it stands in a list."""
        return BucketPlace(self.is_waited_for, self.waiting, self.limit, self.key)


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """A limit as the code declares it: its name, its rule in words, and of which kind that is."""

    limit: str
    rule: str
    kind: str


class LimitsAdmin:
    """The limits of one app, whichever process runs the jobs."""

    def __init__(
        self, storage: Storage, rules: Mapping[str, AnyRule], elsewhere: Mapping[str, BucketStore], actor: str
    ) -> None:
        self.actor = actor
        self._storage = storage
        self._elsewhere = elsewhere
        self._rules = rules

    # ----------------------------------------------------------------------------------------------- looking

    async def list(
        self,
        limit: str | None = None,
        *,
        key: str | None = None,
        prefix: str | None = None,
        after: BucketPlace | None = None,
        count: int = 100,
    ) -> Sequence[BucketStatus]:
        """Limits by key, those with most waiting jobs first; `prefix` is how keys begin.

        `after` is the `place` of the last one of the page before.
        """
        live = LiveRules(await self._storage.settings())
        found: list[BucketStatus] = []
        for record in await self._storage.buckets(limit, key, count, prefix=prefix, after=after):
            holders = () if key is None else await holders_of(self._storage, record)
            found.append(await self._status(record, live, holders))
        return found

    async def bucket(self, limit: str, key: str = "") -> BucketStatus:
        """One limit for one key, also one that used nothing yet. Raises UnknownLimit if nothing is known of it."""
        if found := await self.list(limit, key=key, count=1):
            return found[0]
        self.declared(limit)
        live = LiveRules(await self._storage.settings())
        return await self._status(BucketRecord(Draw(limit, key), None, waiting=0, opens_at=None), live, ())

    async def throttled(self, count: int = 10) -> Sequence[BucketStatus]:
        """Those that jobs wait for, most waiting first."""
        live = LiveRules(await self._storage.settings())
        return [await self._status(record, live, ()) for record in await self._storage.throttled(count)]

    def all_declared(self) -> Sequence[DeclaredLimit]:
        """The limits that the code declares, by name."""
        return [DeclaredLimit(name, rule.describe(), rule.kind) for name, rule in sorted(self._rules.items())]

    async def settings(self, limit: str | None = None) -> Sequence[LimitSetting]:
        """What is set at run time, of one limit or of all."""
        return [setting for setting in await self._storage.settings() if limit in (None, setting.limit)]

    async def audit(self, limit: str, *, key: str | None = None, since: datetime | None = None) -> Sequence[Audited]:
        """Whether the limit held: for each key the most that started in any window, against what its rule allows.

        It looks at the starts of all jobs that are still kept, or those since then. Worst keys first. A rule that was
        changed meanwhile is judged as it is now.
        """
        return (await self._audit(limit, key, since, None)).verdicts

    async def audit_newest(
        self, limit: str, *, key: str | None = None, since: datetime | None = None, most: int = 50_000
    ) -> LimitAudit:
        """As `audit`, of the newest starts alone, at most so many, for whoever cannot wait for all of them."""
        return await self._audit(limit, key, since, most)

    async def _audit(self, limit: str, key: str | None, since: datetime | None, most: int | None) -> LimitAudit:
        rule = self.declared(limit)
        if isinstance(rule, Semaphore):
            raise DeclarationError(
                f"limit {limit!r} counts what runs at once, not starts; "
                f"`headgate limits list --limit {limit} --key KEY` shows who holds it"
            )
        live = LiveRules(await self._storage.settings())
        audit = StartAudit(limit, lambda of_key: live.rule(Draw(limit, of_key), rule))
        first = 0 if since is None else self._in_limit_time(parse_instant(since, "since", "limits"))
        # One more than is wanted tells whether there are more.
        count = AUDITED_AT_ONCE if most is None else min(AUDITED_AT_ONCE, most + 1)
        until, skip = NEVER, 0
        while True:
            page = await self._storage.starts(limit, key, first, until=until, skip=skip, count=count)
            wanted = page if most is None else page[: most - audit.starts]
            audit.take(wanted)
            is_cut = len(wanted) < len(page)
            if is_cut or len(page) < count:
                break
            skip = _of_instant(page, page[-1].started_at) + (skip if page[-1].started_at == until else 0)
            until = page[-1].started_at
        if is_cut:
            oldest = wanted[-1].started_at if wanted else until
            since = to_datetime(self._storage.now() + oldest - self._storage.limit_now())
        return LimitAudit(audit.verdicts(), audit.starts, since, is_cut)

    # ---------------------------------------------------------------------------------------------- steering

    async def set(self, limit: str, new: Limit, *, key: str | None = None, tier: str | None = None) -> None:
        """Let another rule hold until `unset`: for one key, a pattern of keys (`"stripe:*"`), a tier, or all keys.

        The most specific setting wins: key, tier, longest pattern, all. Everything that waits follows at once. What a
        key has used stays used. Raises UnknownLimit, DeclarationError.
        """
        declared = self.declared(limit)
        for kind in (Semaphore, SharedCounter):
            if isinstance(declared, kind) is not isinstance(new.rule, kind):
                raise DeclarationError(
                    f"limit {limit!r} is declared as {declared.describe()}, and cannot become {new.rule.describe()} "
                    "while it is in use; change it in the code"
                )
        scope, target = _scope(key, tier)
        if isinstance(declared, SharedCounter) and scope != "all":
            raise DeclarationError(f"limit {limit!r} shares one ceiling among its keys; set it for all of them")
        setting = await self._setting(limit, scope, target)
        rule = dump_rule(new.rule)
        await self._store(setting, f"set to {new.rule.describe()}", rule=rule, is_paused=setting.is_paused)

    async def set_rule(
        self,
        limit: str,
        rule: str,
        *,
        kind: RateKind | None = None,
        burst: int | None = None,
        slices: int | None = None,
        key: str | None = None,
        tier: str | None = None,
    ) -> None:
        """As `set`, with the rule as people spell it: "15/m", or a number for what runs at once.

        It is of the declared kind, unless another one is named; `burst` is of a rate, `slices` of a sliding window.
        """
        new = spelled_limit(self.declared(limit), rule, kind=kind, burst=burst, slices=slices)
        await self.set(limit, new, key=key, tier=tier)

    async def unset(self, limit: str, *, key: str | None = None, tier: str | None = None) -> bool:
        """Return to what the code declares; whether anything was set."""
        setting = await self._setting(limit, *_scope(key, tier))
        if setting.rule is None:
            return False
        await self._store(setting, "unset", rule=None, is_paused=setting.is_paused)
        return True

    async def assign(self, limit: str, key: str, tier: str | None) -> None:
        """Put a key, or all that match a pattern, into a tier, whose rule is set with `tier=`; None takes them out."""
        self.declared(limit)
        setting = LimitSetting(limit, "member", key, tier=tier)
        detail = f"{_told(setting)}: {'out of its tier' if tier is None else f'into tier {tier!r}'}"
        await self._storage.change(setting, remove=tier is None, deed=self._deed("assign", limit, detail))

    async def pause(self, limit: str, *, key: str | None = None, tier: str | None = None) -> None:
        """Let nothing start on it until `resume`; what runs goes on, and what waits loses nothing."""
        self.declared(limit)
        setting = await self._setting(limit, *_scope(key, tier))
        if setting.is_paused:
            return
        await self._store(setting, "pause", rule=setting.rule, is_paused=True)

    async def resume(self, limit: str, *, key: str | None = None, tier: str | None = None) -> bool:
        """End a pause; whether there was one."""
        setting = await self._setting(limit, *_scope(key, tier))
        if not setting.is_paused:
            return False
        await self._store(setting, "resume", rule=setting.rule, is_paused=False)
        return True

    async def reset(self, limit: str, key: str = "") -> int:
        """Forget what a key has used. Permits that running jobs hold stay held, and their number is returned.

        Of a dynamic window, which shares one ceiling, all keys are reset.
        """
        rule = self.declared(limit)
        if limit in self._elsewhere:
            await self._elsewhere[limit].open()
            await self._elsewhere[limit].reset(Bucket(limit, key, rule))
        deed = self._deed("reset", limit, f"key {key!r}")
        if isinstance(rule, SharedCounter) and key != FOR_ALL_KEYS:
            # The key's own bucket holds nothing but until when it is closed.
            await self._storage.reset(Draw(limit, key))
            key = FOR_ALL_KEYS
        return await self._storage.reset(Draw(limit, key), deed=deed)

    async def penalize(self, limit: str, key: str, until: datetime | Duration) -> None:
        """Let nothing start on a key until then: an aware datetime, or seconds from now. `reset` lifts it.

        Of a limit that is kept in another store, programs that share it hold back, too.
        """
        rule = self.declared(limit)
        closed_for = parse_until(until, "until", "penalize", self._storage.now())
        wall = self._storage.now() + closed_for
        if limit in self._elsewhere:
            await self._elsewhere[limit].open()
            await self._elsewhere[limit].penalize(Bucket(limit, key, rule), closed_for)
        deed = self._deed("penalize", limit, f"key {key!r} until {to_datetime(wall):%Y-%m-%d %H:%M:%S} UTC")
        await self._storage.penalize(Draw(limit, key), self._in_limit_time(wall), deed=deed)

    async def remove(self, limit: str) -> bool:
        """Forget a limit: its settings and what its keys have used; False if there was nothing to forget.

        Raises LimitInUse while jobs need it, UnknownLimit for one that is neither stored nor declared by this app.
        """
        was_there = await self._storage.forget(limit, deed=self._deed("remove", limit))
        if not was_there:
            self.declared(limit)
        return was_there

    # ----------------------------------------------------------------------------------------------- helpers

    def declared(self, limit: str) -> AnyRule:
        """The rule that the code declares. Raises UnknownLimit."""
        rule = self._rules.get(limit)
        if rule is None:
            raise UnknownLimit(
                f"this app declares no limit {limit!r}; it declares: {', '.join(sorted(self._rules)) or 'none'}"
            )
        return rule

    async def _setting(self, limit: str, scope: Scope, target: str) -> LimitSetting:
        for setting in await self._storage.settings():
            if (setting.limit, setting.scope, setting.target) == (limit, scope, target):
                return setting
        return LimitSetting(limit, scope, target)

    async def _store(self, setting: LimitSetting, action: str, *, rule: str | None, is_paused: bool) -> None:
        changed = LimitSetting(setting.limit, setting.scope, setting.target, rule, is_paused)
        deed = self._deed(action, setting.limit, _told(setting))
        await self._storage.change(changed, remove=rule is None and not is_paused, deed=deed)

    def _deed(self, action: str, limit: str, detail: str | None = None) -> Deed:
        return Deed(self.actor, action, "limit", limit, detail)

    def _in_limit_time(self, wall: int) -> int:
        return self._storage.limit_now() + wall - self._storage.now()

    def _in_wall_time(self, instant: int) -> datetime:
        return to_datetime(self._storage.now() + max(0, instant - self._storage.limit_now()))

    async def snapshot(self, record: BucketRecord, rule: AnyRule) -> Snapshot | None:
        """A bucket as people look at it; None if it is kept in another store that cannot be asked."""
        now = self._storage.limit_now()
        store = self._elsewhere.get(record.draw.limit)
        if store is None:
            state = None if record.state is None else load_state(rule, record.draw, record.state, now)
            return BucketView(record.draw, rule, state).snapshot(now)
        try:
            await store.open()
            seen = await store.snapshot(Bucket(record.draw.limit, record.draw.key, rule))
        except HeadgateError:
            return None
        # In its own time; here its slots are those that the local bucket knows of.
        return Snapshot(used=seen.used, available=seen.available, opens_at=max(now, record.opens_at or 0))

    async def _status(self, record: BucketRecord, live: LiveRules, holders: Sequence[PermitHolder]) -> BucketStatus:
        now = self._storage.limit_now()
        declared = self._rules.get(record.draw.limit)
        rule = None if declared is None else live.rule(record.draw, declared)
        snapshot = None if rule is None else await self.snapshot(record, rule)
        opens_at = record.opens_at
        if opens_at is None and snapshot is not None and not snapshot.available and snapshot.opens_at > now:
            # No job waits for it, so nobody has looked for it.
            opens_at = snapshot.opens_at
        return BucketStatus(
            limit=record.draw.limit,
            key=record.draw.key,
            rule=None if rule is None else rule.describe(),
            used=None if snapshot is None else snapshot.used,
            available=None if snapshot is None else snapshot.available,
            waiting=record.waiting,
            next_slot_at=None if opens_at is None or opens_at >= NEVER else self._in_wall_time(opens_at),
            is_set=live.is_set(record.draw),
            is_paused=live.is_paused(record.draw),
            penalized_until=self._in_wall_time(record.closed_until) if record.closed_until > now else None,
            holders=holders,
            count=getattr(rule, "count", None),
            is_waited_for=record.opens_at is not None,
        )


def _scope(key: str | None, tier: str | None) -> tuple[Scope, str]:
    if key is not None and tier is not None:
        raise DeclarationError("name a key or a tier, not both")
    if tier is not None:
        return "tier", tier
    if key is None:
        return "all", ""
    return ("pattern" if is_pattern(key) else "key"), key


def _told(setting: LimitSetting) -> str:
    """Whom a setting is for, in words."""
    return "all keys" if setting.scope == "all" else f"{setting.scope} {setting.target!r}"


def _of_instant(starts: Sequence[RecordedStart], instant: int) -> int:
    return sum(start.started_at == instant for start in starts)
