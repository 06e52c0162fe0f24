"""Changes that plain code and operators make to limits and their buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.errors import LimitInUse
from headgate.jobs.audit import AuditRecord
from headgate.jobs.job import BucketRef
from headgate.limits.concurrency import load_permits
from headgate.limits.limit import AnyRule
from headgate.limits.rule import NEVER
from headgate.storage.admission import BucketView, BucketVisit
from headgate.storage.driver import Transaction
from headgate.storage.fetched import NOTHING, FetchedBalance, dump_balance, load_balance
from headgate.storage.live_rules import CachedRules, EditSetting, LimitSetting, edited, read_settings
from headgate.storage.procedures.audit import add_audit_record
from headgate.storage.procedures.buckets import (
    Charged,
    amend_starts,
    close_buckets,
    lock_buckets,
    lock_or_insert,
    lock_views,
)
from headgate.storage.procedures.finish import AttemptId, lock_attempts, still_running
from headgate.storage.procedures.waiting import release_idle
from headgate.storage.records import Amendment, Deposit, StartMove
from headgate.storage.statements import limit_needle
from headgate.storage.stored_rows import bucket_id


async def amend(
    tx: Transaction, amendments: Sequence[Amendment], rules: Mapping[str, AnyRule], live: CachedRules
) -> None:
    """As `Store.amend`."""
    await live.refresh(tx)
    rules = live.rules.usable(rules)
    known = [amendment for amendment in amendments if amendment.ref.limit in rules]
    buckets = await lock_views(tx, [amendment.ref for amendment in known], rules, live.rules)
    await amend_starts(tx, buckets, known)


async def move_starts(
    tx: Transaction, node: str, starts: Sequence[StartMove], rules: Mapping[str, AnyRule], live: CachedRules
) -> dict[AttemptId, int]:
    """As `Store.move_starts`.

    Where a start counts now is read from the row of the job: the reply of an earlier move may be lost.
    """
    await live.refresh(tx)
    rules = live.rules.usable(rules)
    known = {(start.id, start.fence): start for start in starts}
    running = await still_running(tx, node, known)
    buckets = await lock_views(
        tx, {ref for attempt in running for ref in known[attempt].buckets if ref.limit in rules}, rules, live.rules
    )
    moved: dict[AttemptId, int] = {}
    for attempt, job in (await lock_attempts(tx, node, running)).items():
        start, charged_at = known.get(attempt), job.charged_at
        if start is None or charged_at is None:
            continue
        charges = [
            (buckets[ref], cost) for ref, cost in zip(start.buckets, start.costs, strict=True) if ref.limit in rules
        ]
        if any(bucket.rule.counts_until(charged_at) <= tx.limit_now for bucket, _ in charges):
            continue
        at = moved[attempt] = max(charged_at, tx.limit_now + start.ahead)
        for bucket, cost in charges:
            bucket.amend(charged_at, cost, at, cost)
    if moved:
        await buckets.charge(tx)
        await tx.execute("settle_charges", settled=[(id, at, None) for (id, _), at in moved.items()])
    return moved


async def visit(
    tx: Transaction,
    ref: BucketRef,
    rules: Mapping[str, AnyRule],
    change: Callable[[Any], Any],
    id: str | None,
    live: CachedRules,
) -> tuple[Any, bool]:
    """As `Store.visit`. Returns the result of `change`, and whether permits or starts were returned.

    To a process that declares the limit as another family than the newest release, it is paused: its state is another.
    """
    await live.refresh(tx)
    if ref.limit not in live.rules.usable(rules):
        view = BucketView(ref, rules[ref.limit], None)
        view.closed_until = NEVER
        return change(BucketVisit(view, tx.limit_now, None)), False
    buckets = await lock_views(tx, [ref], rules, live.rules)
    noted = {"bucket": bucket_id(ref), "id": id}
    note = None if id is None else await tx.value("note_of_bucket", **noted, limit_now=tx.limit_now)
    visited = BucketVisit(buckets[ref], tx.limit_now, note)
    answer = change(visited)
    if await buckets.charge(tx) and tx.has_one_writer:
        # With several writers, heartbeats do it: every visit would wait for this row.
        await tx.execute("use_limit_time", limit_now=tx.limit_now)
    if id is not None and visited.noted_until is not None:
        await tx.execute("keep_note_of_bucket", **noted, note=visited.note, until=visited.noted_until)
    if visited.reopens:
        await reopen_limit(tx, ref.limit, ref.key)
    return answer, visited.reopens


async def deposit(tx: Transaction, deposits: Sequence[Deposit]) -> Sequence[FetchedBalance]:
    """Store starts that were fetched from another store, and wake the lanes behind. Returns what to give back."""
    found = {row.ref: load_balance(row.state) for row in await lock_or_insert(tx, [each.ref for each in deposits])}
    kept = {each.ref: each.balance.after(found[each.ref], tx.limit_now, each.period) for each in deposits}
    await tx.execute("charge", target=[_with_balance(ref, balance) for ref, balance in kept.items()])
    open_now = {each.ref for each in deposits if each.discards or kept[each.ref].left}
    timers = [(bucket_id(ref), tx.limit_now if ref in open_now else each.opens_at) for ref, each in kept.items()]
    await tx.execute("set_timers", timer=timers)
    return [each.balance if kept[each.ref] is found[each.ref] else found[each.ref] for each in deposits]


def _with_balance(ref: BucketRef, balance: FetchedBalance) -> Charged:
    """Return a bucket with a balance, as it is stored."""
    return Charged(bucket_id(ref), ref.limit, ref.key, dump_balance(balance), balance.idle_at)


async def withdraw(tx: Transaction, deposits: Sequence[Deposit]) -> Sequence[int]:
    """Remove what is left of these deposits, so that it can be given back. Returns how much was left of each."""
    own = {each.ref: each.balance.charged_at for each in deposits}
    found = {row.ref: load_balance(row.state) for row in await lock_buckets(tx, own)}
    # Another node may have stored a newer deposit there, which only it may withdraw.
    mine = {ref: balance for ref, balance in found.items() if balance.charged_at == own[ref]}
    emptied = [_with_balance(ref, replace(balance, left=0)) for ref, balance in mine.items() if balance.left]
    if emptied:
        await tx.execute("charge", target=emptied)
    return [mine.get(each.ref, NOTHING).left for each in deposits]


async def edit_setting(
    tx: Transaction, about: LimitSetting, edit: EditSetting, audit_record: AuditRecord | None
) -> LimitSetting | None:
    """As `Store.edit_setting`. Returns the new setting, None if nothing changes. `reopen` has to follow."""
    # Where nothing is set there is no row to lock, and two first changes would not see each other.
    await tx.values("lock_settings")
    becomes = edited(await read_settings(tx), about, edit)
    if becomes is None:
        return None
    where: dict[str, Any] = {"limit": becomes.limit, "scope": becomes.scope, "target": becomes.target}
    if becomes == LimitSetting(**where):
        await tx.execute("unset_limit", **where)
    else:
        await tx.execute("set_limit", **where, rule=becomes.rule, is_paused=becomes.is_paused, tier=becomes.tier)
    await tx.execute("next_revision")
    await reopen_limit(tx, becomes.limit, becomes.target if becomes.scope == "key" else None)
    await add_audit_record(tx, audit_record)
    return becomes


async def reopen(tx: Transaction, setting: LimitSetting) -> None:
    """Let the next claims visit the lanes that wait for a limit, under the new setting."""
    # A running claim under the old rules may be about to close a bucket.
    await tx.values("lock_nodes")
    await reopen_limit(tx, setting.limit, setting.target if setting.scope == "key" else None)


async def penalize(tx: Transaction, ref: BucketRef, until: int, *, audit_record: AuditRecord | None = None) -> None:
    """Let nothing start on a bucket before that limit time."""
    await close_buckets(tx, [ref], until)
    await add_audit_record(tx, audit_record)


async def reset(tx: Transaction, ref: BucketRef, *, audit_record: AuditRecord | None = None) -> int:
    """Reset a bucket and take back permits of jobs that are not running. Returns how many permits are still held.

    For a dynamic window, the bucket with the key "" is the state of all keys.
    """
    held = await release_idle(tx, ref)
    await tx.execute("reset_bucket", id=bucket_id(ref), keep_state=held > 0)
    await tx.execute("forget_notes_of_bucket", bucket=bucket_id(ref))
    await reopen_limit(tx, ref.limit, ref.key or None)
    await add_audit_record(tx, audit_record)
    return held


async def forget(tx: Transaction, limit: str, *, audit_record: AuditRecord | None = None) -> bool:
    """Delete a limit's settings and buckets; False if there were none, and then the audit record is not stored.

    Raises LimitInUse while jobs wait for it or hold its permits.
    """
    # Meanwhile, no claim may put a lane behind one of the buckets, or take a permit.
    await tx.values("lock_nodes")
    await tx.values("lock_limit", limit=limit)
    waiting = await tx.value("waits_for_limit", needle=limit_needle(limit))
    held = sum(load_permits(state).held for state in await tx.values("permits_of_limit", limit=limit))
    if waiting or held:
        raise LimitInUse(
            f"limit {limit!r} cannot be removed while it is in use (waiting jobs: {waiting}, held permits: {held}); "
            "cancel the jobs or let them finish first"
        )
    forgotten = await tx.execute("forget_buckets", limit=limit)
    if not tx.has_one_writer:
        forgotten += await tx.execute("reset_buckets", limit=limit, limit_now=tx.limit_now)
    forgotten += await tx.execute("forget_settings", limit=limit)
    if forgotten:
        await tx.execute("next_revision")
        await add_audit_record(tx, audit_record)
    return forgotten > 0


async def reopen_limit(tx: Transaction, limit: str, key: str | None = None) -> None:
    """Let the next claim visit the buckets of a limit that lanes wait behind: that of one key, or all."""
    if key is None:
        await tx.execute("reopen_limit", limit=limit, limit_now=tx.limit_now)
    else:
        await tx.execute("reopen_buckets", ids=[bucket_id(BucketRef(limit, key))], limit_now=tx.limit_now)
