"""Limits: the budget of each key, and how to steer it while jobs wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec

from headgate.admin import BucketStatus, DeclaredLimit
from headgate.http.caller import Caller
from headgate.http.endpoint import Acknowledgement, Endpoint, JsonBody, Query, acts, reads, removes
from headgate.http.http_error import HttpError
from headgate.http.page import MOST, Count, Cursor, Key, Name, Page, from_cursor, to_cursor
from headgate.limits.kinds import RateKind
from headgate.storage.live_rules import Scope
from headgate.storage.records import BucketPlace

MOST_AUDITED = 50_000
"""Starts that one audit looks at: they are read and judged in the process that serves."""

LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Instants after it cannot be told in every time zone, nor on every clock."""


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


class AuditQuery(Query, frozen=True, kw_only=True):
    key: Key | None = None
    span: Annotated[
        float, msgspec.Meta(ge=1, le=7 * 86400, description="Which starts are looked at: those of so many seconds.")
    ] = 3600


class SettingTarget(JsonBody, frozen=True, kw_only=True):
    """A key, a pattern of keys (`stripe:*`), or a tier; without any, all keys. A key is never taken for a pattern."""

    key: Key | None = None
    pattern: Name | None = None
    tier: Name | None = None


class SetRequest(SettingTarget, frozen=True, kw_only=True):
    """Another rule: "15/m", or a number for what runs at once; of another kind than declared, if that is named."""

    rule: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    kind: RateKind | None = None
    burst: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None
    slices: Annotated[int, msgspec.Meta(ge=1, le=10**4)] | None = None


class KeyRequest(JsonBody, frozen=True, kw_only=True):
    """A key; empty for a limit without keys."""

    key: Key = ""


class PenalizeRequest(JsonBody, frozen=True, kw_only=True):
    """A key, and for how many `seconds`, or `until` when, nothing starts on it."""

    key: Key = ""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86400)] | None = None
    until: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class AssignRequest(JsonBody, frozen=True, kw_only=True):
    """A key, or a pattern of keys (`stripe:*`), and its tier; null takes it out."""

    key: Key | None = None
    pattern: Name | None = None
    tier: Name | None


class SettingView(msgspec.Struct, frozen=True):
    """What was set at run time: for all keys, a key, a pattern or a tier; or which tier a key is a `member` of."""

    limit: str
    scope: Scope
    target: str
    rule: str | None
    is_paused: bool
    tier: str | None


class Reset(msgspec.Struct, frozen=True):
    """How many permits running jobs hold still."""

    held: int


class AuditedView(msgspec.Struct, frozen=True):
    """The most that started on a key in any window of so many seconds, against what the rule allows there."""

    limit: str
    key: str
    starts: int
    window: float
    highest: int
    bound: int
    held: bool


class AuditedPage(msgspec.Struct, frozen=True):
    """The worst keys of those whose starts were looked at; so many `keys` and `starts`, all since then.

    It `is_cut` where more had started: then `since` is later than was asked for, and what held may have been exceeded
    before.
    """

    items: Sequence[AuditedView]
    keys: int
    starts: int
    since: datetime
    is_cut: bool


async def limits(caller: Caller, query: LimitsQuery) -> Page[BucketStatus]:
    """Limits by key, those with most waiting jobs first."""
    found = await caller.admin.limits.list(
        query.limit,
        key=query.key,
        prefix=query.prefix,
        after=None if query.before is None else from_cursor(query.before, BucketPlace),
        count=query.count,
    )
    return Page(found, to_cursor(found[-1].place) if len(found) == query.count else None)


async def declared_limits(caller: Caller) -> Page[DeclaredLimit]:
    """The limits that this app declares."""
    return Page(caller.admin.limits.all_declared())


async def limit_settings(caller: Caller, query: LimitQuery) -> Page[SettingView]:
    """What is set at run time, of one limit or of all."""
    return Page([msgspec.convert(each, SettingView, from_attributes=True) for each in await _settings(caller, query)])


async def bucket(caller: Caller, limit: str, query: KeyQuery) -> BucketStatus:
    """One limit for one key, with who holds its permits; one that used nothing yet has its whole budget."""
    return await caller.admin.limits.bucket(limit, query.key)


