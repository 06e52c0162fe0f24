"""Enqueue hooks: calls the functions of `@app.around_enqueue` with drafts, which become the calls that are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from headgate.engine.enqueuer import CallGroup
from headgate.errors import HeadgateError
from headgate.tasks.call import Call, FlowCall
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.hooks import AroundEnqueue, JobDraft, call_around
from headgate.tasks.options import require_headers

StoreDrafts = Callable[[], Awaitable[Sequence[str]]]
"""Stores the drafts as they are now, and returns the id of each."""


async def call_around_enqueue(
    functions: Sequence[AroundEnqueue], drafts: Sequence[JobDraft], store: StoreDrafts
) -> None:
    """Call the functions, the first outermost, around `store`.

    Raises what the outermost raises, else what `store` raised, even if a function has suppressed it, and HeadgateError
    if `store` was not called.
    """
    failure: BaseException | None = None
    is_stored = False

    async def enqueue() -> None:
        nonlocal failure, is_stored
        try:
            ids = await store()
        except BaseException as error:
            failure = error
            raise
        is_stored = True
        for draft, id in zip(drafts, ids, strict=True):
            draft.id = id

    await call_around(functions, drafts, enqueue)
    if failure is not None:
        # There is no job to return.
        raise failure
    if not is_stored:
        raise HeadgateError(
            "a function of @app.around_enqueue returned without `await enqueue()`, so nothing is stored; to refuse "
            "jobs, raise an error"
        )


def drafts_of_groups(task: TaskDefinition, groups: Sequence[CallGroup]) -> list[JobDraft]:
    """Return a draft for each call, in order. Raises TypeError for arguments that do not fit the signature."""
    return [_draft(task, group.queue, group.template.headers, call) for group in groups for call in group.calls]


def changed_groups(task: TaskDefinition, groups: Sequence[CallGroup], drafts: Sequence[JobDraft]) -> list[CallGroup]:
    """Return the groups with the calls as the drafts have them. Raises DeclarationError for headers."""
    left = iter(drafts)
    return [
        group._replace(calls=[_changed(task, call, draft) for call, draft in zip(group.calls, left, strict=False)])
        for group in groups
    ]


def drafts_of_flow(calls: Sequence[FlowCall]) -> list[JobDraft]:
    """As `drafts_of_groups`, for a chain or a batch."""
    return [_draft(each.task, each.queue, each.task.template.headers, each.call) for each in calls]


def changed_flow(calls: Sequence[FlowCall], drafts: Sequence[JobDraft]) -> list[FlowCall]:
    """As `changed_groups`, for a chain or a batch."""
    return [
        each._replace(call=_changed(each.task, each.call, draft)) for each, draft in zip(calls, drafts, strict=True)
    ]


def _draft(task: TaskDefinition, queue: str, headers: Mapping[str, str] | None, call: Call[Any]) -> JobDraft:
    arguments = dict(call.kwargs) if call.later else task.payload.bind(call.args, call.kwargs)
    return JobDraft(task.name, queue, arguments, dict(headers or {}))


def _changed(task: TaskDefinition, call: Call[Any], draft: JobDraft) -> Call[Any]:
    require_headers(draft.headers, f"task {task.name!r}")
    if call.later:
        return replace(call, kwargs=dict(draft.arguments), headers=dict(draft.headers))
    positional, named = task.payload.as_call(draft.arguments)
    return Call(tuple(positional), named, call.task, dict(draft.headers))
