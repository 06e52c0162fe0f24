"""Handlers: tasks written as classes, with a typed payload and callbacks as methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, Unpack, get_args, get_origin, overload

from headgate.errors import DeclarationError
from headgate.foreign_words import MissingVerb
from headgate.tasks.context import JobContext
from headgate.tasks.executor_kind import require_no_generator
from headgate.tasks.options import EnqueueOptions

if TYPE_CHECKING:
    from headgate.client.handles import Job
    from headgate.client.task import SyncTask, Task
    from headgate.tasks.call import Call

T = TypeVar("T")
R = TypeVar("R")
PayloadT = TypeVar("PayloadT")
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)


class HasRun(Protocol[Taken, Given]):
    """A class with a `run` that takes a payload, for type checkers."""

    def run(self, payload: Taken, /) -> Given: ...


class _TaskOf:
    """`Ship.task`: typed by the `run` of its class, which stays a class for type checkers."""

    @overload
    def __get__(self, handler: None, kind: type[HasRun[T, Awaitable[R]]], /) -> Task[[T], R]: ...
    @overload
    def __get__(self, handler: None, kind: type[HasRun[T, R]], /) -> Task[[T], R]: ...
    def __get__(self, handler: object, kind: type[Any], /) -> Any:
        return _task_of(kind)


class _SyncOf:
    """`Ship.sync`: the same for code that cannot await."""

    @overload
    def __get__(self, handler: None, kind: type[HasRun[T, Awaitable[R]]], /) -> SyncTask[[T], R]: ...
    @overload
    def __get__(self, handler: None, kind: type[HasRun[T, R]], /) -> SyncTask[[T], R]: ...
    def __get__(self, handler: object, kind: type[Any], /) -> Any:
        return _task_of(kind).sync


def _task_of(kind: type[Any]) -> Any:
    # Only its own attribute: a subclass is not declared because its base is.
    task = vars(kind).get(_DECLARED)
    if task is None:
        raise DeclarationError(f"{kind.__qualname__} is not declared: put @app.handler on it")
    return task


_DECLARED = "_headgate_task"


class Handler(Generic[PayloadT]):
    """A task as a class: `@app.handler class Sync(Handler[SyncPayload])` with `async def run(self, payload)`.

    `await Sync.enqueue(payload)` enqueues, and so do the other verbs of tasks; `Sync.task` is the task, with all that
    function tasks have. Each attempt gets a new instance, made without arguments. The other parameters of `run` are
    resources. The `on_…` methods are callbacks, as `@task.on_started` … are for functions: plain or `async def`, and
    only those that are overridden. An exception in one of them is logged and changes nothing.
    """

    if not TYPE_CHECKING:  # To a type checker these stay unknown attributes.
        delay = MissingVerb()
        apply_async = MissingVerb()
        send = MissingVerb()
        remote = MissingVerb()

    task: ClassVar[_TaskOf] = _TaskOf()
    sync: ClassVar[_SyncOf] = _SyncOf()

    @overload
    @classmethod
    async def enqueue(cls: type[HasRun[T, Awaitable[R]]], payload: T, /) -> Job[R]: ...
    @overload
    @classmethod
    async def enqueue(cls: type[HasRun[T, R]], payload: T, /) -> Job[R]: ...
    @classmethod
    async def enqueue(cls, payload: Any, /) -> Any:
        """Same as `Task.enqueue`, for one payload."""
        return await _task_of(cls).enqueue(payload)

    @overload
    @classmethod
    async def enqueue_many(
        cls: type[HasRun[T, Awaitable[R]]], calls: Iterable[tuple[T] | Call[R]], /
    ) -> list[Job[R]]: ...
    @overload
    @classmethod
    async def enqueue_many(cls: type[HasRun[T, R]], calls: Iterable[tuple[T] | Call[R]], /) -> list[Job[R]]: ...
    @classmethod
    async def enqueue_many(cls, calls: Any, /) -> Any:
        """Same as `Task.enqueue_many`: `(payload,)` for each job, or `Sync.call(payload)`."""
        return await _task_of(cls).enqueue_many(calls)

    @overload
    @classmethod
    def call(cls: type[HasRun[T, Awaitable[R]]], payload: T, /) -> Call[R]: ...
    @overload
    @classmethod
    def call(cls: type[HasRun[T, R]], payload: T, /) -> Call[R]: ...
    @classmethod
    def call(cls, payload: Any, /) -> Any:
        """Same as `Task.call`, for one payload."""
        return _task_of(cls).call(payload)

    @overload
    @classmethod
    def using(cls: type[HasRun[T, Awaitable[R]]], **options: Unpack[EnqueueOptions]) -> Task[[T], R]: ...
    @overload
    @classmethod
    def using(cls: type[HasRun[T, R]], **options: Unpack[EnqueueOptions]) -> Task[[T], R]: ...
    @classmethod
    def using(cls, **options: Unpack[EnqueueOptions]) -> Any:
        """Same as `Task.using`."""
        return _task_of(cls).using(**options)

    def on_started(self, job: JobContext) -> Awaitable[None] | None:
        """Called when an attempt begins."""

    def on_completed(self, job: JobContext, result: Any) -> Awaitable[None] | None:
        """Called when the job has succeeded and that is stored."""

    def on_error(self, job: JobContext, error: BaseException) -> Awaitable[None] | None:
        """Called once, when the job has failed after all retries and that is stored."""

    def on_retry(self, job: JobContext, error: BaseException, attempt: int, delay: float) -> Awaitable[None] | None:
        """Called when an attempt failed and the job is stored to run again in `delay` seconds."""


def mark_declared(handler: type[Any], task: Task[Any, Any]) -> None:
    """Store the task on its class. Raises DeclarationError if the class has one already."""
    if _DECLARED in vars(handler):
        raise DeclarationError(f"handler {handler.__qualname__!r} is declared already, as {vars(handler)[_DECLARED]!r}")
    setattr(handler, _DECLARED, task)


def handler_function(handler: type[Any], where: str) -> Callable[..., Any]:
    """Return its `run` as a function: each call makes a new instance; its annotation is the payload of `Handler[…]`."""
    if not isinstance(handler, type):
        raise DeclarationError(f"@app.handler needs a class, not {handler!r}; functions are tasks: @app.task")
    if Handler not in handler.__mro__:
        raise DeclarationError(f"{where} must be a subclass of Handler: class {handler.__name__}(Handler[…])")
    run = getattr(handler, "run", None)
    if not inspect.isfunction(run):
        raise DeclarationError(f"{where} has no method `run`; write `async def run(self, payload: …)`")
    require_no_generator(run, where)
    if inspect.isabstract(handler):
        raise DeclarationError(f"{where} is abstract: {', '.join(sorted(handler.__abstractmethods__))} is missing")
    try:
        inspect.signature(handler).bind()
    except TypeError as error:
        raise DeclarationError(
            f"{where}: a new instance is made for each attempt, without arguments: {error}"
        ) from None
    parameters = list(inspect.signature(run).parameters.values())[1:]
    if not parameters:
        raise DeclarationError(f"{where}: its `run` takes no payload; write `async def run(self, payload: …)`")

    if inspect.iscoroutinefunction(run):

        @functools.wraps(run)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await handler().run(*args, **kwargs)
    else:

        @functools.wraps(run)
        def call(*args: Any, **kwargs: Any) -> Any:
            return handler().run(*args, **kwargs)

    call.__signature__ = inspect.signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
    declared = _payload_type(handler)
    if declared is not None:
        # It is the type itself, so it also replaces an annotation that only its own scope could resolve.
        call.__annotations__ = {**run.__annotations__, parameters[0].name: _agreed(run, parameters[0], declared, where)}
    call.__doc__ = run.__doc__ or handler.__doc__
    return call


def _payload_type(handler: type[Any]) -> Any:
    """Return the payload type of `Handler[…]` that a class declares; None without one."""
    for kind in handler.__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            if get_origin(base) is Handler and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
    return None


def _agreed(run: Callable[..., Any], payload: inspect.Parameter, declared: Any, where: str) -> Any:
    annotation = payload.annotation
    # An annotation that is still text need not be resolved.
    if annotation is not payload.empty and not isinstance(annotation, str) and annotation != declared:
        raise DeclarationError(
            f"{where} is a Handler[{declared!r}], but its `run` takes {annotation!r}; make them the same"
        )
    return declared
