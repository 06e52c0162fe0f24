"""Limits: the budget of each key, and how to change it while jobs wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from headgate.admin import BucketStatus, DeclaredLimit, LimitSummary, WhatIf
from headgate.admin.audit import Audited, LimitAudit
from headgate.admin.set_rules import ListedSetting
from headgate.http.caller import Caller
from headgate.http.endpoint import JsonBody, Query, bad_request, require_limit
from headgate.http.jobs import ListedJobView, listed
from headgate.http.page import MOST, Count, Cursor, Key, Name, Page, from_cursor, page_of, to_cursor
from headgate.limits.kinds import RateKind
from headgate.storage.records import BucketPlace
from headgate.views import view_of

MOST_AUDITED = 10_000
"""How many starts one audit reads, in the process that serves."""

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Later instants cannot be represented in every time zone, nor by every clock."""


RuleText = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class LimitsQuery(Query, frozen=True, kw_only=True):
    limit: Name | None = None
    key: Key | None = None
    prefix: Annotated[Name | None, msgspec.Meta(description="How keys begin.")] = None
    before: Cursor | None = None
    count: Count = 50


class LimitQuery(Query, frozen=True, kw_only=True):
    limit: Name | None = None


class KeyQuery(Query, frozen=True, kw_only=True):
    key: Annotated[Key, msgspec.Meta(description="Empty for a limit without keys.")] = ""


class NextJobsQuery(KeyQuery, frozen=True, kw_only=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=20, description="How many at most.")] = 8


class WhatIfQuery(KeyQuery, frozen=True, kw_only=True):
    rule: Annotated[RuleText | None, msgspec.Meta(description='Another rule, as for `set`: "30/m".')] = None


class AuditQuery(Query, frozen=True, kw_only=True):
    key: Key | None = None
    span: Annotated[
        float, msgspec.Meta(ge=1, le=7 * 86400, description="The audit reads the starts of the last so many seconds.")
    ] = 3600


class SettingTarget(JsonBody, frozen=True, kw_only=True):
    """A key, a pattern of keys (`stripe:*`), or a tier; without any, all keys. A key is never read as a pattern."""

    key: Key | None = None
    pattern: Name | None = None
    tier: Name | None = None


class SetRequest(SettingTarget, frozen=True, kw_only=True):
    """Another rule: "15/m", or a number for what runs at once; `kind` if it is not of the declared kind."""

    rule: RuleText
    kind: RateKind | None = None
    burst: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    slices: Annotated[int, msgspec.Meta(ge=1, le=10**4)] | None = None


class KeyRequest(JsonBody, frozen=True, kw_only=True):
    """A key; empty for a limit without keys."""

    key: Key = ""


