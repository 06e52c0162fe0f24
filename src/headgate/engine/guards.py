"""Guards the threads and tasks of handlers: what is raised there may fail the job, and never ends the program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor as Pool
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from headgate.engine.error_text import summarize_error
from headgate.tasks.context import is_in_job

T = TypeVar("T")

_installed: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Any, Any]] = WeakKeyDictionary()
# How many nodes run on a loop, its task factory while they do, and the one that it had before.


def in_thread(pool: Pool | None, call: Callable[[], T]) -> asyncio.Future[T]:
    """Run `call` in a thread of `pool` (None: of the event loop) and return its future."""
    return asyncio.get_running_loop().run_in_executor(pool, _guarded, call)


def _guarded(call: Callable[[], T]) -> T:
    try:
        return call()
    except StopIteration as error:
        # A future cannot hold it: the waiter would wait for ever. Coroutines convert it in the same way.
        raise RuntimeError("the function raised StopIteration") from error


def guard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make tasks created inside a job raise RuntimeError instead of SystemExit and KeyboardInterrupt.

    asyncio raises these two out of the running loop. Each call needs one call of `unguard_tasks`.
    """
    count, factory, before = _installed.get(loop, (0, None, loop.get_task_factory()))
    if not count:
        factory = partial(_create_task, before)
        loop.set_task_factory(factory)
    _installed[loop] = count + 1, factory, before


def unguard_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Undo one `guard_tasks`; the last call restores the task factory of the loop, unless it was replaced since."""
    count, factory, before = _installed.pop(loop)
    if count > 1:
        _installed[loop] = count - 1, factory, before
    elif loop.get_task_factory() is factory:
        loop.set_task_factory(before)


def _create_task(before: Any, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    if is_in_job() and asyncio.iscoroutine(coroutine):
        coroutine = _Guarded(coroutine)
    return asyncio.Task(coroutine, loop=loop, **options) if before is None else before(loop, coroutine, **options)


class _Guarded(Coroutine[Any, Any, T]):
    """Wraps a coroutine in an object; a wrapping coroutine, cancelled before its start, would leave it unawaited."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, T]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_ordinary(error) from error

    def throw(self, *raised: Any) -> Any:
        try:
            return self._inner.throw(*raised)
        except (SystemExit, KeyboardInterrupt) as error:
            raise _as_ordinary(error) from error

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        # Debuggers that inspect the task show the user's own coroutine.
        return getattr(self._inner, name)


def _as_ordinary(error: BaseException) -> RuntimeError:
    return RuntimeError(f"a task of the handler raised {summarize_error(error)}")
