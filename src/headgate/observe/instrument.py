"""Instruments: what takes metrics or traces of an app. `app.instrument(…)` attaches one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.clock import Clock
from headgate.jobs.event import Event
from headgate.storage.store import Store
from headgate.tasks.registry import Registry
from headgate.tasks.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Observed:
    """What an app passes to an instrument.

    `tap` registers functions that are called at once with each event of their kind, on the app's event loop. `trace_by`
    sets the app's tracing. `events_lost` returns how many events slow subscribers have lost. `loop` returns the event
    loop of the app, if it is open.
    """

    clock: Clock
    storage: Store
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
