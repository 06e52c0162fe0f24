"""Changing limits while they are in use: a setting precedes the code, survives deploys, and applies at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, MutableSequence, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from msgspec.structs import replace

from headgate.admin.audit import Audited, LimitAudit, StartAudit
from headgate.admin.columns import Column
from headgate.admin.holders import PermitHolder, holders_of
from headgate.admin.pauses import scope_text
from headgate.admin.set_rules import ListedSetting, SetRules
from headgate.arguments import parse_instant, parse_until
from headgate.clock import SECOND, Duration, to_datetime
from headgate.engine.remote_limits import GuardedStore
from headgate.errors import CostExceedsLimit, DeclarationError, HeadgateError, StorageUnavailable, UnknownLimit
from headgate.jobs.audit import AuditRecord
from headgate.jobs.history import KEPT_FOR, LIMIT_STEPS, step_at
from headgate.jobs.job import BucketRef
from headgate.jobs.query import JobQuery
from headgate.jobs.state import JobState
from headgate.limits.bucket_store import Bucket
from headgate.limits.concurrency import MUTEX
from headgate.limits.key import bucket_key
from headgate.limits.kinds import RateKind, dump_rule, spelled_limit
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rule import NEVER, Snapshot
from headgate.storage.admission import FOR_ALL_KEYS, BucketView
from headgate.storage.live_rules import EditSetting, LimitSetting, LiveRules, is_pattern, pattern_of
from headgate.storage.prediction import predict_backlog, predict_clear
from headgate.storage.records import (
    BacklogCounts,
    BucketPlace,
    BucketRecord,
    KeyBacklog,
    LimitBacklog,
)
from headgate.storage.store import Store
from headgate.storage.stored_rows import load_state
from headgate.suggestion import did_you_mean

AUDITED_AT_ONCE = 250_000
"""How many starts an audit reads at once; no more are in memory, however many are stored."""

MOST_MAPPED = 8
"""The number of limits whose worst keys are shown."""

MOST_THROTTLED = 10
"""How many keys that jobs wait for are listed."""

MOST_KEYS = 10_000
"""Up to how many keys of a limit are counted."""

BACKLOG_STEPS = 24
"""In how many steps a predicted backlog is returned."""


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """One limit for one key: how many starts count now, how many are left, how many jobs wait, when the next may start.

    `used` and `available` are None for a limit that this program does not declare. `is_set`: another rule than the
    declared one was set for the key; `setting` says for which keys, by whom, when, and what the code says. A penalized
    bucket grants nothing until `penalized_until`. `holders` are listed for a limit on what runs at once, if one key is
    requested. `count` is how many its rule allows, in its period or at once; None if that is not one number.
    `is_waited_for`: a lane of jobs waits behind it. `present` is the present rate of an adaptive rule, else None.
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
    present: str | None = None
    setting: str | None = None

    @property
    def place(self) -> BucketPlace:
        """Its position in a list."""
        return BucketPlace(self.is_waited_for, self.waiting, self.limit, self.key)


BUCKET_COLUMNS = (
    Column("limit", "Limit", only="cli"),
    Column("key", "Key"),
    Column("rule", "Rule"),
    Column("used", "Used", "count"),
    Column("available", "Available", "count", only="cli"),
    Column("budget", "Budget", only="cli"),
    Column("waiting", "Waiting", "count"),
    Column("next_slot_at", "Next slot", "until"),
    Column("note", "Note", only="cli"),
)


@dataclass(frozen=True, slots=True)
class LimitSummary:
    """How many keys of a limit are tracked, and how often it failed open in the last 24 hours.

    A key is tracked while part of its budget is used, or jobs wait for it; of over 10,000 keys, 10,000 are counted, and
    it is not `is_exact`. `unlimited` jobs started without the limit, because its own store was unavailable.
    """

    limit: str
    keys: int
    is_exact: bool
    unlimited: int


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """A key of a limit with `waiting` jobs: when the last of them may start (`clears_at`), if no more are enqueued.

    `clears_at` is None if that cannot be predicted: for a paused key, for permits, and for a limit in another store.
    """

    key: str
    waiting: int
    clears_at: datetime | None
    is_paused: bool = False
    penalized_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BacklogPoint:
    """How many jobs of a key still `waiting` at an instant."""

    at: datetime
    waiting: int


