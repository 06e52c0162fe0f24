"""Virtual time: run code that waits for hours in milliseconds, the same way every time.

The time of a `VirtualTimeLoop` does not move while anything runs and jumps to the next timer when nothing is ready, so
`asyncio.sleep`, `asyncio.timeout` and every timer of Headgate take no real time. `VirtualClock` is the clock of such a
loop, and `run_virtual` makes both for one test:

    def test_reports_are_sent_every_hour():
        async def main(clock: VirtualClock) -> None:
            await asyncio.sleep(3600)
            assert clock.monotonic() == 3_600_000_000

        run_virtual(main)
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import Context
from random import Random
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakSet

from headgate.clock import SECOND, Timer, microseconds
from headgate.errors import HeadgateError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1_767_225_600 * SECOND
"""The default start of a `VirtualClock`'s wall time: the first instant of 2026, UTC."""

PATIENCE = 60.0
"""Real seconds that a loop waits by default for threads and sockets before it reports a deadlock."""

LOOK_EVERY = 0.1
"""Real seconds between two checks whether anything is left that the loop can wait for."""


class VirtualDeadlock(HeadgateError, RuntimeError):
    """Nothing can happen any more on a virtual loop, but its work is not complete."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing is ready; it never sleeps.

    Time counts from 0 in whole microseconds; a timer fires at the first one that is not before its `when`. With a
    `seed`, tasks that are ready together run in a shuffled order, and so do timers of the same microsecond: the same
    seed gives the same order again. Without one, both run in the order they were scheduled in. Plain callbacks keep
    the order that asyncio promises.

    Time does not move while a call of `run_in_executor` or `asyncio.to_thread` runs, so a thread must not wait for
    virtual time to pass; wrap other work that goes on elsewhere in `standing_still()`. How such work interleaves
    with the loop is up to the machine, seed or not.

    Raises VirtualDeadlock when nothing is ready, no timer is set, and no other thread, open socket or signal handler is
    left that could wake the loop. If one is left, the loop waits for it, at most `patience` real seconds.
    """

    def __init__(self, seed: int | None = None, *, patience: float = PATIENCE) -> None:
        super().__init__(_JumpingSelector(self))
        self._patience = patience
        self._random = None if seed is None else Random(seed)
        self._microseconds = 0
        self._scheduled_count = 0
        self._held = 0
        self._threads: Executor | None = None
        self._own_threads: WeakSet[threading.Thread] = WeakSet()
        # Another run is another boot: its time starts again at 0.
        self.boot_id: str = f"virtual-{os.urandom(6).hex()}"
        # asyncio fires what is due within this of now. It must be larger than the rounding of a float, and smaller than
        # the distance of two microseconds.
        self._clock_resolution = 0.5 / SECOND

    def microseconds(self) -> int:
        """Return the loop's time in whole microseconds since the loop was made."""
        return self._microseconds

    def time(self) -> float:
        return self._microseconds / SECOND

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if when == math.inf:
            # Never. In the queue of timers it would keep the loop from a deadlock.
            return asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduled_count += 1
        turn = self._scheduled_count if self._random is None else self._random.random()
        return super().call_at(_TimerInstant(_not_before(when), turn), callback, *args, context=context)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Keep virtual time from jumping while work goes on outside of the loop."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        if executor is None:
            if self._threads is None:
                self.set_default_executor(
                    ThreadPoolExecutor(thread_name_prefix="virtual", initializer=self._note_own_thread)
                )
            executor = self._threads
            assert executor is not None
        work = executor.submit(func, *args)
        self._held += 1
        result = asyncio.wrap_future(work, loop=self)
        # After `wrap_future`, so that the result has reached the loop before time may jump; and on the work itself,
        # because a cancelled call continues in its thread.
        work.add_done_callback(self._release_from_thread)
        return result

    def set_default_executor(self, executor: Any) -> None:
        super().set_default_executor(executor)
        self._threads = executor

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # Threads end in real time: a virtual timeout would expire at once.
        with self.standing_still():
            await super().shutdown_default_executor()

    def _note_own_thread(self) -> None:
        self._own_threads.add(threading.current_thread())

    def _release_from_thread(self, _work: Future[Any]) -> None:
        # The loop may be closed already when an abandoned call ends.
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._held -= 1

    def _shuffle(self) -> None:
        """Shuffle the ready tasks among their places."""
        if self._random is None:
            return
        ready = self._ready  # type: ignore[attr-defined]
        if len(ready) < 2:
            return
        # A list first: other threads may append meanwhile.
        places = [place for place, handle in enumerate(list(ready)) if _is_task_step(handle)]
        steps = [ready[place] for place in places]
        self._random.shuffle(steps)
        for place, step in zip(places, steps, strict=True):
            ready[place] = step

    def _can_be_woken(self, sockets: int) -> bool:
        """Whether anything outside of the loop may still make something ready."""
        # The loop's own wake-up pipe is one of the sockets.
        if self._held or sockets > 1 or getattr(self, "_signal_handlers", None):
            return True
        # A thread of the loop's executor has no call, or the loop would be held.
        idle = {threading.current_thread(), *self._own_threads}
        return any(thread not in idle for thread in threading.enumerate())

    def _deadlock(self) -> VirtualDeadlock:
        waiting = sorted(_where(task) for task in asyncio.all_tasks(self))
        shown = "; ".join(waiting[:8]) + ("; …" if len(waiting) > 8 else "")
        if self._held:
            why = (
                f"a call in a thread (or a `standing_still()` block) took more than {self._patience:g} real seconds; "
                "it is stuck, or waits for virtual time, which does not move until it returns"
            )
        else:
            why = (
                "nothing is ready, no timer is set, and no thread, socket or signal wakes the loop (or none did for "
                f"{self._patience:g} real seconds), so nothing can happen any more"
            )
        return VirtualDeadlock(f"{why}. Waiting: {shown or 'no task'}")


