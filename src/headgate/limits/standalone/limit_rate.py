"""limit_rate: an iterable that returns its items no faster than a rate."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable
from typing import TypeVar, overload

from headgate.clock import Clock, Duration
from headgate.limits.standalone.rate_gate import RateGate

T = TypeVar("T")


@overload
def limit_rate(
    iterable: AsyncIterable[T], rate: str | int, per: Duration | None = None, *, clock: Clock | None = None
) -> AsyncGenerator[T, None]: ...


@overload
def limit_rate(
    iterable: Iterable[T], rate: str | int, per: Duration | None = None, *, clock: Clock | None = None
) -> Generator[T, None, None]: ...


def limit_rate(
    iterable: Iterable[T] | AsyncIterable[T],
    rate: str | int,
    per: Duration | None = None,
    *,
    clock: Clock | None = None,
) -> Generator[T, None, None] | AsyncGenerator[T, None]:
    """Return the same items, at most N in any window: `limit_rate(urls, 5, per=1)` or `limit_rate(urls, "5/s")`.

    It paces its consumer, so it does not slow down a consumer that pulls ahead of its work (`executor.map`,
    `asyncio.gather`): put a RateGate inside the call instead. It waits in the thread for a plain iterable, in the task
    for an async one. It takes one item ahead from the source. Raises DeclarationError for an invalid rate.
    """
    gate = RateGate(rate, per=per, clock=clock)
    return _paced_async(iterable, gate) if isinstance(iterable, AsyncIterable) else _paced(iterable, gate)


def _paced(iterable: Iterable[T], gate: RateGate) -> Generator[T, None, None]:
    for item in iterable:
        gate.wait()
        yield item


async def _paced_async(iterable: AsyncIterable[T], gate: RateGate) -> AsyncGenerator[T, None]:
    async for item in iterable:
        await gate.wait_async()
        yield item
