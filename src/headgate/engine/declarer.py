"""Declarer: stores the schedules that the code declares, and leaves those alone that a newer release declares."""

from __future__ import annotations

import asyncio

from headgate.clock import SECOND, Clock
from headgate.engine.bus import EventBus
from headgate.engine.declaration import Code, declare, signature, warn_if_too_fast
from headgate.engine.described import OWN_ERRORS
from headgate.errors import StorageUnavailable
from headgate.jobs.event import ScheduleRenamed, ScheduleSuperseded, ScheduleTroubled
from headgate.storage.store import Store
from headgate.tasks.registry import Registry
from headgate.tasks.schedule import DeclaredSchedule

EVERY = 60 * SECOND
"""How often a release says that it lives (microseconds)."""


class Declarer:
    """Among the releases that live, the newest declaration of a schedule holds; an older one waits until those end."""

    def __init__(self, storage: Store, registry: Registry, *, clock: Clock, bus: EventBus) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._bus = bus
        self._noted_at: int | None = None
        self.stored: set[str] = set()
        """Schedules that are stored as this release declares them."""
        self._settled: set[str] = set()
        self._superseded: set[str] = set()
        self.broken: set[str] = set()
        """Schedules that this node cannot run: a trigger of somebody's own fails, or a newer version has stored it."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to say again that this release lives."""
        return self._noted_at is None or self._clock.monotonic() - self._noted_at >= EVERY

    async def declare(self) -> None:
        """Store what is not stored yet. Raises StorageUnavailable, and is to be called again then."""
        signatures: dict[str, str] = {}
        for declared in self._registry.schedules.values():
            for name in (declared.spec.name, *self._registry.older_names(declared)):
                signatures[_noted_as(name)] = self._signature(declared)
        newest = await self._storage.note_gates(signatures) if signatures else {}
        for declared in self._registry.schedules.values():
            name = declared.spec.name
            if _noted_as(name) not in newest:
                self.stored.discard(name)
                self._settled.discard(name)
                self._tell_superseded(name)
            elif name not in self._settled and name not in self.broken:
                await self._declare(declared)
        self._noted_at = self._clock.monotonic()

    def give_up(self, name: str, error: BaseException) -> None:
        """Tell once of a schedule that cannot be run here, and leave it to others."""
        if name not in self.broken:
            self.broken.add(name)
            self._bus.publish(
                ScheduleTroubled(at=self._clock.now(), schedule=name, error=f"{type(error).__name__}: {error}")
            )

    def _signature(self, declared: DeclaredSchedule) -> str:
        try:
            return signature(declared.spec, declared.call)
        except OWN_ERRORS as error:  # with whatever a trigger of the user's own raises: the others are to run
            self.give_up(declared.spec.name, error)
            return ""

    async def _declare(self, declared: DeclaredSchedule) -> None:
        spec, call = declared.spec, declared.call
        names = self._registry.older_names(declared)
        # Once more a minute later: an older release that was just starting may have stored its own after this one. What
        # somebody has removed meanwhile stays removed.
        is_second = spec.name in self.stored
        code = Code(
            call.task, names, self._registry.schedules.keys(), declared.aliases is not None, may_begin=not is_second
        )
        try:
            record, was = await declare(self._storage, spec, call, again=False, code=code)
            if was is not None:
                self._bus.publish(ScheduleRenamed(at=self._clock.now(), schedule=spec.name, was=was))
            if record is not None and not is_second:
                warn_if_too_fast(record, spec.trigger, self._registry, self._bus, self._clock)
        except StorageUnavailable:
            raise
        except asyncio.CancelledError as error:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            # Nobody cancels this task: it is the trigger's own.
            self.give_up(spec.name, error)
            return
        except (Exception, SystemExit) as error:  # with whatever a trigger of the user's own raises: the others run
            self.give_up(spec.name, error)
            return
        if is_second:
            self._settled.add(spec.name)
        self.stored.add(spec.name)
        self._superseded.discard(spec.name)

    def _tell_superseded(self, name: str) -> None:
        if name not in self._superseded:
            self._superseded.add(name)
            self._bus.publish(ScheduleSuperseded(at=self._clock.now(), schedule=name))


def _noted_as(name: str) -> str:
    """Its key among the gates: no task has a name with a space."""
    return f"schedule {name}"
