"""The event bus: who subscribes is told. A slow subscriber loses events, counted, and never slows a job."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import HeadgateError
from headgate.jobs.event import Event, StorageTroubled, StorageUsed

Callback = Callable[[Event], Awaitable[None] | None]
Tap = Callable[[Any], None]

logger = logging.getLogger("headgate.events")


class Subscription:
    """One subscriber: its events in order, at most `room` of them waiting. `lost` counts those that found no room."""

    def __init__(self, callback: Callback, kinds: tuple[type[Event], ...], room: int) -> None:
        self.lost = 0
        self._callback = callback
        self._kinds = kinds
        self._room = room
        self._waiting: deque[Event] = deque()
        self._delivering: asyncio.Task[None] | None = None
        self._is_given_up = False

    def wants(self, kind: type[Event]) -> bool:
        return issubclass(kind, self._kinds)

    def put(self, event: Event) -> None:
        if len(self._waiting) >= self._room:
            self.lost += 1
            return
        self._waiting.append(event)
        if self._delivering is None:
            self._delivering = asyncio.get_running_loop().create_task(self._deliver(), name="headgate-subscriber")

    async def drain(self) -> None:
        """Return when all events that wait have been delivered."""
        while self._delivering is not None:
            await asyncio.wait([self._delivering])

    def give_up(self) -> None:
        """What it was not told yet is lost."""
        if self._delivering is not None:
            lost = len(self._waiting) + 1
            logger.warning("a subscriber did not end when the app was closed: it lost %d events", lost)
            self.lost += lost
            self._waiting.clear()
            self._is_given_up = True
            self._delivering.cancel()

    async def _deliver(self) -> None:
        try:
            while self._waiting:
                event = self._waiting.popleft()
                try:
                    answer = self._callback(event)
                    if answer is not None:
                        await answer
                except (Exception, SystemExit, KeyboardInterrupt):
                    # Out of a task of its own, the last two would end the program.
                    logger.exception("a subscriber failed on %s", type(event).__name__)
                except asyncio.CancelledError:
                    if self._is_given_up:
                        raise
                    # Its own, of something that it waited for.
                    logger.exception("a subscriber failed on %s", type(event).__name__)
        finally:
            self._delivering = None
            self._is_given_up = False


class EventBus:
    """Hands events to subscribers, each at its own pace."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._taps: dict[type[Event], tuple[Tap, ...]] = {}
        # Who is told of a kind; found out once, as it is asked for every job.
        self._routes: dict[type[Event], tuple[tuple[Tap, ...], tuple[Subscription, ...]]] = {}

    def subscribe(self, callback: Callback, *kinds: type[Event], room: int = 10_000) -> Callable[[], None]:
        """Call `callback` with each event of these kinds (default: all). Returns the function that ends it."""
        subscription = Subscription(callback, kinds or (Event,), room)
        self._subscriptions.append(subscription)
        self._routes.clear()

        def unsubscribe() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                self._routes.clear()

        return unsubscribe

    def tap(self, taps: Mapping[type[Event], Tap]) -> None:
        """Call these at once, inside `publish`, with each event of exactly their kind: none is ever lost.

        For what counts and is done in a microsecond. What one raises is logged.
        """
        for kind, tap in taps.items():
            self._taps[kind] = (*self._taps.get(kind, ()), tap)
        self._routes.clear()

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens; events that nobody wants are not even made."""
        taps, subscriptions = self._routes.get(kind) or self._route(kind)
        return bool(taps or subscriptions)

    def publish(self, event: Event) -> None:
        """Tell the subscribers; returns at once."""
        kind = type(event)
        taps, subscriptions = self._routes.get(kind) or self._route(kind)
        for tap in taps:
            try:
                tap(event)
            except Exception:
                logger.exception("what counts events failed on %s", kind.__name__)
        for subscription in subscriptions:
            subscription.put(event)

    def _route(self, kind: type[Event]) -> tuple[tuple[Tap, ...], tuple[Subscription, ...]]:
        wanting = tuple(subscription for subscription in self._subscriptions if subscription.wants(kind))
        self._routes[kind] = self._taps.get(kind, ()), wanting
        return self._routes[kind]

    async def drain(self) -> None:
        """Return when every subscriber has been told everything."""
        for subscription in list(self._subscriptions):
            await subscription.drain()

    async def close(self, clock: Clock, seconds: float) -> None:
        """Tell the subscribers what waits for them, for so long; what is left then is lost, and they are cancelled."""
        for patience in (seconds, 1.0):
            is_told = asyncio.Event()
            draining = asyncio.get_running_loop().create_task(self.drain(), name="headgate-drain")
            draining.add_done_callback(lambda _, is_told=is_told: is_told.set())  # type: ignore[misc]
            try:
                if await wait_for_event(clock, is_told, patience):
                    return
            finally:
                draining.cancel()
            for subscription in self._subscriptions:
                subscription.give_up()

    def statistics(self) -> dict[str, Any]:
        """How many subscribers there are, and how many events were lost by slow ones."""
        return {"subscribers": len(self._subscriptions), "lost": sum(s.lost for s in self._subscriptions)}


def publish_use(bus: EventBus, clock: Clock, verb: str, asked_at: int, jobs: int) -> None:
    """Tell how long a verb of the storage took that was asked at `asked_at` (monotonic), if anybody wants to know."""
    if bus.wants(StorageUsed):
        seconds = (clock.monotonic() - asked_at) / SECOND
        bus.publish(StorageUsed(at=clock.now(), verb=verb, seconds=seconds, jobs=jobs))


def publish_trouble(bus: EventBus, clock: Clock, doing: str, error: HeadgateError) -> None:
    """Publish that the store failed while the node was doing that."""
    bus.publish(StorageTroubled(at=clock.now(), doing=doing, error=str(error)))
