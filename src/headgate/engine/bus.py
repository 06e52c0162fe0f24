"""The event bus. A slow subscriber loses events, which are counted; it never slows a job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context, ContextVar
from typing import Any

from headgate.clock import SECOND, Clock, within
from headgate.errors import HeadgateError
from headgate.jobs.event import Event, StorageFailed, StorageUsed
from headgate.jobs.job import summarize_error

Callback = Callable[[Event], Awaitable[None] | None]
Tap = Callable[[Any], None]

ROOM = 10_000
"""How many events wait for a subscriber; it loses further ones."""

INSIDE: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("headgate_inside", default=None)
"""The event loop on which a subscriber, or a job of a test, waits for the code that reads this."""

logger = logging.getLogger("headgate.events")


class Subscription:
    """One subscriber and its queue of at most `ROOM` events, delivered in order. `lost` counts the dropped events."""

    def __init__(self, callback: Callback, kinds: tuple[type[Event], ...]) -> None:
        self.lost = 0
        self.kinds = kinds
        self.callback = callback
        self._waiting: deque[Event] = deque()
        self._delivering: asyncio.Task[None] | None = None
        self._is_abandoned = False

    def put(self, event: Event) -> None:
        if len(self._waiting) >= ROOM:
            self.lost += 1
            return
        self._waiting.append(event)
        # A loop may run a task to its end before it returns it (`asyncio.eager_task_factory`).
        if self._delivering is None or self._delivering.done():
            # Subscribers run outside the job, and the transaction, whose event happens to be the first that waits.
            self._delivering = asyncio.get_running_loop().create_task(
                self._deliver(), name="headgate-subscriber", context=Context()
            )

    @property
    def delivery(self) -> asyncio.Task[None] | None:
        """What delivers the queued events on this event loop; None if all are delivered."""
        running = self._delivering
        is_here = running is not None and not running.done() and running.get_loop() is asyncio.get_running_loop()
        return running if is_here else None

    def abandon(self) -> None:
        """Cancel the delivery and drop the queued events."""
        if self._delivering is not None and not self._delivering.done():
            lost = len(self._waiting) + 1
            logger.warning("a subscriber did not finish when the app was closed; events lost: %d", lost)
            self.lost += lost
            self._waiting.clear()
            self._is_abandoned = True
            self._delivering.cancel()

    async def _deliver(self) -> None:
        INSIDE.set(asyncio.get_running_loop())
        try:
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    answer = self.callback(event)
                    if answer is not None:
                        await answer
                except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
                    if self._is_abandoned and isinstance(error, asyncio.CancelledError):
                        raise
                    # SystemExit would end the program, and something that the subscriber awaited was cancelled.
                    logger.exception("a subscriber failed on %s", type(event).__name__)
        finally:
            self._is_abandoned = False


class EventBus:
    """Delivers events to subscribers, each at its own pace."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        # By those that have been unsubscribed since.
        self._lost = 0
        self._taps: dict[type[Event], tuple[Tap, ...]] = {}
        # The taps and subscribers of each kind, cached because they are needed for every job.
        self._routes: dict[type[Event], tuple[tuple[Tap, ...], tuple[Subscription, ...]]] = {}

    def subscribe(self, callback: Callback, *kinds: type[Event]) -> Callable[[], None]:
        """Call `callback` with each event of these kinds (default: all); return the function that unsubscribes it."""
        subscription = Subscription(callback, kinds or (Event,))
        self._subscriptions.append(subscription)
        self._routes.clear()

        def unsubscribe() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._lost += subscription.lost
                self._routes.clear()

        return unsubscribe

    def tap(self, taps: Mapping[type[Event], Tap]) -> None:
        """Call these inside `publish` with each event of exactly their kind; no event is lost.

        For counters that take about a microsecond. What one raises is logged.
        """
        for kind, tap in taps.items():
            self._taps[kind] = (*self._taps.get(kind, ()), tap)
        self._routes.clear()

    def has_listener(self, kind: type[Event]) -> bool:
        """Return whether a tap or subscriber takes events of this kind; if not, callers need not create them."""
        taps, subscriptions = self._routes.get(kind) or self._route(kind)
        return bool(taps or subscriptions)

    def has_no_listener(self, *kinds: type[Event]) -> bool:
        """Whether nothing takes events of these kinds; False if `has_listener` was not asked. Any thread may ask."""
        return all(self._routes.get(kind) == ((), ()) for kind in kinds)

    def publish(self, event: Event) -> None:
        """Queue the event for its subscribers and return immediately."""
        kind = type(event)
        taps, subscriptions = self._routes.get(kind) or self._route(kind)
        for tap in taps:
            try:
                tap(event)
            except Exception:
                logger.exception("an event counter failed on %s", kind.__name__)
        for subscription in subscriptions:
            subscription.put(event)

    def _route(self, kind: type[Event]) -> tuple[tuple[Tap, ...], tuple[Subscription, ...]]:
        subscriptions = tuple(each for each in self._subscriptions if issubclass(kind, each.kinds))
        return self._routes.setdefault(kind, (self._taps.get(kind, ()), subscriptions))

    async def drain(self) -> None:
        """Return when every subscriber has received all its events, also those of what subscribers do."""
        while running := [task for each in self._subscriptions if (task := each.delivery) is not None]:
            await asyncio.wait(running)

    async def close(self, clock: Clock, seconds: float) -> None:
        """Deliver the queued events for at most `seconds`; then drop the rest and cancel the subscribers."""
        for timeout in (seconds, 1.0):
            with contextlib.suppress(TimeoutError):
                await within(clock, timeout, self.drain())
                return
            for subscription in self._subscriptions:
                subscription.abandon()

    @property
    def lost(self) -> int:
        """How many events slow subscribers have lost."""
        return self._lost + sum(subscription.lost for subscription in self._subscriptions)


def publish_use(bus: EventBus, clock: Clock, verb: str, asked_at: int, jobs: int) -> None:
    """Publish how long a storage call took since `asked_at` (monotonic), if StorageUsed has a listener."""
    if bus.has_listener(StorageUsed):
        seconds = (clock.monotonic() - asked_at) / SECOND
        bus.publish(StorageUsed(at=clock.now(), verb=verb, seconds=seconds, jobs=jobs))


def publish_storage_failure(bus: EventBus, clock: Clock, doing: str, error: Exception) -> None:
    """Publish that the store failed during `doing`."""
    text = str(error) if isinstance(error, HeadgateError) else summarize_error(error)
    bus.publish(StorageFailed(at=clock.now(), doing=doing, error=text))