class VirtualClock:
    """The clock of a `VirtualTimeLoop`: a `headgate.clock.Clock` whose wall time a test may step.

    `monotonic()` is the loop's time, so it agrees with `asyncio.sleep`. Clocks of one loop share their boot; each has
    its own wall time.
    """

    def __init__(self, loop: VirtualTimeLoop, *, start: int = START) -> None:
        self._loop = loop
        self._wall = start - loop.microseconds()

    def now(self) -> int:
        return self._wall + self._loop.microseconds()

    def monotonic(self) -> int:
        return self._loop.microseconds()

    def boot_id(self) -> str:
        return self._loop.boot_id

    def call_at(self, when: int, callback: Callable[[], object]) -> Timer:
        return self._loop.call_at(when / SECOND, callback)

    def step_wall(self, seconds: float) -> None:
        """Step the wall time forward, or back if negative, as an operator or a time server does; timers stay."""
        self._wall += microseconds(seconds)


def run_virtual(
    main: Callable[[VirtualClock], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    start: int = START,
    patience: float = PATIENCE,
) -> T:
    """Run `main(clock)` on a new virtual loop to its end, and return what it returns.

    Tasks left over are cancelled, threads are joined and the loop is closed, as `asyncio.run` does. Put an
    `asyncio.timeout` around a wait that may never end; it costs no real time. Without it, background tasks with their
    own timers keep the loop from being a deadlock. `patience`: how many real seconds the loop waits for a thread or a
    socket before it raises VirtualDeadlock.
    """
    loop = VirtualTimeLoop(seed, patience=patience)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(VirtualClock(loop, start=start)))


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, lets the loop's time jump there."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop._shuffle()
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if timeout is None or self._loop._held:
            return self._wait_in_real_time()
        # Both ends are whole microseconds, so rounding their difference is exact.
        self._loop._microseconds += round(timeout * SECOND)
        return events

    def _wait_in_real_time(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for what happens outside of the loop. Raises VirtualDeadlock if nothing can, or nothing does in time."""
        for _ in range(math.ceil(self._loop._patience / LOOK_EVERY)):
            can_be_woken = self._loop._can_be_woken(len(self.get_map()))
            # A thread may have woken the loop and ended since the last check.
            events = super().select(LOOK_EVERY if can_be_woken else 0)
            # The handler of a signal may have made something ready.
            if events or self._loop._ready:  # type: ignore[attr-defined]
                return events
            if not can_be_woken:
                break
        raise self._loop._deadlock()


class _TimerInstant(float):
    """The instant of a timer; timers of the same microsecond are ordered by `turn`."""

    __slots__ = ("turn",)

    def __new__(cls, instant: int, turn: float) -> _TimerInstant:
        return super().__new__(cls, instant / SECOND)

    def __init__(self, instant: int, turn: float) -> None:
        self.turn = turn

    def __lt__(self, other: float) -> bool:
        if isinstance(other, _TimerInstant) and self == other:
            return self.turn < other.turn
        return super().__lt__(other)


def _not_before(when: float) -> int:
    """Return the first whole microsecond that is not before `when`."""
    exact = when * SECOND
    nearest = round(exact)
    # `when` is often a sum of floats that means a whole microsecond and misses it by rounding.
    return nearest if abs(exact - nearest) <= 4 * math.ulp(exact) else math.ceil(exact)


def _is_task_step(handle: asyncio.Handle) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # type: ignore[attr-defined]


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()} in {getattr(task.get_coro(), '__qualname__', 'a coroutine')}{place}"
