"""History: what jobs did and what limits granted over time, as charts show it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from headgate.admin import JobsHistory, LimitHistory
from headgate.http.caller import Caller
from headgate.http.endpoint import Query
from headgate.http.page import Key, Name

Span = Annotated[float, msgspec.Meta(ge=10, le=60 * 86400, description="How far back, in seconds.")]


class HistoryQuery(Query, frozen=True, kw_only=True):
    step: Annotated[
        Literal[10, 60, 3600],
        msgspec.Meta(description="Seconds of a point; kept for an hour, a day and 60 days."),
    ] = 60
    span: Span = 3600
    queue: Name | None = None
    task: Name | None = None


class LimitHistoryQuery(Query, frozen=True, kw_only=True):
    key: Annotated[Key | None, msgspec.Meta(description="One key; without it, all together.")] = None
    span: Span = 3600
    with_period_before: Annotated[
        bool, msgspec.Meta(description="Begin a period of the rule earlier, so that sums over a period are complete.")
    ] = False


async def history(caller: Caller, query: HistoryQuery) -> JobsHistory:
    """Return what jobs did over time, for a queue, a task, or all; oldest first, up to 1,440 points."""
    return await caller.admin.history.report(query.queue, query.task, step=query.step, span=query.span)


async def limit_history(caller: Caller, limit: str, query: LimitHistoryQuery) -> LimitHistory:
    """Return what was charged to a limit over time, in steps of 10 s up to an hour and of 60 s up to a day."""
    return await caller.admin.history.limit(
        limit, query.key, span=query.span, with_period_before=query.with_period_before
    )
