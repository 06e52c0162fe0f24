"""Declared queues, and their limits: all jobs of a queue use them, whatever their task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

from headgate.arguments import MOST_SLOTS, parse_count, parse_duration
from headgate.clock import Duration
from headgate.errors import DeclarationError
from headgate.jobs.retry import RetryPolicy, require_policy
from headgate.limits.concurrency import Concurrency
from headgate.limits.fair import MOST_WEIGHT, PREFIX, FairKey, FairOrder, checked_key, checked_weights
from headgate.limits.limit import Key, Limit, OnLimit, WaitTerms, changed, require_list, wait_terms
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.limit_set import BoundLimit, LimitSet, NamedLimit, call_terms, named_limits
from headgate.tasks.options import checked_timeout, require_names

DEFAULT_QUEUE = "default"

RESERVED = "queue:"
"""The prefix of limits that queues make: `queue:emails`, `queue:emails:rate`."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


WhenFull = Literal["wait", "raise", "fallback"]


@dataclass(frozen=True, slots=True)
class Queue:
    """A named set of jobs with its own concurrency per node; None: by the kind of its tasks.

    `global_concurrency` is how many of its jobs run at once over all nodes; None: as many as the nodes have slots.
    `max_backlog` is how many may wait; None: any number. All its jobs use `limits`. `waits` is how they wait for
    limits that do not set it; None: as the app says. `retry` and `timeout` (seconds)
    apply to its tasks without their own; None: the app's. The keys of `fair_by` take turns, by `weights`; None: jobs
    start in the order in which they came. After `aging` (microseconds), a waiting job is level with a new one of the
    next higher priority; None: higher priorities always start first.
    """

    name: str
    concurrency: int | None = None
    global_concurrency: int | None = None
    max_backlog: int | None = None
    when_full: WhenFull = "wait"
    limits: tuple[Limit | str, ...] = ()
    retry: RetryPolicy | None = None
    timeout: float | None = None
    fair_by: FairKey = None
    weights: Mapping[str, int] | None = None
    weight: int = 1
    aging: int | None = None
    waits: WaitTerms | None = None


class QueueOptions(TypedDict, total=False):
    """The options of a queue: what `app.queue(…)` takes."""

    concurrency: int | None
    """Slots per node (default: 100, or max(4, 2 × cores) for plain functions)."""

    global_concurrency: int | None
    """The maximum of its jobs that run at once over all nodes (default: no maximum).

    It is the limit `queue:<name>`, which all its jobs use: listed, set and paused like any other.
    """

    max_backlog: int | None
    """How many of its jobs may wait (default: any number).

    It is checked when a job is enqueued; retries, and jobs that other processes add in the same tenth of a second, may
    exceed it.
    """

    when_full: WhenFull
    """"wait" (default) until there is room, "raise" QueueFull, or "fallback" to the queue `default`."""

    limits: Sequence[Limit | str]
    """All its jobs also use these, whatever their task; keys are over the arguments of each task."""

    on_limit: OnLimit | None
    """Set what jobs do at a closed limit that does not set it: "wait", "discard", "cancel" (default: the app's).

    It does not apply to the queue's own `global_concurrency`: jobs without other limits wait for that.
    """

    max_wait: Duration | None
    """How long its jobs wait at most for limits that set neither this nor `on_limit` (default: the app's)."""

    retry: RetryPolicy | None
    """The policy of tasks declared for this queue without their own (default: the app's).

    A job that is enqueued to another queue keeps the policy of its task.
    """

    timeout: Duration | None
    """The timeout of tasks declared for this queue without their own (default: the app's)."""

    fair_by: Key | Sequence[Key]
    """Let the keys of its jobs take turns: a template over each task's arguments, a callable or `header(…)`.

    With a list of two, `["{tenant_id}", "{user_id}"]`, the keys from the first take turns, by `weights`, and in each
    turn those from the second: a tenant with 50 users has as many turns as one with a single user.

    A new key has its turn before keys that have had theirs, however many jobs wait for them. Within a
    key, jobs start in order. Jobs with an empty key share the key `"global"`. Default: jobs start in the order in which
    they came.
    """

    weights: Mapping[str, int]
    """How many turns a key in `fair_by` has for each turn of the others (default: 1 each; 1 to 100).

    If `fair_by` lists two, these are the weights for the first.
    """

    weight: int
    """Its part of a worker's slots, if `slots` bounds all queues together (default: 1; 1 to 100)."""

    aging: Duration | None
    """The time after which a waiting job equals a new one with the next priority, above 0 (default: never).

    With `aging=60`, a job with priority 0 starts before jobs with priority 9 that become ready more than nine minutes
    later. It applies to jobs that are enqueued from then on.
    """


