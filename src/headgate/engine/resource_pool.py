"""The resource pool: opens resources for attempts and keeps those of the node open."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

from headgate.clock import Clock, wait_until_done
from headgate.engine.bus import EventBus
from headgate.jobs.event import ResourceFailed
from headgate.jobs.job import summarize_error
from headgate.tasks.resource import Resource, Scope


class ResourcePool:
    """Opens the node's resources when they are first needed, and closes them in reverse order."""

    def __init__(self, clock: Clock, bus: EventBus) -> None:
        self._clock = clock
        self._bus = bus
        self._pooled: dict[Resource, _PooledResource] = {}
        self._opened: list[_PooledResource] = []

    async def open_for_attempt(self, needs: Mapping[str, Resource], stack: ResourceStack) -> dict[str, Any]:
        """Open the resources that an attempt needs and return them by name; `stack` closes those of the attempt."""
        opened: dict[Resource, Any] = {}
        return {name: await self._open(resource, stack, opened) for name, resource in needs.items()}

    async def _open(self, resource: Resource, stack: ResourceStack, opened: dict[Resource, Any]) -> Any:
        if resource.scope is Scope.NODE:
            return await self._open_for_node(resource)
        if resource not in opened:
            needs = {name: await self._open(need, stack, opened) for name, need in resource.needs.items()}
            opened[resource] = await stack.open(resource.open(**needs))
        return opened[resource]

    async def _open_for_node(self, resource: Resource) -> Any:
        pooled = self._pooled.get(resource)
        if pooled is None:
            pooled = self._pooled[resource] = _PooledResource(resource)
            pooled.task = asyncio.get_running_loop().create_task(
                # Not in the context of the first job that needs it: it stays open for the others.
                self._hold_open(pooled),
                name=f"headgate-resource-{resource.name}",
                context=contextvars.Context(),
            )
        try:
            # Shielded: the cancellation of one waiting attempt does not affect the others.
            return await asyncio.shield(pooled.value)
        except asyncio.CancelledError as error:
            if not pooled.value.done():
                error.add_note(f"resource {resource.name!r} was still opening")
            raise

    async def _hold_open(self, pooled: _PooledResource) -> None:
        """Open and close the resource in one task of its own, as cancel scopes inside it require."""
        resource = pooled.resource
        try:
            async with ResourceStack() as stack:
                needs = {name: await self._open_for_node(need) for name, need in resource.needs.items()}
                value = await stack.open(resource.open(**needs))
                self._opened.append(pooled)
                pooled.value.set_result(value)
                try:
                    await pooled.closing.wait()
                finally:
                    if not pooled.closing.is_set():
                        self._forget(pooled)
        except BaseException as error:
            if pooled.value.done():
                self._bus.publish(
                    ResourceFailed(at=self._clock.now(), resource=resource.name, error=summarize_error(error))
                )
            else:
                # The next attempt that needs it tries again.
                del self._pooled[resource]
                pooled.value.set_exception(error)
                # No attempt may be left to read it.
                pooled.value.exception()

    def _forget(self, pooled: _PooledResource) -> None:
        """Forget a resource that has ended on its own, and those that use it; the next attempt opens them anew."""
        if self._pooled.get(pooled.resource) is pooled:
            del self._pooled[pooled.resource]
            for other in list(self._pooled.values()):
                if pooled.resource in other.resource.needs.values() and other.value.done():
                    # It stays open, until the node ends, for the attempts that use it.
                    self._forget(other)
        if pooled.task is asyncio.current_task():
            self._opened.remove(pooled)

    async def close(self, seconds: float) -> None:
        """Close all resources, the last opened first; each is cancelled after `seconds`."""
        for pooled in [*self._pooled.values()]:
            if not pooled.value.done():
                pooled.task.cancel()
                # Until then it may use others. One that ignores this is open now, and is closed with them.
                await wait_until_done(self._clock, pooled.task, seconds)
        for pooled in list(reversed(self._opened)):
            pooled.closing.set()
            if not await wait_until_done(self._clock, pooled.task, seconds):
                pooled.task.cancel()
                await wait_until_done(self._clock, pooled.task, 1.0)


class _PooledResource:
    """A resource that is open, or being opened, for the whole node."""

    __slots__ = ("closing", "resource", "task", "value")

    task: asyncio.Task[None]

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()


class ResourceStack(AsyncExitStack):
    """A stack of open resources, closed in reverse order. `close_error` is the first error that closing one raised.

    A resource that is closed later may have suppressed that error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.close_error: BaseException | None = None

    async def open(self, manager: AbstractAsyncContextManager[Any] | AbstractContextManager[Any]) -> Any:
        """Enter a context manager and return its value; it is closed with the others."""
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
                if self.close_error is None and own is not error:
                    self.close_error = own
                raise

        self.push_async_exit(leave)
        return value
