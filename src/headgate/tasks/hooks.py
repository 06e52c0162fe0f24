"""Hooks: the functions of an app around each enqueue and each attempt, and at the start and the end of its nodes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from headgate.errors import DeclarationError, HeadgateError
from headgate.shielding import call_any, in_thread
from headgate.tasks.callbacks import name_of, require_function
from headgate.tasks.context import AttemptContext
from headgate.tasks.executor_kind import have_one_name, require_importable
from headgate.tasks.modules import is_run_again


class JobDraft:
    """A job that is about to be stored, for functions of `@app.around_enqueue`.

    `arguments` (by name, as they were passed, without defaults) and `headers` may be changed until `enqueue()` is
    called, which checks them. `id` is None until it has stored the job; under a `unique_key` it may be the id of the
    job that was there before.
    """

    __slots__ = ("arguments", "headers", "id", "queue", "task")

    def __init__(self, task: str, queue: str, arguments: dict[str, Any], headers: dict[str, str]) -> None:
        self.task: str = task
        self.queue: str = queue
        self.arguments: dict[str, Any] = arguments
        self.headers: dict[str, str] = headers
        self.id: str | None = None

    def __repr__(self) -> str:
        return f"JobDraft({self.task!r}, queue={self.queue!r}, id={self.id!r})"


S = TypeVar("S")
R = TypeVar("R")

AroundEnqueue = Callable[[Sequence[JobDraft], Callable[[], Awaitable[None]]], Awaitable[None]]
"""`async def function(jobs, enqueue)`: calls `await enqueue()` once, which stores the jobs."""

AroundAttempt = Callable[[AttemptContext, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""`async def function(job, run)`: calls `await run()` at most once, which calls the handler, and returns the result."""

LifecycleFunction = Callable[[], object]
"""`async def function()`, or a plain function, which is called in a thread."""

Around = Callable[[S, Callable[[], Awaitable[R]]], Awaitable[R]]


class HookScope(StrEnum):
    """The process that calls a function at its start or end."""

    NODE = "node"
    CHILD = "child"


class Moment(StrEnum):
    """The moment at which a function of a process is called. `CALL`: with each call, in its place."""

    STARTUP = "startup"
    SHUTDOWN = "shutdown"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class LifecycleHook:
    """A function that each process of this scope calls at its start or at its end."""

    moment: Moment
    scope: HookScope
    function: Callable[..., object]