def declared_queue(name: str, options: QueueOptions) -> Queue:
    """Return a declared queue. Raises TypeError, and DeclarationError for what can never work."""
    where = f"queue {name!r}"
    require_names(options, QueueOptions.__annotations__, "Headgate.queue()")
    concurrency, global_concurrency = options.get("concurrency"), options.get("global_concurrency")
    limits, retry, timeout = options.get("limits", ()), options.get("retry"), options.get("timeout")
    require_list(limits, where)
    if retry is not None:
        require_policy(retry, where)
    seconds = None if timeout is None else checked_timeout(timeout, where)
    require_name(name, "queue")
    if concurrency is not None:
        parse_count(concurrency, "concurrency", where, most=MOST_SLOTS)
    if isinstance(global_concurrency, int) and global_concurrency < 1:
        raise DeclarationError(
            f"{where}: global_concurrency={global_concurrency} must be at least 1; "
            f"to let nothing start, pause it: `headgate queues pause {name}`"
        )
    if global_concurrency is not None:
        parse_count(global_concurrency, "global_concurrency", where)
    parse_count(options.get("weight", 1), "weight", where, most=MOST_WEIGHT)
    aging = options.get("aging")
    fair_by, weights = checked_key(options.get("fair_by"), where), options.get("weights")
    if weights is not None:
        checked_weights(weights, where)
        if fair_by is None:
            raise DeclarationError(f'{where}: weights= needs fair_by=; write fair_by="{{tenant_id}}"')
    max_backlog, when_full = options.get("max_backlog"), options.get("when_full", "wait")
    if max_backlog is not None:
        parse_count(max_backlog, "max_backlog", where)
    if when_full not in get_args(WhenFull):
        raise DeclarationError(f'{where}: when_full={when_full!r} must be "wait", "raise" or "fallback"')
    if max_backlog is None and when_full != "wait":
        raise DeclarationError(f"{where}: when_full={when_full!r} has no effect without a max_backlog")
    if when_full == "fallback" and name == DEFAULT_QUEUE:
        raise DeclarationError(f"{where} is where the others fall back to; it can wait or raise when it is full")
    return Queue(
        name,
        concurrency,
        global_concurrency,
        max_backlog,
        when_full,
        tuple(limits),
        retry,
        seconds,
        fair_by,
        weights,
        options.get("weight", 1),
        None if aging is None else parse_duration(aging, "aging", where, allow_zero=False),
        wait_terms(options.get("on_limit"), options.get("max_wait"), where, "queue"),
    )


def require_name(name: str, kind: str) -> None:
    """Raise DeclarationError unless it is a valid name of a task or a queue."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(
            f"{kind} name {name!r:.80} must be 1 to 200 letters, digits and _ . : / -, the first a letter, digit or _"
        )


def _beside(order: NamedLimit, limits: Sequence[Limit]) -> NamedLimit:
    """Return the order of a queue beside other limits.

    If one of them counts by another key, or its permits have owners, a key has many lanes: they are a group, which
    takes turns as one lane does.
    """
    levels: Any = order.limit.key
    has_others = any(
        limit.key not in (None, levels[0]) or (limit.permit is not None and limit.permit.owner is not None)
        for limit in limits
    )
    if len(levels) > 1 or not has_others:
        return order
    return order._replace(limit=changed(order.limit, key=(*levels, None)))


class QueueLimits:
    """The limits of one queue."""

    def __init__(self, declared: Queue, shared: Mapping[str, Limit]) -> None:
        queue, global_concurrency = declared.name, declared.global_concurrency
        self._where = f"queue {queue!r}"
        self.concurrency: BoundLimit | None = (
            None
            if global_concurrency is None
            else BoundLimit(Concurrency(global_concurrency, on_limit="wait"), RESERVED + queue, (), self._where)
        )
        self.named: list[NamedLimit] = named_limits(declared.limits, shared, self._where, RESERVED + queue)
        self._order = (
            None
            if declared.fair_by is None
            else NamedLimit(PREFIX + queue, FairOrder(declared.fair_by, declared.weights or {}), is_own=True)
        )

    def bound(self, task: TaskDefinition, taken: LimitSet, *, waits_here: bool) -> list[BoundLimit]:
        """Return its limits, bound to the arguments and calls of a task that uses the `taken` ones itself.

        Its concurrency and its order are those of jobs that wait in this queue.
        """
        named = [limit for limit in self.named if limit.name not in taken.names or limit.limit.may_repeat]
        if self._order is not None and waits_here:
            named.append(
                _beside(self._order, [*(each.limit for each in taken.limits), *(each.limit for each in named)])
            )
        payload, calls = task.payload, call_terms(task.name, task.chunk)
        bound = [
            BoundLimit(limit, name, payload.parameters, self._where, payload.fields, calls) for name, limit, _ in named
        ]
        return [*bound, self.concurrency] if self.concurrency is not None and waits_here else bound

    @property
    def own(self) -> dict[str, Limit]:
        """The limits that only this queue declares, by name."""
        own = {limit.name: limit.limit for limit in self.named if limit.is_own}
        if self._order is not None:
            own[self._order.name] = self._order.limit
        if self.concurrency is not None:
            own[self.concurrency.name] = self.concurrency.limit
        return own
