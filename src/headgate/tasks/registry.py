"""The declarations of one app: tasks, schedules, resources, shared limits and queues, each checked when declared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from headgate.errors import DeclarationError, UnknownQueue
from headgate.jobs.limit_sets import LIMIT_SUBJECT, DeclaredLimitSets, OverflowTarget, subject_of
from headgate.jobs.retention import Retention
from headgate.jobs.retry import RetryPolicy
from headgate.limits.concurrency import MUTEX, Mutex
from headgate.limits.fair import PREFIX
from headgate.limits.kinds import RULES, dump_rule
from headgate.limits.limit import AnyRule, Limit, WaitTerms, require_limit_name
from headgate.suggestion import did_you_mean
from headgate.tasks.alert import DeclaredAlert
from headgate.tasks.codec import NO_CODECS, Codecs
from headgate.tasks.definition import TaskDefinition
from headgate.tasks.executor_kind import Executor, have_one_name, usable_cores
from headgate.tasks.hooks import Hooks
from headgate.tasks.limit_set import LimitSet
from headgate.tasks.modules import is_interactive
from headgate.tasks.options import EnqueueOptions
from headgate.tasks.queue import DEFAULT_QUEUE, RESERVED, Queue, QueueLimits, require_name
from headgate.tasks.resource import Resource
from headgate.tasks.schedule import DeclaredSchedule

D = TypeVar("D", bound=TaskDefinition)

_ANY_MUTEX: Limit = Mutex("any")

_DECLARED = ("tasks", "_by_name", "queues", "limits", "rules", "_queue_limits")
"""What the declaration of a task or a queue changes together."""

_INSTEAD_OF = "<"
"""The separator in a limit set's name before the queue that the job was meant for, if that queue was full."""


def intended_queue(limit_set_name: str) -> str | None:
    """Return the queue that a job was meant for if it overflowed into another one, from the name of its limit set."""
    _, has_overflowed, intended = limit_set_name.partition(_INSTEAD_OF)
    return intended if has_overflowed else None


class RunnableTasks(NamedTuple):
    """The names of the tasks that a node with these labels can run, and their limit sets among those of all tasks."""

    labels: frozenset[str] | None
    all_limit_sets: DeclaredLimitSets
    names: frozenset[str]
    limit_sets: DeclaredLimitSets


