"""The declarer: stores the schedules that the code declares, unless a newer release declares them."""

from __future__ import annotations

import asyncio

from headgate.clock import SECOND
from headgate.engine.declaration import Code, declare, signature, warn_if_too_fast
from headgate.engine.services import Services
from headgate.errors import USER_CODE_ERRORS, StorageUnavailable
from headgate.jobs.event import ScheduleFailed, ScheduleRenamed, ScheduleSuperseded
from headgate.tasks.schedule import DeclaredSchedule

NOTE_EVERY = 60 * SECOND
"""How often a release notes in the store that it is live (microseconds)."""


class Declarer:
    """Stores schedules. Among live releases the newest declaration holds; an older release waits until they end."""

    def __init__(self, services: Services) -> None:
        self._storage = services.storage
        self._registry = services.registry
        self._clock = services.clock
        self._bus = services.bus
        self._noted_at: int | None = None
        self.stored: set[str] = set()
        """Schedules that are stored as this release declares them."""
        self._settled: set[str] = set()
        self._superseded: set[str] = set()
        self.broken: set[str] = set()
        """Schedules that this node cannot run: a custom trigger fails, or a newer version has stored it."""

    @property
    def is_due(self) -> bool:
        """Whether the next note that this release is live is due."""
        return self._noted_at is None or self._clock.monotonic() - self._noted_at >= NOTE_EVERY

    async def declare(self) -> None:
        """Store the schedules that are not stored yet. Raises StorageUnavailable; call it again then."""
        signatures: dict[str, str] = {}
        for declared in self._registry.schedules.values():
            for name in (declared.spec.name, *self._registry.older_names(declared)):
                signatures[_limit_set_key(name)] = self._signature(declared)
        newest = await self._storage.note_limit_sets(signatures) if signatures else {}
        for declared in self._registry.schedules.values():
            name = declared.spec.name
            if _limit_set_key(name) not in newest:
                self.stored.discard(name)
                self._settled.discard(name)
                self._publish_superseded(name)
            elif name not in self._settled and name not in self.broken:
                await self._declare(declared)
        self._noted_at = self._clock.monotonic()

    def mark_broken(self, name: str, error: BaseException) -> None:
        """Publish once that a schedule cannot run on this node, and leave it to other nodes."""
        if name not in self.broken:
            self.broken.add(name)
            self._bus.publish(
                ScheduleFailed(at=self._clock.now(), schedule=name, error=f"{type(error).__name__}: {error}")
            )

    def _signature(self, declared: DeclaredSchedule) -> str:
        try:
            return signature(declared.spec, declared.call, self._registry.codecs)
        except USER_CODE_ERRORS as error:  # including errors of a custom trigger: the other schedules must run
            self.mark_broken(declared.spec.name, error)
            return ""

    async def _declare(self, declared: DeclaredSchedule) -> None:
        spec, call = declared.spec, declared.call
        names = self._registry.older_names(declared)
        # Stored a second time a minute later: an older release that was starting may have overwritten it. If it was
        # removed meanwhile, it stays removed.
        is_second = spec.name in self.stored
        code = Code(
            call.task, names, self._registry.schedules.keys(), declared.aliases is not None, may_begin=not is_second
        )
        try:
            record, was = await declare(self._storage, spec, call, again=False, code=code, codecs=self._registry.codecs)
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
            # This task was not cancelled: the trigger raised the error.
            self.mark_broken(spec.name, error)
            return
        except (Exception, SystemExit) as error:  # including errors of a custom trigger: the others must run
            self.mark_broken(spec.name, error)
            return
        if is_second:
            self._settled.add(spec.name)
        self.stored.add(spec.name)
        self._superseded.discard(spec.name)

    def _publish_superseded(self, name: str) -> None:
        if name not in self._superseded:
            self._superseded.add(name)
            self._bus.publish(ScheduleSuperseded(at=self._clock.now(), schedule=name))


def _limit_set_key(name: str) -> str:
    """Return the key of a schedule among the limit sets; it cannot be a task's, whose name has no space."""
    return f"schedule {name}"