@dataclass(frozen=True, slots=True)
class PredictedBacklog:
    """The backlog of a key under a rule, if no more jobs are enqueued: when the last may start, and some points.

    `clears_at` is None, and there are no points, if no job waits or that cannot be predicted, as for `KeyStatus`.
    """

    rule: str
    clears_at: datetime | None
    points: Sequence[BacklogPoint] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The backlog of a key under its rule (`now`), and under another one (`then`) if one was given."""

    waiting: int
    now: PredictedBacklog
    then: PredictedBacklog | None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit: its rule in force for keys without a rule of their own, and how many jobs wait for how many keys.

    `rule` is None if this program does not declare the limit. `worst` are the keys with most waiting jobs, most first.
    """

    limit: str
    rule: str | None
    waiting: int
    keys: int
    is_paused: bool = False
    worst: Sequence[KeyStatus] = ()


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """A limit as the code declares it: its name, its rule in words, and its kind.

    It `counts_starts`, so that an audit can check it, unless it grants permits.
    """

    limit: str
    rule: str
    kind: str
    counts_starts: bool = True


class LimitsAdmin:
    """The limits of one app, whichever process runs the jobs."""

    def __init__(
        self,
        storage: Store,
        rules: Mapping[str, AnyRule],
        other_stores: Mapping[str, GuardedStore],
        actor: str,
        call_sizes: Mapping[str, int] = MappingProxyType({}),
        keyed: Set[str] = frozenset(),
        costs: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.actor = actor
        self._costs = costs
        self._keyed = keyed
        self._call_sizes = call_sizes
        self._storage = storage
        self._other_stores = other_stores
        self._rules = rules

    # ----------------------------------------------------------------------------------------------- reading

    def described(self, limit: str, rule: AnyRule) -> str:
        """Return a rule of the limit in words; if it counts the calls to a chunked task, they say that, too."""
        return f"{rule.describe()} per call" if limit in self._call_sizes else rule.describe()

    async def list(
        self,
        limit: str | None = None,
        *,
        key: str | None = None,
        prefix: str | None = None,
        after: BucketPlace | None = None,
        count: int = 100,
    ) -> Sequence[BucketStatus]:
        """Return limits by key, most waiting jobs first; `key` is one key, `prefix` is how keys begin.

        If jobs wait for more than 5,000 keys, they are ordered by limit and key.

        `after` is the last `place` on the previous page.
        """
        rules = await self._set_rules()
        found, away = list[BucketStatus](), list[GuardedStore]()
        key = None if key is None else bucket_key(key)
        for record in await self._storage.buckets(limit, key, count, prefix=prefix, after=after):
            holders = () if key is None else await holders_of(self._storage, record)
            found.append(await self.status_of(record, rules, holders, away))
        return found

    async def bucket(self, limit: str, key: str = "") -> BucketStatus:
        """Return one limit for one key, even if the key has used nothing yet. Raises UnknownLimit."""
        if found := await self.list(limit, key=key, count=1):
            return found[0]
        self.declared(limit)
        rules = await self._set_rules()
        return await self.status_of(
            BucketRecord(BucketRef(limit, bucket_key(key)), None, waiting=0, opens_at=None), rules, (), []
        )

    async def what_if(self, limit: str, key: str = "", rule: str | None = None) -> WhatIf:
        """Predict when the waiting jobs of a key have started: under its rule, and if `rule` were set for the key.

        Only this limit is considered. The rule is text as for `set_rule`, and refused as there; nothing is changed. It
        reads only the oldest job.
        """
        declared, ref = self.declared(limit), BucketRef(limit, bucket_key(key))
        new = None if rule is None else spelled_limit(declared, rule)
        if new is not None:
            self._require_settable(_about(limit, key, None, None), new)
        live = LiveRules(await self._storage.settings())
        found = await self._storage.buckets(limit, ref.key, 1)
        bucket = found[0] if found else BucketRecord(ref, None, waiting=0, opens_at=None)
        oldest = await self._storage.page(
            JobQuery(state=JobState.WAITING, limit=limit, key=ref.key).filter(count=1, oldest_first=True)
        )
        cost = 1
        for job in oldest.items:
            cost = dict(zip(job.buckets, job.costs or (), strict=False)).get(ref, 1)
            position = await self._storage.queue_position(job.id)
            if position is not None and job.run_at <= self._storage.now():
                # No lane waits behind an open bucket: before the first claim, and after its rule has changed.
                bucket = replace(bucket, waiting=max(bucket.waiting, position.waiting))
        call = self._call_sizes.get(limit, 1)
        is_predictable = not live.is_paused(ref) and limit not in self._other_stores

        def predicted(rule: AnyRule) -> PredictedBacklog:
            now = self._storage.limit_now()
            steps = predict_backlog(bucket, rule, now, cost, BACKLOG_STEPS, call) if is_predictable else ()
            # Whole seconds, as in `KeyStatus`.
            points = [BacklogPoint(self._in_wall_time(at).replace(microsecond=0), waiting) for at, waiting in steps]
            return PredictedBacklog(rule.describe(), points[-1].at if points else None, points)

        return WhatIf(bucket.waiting, predicted(live.rule(ref, declared)), None if new is None else predicted(new.rule))

    async def statuses(self, counted: BacklogCounts) -> tuple[Sequence[LimitStatus], Sequence[BucketStatus]]:
        """Return all limits that are declared or waited for, most waiting jobs first, and the ten worst keys of all.

        The eight limits that most jobs wait for have their worst keys. The limit of all mutexes, which every app has,
        is left out while no job waits for it.
        """
        rules = await self._set_rules()
        live, now = rules.live, self._storage.limit_now()
        worst: dict[str, list[KeyStatus]] = {each.limit: [] for each in counted.limits[:MOST_MAPPED]}
        for each in counted.worst:
            if each.bucket.ref.limit in worst:
                worst[each.bucket.ref.limit].append(self._key_status(each, live, now))
        found, away = list[LimitStatus](), list[GuardedStore]()
        backlogs = {each.limit: each for each in counted.limits}
        for limit in [*backlogs, *sorted(self._rules.keys() - backlogs.keys() - {MUTEX})]:
            backlog = backlogs.get(limit, LimitBacklog(limit, 0, 0))
            rule, every_key = self._rules.get(limit), BucketRef(limit, FOR_ALL_KEYS)
            in_force = None if rule is None else self.described(limit, live.rule(every_key, rule))
            is_paused = live.is_paused(every_key)
            found.append(LimitStatus(limit, in_force, backlog.jobs, backlog.keys, is_paused, worst.get(limit, ())))
        return found, [await self.status_of(each.bucket, rules, (), away) for each in counted.worst[:MOST_THROTTLED]]

    def _key_status(self, backlog: KeyBacklog, live: LiveRules, now: int) -> KeyStatus:
        bucket, ref = backlog.bucket, backlog.bucket.ref
        declared, is_paused = self._rules.get(ref.limit), live.is_paused(ref)
        clears_at = None
        if declared is not None and not is_paused and ref.limit not in self._other_stores:
            call = self._call_sizes.get(ref.limit, 1)
            clears_at = predict_clear(bucket, live.rule(ref, declared), now, backlog.cost, call)
        return KeyStatus(
            key=ref.key,
            waiting=bucket.waiting,
            # Whole seconds: the clock of limits differs from the wall clock by a little more or less at each reading.
            clears_at=None if clears_at is None else self._in_wall_time(clears_at).replace(microsecond=0),
            is_paused=is_paused,
            penalized_until=self._in_wall_time(bucket.closed_until) if bucket.closed_until > now else None,
        )

    async def is_ranked(self) -> bool:
        """Whether `list` has keys with most waiting jobs first; if jobs wait for over 5,000 keys, they come by name."""
        return await self._storage.is_ranked()

    async def summary(self, *limits: str) -> Sequence[LimitSummary]:
        """Return how many keys these limits track, and how often they failed open; default: all declared ones.

        That of mutexes, which every app has, is left out beside others if it has no keys.
        """
        step = LIMIT_STEPS[-1]
        since = step_at(self._storage.now() - KEPT_FOR[step] * SECOND, step) + step * SECOND
        names = sorted(set(limits or self._rules))
        found = await self._storage.limit_figures(names, step=step, since=since, most=MOST_KEYS + 1)
        return [
            LimitSummary(each.limit, min(each.keys, MOST_KEYS), each.keys <= MOST_KEYS, each.unlimited)
            for each in found
            if each.keys or each.limit != MUTEX or limits == (MUTEX,)
        ]

    async def paused(self, buckets: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of these, each a limit and a key, on which nothing starts because they are paused."""
        live = LiveRules(await self._storage.settings())
        return frozenset((limit, key) for limit, key in buckets if live.is_paused(BucketRef(limit, key)))

    def all_declared(self) -> Sequence[DeclaredLimit]:
        """Return the limits that the code declares, by name."""
        return [
            DeclaredLimit(name, self.described(name, rule), rule.kind, counts_starts=not rule.holds_permits)
            for name, rule in sorted(self._rules.items())
        ]

    async def settings(self, limit: str | None = None) -> Sequence[LimitSetting]:
        """Return what was set at run time, for one limit or for all."""
        stored = await self._storage.settings()
        return [each for each in stored if each.scope != "declared" and limit in (None, each.limit)]

    async def set_rules(self, limit: str | None = None) -> Sequence[ListedSetting]:
        """Return the settings of `settings`, each with its rule in words, who set it and when."""
        rules = await self._set_rules()
        return [await rules.listed(each, self._rules.get(each.limit)) for each in await self.settings(limit)]

    async def _set_rules(self) -> SetRules:
        return SetRules(self._storage, LiveRules(await self._storage.settings()))

    async def audit(self, limit: str, *, key: str | None = None, since: datetime | None = None) -> Sequence[Audited]:
        """Check whether a limit was kept: for each key, the most that started in any window, and what its rule allows.

        It reads the starts of all jobs that are still stored, or those since `since`. Worst keys first. Past starts are
        checked against the current rule.
        """
        return (await self._audit(limit, key, since, None)).verdicts

    async def audit_newest(
        self, limit: str, *, key: str | None = None, since: datetime | None = None, most: int = 50_000
    ) -> LimitAudit:
        """As `audit`, for the newest starts only, at most `most`, so that it takes a bounded time.

        Raises SearchTooLong and TooManySearches.
        """
        return await self._audit(limit, key, since, most)

    async def _audit(self, limit: str, key: str | None, since: datetime | None, most: int | None) -> LimitAudit:
        rule = self.declared(limit)
        if rule.holds_permits:
            raise DeclarationError(
                f"limit {limit!r} counts what runs at once, not starts; "
                f"`headgate limits list --limit {shlex.quote(limit)} --key KEY` shows its holders"
            )
        key = None if key is None else bucket_key(key)
        live = LiveRules(await self._storage.settings())
        audit = StartAudit(limit, lambda of_key: live.rule(BucketRef(limit, of_key), rule))
        first = 0 if since is None else self._in_limit_time(parse_instant(since, "since", "limits"))
        # One more than needed shows whether there are more.
        count = AUDITED_AT_ONCE if most is None else min(AUDITED_AT_ONCE, most + 1)
        until, skip = NEVER, 0
        read = self._storage.starts if most is None else self._storage.bounded_starts
        while True:
            page = await read(limit, key, first, until=until, skip=skip, count=count)
            starts = page if most is None else page[: most - audit.starts]
            audit.take(starts)
            is_cut = len(starts) < len(page)
            if is_cut or len(page) < count:
                break
            last = page[-1].started_at
            skip = sum(start.started_at == last for start in page) + (skip if last == until else 0)
            until = last
        if is_cut:
            oldest = starts[-1].started_at if starts else until
            since = to_datetime(self._storage.now() + oldest - self._storage.limit_now())
        return LimitAudit(audit.verdicts(), audit.starts, since, is_cut)

    # ---------------------------------------------------------------------------------------------- changing

    async def set(
        self, limit: str, new: Limit, *, key: str | None = None, pattern: str | None = None, tier: str | None = None
    ) -> None:
        """Set another rule until `unset`: for one key, a pattern of keys (`"stripe:*"`), a tier, or all keys.

        The most specific setting wins: key, tier, longest pattern, all. It applies to all waiting jobs at once. Each
        key keeps what it has already used. A `key` is taken literally, even with pattern characters. Raises
        UnknownLimit, and DeclarationError for a rule that does not fit the limit or its store, or grants no cost.
        """
        about = _about(limit, key, pattern, tier)
        self._require_settable(about, new)
        rule = dump_rule(new.rule)
        await self._edit(about, f"set to {new.rule.describe()}", lambda setting: replace(setting, rule=rule))

    async def set_rule(
        self,
        limit: str,
        rule: str,
        *,
        kind: RateKind | None = None,
        burst: int | None = None,
        slices: int | None = None,
        key: str | None = None,
        pattern: str | None = None,
        tier: str | None = None,
    ) -> str:
        """As `set`, with the rule as text: "15/m", or a number for what runs at once. Return the new rule in words.

        It is of the declared kind, unless `kind` names another one; `burst` is for a rate, `slices` for a sliding
        window.
        """
        new = spelled_limit(self.declared(limit), rule, kind=kind, burst=burst, slices=slices)
        await self.set(limit, new, key=key, pattern=pattern, tier=tier)
        return new.rule.describe()

    async def unset(
        self, limit: str, *, key: str | None = None, pattern: str | None = None, tier: str | None = None
    ) -> bool:
        """Return to the rule that the code declares. Returns whether a rule was set. A pause stays."""
        about = _about(limit, key, pattern, tier)
        return await self._edit(about, "unset", lambda setting: replace(setting, rule=None))

    async def assign(
        self, limit: str, key: str | None = None, tier: str | None = None, *, pattern: str | None = None
    ) -> None:
        """Put a key, or all that match a pattern, into a tier, whose rule is set with `tier=`; None takes them out."""
        self.declared(limit)
        if (key is None) == (pattern is None):
            raise DeclarationError("name either the key= or the pattern= of keys that the tier is for")
        # Stored as a pattern in both cases.
        target = _pattern(pattern) if key is None else pattern_of(bucket_key(key))
        about = LimitSetting(limit, "member", target)
        tier = None if tier is None else _tier(tier)
        keys = f"pattern {pattern!r}" if key is None else f"key {key!r}"
        detail = f"{keys}: {'out of its tier' if tier is None else f'into tier {tier!r}'}"
        audit_record = self._audit_record("assign", limit, detail)
        await self._storage.edit_setting(about, lambda setting: replace(setting, tier=tier), audit_record=audit_record)

    async def pause(
        self, limit: str, *, key: str | None = None, pattern: str | None = None, tier: str | None = None
    ) -> None:
        """Let nothing start on it until `resume`; running jobs continue, and waiting jobs lose nothing."""
        self.declared(limit)
        about = _about(limit, key, pattern, tier)
        await self._edit(about, "pause", lambda setting: replace(setting, is_paused=True))

    async def resume(
        self, limit: str, *, key: str | None = None, pattern: str | None = None, tier: str | None = None
    ) -> bool:
        """End a pause. Returns whether there was one. Rules that were set stay set."""
        about = _about(limit, key, pattern, tier)
        return await self._edit(about, "resume", lambda setting: replace(setting, is_paused=False))

    async def reset(self, limit: str, key: str = "") -> int:
        """Reset what a key has used. Permits that running jobs hold stay held; returns how many.

        For a dynamic window, which shares one ceiling, all keys are reset.
        """
        rule, key = self.declared(limit), bucket_key(key)
        if not rule.shares_state:
            self._require_key(limit, key)
        if limit in self._other_stores:
            await self._other_stores[limit].reset(await self._bucket(limit, key))
        audit_record = self._audit_record("reset", limit, f"key {key!r}")
        if rule.shares_state and key != FOR_ALL_KEYS:
            # The key's own bucket only stores until when it is closed.
            await self._storage.reset(BucketRef(limit, key))
            key = FOR_ALL_KEYS
        return await self._storage.reset(BucketRef(limit, key), audit_record=audit_record)

    async def penalize(self, limit: str, key: str, until: datetime | Duration) -> None:
        """Let nothing start on a key until then: an aware datetime, or seconds from now. `reset` ends it.

        For a limit that is kept in another store, all programs that share it hold back.
        """
        self.declared(limit)
        key = bucket_key(key)
        self._require_key(limit, key)
        closed_for = parse_until(until, self._storage.now())
        wall = self._storage.now() + closed_for
        if limit in self._other_stores:
            await self._other_stores[limit].penalize(await self._bucket(limit, key), closed_for)
        audit_record = self._audit_record(
            "penalize", limit, f"key {key!r} until {to_datetime(wall):%Y-%m-%d %H:%M:%S} UTC"
        )
        await self._storage.penalize(BucketRef(limit, key), self._in_limit_time(wall), audit_record=audit_record)

    async def remove(self, limit: str) -> bool:
        """Delete a limit: its settings and what its keys have used; False if nothing was stored.

        Raises LimitInUse while jobs need it.
        """
        return await self._storage.forget(limit, audit_record=self._audit_record("remove", limit))

    # ----------------------------------------------------------------------------------------------- helpers

    def declared(self, limit: str) -> AnyRule:
        """Return the rule that the code declares. Raises UnknownLimit."""
        rule = self._rules.get(limit)
        if rule is None:
            raise UnknownLimit(
                f"this app declares no limit {limit!r}{did_you_mean(limit, self._rules)} It declares: "
                f"{', '.join(sorted(self._rules.keys() - {MUTEX})) or 'none'}"
            )
        return rule

    def _require_key(self, limit: str, key: str) -> None:
        if not key and limit in self._keyed:
            raise DeclarationError(
                f"limit {limit!r} has a budget for each key, and none without; pass a key, or --key KEY to the command"
            )

    async def _bucket(self, limit: str, key: str) -> Bucket:
        """Return a bucket in another store, under the rule in force."""
        live = LiveRules(await self._storage.settings())
        return Bucket(limit, key, live.rule(BucketRef(limit, key), self.declared(limit)))

    def _require_settable(self, about: LimitSetting, new: Limit) -> None:
        limit, declared = about.limit, self.declared(about.limit)
        if new.rule.family != declared.family:
            raise DeclarationError(
                f"limit {limit!r} is declared as {declared.describe()}, and cannot become {new.rule.describe()} "
                "while it is in use; change it in the code"
            )
        if declared.shares_state and about.scope != "all":
            raise DeclarationError(f"limit {limit!r} shares one ceiling among its keys; set it for all of them")
        try:
            new.rule.check_cost(self._costs.get(limit, 1))
        except CostExceedsLimit as error:
            raise DeclarationError(f"limit {limit!r}: {error}. To hold its jobs back, pause it") from None
        if limit in self._other_stores:
            self._other_stores[limit].check_rule(new.rule, limit)

    async def _edit(self, about: LimitSetting, action: str, edit: EditSetting) -> bool:
        audit_record = self._audit_record(action, about.limit, scope_text(about))
        return await self._storage.edit_setting(about, edit, audit_record=audit_record)

    def _audit_record(self, action: str, limit: str, detail: str | None = None) -> AuditRecord:
        return AuditRecord(self.actor, action, "limit", limit, detail)

    def _in_limit_time(self, wall: int) -> int:
        return self._storage.limit_now() + wall - self._storage.now()

    def _in_wall_time(self, instant: int) -> datetime:
        return to_datetime(self._storage.now() + max(0, instant - self._storage.limit_now()))

    async def snapshot(
        self, record: BucketRecord, rule: AnyRule, away: MutableSequence[GuardedStore]
    ) -> Snapshot | None:
        """Return what is shown of a bucket; None if its rule raises, or another store that has it cannot be reached.

        A store that does not answer is added to `away`; those in it are not asked, as each would be waited for again.
        """
        now = self._storage.limit_now()
        store = self._other_stores.get(record.ref.limit)
        if store is None:
            state = None if record.state is None else load_state(rule, record.ref, record.state, now)
            view = BucketView(record.ref, rule, state)
            try:
                return view.snapshot(now)
            except Exception as error:
                view.log_flaw(error)
                return None
        if store in away:
            return None
        try:
            seen = await store.snapshot(Bucket(record.ref.limit, record.ref.key, rule))
        except HeadgateError as error:
            if isinstance(error, StorageUnavailable) and not error.has_answered:
                away.append(store)
            return None
        # `seen.opens_at` is in the other store's time; the local bucket has its opening in local time.
        return replace(seen, opens_at=max(now, record.opens_at or 0))

    async def status_of(
        self,
        record: BucketRecord,
        rules: SetRules,
        holders: Sequence[PermitHolder],
        away: MutableSequence[GuardedStore],
    ) -> BucketStatus:
        """Return a stored bucket as it is shown; `away` as in `snapshot`."""
        now = self._storage.limit_now()
        live, declared = rules.live, self._rules.get(record.ref.limit)
        rule = None if declared is None else live.rule(record.ref, declared)
        snapshot = None if rule is None else await self.snapshot(record, rule, away)
        opens_at = record.opens_at
        if (opens_at or 0) <= now and snapshot is not None and not snapshot.available and snapshot.opens_at > now:
            # No job waits for it, or no claim has visited it since its rule was changed: no stored time is in force.
            opens_at = snapshot.opens_at
        penalized_until = record.closed_until if record.closed_until > now else None
        if penalized_until is not None:
            opens_at = max(opens_at or 0, penalized_until)
        setting = live.setting(record.ref, declared)
        set_rule = None if setting is None else await rules.of(setting, declared)
        return BucketStatus(
            limit=record.ref.limit,
            key=record.ref.key,
            rule=None if rule is None else self.described(record.ref.limit, rule),
            used=None if snapshot is None else snapshot.used,
            available=None if snapshot is None else snapshot.available,
            waiting=record.waiting,
            next_slot_at=None if opens_at is None or opens_at >= NEVER else self._in_wall_time(opens_at),
            is_set=setting is not None,
            setting=None if set_rule is None else str(set_rule),
            is_paused=live.is_paused(record.ref),
            penalized_until=None if penalized_until is None else self._in_wall_time(penalized_until),
            holders=holders,
            count=None if rule is None else rule.count,
            is_waited_for=record.opens_at is not None,
            present=None if snapshot is None else snapshot.present,
        )


def _about(limit: str, key: str | None, pattern: str | None, tier: str | None) -> LimitSetting:
    """Return the setting for these keys, with nothing set."""
    if sum(each is not None for each in (key, pattern, tier)) > 1:
        raise DeclarationError("pass only one of key=, pattern= and tier=; for all keys, pass none")
    if tier is not None:
        return LimitSetting(limit, "tier", _tier(tier))
    if pattern is not None:
        return LimitSetting(limit, "pattern", _pattern(pattern))
    return LimitSetting(limit, "all") if key is None else LimitSetting(limit, "key", bucket_key(key))


def _pattern(pattern: str | None) -> str:
    if pattern is None or not is_pattern(pattern):
        raise DeclarationError(f"pattern={pattern!r} has no *, ? or [; for a single key, pass key={pattern!r}")
    return pattern


def _tier(tier: str) -> str:
    if not tier:
        raise DeclarationError("tier='' is no name of a tier; for all keys, leave tier= out")
    return tier