class Registry:
    """Tasks, schedules, limits and queues by name, resources by type, and hooks in their order.

    `retry` and `timeout` (seconds) are for tasks without their own in a queue without its own, and so is `waits` for
    limits. `retention` is for states that the retention of a task or a job leaves out. `codecs` encode what tasks
    store.
    """

    def __init__(
        self,
        *,
        retry: RetryPolicy,
        timeout: float | None,
        retention: Retention,
        lease: float = 30.0,
        codecs: Codecs = NO_CODECS,
        waits: WaitTerms = WaitTerms(),  # noqa: B008  # it is immutable
    ) -> None:
        self._waits = waits
        self._retry = retry
        self.codecs = codecs
        self._timeout = timeout
        self.retention = retention
        self.lease = lease
        """After how many seconds without a heartbeat this program treats a node as lost."""
        self.tasks: dict[str, TaskDefinition] = {}
        self.schedules: dict[str, DeclaredSchedule] = {}
        self.names: frozenset[str] = frozenset()
        """The names under which jobs of these tasks may be stored: names and aliases."""
        self._by_name: dict[str, TaskDefinition] = {}
        self.queues: dict[str, Queue] = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self.shared: dict[str, Limit] = {}
        self.limits: dict[str, Limit] = {}
        # Mutexes are named by their resources, and a batch may hold one that no task declares.
        self.rules: dict[str, AnyRule] = {MUTEX: _ANY_MUTEX.rule}
        """The rule of every limit, by its full name."""
        self.resources: dict[Any, Resource] = {}
        """The resources by the type that handlers request."""
        self.hooks: Hooks = Hooks()
        self.alerts: dict[str, DeclaredAlert] = {}
        self._queue_limits: dict[str, QueueLimits] = {}
        self._limit_sets: dict[tuple[str, str, str | None], LimitSet] = {}
        self._limit_set_names: dict[tuple[str, str, str | None], str] = {}
        self._all_limit_sets: DeclaredLimitSets | None = None
        self._runnable: RunnableTasks | None = None
        self._listeners: list[Callable[[], object]] = []

    @contextmanager
    def listening(self, listener: Callable[[], object]) -> Iterator[None]:
        """Within the block, call `listener` after each declaration of a task, in the thread that declares it."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo what the block has declared if it raises: in a notebook, the corrected cell is run after it."""
        before = {name: dict(getattr(self, name)) for name in _DECLARED}
        try:
            yield
        except BaseException:
            for name, kept in before.items():
                # In place, and never empty: the parts of a node hold them, and may read them now.
                declared = getattr(self, name)
                for added in declared.keys() - kept.keys():
                    del declared[added]
                declared.update(kept)
            self.names = frozenset(self._by_name)
            self._forget_limit_sets()
            raise

    def add_task(self, task: TaskDefinition) -> None:
        """Add a task. In an interactive session it replaces the one that an earlier run of its code declared.

        Raises DeclarationError, UnknownQueue; then nothing is changed.
        """
        earlier = self.tasks.get(task.name)
        with self._all_or_nothing():
            if earlier is not None and is_interactive(earlier.function) and is_interactive(task.function):
                self._remove_task(earlier)
            self._add_task(task)
        for listener in tuple(self._listeners):
            listener()

    def _remove_task(self, task: TaskDefinition) -> None:
        """Remove a task, and the limits that nothing else declares."""
        del self.tasks[task.name]
        self._by_name = {name: other for name, other in self._by_name.items() if other is not task}
        self.names = frozenset(self._by_name)
        kept = {*self.shared, *(bound.name for other in self.tasks.values() for bound in other.limit_set.limits)}
        for limits in self._queue_limits.values():
            kept.update(limit.name for limit in limits.named)
        for bound in task.limit_set.limits:
            if bound.name not in kept:
                self.limits.pop(bound.name, None)
                self.rules.pop(bound.name, None)
        self._forget_limit_sets()

    def _add_task(self, task: TaskDefinition) -> None:
        where = f"task {task.name!r}"
        require_name(task.name, "task")
        self._require_new_names(task)
        self._require_new_function(task)
        self.require_queue(task.queue, where)
        for bound in task.limit_set.limits:
            _require_unreserved(bound.limit.name, where)
            if any(bound.name in limits.own for limits in self._queue_limits.values()):
                raise DeclarationError(f"{where} would name a limit {bound.name!r}, as a queue does; rename the task")
            self._require_same(bound.name, bound.limit, where)
            self._put_limit(bound.name, bound.limit)
        # The keys of the queue's limits must be computable from the task's arguments.
        self.limit_set(task, task.queue)
        self.tasks[task.name] = task
        self._by_name.update(dict.fromkeys((task.name, *task.aliases), task))
        self.names = frozenset(self._by_name)
        self._all_limit_sets = None

    def _require_new_names(self, task: TaskDefinition) -> None:
        if task.name in self.tasks:
            raise DeclarationError(f"task {task.name!r} is declared twice; give one of them another name=")
        if task.name in self._by_name:
            raise DeclarationError(
                f"task {task.name!r} is also an alias of task {self._by_name[task.name].name!r}; a job runs one "
                "task, so rename the task or remove the alias"
            )
        for alias in task.aliases:
            require_name(alias, f"task {task.name!r}: alias")
            owner = task if alias == task.name else self._by_name.get(alias)
            if owner is not None:
                raise DeclarationError(
                    f"task {task.name!r} has the alias {alias!r}, which already leads to task {owner.name!r}"
                )
        if len(set(task.aliases)) < len(task.aliases):
            raise DeclarationError(f"task {task.name!r} names an alias twice: {', '.join(task.aliases)}")

    def _require_new_function(self, task: TaskDefinition) -> None:
        """Raise DeclarationError if a child process would find its function in place of that of another task."""
        for other in self.tasks.values():
            if other.executor is Executor.PROCESS and have_one_name(other.function, task.function):
                raise DeclarationError(
                    f"the functions of tasks {other.name!r} and {task.name!r} are both {other.function.__qualname__!r} "
                    f"in module {other.function.__module__!r}, where a child process finds only the later one; rename "
                    "one of the functions"
                )

    def find(self, name: str) -> TaskDefinition | None:
        """Return the task that runs jobs stored under this name, its own or an alias."""
        return self._by_name.get(name)

    def declares(self, task: TaskDefinition) -> bool:
        """Whether it is a task of this app, perhaps with other options of enqueueing."""
        own = self.tasks.get(task.name)
        return own is not None and own.payload is task.payload

    def named(self) -> Iterable[tuple[str, TaskDefinition]]:
        """Return each name and alias, with its task."""
        return self._by_name.items()

    @property
    def call_sizes(self) -> Mapping[str, int]:
        """The limits that count calls, with how many jobs a full call has: the fewest, if several tasks use one."""
        sizes: dict[str, int] = {}
        for task in self.tasks.values():
            for bound in self.limit_set(task, task.queue).limits:
                if bound.calls is not None:
                    sizes[bound.name] = min(bound.calls.size, sizes.get(bound.name, bound.calls.size))
        # One that no chunked task has by default is used by jobs that are sent to its queue, perhaps one by one.
        return {name: sizes.get(name, 1) for name, limit in self.limits.items() if limit.per_call}

    @property
    def keyed(self) -> Set[str]:
        """The limits of which no job uses a budget without a key."""
        return self.rules.keys() - {name for name, limit in self._used_limits() if limit.key is None}

    @property
    def costs(self) -> Mapping[str, int]:
        """The lowest cost that a limit has; 1 if one is computed for each job."""
        costs: dict[str, int] = {}
        for name, limit in self._used_limits():
            cost = limit.cost if isinstance(limit.cost, int) else 1
            costs[name] = min(cost, costs.get(name, cost))
        return costs

    def _used_limits(self) -> Iterator[tuple[str, Limit]]:
        yield from self.limits.items()
        for task in self.tasks.values():
            yield from ((each.name, each.limit) for each in self.limit_set(task, task.queue).limits)

    def add_resource(self, resource: Resource) -> None:
        """Add a resource; if an earlier run of its cell declared it, it takes that one's place in all that need it."""
        earlier = self.resources.get(resource.kind)
        users: list[TaskDefinition | Resource] = [*self.tasks.values(), *self.resources.values()]
        for user in users:
            user.needs.update({name: resource for name, need in user.needs.items() if need is earlier})
        self.resources[resource.kind] = resource

    def add_schedule(self, schedule: DeclaredSchedule) -> None:
        name = schedule.spec.name
        earlier = self.schedules.get(name)
        tasks = [self.find(each.call.task) for each in (earlier, schedule) if each is not None]
        if earlier is not None and not all(task is not None and is_interactive(task.function) for task in tasks):
            raise DeclarationError(
                f"schedule {name!r} is declared twice; give one another name: @app.schedule(…, name=…)"
            )
        self.schedules[name] = schedule

    def older_names(self, schedule: DeclaredSchedule) -> tuple[str, ...]:
        """Return the names under which an earlier release may have stored it, without those of other schedules."""
        return tuple(alias for alias in schedule.aliases or () if alias not in self.schedules)

    def add_queue(self, queue: Queue) -> None:
        """Add a queue; or replace one, and remove the limits that it no longer has.

        Raises DeclarationError; then nothing is changed.
        """
        with self._all_or_nothing():
            where = f"queue {queue.name!r}"
            limits = QueueLimits(queue, self.shared)
            # Limit sets are made while its limits are bound, and need its defaults.
            self.queues[queue.name] = queue
            before = self._queue_limits.get(queue.name)
            for name in {} if before is None else before.own:
                del self.limits[name], self.rules[name]
            for name, limit in limits.own.items():
                if name in self.limits:
                    raise DeclarationError(f"{where} needs the limit name {name!r}, which a task has; rename that task")
                self._put_limit(name, limit)
            for name, limit, is_own in limits.named:
                if not is_own:
                    _require_unreserved(name, where)
                    self._require_same(name, limit, where)
                    self._put_limit(name, limit)
            self._queue_limits[queue.name] = limits
            self._forget_limit_sets()
            for task in self.tasks.values():
                if task.queue == queue.name:
                    self.limit_set(task, queue.name)

    def _forget_limit_sets(self) -> None:
        """Let limit sets be computed anew.

        Threads that enqueue may be computing some: they keep the old dictionaries, so what they add is forgotten, too.
        """
        self._limit_sets = {}
        self._limit_set_names = {}
        self._all_limit_sets = None

    def limit_set(self, task: TaskDefinition, queue: str, instead_of: str | None = None) -> LimitSet:
        """Return the limits of a task's jobs in a queue: the task's own limits, then the queue's.

        A job that overflows into it, `instead_of` another queue, keeps that queue's limits except its concurrency.
        """
        key, known = (task.name, queue, instead_of), self._limit_sets
        limit_set = known.get(key)
        if limit_set is None:
            limit_set = task.limit_set
            for name in (queue,) if instead_of is None else (instead_of, queue):
                limits = self._queue_limits.get(name)
                if limits is not None and (more := limits.bound(task, limit_set, waits_here=name == queue)):
                    limit_set = LimitSet((*limit_set.limits, *more))
            declared = self.queues.get(queue if instead_of is None else instead_of)
            limit_set = limit_set.with_default((None if declared is None else declared.waits) or self._waits)
            known[key] = limit_set
        return limit_set

    def limit_set_name(self, name: str, queue: str, instead_of: str | None = None) -> str:
        """Return the name of a task's limit set in a queue, which jobs store, by the name that they are stored under.

        It changes when their buckets, costs or terms may change, and differs between tasks and queues.
        """
        key, known = (name, queue, instead_of), self._limit_set_names
        limit_set_name = known.get(key)
        if limit_set_name is None:
            parts = (name, queue, self.limit_set(self._by_name[name], queue, instead_of).signature)
            limit_set_name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
            if instead_of is not None:
                limit_set_name += _INSTEAD_OF + instead_of
            known[key] = limit_set_name
        return limit_set_name

    def limit_sets(self) -> DeclaredLimitSets:
        """Return the limit sets of all tasks in all queues."""
        if self._all_limit_sets is None:
            limit_sets: dict[tuple[str, str], str] = {}
            overflows: list[OverflowTarget] = []
            for name, task in self._by_name.items():
                for queue in self.queues.values():
                    if not self._can_go_to(task, queue.name):
                        continue
                    limit_sets[name, queue.name] = self.limit_set_name(name, queue.name)
                    if queue.when_full == "fallback" and self._can_go_to(task, DEFAULT_QUEUE):
                        needed = (subject_of(name, DEFAULT_QUEUE), subject_of(name, queue.name))
                        limit_set_name = self.limit_set_name(name, DEFAULT_QUEUE, queue.name)
                        overflows.append(OverflowTarget(limit_set_name, DEFAULT_QUEUE, needed))
            self._all_limit_sets = DeclaredLimitSets(limit_sets, overflows)
        return self._all_limit_sets

    def subjects(self) -> Mapping[str, str]:
        """Return what this release declares: its limit sets, and the rules of its limits, by their subjects."""
        # The order of a fair queue is no rule that other nodes could load.
        rules = {name: rule for name, rule in self.rules.items() if type(rule) in RULES}
        return {
            **self.limit_sets().subjects,
            **{LIMIT_SUBJECT + name: dump_rule(rule) for name, rule in rules.items()},
        }

    def runnable(self, labels: frozenset[str] | None) -> RunnableTasks:
        """Return what a node with these labels can run; None: all labels."""
        limit_sets, known = self.limit_sets(), self._runnable
        if known is None or known.all_limit_sets is not limit_sets or known.labels != labels:
            names = frozenset(name for name, task in self._by_name.items() if labels is None or task.requires <= labels)
            own = limit_sets if names == self.names else limit_sets.only(names)
            self._runnable = known = RunnableTasks(labels, limit_sets, names, own)
        return known

    def served_with(self, labels: frozenset[str] | None) -> list[str]:
        """Return the queues that a node with these labels serves by default.

        Those whose tasks all require other labels are left out: its claims would read their jobs in vain.
        """
        served: list[str] = []
        for queue in self.queues:
            required = [task.requires for task in self.tasks.values() if task.queue == queue]
            if labels is None or not required or any(requires <= labels for requires in required):
                served.append(queue)
        return served

    def _can_go_to(self, task: TaskDefinition, queue: str) -> bool:
        """Return whether the limits of a queue can be computed from the arguments of a task."""
        try:
            self.limit_set(task, queue)
        except DeclarationError:
            return False
        return True

    def add_shared(self, name: str, limit: Limit) -> None:
        require_limit_name(name)
        if not isinstance(limit, Limit):
            raise DeclarationError(f'limit {name!r} is {limit!r:.80}, not a limit; write StrictRate("15/m") or another')
        _require_unreserved(name, "app.limit")
        if name in self.shared and limit != self.shared[name]:
            raise DeclarationError(
                f"limit {name!r} is declared twice: as {self.shared[name].rule.describe()} and as "
                f"{limit.rule.describe()}; one name is one budget, so declare it once, or with the same options"
            )
        if limit.name is not None and limit.name != name:
            raise DeclarationError(f"limit {name!r} is declared with another name, {limit.name!r}; leave name= out")
        self._require_same(name, limit, "app.limit")
        self.shared[name] = limit
        self._put_limit(name, limit)
        # A node that runs already has to read the rules anew: a batch may hold this limit.
        self._all_limit_sets = None

    def retry(self, task: TaskDefinition) -> RetryPolicy:
        """Return how failed attempts of a task are retried: its own policy, else that of its queue, else the app's."""
        return task.own_retry or self.queues[task.queue].retry or self._retry

    def timeout(self, task: TaskDefinition) -> float | None:
        """Return the seconds that an attempt of a task may take: its own, else those of its queue, else the app's."""
        if task.own_timeout is not None:
            return task.own_timeout
        timeout = self.queues[task.queue].timeout
        return self._timeout if timeout is None else timeout

    def with_options(self, task: D, options: EnqueueOptions) -> D:
        """Return the task with other options of enqueueing. Raises TypeError, DeclarationError, UnknownQueue."""
        changed = task.with_options(options)
        queue = options.get("queue")
        if queue is not None:
            self.require_queue(queue, f"task {task.name!r}")
        return changed

    def aging(self, queue: str) -> int | None:
        """Return the aging of a queue (microseconds); None also for a queue that this app does not declare."""
        declared = self.queues.get(queue)
        return None if declared is None else declared.aging

    def add_alert(self, alert: DeclaredAlert) -> None:
        """Add an alert. Raises DeclarationError for a name that another one has, and UnknownQueue."""
        if alert.name in self.alerts:
            raise DeclarationError(f"there are two alerts {alert.name!r}; pass name= to tell them apart")
        for condition in alert.conditions:
            if condition.kind in ("queue_lag", "waiting") and condition.subject is not None:
                self.require_queue(condition.subject, f"alert {alert.name!r}")
        self.alerts[alert.name] = alert

    def require_queue(self, queue: str, where: str) -> None:
        """Raise UnknownQueue unless the queue is declared."""
        if not isinstance(queue, str) or queue not in self.queues:
            hint = did_you_mean(queue, self.queues)
            raise UnknownQueue(
                f"{where} uses queue {queue!r}, which is not declared{hint} "
                f"Declare it first with app.queue({queue!r}). Declared: {', '.join(self.queues)}"
            )

    def concurrency(self, queue: str, default: int | None) -> int:
        """Return the slots per node: as declared, else 100, or max(4, 2 × cores) if all its tasks are plain functions.

        A queue with a process task has as many as this process may use cores: each of its jobs may take a process.
        """
        declared = self.queues[queue].concurrency or default
        if declared is not None:
            return declared
        executors = {task.executor for task in self.tasks.values() if task.queue == queue}
        cores = usable_cores()
        if Executor.PROCESS in executors:
            return cores
        return max(4, 2 * cores) if executors == {Executor.THREAD} else 100

    def _put_limit(self, name: str, limit: Limit) -> None:
        self.limits[name], self.rules[name] = limit, limit.rule

    def _require_same(self, name: str, limit: Limit, where: str) -> None:
        known = self.limits.get(name)
        if known is not None and (type(known.rule), known.rule.describe()) != (type(limit.rule), limit.rule.describe()):
            raise DeclarationError(
                f"{where} declares limit {name!r} as {limit.rule.describe()}, but elsewhere it is "
                f"{known.rule.describe()}; one name is one budget"
            )
        if known is not None and known.per_call != limit.per_call:
            raise DeclarationError(
                f"{where} declares limit {name!r} with per_call={limit.per_call}, but elsewhere it has "
                f"per_call={known.per_call}; one name is one budget"
            )


def _require_unreserved(name: str | None, where: str) -> None:
    for prefix, example in ((RESERVED, "global_concurrency"), (PREFIX, "fair_by")):
        if name is not None and name.startswith(prefix):
            raise DeclarationError(
                f"{where} names a limit {name!r}; names that begin with {prefix!r} belong to queues that have "
                f"limits, as with {example}"
            )
