"""Instruments: what takes metrics or traces of an app, and the labels of metrics. `app.instrument(…)` attaches one.

Labels are names of tasks, queues and limits, limited so that there are never many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.clock import Clock
from headgate.jobs.event import Event
from headgate.storage.store import Store
from headgate.tasks.registry import Registry
from headgate.tasks.tracing import Tracing

OTHER = "(other)"
"""Replaces every name in the store that this program does not declare."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Access to an app for an instrument.

    `store` returns the store, which is another one in a test. `tap` registers functions that are called at once with
    each event of their kind, on the app's event loop. `trace_by` sets the app's tracing. `events_lost` returns how many
    events slow subscribers have lost. `loop` returns the event loop of the app, if it is open.
    """

    clock: Clock
    store: Callable[[], Store]
    registry: Registry
    tap: Callable[[Mapping[type[Event], Callable[[Any], None]]], None]
    trace_by: Callable[[Tracing], None]
    events_lost: Callable[[], int]
    loop: Callable[[], asyncio.AbstractEventLoop | None]
    version: str


class Instrument(Protocol):
    """Collects metrics or traces of one app."""

    def attach(self, observed: Observed) -> None:
        """Called once, before the app is opened."""
        ...


class Labels:
    """The names that this program declares; any other is `(other)`. Keys of limits are never labels."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def queues(self) -> Collection[str]:
        """The declared queues."""
        return self._registry.queues.keys()

    @property
    def limits(self) -> Collection[str]:
        """The declared limits."""
        return self._registry.limits.keys()

    def task(self, name: str) -> str:
        """Return the task that runs jobs stored under this name; an alias counts as its current task."""
        task = self._registry.find(name)
        return OTHER if task is None else task.name

    def queue(self, name: str) -> str:
        return name if name in self._registry.queues else OTHER

    def limit(self, name: str) -> str:
        return name if name in self._registry.limits else OTHER