class PenalizeRequest(KeyRequest, frozen=True, kw_only=True):
    """A key, and for how many `seconds`, or `until` when, nothing starts on it."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)] | None = None
    until: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class AssignRequest(JsonBody, frozen=True, kw_only=True):
    """A key, or a pattern of keys (`stripe:*`), and its tier; null takes it out of its tier."""

    key: Key | None = None
    pattern: Name | None = None
    tier: Name | None


class LimitsPage(msgspec.Struct, frozen=True):
    """A page of keys; `next` is the cursor of the next page, null at the end. `limits` are those that are listed.

    Without a filter these are all that the app declares, and those of the keys of this page. The keys come by their
    waiting jobs if they are `is_ranked`, otherwise by limit and key.
    """

    items: Sequence[BucketStatus]
    limits: Sequence[LimitSummary]
    is_ranked: bool
    next: str | None = None


class LimitRules(msgspec.Struct, frozen=True):
    """The rule of a limit as the code declares it, null if this app does not, and the settings made at run time."""

    declared: DeclaredLimit | None
    settings: Sequence[ListedSetting]


class Reset(msgspec.Struct, frozen=True):
    """How many permits running jobs still hold."""

    permits_held: int


class AuditedPage(msgspec.Struct, frozen=True):
    """The worst keys of an audit; `keys` and `starts` are how many were read, all since `since`.

    It `is_cut` if there were more starts: then `since` is later than requested, and the limit may have been exceeded
    before.
    """

    items: Sequence[Audited]
    keys: int
    starts: int
    since: datetime
    is_cut: bool


async def limits(caller: Caller, query: LimitsQuery) -> LimitsPage:
    """Return limits by key, those with most waiting jobs first, and how many keys each limit tracks.

    If jobs wait for more than 5,000 keys, they are ordered by limit and key.
    """
    require_limit(caller, query.limit)
    found = await caller.admin.limits.list(
        query.limit,
        key=query.key,
        prefix=query.prefix,
        after=None if query.before is None else from_cursor(query.before, BucketPlace),
        count=query.count + 1,
    )
    page = page_of(found, query.count, lambda bucket: to_cursor(bucket.place))
    declared = [] if query.limit is not None else [each.limit for each in caller.admin.limits.all_declared()]
    names = {*declared, *(each.limit for each in page.items), *([] if query.limit is None else [query.limit])}
    return LimitsPage(
        items=page.items,
        limits=await caller.admin.limits.summary(*names) if names else [],
        is_ranked=await caller.admin.limits.is_ranked(),
        next=page.next,
    )


async def declared_limits(caller: Caller) -> Page[DeclaredLimit]:
    """Return the limits that this app declares."""
    return Page(caller.admin.limits.all_declared())


async def limit_settings(caller: Caller, query: LimitQuery) -> Page[ListedSetting]:
    """Return the settings made at run time, of one limit or of all."""
    return Page(await caller.admin.limits.set_rules(query.limit))


async def limit_rules(caller: Caller, limit: str) -> LimitRules:
    """Return the rule of a limit as this app declares it, and its settings made at run time."""
    declared = {each.limit: each for each in caller.admin.limits.all_declared()}
    return LimitRules(declared.get(limit), await caller.admin.limits.set_rules(limit))


async def next_jobs(caller: Caller, limit: str, query: NextJobsQuery) -> Page[ListedJobView]:
    """Return the waiting jobs of a key that start next, in their order, with their positions and predictions."""
    return Page(await listed(caller, await caller.admin.next_jobs(limit, query.key, count=query.count)))


async def what_if(caller: Caller, limit: str, query: WhatIfQuery) -> WhatIf:
    """Predict the backlog of a key under its rule (`now`), and under another `rule` (`then`); nothing is changed.

    No more jobs are taken to come, and only this limit is considered. `clears_at` is null if it cannot be predicted:
    for a paused key, for permits, and for a limit in another store.
    """
    return await caller.admin.limits.what_if(limit, query.key, query.rule)


async def bucket(caller: Caller, limit: str, query: KeyQuery) -> BucketStatus:
    """Return one limit for one key, with the holders of its permits; an unused key has its whole budget."""
    return await caller.admin.limits.bucket(limit, query.key)


async def audit_limit(caller: Caller, limit: str, query: AuditQuery) -> AuditedPage:
    """Check whether the limit was kept, recomputed from the stored starts; the 500 worst keys, worst first.

    It reads the newest 10,000 starts of that time. If there are more, request one key, or use `headgate limits audit`,
    which reads all.
    """

    async def audit() -> tuple[LimitAudit, datetime]:
        since = caller.admin.now() - timedelta(seconds=query.span)
        found = await caller.admin.limits.audit_newest(limit, key=query.key, since=since, most=MOST_AUDITED)
        return found, found.since or since

    found, since = await caller.reports.read(("audit", limit, query), audit)
    return view_of(AuditedPage, found, items=found.verdicts[:MOST], keys=len(found.verdicts), since=since)


async def pause_limit(caller: Caller, limit: str, body: SettingTarget) -> None:
    """Let nothing start on a limit until it is resumed; running jobs continue, and waiting jobs lose nothing."""
    await caller.admin.limits.pause(limit, key=body.key, pattern=body.pattern, tier=body.tier)


async def resume_limit(caller: Caller, limit: str, body: SettingTarget) -> bool:
    """End a pause."""
    return await caller.admin.limits.resume(limit, key=body.key, pattern=body.pattern, tier=body.tier)


async def set_limit(caller: Caller, limit: str, body: SetRequest) -> None:
    """Set another rule until it is unset; the most specific setting wins: key, tier, longest pattern, all."""
    await caller.admin.limits.set_rule(limit, **msgspec.structs.asdict(body))


async def unset_limit(caller: Caller, limit: str, body: SettingTarget) -> bool:
    """Return to the rule that the code declares."""
    return await caller.admin.limits.unset(limit, key=body.key, pattern=body.pattern, tier=body.tier)


async def reset_limit(caller: Caller, limit: str, body: KeyRequest) -> Reset:
    """Reset what a key has used; permits that running jobs hold stay held."""
    return Reset(await caller.admin.limits.reset(limit, body.key))


async def penalize_limit(caller: Caller, limit: str, body: PenalizeRequest) -> None:
    """Let nothing start on a key for that time; a reset ends it."""
    if body.until is not None and not caller.admin.now() < body.until < LATEST:
        raise bad_request("`until` must be an instant in the future, before the year 9999", pointer="/until")
    match body.seconds, body.until:
        case (float(until), None) | (None, datetime() as until):
            await caller.admin.limits.penalize(limit, body.key, until)
            return
    raise bad_request("send either `seconds` or `until`", pointer="")


async def assign_limit(caller: Caller, limit: str, body: AssignRequest) -> None:
    """Put a key, or all that match a pattern, into a tier, or take them out of it."""
    await caller.admin.limits.assign(limit, body.key, body.tier, pattern=body.pattern)


async def remove_limit(caller: Caller, limit: str) -> bool:
    """Delete a limit: its settings and what its keys have used. Refused while jobs need it."""
    was_there = await caller.admin.limits.remove(limit)
    if not was_there:
        # A limit that is neither stored nor declared may be a misspelt one.
        caller.admin.limits.declared(limit)
    return was_there