async def audit_limit(caller: Caller, limit: str, query: AuditQuery) -> AuditedPage:
    """Whether the limit held, recomputed from the starts that are kept; worst keys first, 500 of them.

    The newest 50,000 starts of that time are looked at. Ask for one key where there are more, or `headgate limits
    audit`, which looks at all.
    """
    since = caller.admin.now() - timedelta(seconds=query.span)
    found = await caller.admin.limits.audit_newest(limit, key=query.key, since=since, most=MOST_AUDITED)
    return AuditedPage(
        items=[msgspec.convert(each, AuditedView, from_attributes=True) for each in found.verdicts[:MOST]],
        keys=len(found.verdicts),
        starts=found.starts,
        since=found.since or since,
        is_cut=found.is_cut,
    )


async def pause_limit(caller: Caller, limit: str, body: SettingTarget) -> Acknowledgement:
    """Let nothing start on a limit until it is resumed; what runs goes on, what waits loses nothing."""
    await caller.admin.limits.pause(limit, key=body.key, pattern=body.pattern, tier=body.tier)
    return Acknowledgement()


async def resume_limit(caller: Caller, limit: str, body: SettingTarget) -> Acknowledgement:
    """End a pause."""
    return Acknowledgement(await caller.admin.limits.resume(limit, key=body.key, pattern=body.pattern, tier=body.tier))


async def set_limit(caller: Caller, limit: str, body: SetRequest) -> Acknowledgement:
    """Let another rule hold until it is unset; the most specific setting wins: key, tier, longest pattern, all."""
    await caller.admin.limits.set_rule(
        limit,
        body.rule,
        kind=body.kind,
        burst=body.burst,
        slices=body.slices,
        key=body.key,
        pattern=body.pattern,
        tier=body.tier,
    )
    return Acknowledgement()


async def unset_limit(caller: Caller, limit: str, body: SettingTarget) -> Acknowledgement:
    """Return to the rule that the code declares."""
    return Acknowledgement(await caller.admin.limits.unset(limit, key=body.key, pattern=body.pattern, tier=body.tier))


async def reset_limit(caller: Caller, limit: str, body: KeyRequest) -> Reset:
    """Forget what a key has used; permits that running jobs hold stay held."""
    return Reset(await caller.admin.limits.reset(limit, body.key))


async def penalize_limit(caller: Caller, limit: str, body: PenalizeRequest) -> Acknowledgement:
    """Let nothing start on a key for so long; a reset lifts it."""
    if body.until is not None and not caller.admin.now() < body.until < LATEST:
        raise HttpError(400, "bad_request", "`until` must be an instant to come, before the year 9999")
    match body.seconds, body.until:
        case (float(until), None) | (None, datetime() as until):
            await caller.admin.limits.penalize(limit, body.key, until)
            return Acknowledgement()
    raise HttpError(400, "bad_request", "say either `seconds` or `until`")


async def assign_limit(caller: Caller, limit: str, body: AssignRequest) -> Acknowledgement:
    """Put a key, or all that match a pattern, into a tier, or out of it."""
    await caller.admin.limits.assign(limit, body.key, body.tier, pattern=body.pattern)
    return Acknowledgement()


async def remove_limit(caller: Caller, limit: str) -> Acknowledgement:
    """Forget a limit: its settings and what its keys have used. Refused while jobs need it."""
    return Acknowledgement(await caller.admin.limits.remove(limit))


async def _settings(caller: Caller, query: LimitQuery) -> Sequence[Any]:
    return await caller.admin.limits.settings(query.limit)


STEERED = (404, 422)
"""Unknown to this app, or not to be steered so."""

ENDPOINTS: Sequence[Endpoint] = (
    reads("/limits", limits),
    reads("/limits/declared", declared_limits),
    reads("/limits/settings", limit_settings),
    reads("/limits/{limit}/bucket", bucket, refuses=(404,)),
    reads("/limits/{limit}/audit", audit_limit, refuses=STEERED),
    acts("/limits/{limit}/pause", pause_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/resume", resume_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/set", set_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/unset", unset_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/reset", reset_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/penalize", penalize_limit, needs="admin", refuses=STEERED),
    acts("/limits/{limit}/assign", assign_limit, needs="admin", refuses=STEERED),
    removes("/limits/{limit}", remove_limit, refuses=(404, 409)),
)