class Hooks:
    """The hooks of one app, each kind in the order of its declaration."""

    def __init__(self) -> None:
        self.around_enqueue: list[AroundEnqueue] = []
        self.around_attempt: list[AroundAttempt] = []
        self.lifecycle: list[LifecycleHook] = []
        # For the connections of a framework: called in the thread or the child process of each plain function, with the
        # call of it, and with each coroutine of a handler, a chunk or a callback.
        self.around_call: Callable[[Callable[[], Any]], Any] | None = None
        self.around_coroutine: Callable[[Awaitable[Any]], Awaitable[Any]] | None = None
        # Entered for calls that are in no attempt, of chunks, callbacks and alerts: what they set is to be their own.
        self.call_contexts: list[Callable[[], AbstractContextManager[object]]] = []

    def for_thread(self, call: Callable[[], R]) -> Callable[[], R]:
        """Return the call of a plain function, with `around_call` around it."""
        return call if self.around_call is None else partial(self.around_call, call)

    def for_loop(self, call: Awaitable[R]) -> Awaitable[R]:
        """Return the awaitable of a coroutine function, with `around_coroutine` around it."""
        return call if self.around_coroutine is None else self.around_coroutine(call)

    async def call(self, pool: Executor, function: Callable[..., object], *args: object) -> None:
        """Call a function of the user, a plain one in a thread of the pool, with what is around all functions."""
        calling = call_any(function, *args, run=lambda call: in_thread(pool, self.for_thread(call)))
        await (self.for_loop(calling) if inspect.iscoroutinefunction(function) else calling)

    def of_children(self) -> list[LifecycleHook]:
        """Return what a child process calls."""
        around = [] if self.around_call is None else [LifecycleHook(Moment.CALL, HookScope.CHILD, self.around_call)]
        return [*around, *(hook for hook in self.lifecycle if hook.scope is HookScope.CHILD)]

    @contextmanager
    def call_context(self) -> Iterator[None]:
        """Enter the contexts of a call that is in no attempt."""
        with ExitStack() as stack:
            for context in self.call_contexts:
                stack.enter_context(context())
            yield

    def add_around_enqueue(self, function: AroundEnqueue) -> None:
        """Add a function around each enqueue. Raises DeclarationError."""
        where = "@app.around_enqueue"
        _require_around(function, where, "jobs", "enqueue")
        at = _position(function, self.around_enqueue, where)
        self.around_enqueue[at : at + 1] = [function]

    def add_around_attempt(self, function: AroundAttempt) -> None:
        """Add a function around each attempt. Raises DeclarationError."""
        where = "@app.around_attempt"
        _require_around(function, where, "job", "run")
        if getattr(function, "__annotations__", {}).get("return", Any) in (None, type(None), "None"):
            raise DeclarationError(
                f"{where}: {name_of(function)!r} returns None, which would be the result of every job; write "
                "`return await run()`, and -> Any"
            )
        at = _position(function, self.around_attempt, where)
        self.around_attempt[at : at + 1] = [function]

    def add_lifecycle(self, moment: Moment, function: LifecycleFunction, scope: str) -> None:
        """Add a function for the start or the end of a process. Raises DeclarationError."""
        where = f"@app.on_{moment}"
        if scope not in tuple(HookScope):
            raise DeclarationError(f'{where}: scope={scope!r} must be "node" or "child"')
        require_function(function, where, ())
        if scope == HookScope.CHILD:
            if inspect.iscoroutinefunction(function):
                raise DeclarationError(
                    f'{where}: {name_of(function)!r} is async, and a child process runs no event loop; scope="child" '
                    "is for a plain def"
                )
            require_importable(function, f'{where}(scope="child")')
            if any(have_one_name(function, other.function) for other in self.lifecycle if other.scope == scope):
                raise DeclarationError(
                    f"{where}: two functions for child processes are {name_of(function)!r} in module "
                    f"{function.__module__!r}, where a child process finds only the later one; rename one of them"
                )
        hook = LifecycleHook(moment, HookScope(scope), function)
        alike = [each.function if (each.moment, each.scope) == (moment, scope) else None for each in self.lifecycle]
        at = _position(function, alike, where)
        self.lifecycle[at : at + 1] = [hook]


def _require_around(function: Callable[..., Any], where: str, *takes: str) -> None:
    require_function(function, where, takes)
    if not inspect.iscoroutinefunction(function):
        raise DeclarationError(f"{where}: {name_of(function)!r} must be an async def ({', '.join(takes)})")


def _position(function: Callable[..., Any], functions: Sequence[Callable[..., Any] | None], where: str) -> int:
    """Return its position: after the others, or that of the function which an earlier run of its cell declared."""
    if function in functions:
        raise DeclarationError(f"{where}: {name_of(function)!r} is declared twice")
    earlier = (at for at, other in enumerate(functions) if other is not None and is_run_again(function, other))
    return next(earlier, len(functions))


async def call_around(functions: Sequence[Around[S, R]], subject: S, work: Callable[[], Awaitable[R]]) -> R:
    """Call each function with the subject and the rest, down to `work`; return what the outermost returns.

    A function that calls the rest twice gets HeadgateError.
    """
    rest = work
    for function in reversed(functions):
        rest = partial(_call, function, subject, rest)
    return await rest()


# Plain functions: tracebacks of jobs show only the frames of the user's functions.


def _call(function: Around[S, R], subject: S, rest: Callable[[], Awaitable[R]]) -> Awaitable[R]:
    is_called = False

    def rest_once() -> Awaitable[R]:
        nonlocal is_called
        if is_called:
            raise HeadgateError(f"{name_of(function)!r} called its second argument twice; it may be called once")
        is_called = True
        return rest()

    return function(subject, rest_once)
