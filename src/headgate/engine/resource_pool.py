"""The resource room: what is open on a node for its handlers, and how attempts get what they need."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from headgate.clock import Clock, wait_for_event
from headgate.engine.bus import EventBus
from headgate.engine.described import said
from headgate.jobs.event import ResourceTroubled
from headgate.tasks.resource import Resource, Scope


class ResourcePool:
    """Opens the node's resources when they are first needed, and closes them in reverse order."""

    def __init__(self, clock: Clock, bus: EventBus) -> None:
        self._clock = clock
        self._bus = bus
        self._kept: dict[Resource, _PooledResource] = {}
        self._opened: list[_PooledResource] = []

    async def give(self, needs: Mapping[str, Resource], stack: ResourceStack) -> dict[str, Any]:
        """What an attempt needs, by name; what is only for this attempt is closed by `stack`."""
        opened: dict[Resource, Any] = {}
        return {name: await self._give(resource, stack, opened) for name, resource in needs.items()}

    async def _give(self, resource: Resource, stack: ResourceStack, opened: dict[Resource, Any]) -> Any:
        if resource.scope is Scope.NODE:
            return await self._keep(resource)
        if resource not in opened:
            needs = {name: await self._give(need, stack, opened) for name, need in resource.needs.items()}
            opened[resource] = await stack.open(resource.open(**needs))
        return opened[resource]

    async def _keep(self, resource: Resource) -> Any:
        kept = self._kept.get(resource)
        if kept is None:
            kept = self._kept[resource] = _PooledResource(resource)
            kept.keeping = asyncio.get_running_loop().create_task(
                # Not in the context of the job that happens to be the first: it stays open for the others.
                self._hold_open(kept),
                name=f"headgate-resource-{resource.name}",
                context=contextvars.Context(),
            )
        # Shielded: one attempt that is cancelled while it waits takes nothing from the others.
        return await asyncio.shield(kept.value)

    async def _hold_open(self, kept: _PooledResource) -> None:
        """Opened and closed in one task of its own, as cancel scopes inside of it demand."""
        resource = kept.resource
        try:
            async with ResourceStack() as stack:
                needs = {name: await self._keep(need) for name, need in resource.needs.items()}
                value = await stack.open(resource.open(**needs))
                self._opened.append(kept)
                kept.value.set_result(value)
                try:
                    await kept.closing.wait()
                finally:
                    if not kept.closing.is_set():
                        self._forget(kept)
        except BaseException as error:
            if kept.value.done():
                self._bus.publish(ResourceTroubled(at=self._clock.now(), resource=resource.name, error=said(error)))
            else:
                # The next attempt that needs it tries again.
                del self._kept[resource]
                kept.value.set_exception(error)
                # Nobody may be left to see it.
                kept.value.exception()

    def _forget(self, kept: _PooledResource) -> None:
        """It has ended on its own: the next attempt that needs it opens it anew, and what was opened with it."""
        if self._kept.get(kept.resource) is kept:
            del self._kept[kept.resource]
            for other in list(self._kept.values()):
                if kept.resource in other.resource.needs.values() and other.value.done():
                    # It stays open for those that have it, until the node ends.
                    self._forget(other)
        if kept.keeping is asyncio.current_task():
            self._opened.remove(kept)

    async def close(self, seconds: float) -> None:
        """Close all of them, the last opened first; each gets so long before it is cancelled."""
        for kept in [*self._kept.values()]:
            if not kept.value.done() and kept.keeping is not None:
                kept.keeping.cancel()
        for kept in list(reversed(self._opened)):
            assert kept.keeping is not None
            kept.closing.set()
            ended = asyncio.Event()
            kept.keeping.add_done_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
            if not await wait_for_event(self._clock, ended, seconds):
                kept.keeping.cancel()
                await wait_for_event(self._clock, ended, 1.0)
        self._opened.clear()
        self._kept.clear()

    def statistics(self) -> list[str]:
        """The names of those that are open."""
        return [kept.resource.name for kept in self._opened]


class _PooledResource:
    """A resource that is open for the whole node, or about to be."""

    __slots__ = ("closing", "keeping", "resource", "value")

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()
        self.keeping: asyncio.Task[None] | None = None


class ResourceStack(AsyncExitStack):
    """Open resources, closed in reverse order. `trouble` is the first error that closing one of them made.

    Another one, closed after it, may have swallowed that error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trouble: BaseException | None = None

    async def open(self, manager: AbstractAsyncContextManager[Any] | AbstractContextManager[Any]) -> Any:
        """Enter one that is closed with the others."""
        if isinstance(manager, AbstractAsyncContextManager):
            value = await manager.__aenter__()
        else:
            value = manager.__enter__()

        async def leave(kind: Any, error: BaseException | None, traceback: Any) -> bool | None:
            try:
                if isinstance(manager, AbstractAsyncContextManager):
                    return await manager.__aexit__(kind, error, traceback)
                return manager.__exit__(kind, error, traceback)
            except BaseException as own:
                if self.trouble is None and own is not error:
                    self.trouble = own
                raise

        self.push_async_exit(leave)
        return value
